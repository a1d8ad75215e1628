"""The algebra under everything: times, summaries, antichains, change batches and tokens.

Nothing here does I/O, reads a clock or starts a thread.
"""
