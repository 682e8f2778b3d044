"""Who does a step."""
