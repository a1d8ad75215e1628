"""Keyed state for the programs of this package: counts by key, sums by window and key.

Open addressing in compiled loops over whole batches, the same for all mechanisms, so that what
differs between them is the mechanism alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt

Words = npt.NDArray[np.int64]
_FIRST_SIZE = 1024


class KeyWords:
    """One column's values as 64-bit words, and back: integers are their own, others get numbers.

    >>> words = KeyWords("word")
    >>> words.of(pa.array(["to", "be", "to"])), words.back(np.array([1]))
    (array([0, 1, 0]), <pyarrow.lib.StringArray object at ...>
    [
      "be"
    ])
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._dtype: np.dtype[Any] | None = None
        self._type: pa.DataType | None = None
        self._numbers: dict[Any, int] = {}

    def of(self, column: npt.NDArray[Any] | pa.Array) -> Words:
        """A word for each value."""
        if isinstance(column, np.ndarray) and column.dtype.kind in "iu":
            self._dtype = self._dtype or column.dtype
            if self._type is None:
                return plain(column, np.int64)
        if self._dtype is not None:
            raise jt.BatchError(
                f"key column {self._name!r} has nulls, or values other than integers, after "
                "integers: fill or filter them first"
            )
        array = column if isinstance(column, pa.Array) else pa.array(column)
        if pa.types.is_floating(array.type):
            raise jt.BatchError(f"key column {self._name!r} is of type {array.type}: no key here")
        self._type = self._type or array.type
        encoded = array.dictionary_encode(null_encoding="encode")
        numbers = self._numbers
        known = [numbers.setdefault(v, len(numbers)) for v in encoded.dictionary.to_pylist()]
        words: Words = np.array(known, dtype=np.int64).take(encoded.indices.to_numpy())
        return words

    def back(self, words: Words) -> npt.NDArray[Any] | pa.Array:
        """The values that words stand for."""
        if self._type is None:
            return words.astype(self._dtype or np.int64, copy=False)
        return pa.array(list(self._numbers), self._type).take(pa.array(words))


class KeyedCounts:
    """How often each key has occurred.

    >>> counts = KeyedCounts("word")
    >>> counts.counted(jt.Batch({"word": ["a", "b", "a"]}, times=[0, 1, 2]))["count"]
    array([1, 1, 2])
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._words = KeyWords(key)
        # Rows of key and count, so that both come with one access to memory; count 0: empty.
        self._table = np.zeros((_FIRST_SIZE, 2), np.int64)
        self._used = 0

    def counted(self, batch: jt.Batch) -> jt.Batch:
        """The batch with the count of each record's key, that record included."""
        words = self._words.of(batch[self._key])
        table = self._table
        if self._used + len(words) > len(table) // 2:
            table = self._table = _grown(table, self._used + len(words))
        out = np.empty(len(words), np.int64)
        self._used = _count(table, words, out, self._used)
        return batch.with_columns({"count": out})

    def snapshot(self) -> pa.Table:
        """All keys with their counts."""
        if not self._used:
            return pa.table({"bin": pa.array([], pa.uint16())})
        rows = self._table[self._table[:, 1] > 0]
        keys = self._words.back(np.ascontiguousarray(rows[:, 0]))
        return pa.table({"bin": jt.bins_of([keys]), "key": keys, "count": rows[:, 1]})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """The counts again."""
        if state.num_rows:
            batch = jt.Batch.from_arrow(state, time="count")
            words = self._words.of(batch["key"])
            self._table = _grown(self._table, len(words))
            self._used = _put(self._table, words, plain(batch.times, np.int64))


