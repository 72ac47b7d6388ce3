"""One file a migration. Expand, then contract; a released one is never edited."""
