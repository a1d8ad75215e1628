"""Moments: the variance of each group, from its number of values, their mean and squared distance.

Values are added by Welford's method and groups by Chan's, which lose no digits where the mean is
far from zero, as the difference of two large sums would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from jeton.columns import compiled as nb
from jeton.columns.column import Column, plain
from jeton.state.accumulators import (
    Accumulator,
    Mask,
    Values,
    filled,
    plain_numbers,
    roomy,
    valid_mask,
)
from jeton.state.slot_pool import Slots


class Moments(Accumulator):
    """The variance or, with ``root``, the standard deviation of numbers.

    The squared distances from the mean are divided by the number of values less ``ddof``. Nulls
    are passed over. A group of no more than ``ddof`` values has the result null.
    """

    def __init__(self, ddof: int, *, root: bool) -> None:
        self._ddof = ddof
        self._root = root
        self._seen = np.zeros(0, dtype=np.int64)
        self._mean = np.zeros(0)
        self._squares = np.zeros(0)
        """The sum of squared distances from the mean."""

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Add the values."""
        values, valid = self._prepare(column, size)
        _add(self._seen, self._mean, self._squares, slots, values, valid)

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Add the values; returns the result after each record."""
        values, valid = self._prepare(column, size)
        seen, squares = np.empty(len(slots), dtype=np.int64), np.empty(len(slots))
        _roll(self._seen, self._mean, self._squares, slots, values, valid, seen, squares)
        return self._column(seen, squares)

    def result(self, slots: Slots) -> Column:
        """The variances."""
        return self._column(self._seen[slots], self._squares[slots])

    def clear(self, slots: Slots) -> None:
        """Back to nothing."""
        for kept in (self._seen, self._mean, self._squares):
            kept[slots] = 0

    def save(self, slots: Slots) -> dict[str, Column]:
        """The number of values, their mean and their squared distance from it."""
        return {
            "value": self._mean[slots],
            "squares": self._squares[slots],
            "seen": self._seen[slots],
        }

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The same again."""
        self._grow(size)
        for kept, name in (
            (self._mean, "value"),
            (self._squares, "squares"),
            (self._seen, "seen"),
        ):
            # Groups of a worker that had seen nothing but nulls have none.
            column = saved[name]
            kept[slots] = column if isinstance(column, np.ndarray) else filled(column)

    def merge(self, into: Slots, others: Slots) -> None:
        """Add groups to groups."""
        _merge(self._seen, self._mean, self._squares, into, others)

    def _prepare(self, column: Column | None, size: int) -> tuple[Values, Mask]:
        assert column is not None, "variances name a column"
        self._grow(size)
        numbers = column if isinstance(column, np.ndarray) else plain_numbers(column)
        return plain(numbers.astype(np.float64, copy=False)), valid_mask(column)

    def _grow(self, size: int) -> None:
        self._seen, self._mean, self._squares = (
            roomy(kept, size) for kept in (self._seen, self._mean, self._squares)
        )

    def _column(self, seen: Values, squares: Values) -> Column:
        enough: Mask = seen > self._ddof
        with np.errstate(invalid="ignore"):
            found: Any = squares / np.maximum(seen - self._ddof, 1)
            found = np.sqrt(found) if self._root else found
        return found if enough.all() else pa.array(found, mask=~enough)


@nb.njit(cache=True, inline="always")
def _take(seen, mean, squares, slot, value):  # type: ignore[no-untyped-def]
    seen[slot] += 1
    distance = value - mean[slot]
    mean[slot] += distance / seen[slot]
    squares[slot] += distance * (value - mean[slot])


@nb.njit(cache=True)
def _add(seen, mean, squares, slots, values, valid):  # type: ignore[no-untyped-def]
    every = len(valid) == 0
    for i in range(len(slots)):
        if every or valid[i]:
            _take(seen, mean, squares, slots[i], values[i])


@nb.njit(cache=True)
def _roll(seen, mean, squares, slots, values, valid, seen_after, squares_after):  # type: ignore[no-untyped-def]
    every = len(valid) == 0
    for i in range(len(slots)):
        slot = slots[i]
        if every or valid[i]:
            _take(seen, mean, squares, slot, values[i])
        seen_after[i] = seen[slot]
        squares_after[i] = squares[slot]


@nb.njit(cache=True)
def _merge(seen, mean, squares, into, others):  # type: ignore[no-untyped-def]
    for i in range(len(into)):
        slot, other = into[i], others[i]
        if seen[other] and not seen[slot]:
            seen[slot], mean[slot], squares[slot] = seen[other], mean[other], squares[other]
        elif seen[other]:
            both = seen[slot] + seen[other]
            distance = mean[other] - mean[slot]
            squares[slot] += squares[other] + distance * distance * (
                seen[slot] * (seen[other] / both)
            )
            mean[slot] += distance * (seen[other] / both)
            seen[slot] = both
