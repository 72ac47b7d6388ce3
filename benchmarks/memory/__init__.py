"""Plans of memory beside what training takes."""
