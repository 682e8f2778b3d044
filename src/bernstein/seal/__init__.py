"""What binds a run's files together."""
