"""Runs: when to merge sorted pieces, so that there are few and none is moved too often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_MOST: Final = 12


def merge_from(sizes: Sequence[int]) -> int | None:
    """From which run on all should become one, or ``None`` if there are few enough.

    A run is merged with those after it once they are half its size together. So there are never
    more than a few runs beyond the logarithm of what is in them, and a record moves no more often
    than that either.

    >>> merge_from([1] * 12), merge_from([1] * 13), merge_from([100] + [1] * 12)
    (None, 0, 1)
    """
    if len(sizes) <= _MOST:
        return None
    start = len(sizes) - 2
    together = sum(sizes[start:])
    while start > 0 and sizes[start - 1] <= 2 * together:
        start -= 1
        together += sizes[start]
    return start
