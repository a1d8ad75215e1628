"""Buckets: about where the quantiles of each group are, from counts of values of similar size.

A bucket has all numbers between two powers of a base, as in Ch. Masson and others, "DDSketch"
(2019). Counts are exact and are added where groups become one, so that the result does not depend
on order, batches or workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from jeton.columns import compiled as nb
from jeton.columns.column import Column, plain
from jeton.core.errors import SnapshotError
from jeton.state.accumulators import Accumulator, Mask, Values, plain_numbers, valid_mask
from jeton.state.distinct_values import lists_of, unlisted
from jeton.state.key_slots import KeySlots
from jeton.state.slot_chains import SlotChains
from jeton.state.slot_pool import Slots, grown

_ONE = 1 << 40
"""The bucket of numbers just below one; those above and below follow on either side."""
_INFINITY, _NAN = 1 << 61, 1 << 62


class Buckets(Accumulator):
    """The quantile ``q``, at most ``error`` of its size away from the value of that rank."""

    def __init__(self, q: float, error: float) -> None:
        self._q = q
        self._error = error
        self._keys = KeySlots(1, timed=True, compact=True)
        """One key for each bucket of each group."""
        self._counts = np.zeros(0, dtype=np.int64)
        self._of = SlotChains()
        """The buckets of each group."""

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Count the values."""
        values, known = _numbers(column)
        rows = self._find(slots[known], self._buckets(values))
        np.add.at(self._counts, rows, 1)

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Count the values; returns the result after each record."""
        values, known = _numbers(column)
        found = self._find(slots[known], self._buckets(values))
        groups, places = np.unique(slots, return_inverse=True)
        rows, offsets, buckets = self._sorted(groups)
        place = np.zeros(len(self._counts), dtype=np.int64)
        place[rows] = np.arange(len(rows))
        at = np.full(len(slots), -1, dtype=np.int64)
        at[known] = place[found]
        counts = self._counts[rows]
        chosen = _roll(places, at, offsets, counts, self._q)
        self._counts[rows] = counts
        return self._column(buckets, chosen)

    def result(self, slots: Slots) -> Column:
        """The quantiles."""
        rows, offsets, buckets = self._sorted(slots)
        return self._column(buckets, _choose(offsets, self._counts[rows], self._q))

    def clear(self, slots: Slots) -> None:
        """Forget the counts of some groups."""
        rows, _ = self._of.rows(slots)
        self._counts[rows] = 0
        self._keys.remove(rows)
        self._of.clear(slots)

    def save(self, slots: Slots) -> dict[str, Column]:
        """The buckets of each group with their counts, as lists."""
        rows, offsets, buckets = self._sorted(slots)
        return {
            "value": lists_of(offsets, buckets),
            "counts": lists_of(offsets, self._counts[rows]),
            "error": np.full(len(slots), self._error),
        }

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The same again."""
        before = {value for value in saved["error"].tolist() if value is not None}
        if before - {self._error}:
            raise SnapshotError(
                f"the snapshot has quantiles with an error of {min(before)}, but this aggregate "
                f"has {self._error}: give it the same error as before"
            )
        buckets, lengths = unlisted(saved["value"])
        counts, _ = unlisted(saved["counts"])
        if len(buckets):
            rows = self._find(np.repeat(slots, lengths), np.asarray(buckets))
            self._counts[rows] = counts

    def merge(self, into: Slots, others: Slots) -> None:
        """Add up the counts of both."""
        rows, offsets = self._of.rows(others)
        slots = np.repeat(into, np.diff(offsets))
        buckets, counts = np.asarray(self._keys.values(rows)[0]), self._counts[rows]
        self.clear(others)
        if len(rows):
            rows = self._find(slots, buckets)
            np.add.at(self._counts, rows, counts)

    def _find(self, slots: Slots, buckets: Values) -> Slots:
        """The row of each group and bucket."""
        if not len(slots):
            return np.zeros(0, dtype=np.int64)
        rows, new = self._keys.find([buckets], len(slots), slots.view(np.uint64))
        self._of.append(slots[new], rows[new])
        self._counts = grown(self._counts, self._keys.slots_made)
        return rows

    def _sorted(self, slots: Slots) -> tuple[Slots, Slots, Values]:
        """The rows of groups in order of their buckets, where groups begin, and the buckets."""
        rows, offsets = self._of.rows(slots)
        if not len(rows):
            return rows, offsets, rows
        buckets = np.asarray(self._keys.values(rows)[0])
        order = np.lexsort([buckets, np.repeat(np.arange(len(slots)), np.diff(offsets))])
        return rows[order], offsets, buckets[order]

    def _buckets(self, values: Values) -> Values:
        sizes = np.abs(values)
        finite: Mask = np.isfinite(sizes) & (sizes > 0)
        powers = np.zeros(len(values))
        np.log(sizes, out=powers, where=finite)
        found = np.ceil(powers / self._base).astype(np.int64) + _ONE
        found = np.where(finite, found, np.where(sizes > 0, _INFINITY, 0))
        found = np.where(values < 0, -found, found)
        return np.where(np.isnan(values), _NAN, found)

    @property
    def _base(self) -> float:
        """The logarithm of the ratio between the bounds of a bucket."""
        return math.log1p(2 * self._error / (1 - self._error))

    def _column(self, buckets: Values, chosen: Slots) -> Column:
        """The middle of each chosen bucket; null for -1."""
        seen = chosen >= 0
        if not seen.any():
            return pa.nulls(len(chosen), pa.float64()) if len(chosen) else np.zeros(0)
        found = buckets[np.maximum(chosen, 0)]
        sizes = np.abs(found)
        power = np.where(sizes < _INFINITY, sizes - _ONE, 0) * self._base
        with np.errstate(over="ignore"):
            middles = np.minimum(np.exp(power) * (1 - self._error), np.finfo(np.float64).max)
        middles = np.where(sizes >= _INFINITY, np.inf, np.where(sizes == 0, 0.0, middles))
        values = np.where(found == _NAN, np.nan, np.copysign(middles, found))
        return values if seen.all() else pa.array(values, mask=~seen)


