"""Other people's recordings."""
