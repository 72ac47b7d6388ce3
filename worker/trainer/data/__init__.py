"""The data plane: sources, order, residency."""
