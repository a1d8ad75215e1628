"""Versions of rows of one key with NaN among the values that they are ordered by."""

from __future__ import annotations

from math import nan
from typing import Final

NAN_LEVELS: Final[list[tuple[list[float | None], int]]] = [
    ([nan], 10),
    ([1.0, nan, None], 20),
    ([nan], 20),
    ([0.5], 20),
    ([nan, 2.0, nan], 51),
    ([2.0], 60),
]
"""For each version the values of its rows, and the number of the row that is the newest then.

The rows of version 2 have the numbers 20, 21, 22.
"""