class WindowSums:
    """Sums and counts by window and key, told as means by the windows' ends.

    >>> sums = WindowSums(10, "key", "value")
    >>> sums.add(jt.Batch({"key": [1, 1, 1], "value": [2.0, 4.0, 5.0]}, times=[3, 7, 12]))
    array([10, 20])
    >>> sums.take(10, time_name="time").rows(), sums.least
    ([{'time': 10, 'key': 1, 'mean': 3.0}], 20)
    """

    def __init__(self, size: int, key: str, value: str) -> None:
        if size < 1:
            raise jt.GraphError(f"a window must be at least 1 long, not {size}")
        self._size = size
        self._key = key
        self._value = value
        self._words = KeyWords(key)
        # Rows of end, key and count; count 0: empty.
        self._table = np.zeros((_FIRST_SIZE, 3), np.int64)
        self._sums = np.zeros(_FIRST_SIZE)
        self._used = 0
        self.least: int | None = None
        """The end of the first window that is open."""

    def add(self, batch: jt.Batch) -> Words:
        """Add records to their windows; returns the ends of those windows, in order."""
        values = batch[self._value]
        if not isinstance(values, np.ndarray):
            raise jt.BatchError(f"column {self._value!r} has nulls or no numbers: no mean of it")
        ends: Words = (batch.times // self._size + 1) * self._size
        words = self._words.of(batch[self._key])
        self._make_room(len(words))
        numbers = plain(values, np.float64)
        self._used = _add_up(self._table, self._sums, ends, words, numbers, self._used)
        ends = ends[:1] if (ends == ends[0]).all() else np.unique(ends)
        first = int(ends[0])
        self.least = first if self.least is None else min(self.least, first)
        return ends

    def take(self, limit: int | None, *, time_name: str) -> jt.Batch | None:
        """Take out the means of windows that end at ``limit`` or before; ``None``: of all."""
        if self.least is None or (limit is not None and limit < self.least):
            return None
        table, sums = self._table, self._sums
        open_ = table[:, 2] > 0
        done = open_ if limit is None else open_ & (table[:, 0] <= limit)
        told, mean = table[done], sums[done] / table[done, 2]
        self._reload(table[open_ & ~done], sums[open_ & ~done])
        columns = {self._key: self._words.back(np.ascontiguousarray(told[:, 1])), "mean": mean}
        return jt.Batch.trusted(columns, np.ascontiguousarray(told[:, 0]), time_name)

    def _reload(self, rows: npt.NDArray[np.int64], sums: npt.NDArray[np.float64]) -> None:
        self.least = int(rows[:, 0].min()) if len(rows) else None
        size = len(self._table)
        while size > _FIRST_SIZE and len(rows) < size // 16:
            size //= 2
        self._table, self._sums = np.zeros((size, 3), np.int64), np.zeros(size)
        self._used = _put_windows(self._table, self._sums, rows, sums)

    def _make_room(self, more: int) -> None:
        size = len(self._table)
        if self._used + more > size // 2:
            while self._used + more > size // 2:
                size *= 2
            open_ = self._table[:, 2] > 0
            rows, sums = self._table[open_], self._sums[open_]
            self._table, self._sums = np.zeros((size, 3), np.int64), np.zeros(size)
            _put_windows(self._table, self._sums, rows, sums)

    def snapshot(self) -> pa.Table:
        """All open windows by key."""
        if not self._used:
            return pa.table({"bin": pa.array([], pa.uint16())})
        open_ = self._table[:, 2] > 0
        rows = self._table[open_]
        keys = self._words.back(np.ascontiguousarray(rows[:, 1]))
        columns = {"end": rows[:, 0], "count": rows[:, 2], "sum": self._sums[open_]}
        return pa.table({"bin": jt.bins_of([keys]), "key": keys, **columns})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Open the windows again."""
        if state.num_rows:
            batch = jt.Batch.from_arrow(state, time="end")
            words = self._words.of(batch["key"])
            self._make_room(len(words))
            rows = np.column_stack([batch.times, words, batch["count"]])
            sums = plain(batch["sum"], np.float64)
            self._used = _put_windows(self._table, self._sums, rows, sums)
            self.least = int(rows[:, 0].min())

    @property
    def ends(self) -> list[int]:
        """The ends of all open windows."""
        found: list[int] = np.unique(self._table[self._table[:, 2] > 0, 0]).tolist()
        return found


def plain(array: Any, dtype: type[np.number[Any]] = np.int64) -> npt.NDArray[Any]:
    """Contiguous and writable, as Arrow's are not: a compiled loop then has one version.

    >>> plain(pa.array([1, 2]).to_numpy()).flags.writeable
    True
    """
    made: npt.NDArray[Any] = np.require(array, dtype, ["C", "W"])
    return made


def _grown(table: npt.NDArray[np.int64], keys: int) -> npt.NDArray[np.int64]:
    size = len(table)
    while keys > size // 2:
        size *= 2
    if size == len(table):
        return table
    grown = np.zeros((size, 2), np.int64)
    rows = table[table[:, 1] > 0]
    _put(grown, np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1]))
    return grown


@nb.njit(cache=True, inline="always")
def _scatter(word):  # type: ignore[no-untyped-def]
    """Spread a word's bits, so that neighbours do not collide."""
    mixed = np.uint64(word) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))


@nb.njit(cache=True)
def _count(table, words, out, used):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(table) - 1)
    for i in range(len(words)):
        word = words[i]
        at = _scatter(word) & mask
        while table[at, 1] != 0 and table[at, 0] != word:
            at = (at + np.uint64(1)) & mask
        if table[at, 1] == 0:
            table[at, 0] = word
            used += 1
        table[at, 1] += 1
        out[i] = table[at, 1]
    return used


@nb.njit(cache=True)
def _put(table, words, counts):  # type: ignore[no-untyped-def]
    """Fill a table with keys that are all different; returns how many there are."""
    mask = np.uint64(len(table) - 1)
    for i in range(len(words)):
        at = _scatter(words[i]) & mask
        while table[at, 1] != 0:
            at = (at + np.uint64(1)) & mask
        table[at, 0] = words[i]
        table[at, 1] = counts[i]
    return len(words)


@nb.njit(cache=True)
def _add_up(table, sums, ends, words, values, used):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(table) - 1)
    for i in range(len(words)):
        end, word = ends[i], words[i]
        at = _scatter(_scatter(word) + np.uint64(end)) & mask
        while table[at, 2] != 0 and (table[at, 0] != end or table[at, 1] != word):
            at = (at + np.uint64(1)) & mask
        if table[at, 2] == 0:
            table[at, 0] = end
            table[at, 1] = word
            used += 1
        table[at, 2] += 1
        sums[at] += values[i]
    return used


@nb.njit(cache=True)
def _put_windows(table, sums, rows, values):  # type: ignore[no-untyped-def]
    """Fill a table with windows that are all different; returns how many there are."""
    mask = np.uint64(len(table) - 1)
    for i in range(len(rows)):
        at = _scatter(_scatter(rows[i, 1]) + np.uint64(rows[i, 0])) & mask
        while table[at, 2] != 0:
            at = (at + np.uint64(1)) & mask
        table[at] = rows[i]
        sums[at] = values[i]
    return len(rows)
