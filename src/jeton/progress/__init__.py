"""Which times may still arrive where: the graph, reachability, and the broadcast protocol.

Nothing here does I/O, reads a clock or starts a thread.
"""
