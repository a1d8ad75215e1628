"""Execution: workers, scheduling, channels, and the in-process host."""
