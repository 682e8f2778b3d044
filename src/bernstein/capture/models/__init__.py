"""Models that can be asked: embedded, scripted, or a provider's."""
