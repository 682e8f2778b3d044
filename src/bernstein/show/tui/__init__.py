"""The thread of a run in a terminal."""
