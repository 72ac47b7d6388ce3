"""Weights for use elsewhere, checked and measured on their data; and weights from elsewhere."""
