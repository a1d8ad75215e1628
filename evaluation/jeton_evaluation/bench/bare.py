"""Bare scripts: the speed of a computation on this hardware without an engine.

NumPy and Numba loops over the same arrays that the operators get. They know in advance what an
engine must find out: that keys are small integers below a bound, and that records come in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

import jeton as jt

QUANTUM = 256
"""Nanoseconds between records: each has a time of its own."""
WINDOW = QUANTUM * 65_536
INTERVAL = QUANTUM * 1024

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Columns:
    """One batch as plain arrays."""

    time: Array
    key: Array
    value: Array

    def batch(self) -> jt.Batch:
        """The same as a batch for an operator, whose source knows that times only grow."""
        columns = {"key": self.key, "value": self.value}
        return jt.Batch.trusted(columns, self.time, bound=int(self.time[0]))


def make(batch: int, batches: int, keys: int, inputs: int = 1) -> list[Columns]:
    """Batches of random records, each at its own time; inputs take turns and share times."""
    random = np.random.default_rng(7)
    made = []
    for number in range(batches):
        first = number * batch * QUANTUM
        for _ in range(inputs):
            made.append(
                Columns(
                    np.arange(first, first + batch * QUANTUM, QUANTUM),
                    random.integers(0, keys, batch),
                    random.random(batch),
                )
            )
    return made


def rolling_count() -> Callable[[Columns], Any]:
    """An updated count for each record."""
    counts = np.zeros(65_536, dtype=np.int64)

    def script(columns: Columns) -> Any:
        out = np.empty(len(columns.key), dtype=np.int64)
        _rolling_count(counts, columns.key, out)
        return out

    return script


def filter_map() -> Callable[[Columns], Any]:
    """Rows with a value above a half, their values doubled."""

    def script(columns: Columns) -> Any:
        mask = columns.value > 0.5
        return columns.time[mask], columns.key[mask], columns.value[mask] * 2.0

    return script


def tumbling_mean() -> Callable[[Columns], Any]:
    """Means by key, emitted at the end of each window; records are known to be in order."""
    sums, counts = np.zeros(1024), np.zeros(1024, dtype=np.int64)
    end = WINDOW

    def script(columns: Columns) -> Any:
        nonlocal end
        out = []
        if columns.time[-1] >= end:
            # Batches divide windows, so a window ends between two of them.
            keys = np.flatnonzero(counts)
            out = [keys, sums[keys] / counts[keys]]
            sums[:] = 0
            counts[:] = 0
            end = (int(columns.time[0]) // WINDOW + 1) * WINDOW
        _add_up(sums, counts, columns.key, columns.value)
        return out

    return script


def hash_partition() -> Callable[[Columns], Any]:
    """Records to the one of two places that their key's hash says."""

    def script(columns: Columns) -> Any:
        return _partition(columns.time, columns.key, columns.value)

    return script


def interval_join() -> Callable[[Columns], Any]:
    """Pairs of equal keys within an interval, left and right batches taking turns.

    Each side is a chain of records for each key, the newest first, in rings of arrays.
    """
    sides: list[tuple[Array, ...]] | None = None
    ends = [0, 0]
    turn = 0

    def script(columns: Columns) -> Any:
        nonlocal sides, turn
        if sides is None:
            # Room for the interval, and for a batch that the other side has not had yet.
            size = 1 << int(np.ceil(np.log2(INTERVAL // QUANTUM + 2 * len(columns.key))))
            sides = [_side(size), _side(size)]
        mine, others = sides[turn], sides[1 - turn]
        rows = (columns.time, columns.key, columns.value)
        _append(mine, ends[turn], rows)
        ends[turn] += len(columns.key)
        pairs = _pairs(others, ends[1 - turn], rows, INTERVAL)
        turn = 1 - turn
        return pairs

    return script


def _side(size: int) -> tuple[Array, ...]:
    """The newest record of each key, and of each record in a ring its time, value and the next."""
    newest = np.full(65_536, -1, np.int32)
    return newest, np.empty(size, np.int64), np.empty(size), np.empty(size, np.int32)


@nb.njit(cache=True)
def _rolling_count(counts, keys, out):  # type: ignore[no-untyped-def]
    for i in range(len(keys)):
        key = keys[i]
        counts[key] += 1
        out[i] = counts[key]


@nb.njit(cache=True)
def _add_up(sums, counts, keys, values):  # type: ignore[no-untyped-def]
    for i in range(len(keys)):
        sums[keys[i]] += values[i]
        counts[keys[i]] += 1


@nb.njit(cache=True)
def _partition(time, key, value):  # type: ignore[no-untyped-def]
    n = len(key)
    times = np.empty((2, n), np.int64)
    keys = np.empty((2, n), np.int64)
    values = np.empty((2, n), np.float64)
    sizes = np.zeros(2, np.int64)
    for i in range(n):
        place = ((np.uint64(key[i]) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(63)) & np.uint64(
            1
        )
        at = sizes[place]
        times[place, at] = time[i]
        keys[place, at] = key[i]
        values[place, at] = value[i]
        sizes[place] = at + 1
    return times, keys, values, sizes


@nb.njit(cache=True)
def _append(side, end, rows):  # type: ignore[no-untyped-def]
    newest, times, values, nexts = side
    time, key, value = rows
    mask = len(times) - 1
    for i in range(len(key)):
        at = (end + i) & mask
        times[at] = time[i]
        values[at] = value[i]
        nexts[at] = newest[key[i]]
        newest[key[i]] = end + i


@nb.njit(cache=True)
def _pairs(side, end, rows, interval):  # type: ignore[no-untyped-def]
    newest, times, values, nexts = side
    time, key, value = rows
    room = len(key)
    while True:
        out_time, out_key = np.empty(room, np.int64), np.empty(room, np.int64)
        one, other = np.empty(room), np.empty(room)
        mask = len(times) - 1
        found = 0
        for i in range(len(key)):
            record = newest[key[i]]
            # What a ring has overwritten is older than the interval.
            while record >= 0 and record >= end - len(times):
                at = record & mask
                if times[at] < time[i] - interval:
                    break
                if times[at] <= time[i] + interval:
                    if found < room:
                        out_time[found] = max(time[i], times[at])
                        out_key[found] = key[i]
                        one[found] = value[i]
                        other[found] = values[at]
                    found += 1
                record = nexts[at]
        if found <= room:
            return out_time[:found], out_key[:found], one[:found], other[:found]
        room = found
