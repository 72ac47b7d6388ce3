"""How a table of rows is written: separators, numbers, times."""
