"""The journal: append-only, hash-chained, and checked by anyone who has the file."""
