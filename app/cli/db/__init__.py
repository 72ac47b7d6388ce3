"""`stoker db`: the database, its backups, and what is pruned."""
