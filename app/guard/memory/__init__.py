"""The memory plan: what a run takes of its device and its host, by formulas or as measured."""
