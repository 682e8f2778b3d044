"""The vocabulary of a journal: typed records, no I/O."""
