"""Arithmetic of a spec that guard, trainer, store and agent share: pure functions of numbers."""