def _numbers(column: Column | None) -> tuple[Values, Slots]:
    """The numbers that are not null, and their records."""
    assert column is not None, "quantiles name a column"
    numbers = column if isinstance(column, np.ndarray) else plain_numbers(column)
    valid = valid_mask(column)
    known = np.flatnonzero(valid) if len(valid) else np.arange(len(column))
    return plain(numbers[known].astype(np.float64, copy=False)), known


@nb.njit(cache=True)
def _at(counts, start, stop, total, q):  # type: ignore[no-untyped-def]
    """The bucket of the value of a rank: the last at or below the quantile."""
    # 100 * 0.29 is a little less than 29.
    rank = math.floor((total - 1) * q * (1 + 1e-12))
    at = start
    while at < stop - 1 and rank >= counts[at]:
        rank -= counts[at]
        at += 1
    return at


@nb.njit(cache=True)
def _choose(offsets, counts, q):  # type: ignore[no-untyped-def]
    chosen = np.full(len(offsets) - 1, -1, np.int64)
    for i in range(len(chosen)):
        start, stop = offsets[i], offsets[i + 1]
        total = counts[start:stop].sum()
        if total:
            chosen[i] = _at(counts, start, stop, total, q)
    return chosen


@nb.njit(cache=True)
def _roll(places, at, offsets, counts, q):  # type: ignore[no-untyped-def]
    totals = np.zeros(len(offsets) - 1, np.int64)
    for group in range(len(totals)):
        totals[group] = counts[offsets[group] : offsets[group + 1]].sum()
    chosen = np.full(len(places), -1, np.int64)
    for i in range(len(places)):
        group = places[i]
        if at[i] >= 0:
            counts[at[i]] += 1
            totals[group] += 1
        if totals[group]:
            chosen[i] = _at(counts, offsets[group], offsets[group + 1], totals[group], q)
    return chosen
