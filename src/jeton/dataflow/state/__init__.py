"""State of operators: containers divided into bins by key, for snapshots and restores."""
