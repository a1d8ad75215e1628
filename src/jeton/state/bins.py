"""Bins: the groups of keys that workers own, and by which state moves between them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from jeton.core.errors import GraphError

BINS: Final = 4096
"""Keys hash to this many bins unless a flow says otherwise; a worker owns bins, and state moves
between workers by bins."""
FEWEST_BINS: Final = 256
MOST_BINS: Final = 1 << 16
"""The number of bins that 16 bits can number. State is stored with such numbers; with fewer bins,
the bin is that number modulo their number."""


def bin_owners(workers: int, bins: int = BINS) -> npt.NDArray[np.uint16]:
    """The worker that owns each bin.

    >>> bin_owners(2)[:4]
    array([0, 1, 0, 1], dtype=uint16)
    """
    return (np.arange(bins) % workers).astype(np.uint16)


def require_bins(bins: int, workers: int = 1) -> int:
    """Refuse a number of bins that cannot be, or that is too small for the number of workers.

    >>> require_bins(4096, workers=5000)
    Traceback (most recent call last):
    jeton.core.errors.GraphError: 5000 workers are more than the 4096 bins that keys hash to...
    """
    given: object = bins
    if not isinstance(given, int) or not FEWEST_BINS <= bins <= MOST_BINS or bins & (bins - 1):
        raise GraphError(f"bins={bins!r} is not a power of two from {FEWEST_BINS} to {MOST_BINS:,}")
    if workers > bins:
        raise GraphError(
            f"{workers} workers are more than the {bins} bins that keys hash to: use fewer, or "
            f"Flow(…, bins={1 << (workers - 1).bit_length()}). A query that goes on from a "
            "checkpoint has the number of bins with which it was first started"
        )
    return bins
