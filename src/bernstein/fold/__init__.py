"""Pure functions of a journal's events."""
