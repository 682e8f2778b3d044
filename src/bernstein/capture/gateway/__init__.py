"""A loopback server between an agent and its provider: it records, or answers what is recorded."""
