"""Runs and their attempts: submitted, claimed, leased, moved, searched, removed."""
