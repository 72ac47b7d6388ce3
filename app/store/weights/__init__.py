"""Weights made for use elsewhere, and weights from elsewhere."""
