"""Recipes without PyTorch: the parameters of each, and what it asks of data and of a device."""
