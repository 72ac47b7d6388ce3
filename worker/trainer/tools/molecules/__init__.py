"""Molecules to packed graphs, by RDKit."""
