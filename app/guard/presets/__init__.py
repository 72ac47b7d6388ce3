"""Layers of spec defaults for classes of hardware, and the resolver that joins them."""
