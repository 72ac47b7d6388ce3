"""The recipe `tabular`: a small network over rows of a table."""
