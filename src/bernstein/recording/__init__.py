"""Answers kept for replay: keys, rows, queues, and what a miss says."""
