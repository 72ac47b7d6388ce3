"""Every SQL statement, a file an aggregate."""
