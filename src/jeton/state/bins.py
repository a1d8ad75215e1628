"""Bins: the groups of keys that workers own, and by which state moves between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jeton.core.checks import described
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


@dataclass(frozen=True, eq=False)
class Placement:
    """The worker that owns each bin: where the state of its keys is, and where their records go.

    >>> even = Placement.even(workers=2, bins=256)
    >>> moved = even.moved({0: 1, 2: 1})
    >>> moved.owners[:4], moved.moves_from(even)
    (array([1, 1, 1, 1], dtype=uint16), {0: 1, 2: 1})
    >>> moved.is_even, moved.on(3).is_even
    (False, True)
    """

    owners: npt.NDArray[np.uint16]
    workers: int

    @staticmethod
    def even(workers: int, bins: int = BINS) -> Placement:
        """Each worker owns as many bins as the others, give or take one."""
        return Placement(bin_owners(workers, bins), workers)

    @staticmethod
    def from_json(owners: Sequence[int], workers: int) -> Placement:
        """A placement from the owners of its bins."""
        return Placement(np.array(owners, dtype=np.uint16), workers)

    @property
    def bins(self) -> int:
        """The number of bins."""
        return len(self.owners)

    @property
    def is_even(self) -> bool:
        """Whether no bin has been moved."""
        return bool((self.owners == bin_owners(self.workers, self.bins)).all())

    def bins_of(self, worker: int) -> list[int]:
        """The bins of one worker."""
        bins: list[int] = np.flatnonzero(self.owners == worker).tolist()
        return bins

    def counts(self) -> dict[int, int]:
        """How many bins each worker owns.

        >>> Placement.even(workers=2, bins=256).moved({0: 1}).counts()
        {0: 127, 1: 129}
        """
        found = np.bincount(self.owners, minlength=self.workers).tolist()
        return dict(enumerate(found))

    def on(self, workers: int) -> Placement:
        """The placement for a number of workers: this one, unless the number is another."""
        return self if workers == self.workers else Placement.even(workers, self.bins)

    def moved(self, moves: Mapping[int, int]) -> Placement:
        """The placement after some bins have gone to other workers."""
        owners = self.owners.copy()
        for bin, worker in moves.items():
            owners[bin] = worker
        return Placement(owners, self.workers)

    def moves_from(self, before: Placement) -> dict[int, int]:
        """The bins that are elsewhere than before, and the workers that own them now."""
        return {
            bin: int(self.owners[bin])
            for bin in np.flatnonzero(self.owners != before.owners).tolist()
        }

    def require_moves(self, moves: Any) -> dict[int, int]:
        """The moves that change something; an error if a bin or a worker does not exist.

        >>> Placement.even(workers=2, bins=256).require_moves({0: 5})
        Traceback (most recent call last):
        jeton.core.errors.GraphError: there is no worker 5 for bin 0 to go to: there are 2 (0 to 1)
        """
        if not isinstance(moves, Mapping):
            raise GraphError(
                f"migrate needs a dictionary of bins and the workers they go to, {{bin: worker}}, "
                f"not {described(moves)}"
            )
        for bin, worker in moves.items():
            _require_number(bin, self.bins, f"there is no bin {bin!r}: there are {self.bins}")
            there = f"there is no worker {worker!r} for bin {bin} to go to: there are"
            _require_number(worker, self.workers, f"{there} {self.workers}")
        return {int(b): int(w) for b, w in moves.items() if self.owners[b] != w}


def _require_number(given: object, limit: int, text: str) -> None:
    plain = isinstance(given, int | np.integer) and not isinstance(given, bool)
    if not plain or not 0 <= given < limit:  # type: ignore[operator]
        raise GraphError(f"{text} (0 to {limit - 1})")


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
