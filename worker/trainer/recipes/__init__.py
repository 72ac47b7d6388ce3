"""Recipes: model, task, loss and metrics of each workload."""
