"""Weights of runs for use elsewhere, and of others for runs."""
