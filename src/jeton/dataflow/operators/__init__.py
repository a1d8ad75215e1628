"""Operators, one file each. Each file defines a mix-in whose methods appear on `Stream`."""
