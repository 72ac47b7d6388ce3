"""Checkpoints: their format, and the way from a live training to the disk and back."""
