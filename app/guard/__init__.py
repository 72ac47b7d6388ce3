"""The guard: refuses specs that would be wrong or slow, with the reason and a fix."""
