"""Alembic migrations: the schema and its history."""
