"""Runs shown over HTTP: read from their files, and from nothing else."""
