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
    """Pairs of equal keys within an interval, left and right batches taking turns."""
    sides: list[list[Columns]] = [[], []]
    turn = 0

    def script(columns: Columns) -> Any:
        nonlocal turn
        mine, others = sides[turn], sides[1 - turn]
        turn = 1 - turn
        mine.append(columns)
        while others and others[0].time[-1] < columns.time[0] - INTERVAL:
            others.pop(0)
        if not others:
            return None
        times = np.concatenate([other.time for other in others])
        keys = np.concatenate([other.key for other in others])
        order = np.argsort(keys, kind="stable")
        return _pairs(columns.time, columns.key, times[order], keys[order], INTERVAL)

    return script


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
def _pairs(time, key, times, keys, interval):  # type: ignore[no-untyped-def]
    left = np.empty(len(key) * 4, np.int64)
    right = np.empty(len(key) * 4, np.int64)
    found = 0
    for i in range(len(key)):
        at = np.searchsorted(keys, key[i])
        while at < len(keys) and keys[at] == key[i]:
            if abs(times[at] - time[i]) <= interval and found < len(left):
                left[found] = i
                right[found] = at
                found += 1
            at += 1
    return left[:found], right[:found]
