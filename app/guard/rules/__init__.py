"""The rules, a file a topic."""
