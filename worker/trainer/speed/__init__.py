"""Compiled steps and captured CUDA graphs, and the proof that they compute the same."""
