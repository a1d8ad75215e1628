"""Containers in which operators keep state, and their snapshots."""
