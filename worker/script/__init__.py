"""Runs a user's own command as an attempt, and says what a trainer would say; without torch."""
