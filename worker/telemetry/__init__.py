"""What the worker knows of its host and GPUs, and its metrics port."""
