"""Sums by window and key, told as means once their windows are complete.

Rows are found by window and key in a table with open addressing. Beside it there are sorted runs
that say which rows each window has, so that closing windows costs what is in them, however many
others are open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.errors import BatchError, GraphError, TimeError
from jeton.idioms.keyed_state import KeyWords, Words, plain, scatter

_FIRST_SIZE = 1024


class Rows(NamedTuple):
    """Windows of keys: where they end, the words of the keys, and what has been added up."""

    ends: Words
    words: Words
    counts: Words
    sums: npt.NDArray[np.float64]


class WindowTable:
    """Sums and counts by window and word.

    >>> table = WindowTable()
    >>> table.add(np.array([10, 20, 10]), np.array([7, 7, 7]), np.array([1.0, 2.0, 4.0]))
    (array([10, 20]), array([7, 7]))
    >>> table.take(10), table.least
    (Rows(ends=array([10]), words=array([7]), counts=array([2]), sums=array([5.])), 20)
    """

    def __init__(self) -> None:
        # Rows of end, word and count; count 0: empty.
        self._table = np.zeros((_FIRST_SIZE, 3), np.int64)
        self._sums = np.zeros(_FIRST_SIZE)
        self._used = 0
        self._runs: list[tuple[Words, Words]] = []
        """Ends and words of all rows, each run sorted by end."""

    def add(
        self, ends: Words, words: Words, values: npt.NDArray[np.float64]
    ) -> tuple[Words, Words]:
        """Add records to their rows; returns the ends and words of rows that are new, by end."""
        fresh = np.empty(len(words), np.int64)
        at = made = 0
        while True:
            room = len(self._table) // 2 - self._used
            at, new = _add_up(self._table, self._sums, ends, words, values, at, fresh[made:], room)
            self._used += new
            made += new
            if at == len(words):
                break
            self._resize(2 * len(self._table))
        return self._open(ends[fresh[:made]], words[fresh[:made]])

    def take(self, limit: int | None) -> Rows | None:
        """Take out the rows that end at ``limit`` or before, by end; ``None``: all of them."""
        done, left = [], []
        for ends, words in self._runs:
            cut = len(ends) if limit is None else int(ends.searchsorted(limit, "right"))
            if cut:
                done.append((ends[:cut], words[:cut]))
            if cut < len(ends):
                left.append((_trimmed(ends[cut:]), _trimmed(words[cut:])))
        if not done:
            return None
        self._runs = left
        ends, words = _joined(done)
        counts, sums = np.empty(len(ends), np.int64), np.empty(len(ends))
        _take_out(self._table, self._sums, plain(ends), plain(words), counts, sums)
        self._used -= len(ends)
        size = len(self._table)
        while size > _FIRST_SIZE and self._used < size // 16:
            size //= 2
        if size < len(self._table):
            self._resize(size)
        return Rows(ends, words, counts, sums)

    @property
    def least(self) -> int | None:
        """The end of the first window that is open."""
        return min((int(ends[0]) for ends, _ in self._runs), default=None)

    @property
    def rows(self) -> Rows:
        """All rows, in no order."""
        there = self._table[:, 2] > 0
        ends, words, counts = np.ascontiguousarray(self._table[there].T)
        return Rows(ends, words, counts, self._sums[there])

    def put(self, rows: Rows) -> None:
        """Fill an empty table."""
        size = len(self._table)
        while len(rows.ends) > size // 2:
            size *= 2
        self._fill(size, rows)
        self._used = len(rows.ends)
        self._open(rows.ends, rows.words)

    def _open(self, ends: Words, words: Words) -> tuple[Words, Words]:
        """Remember new rows by end."""
        order = np.argsort(ends, kind="stable")
        ends, words = ends[order], words[order]
        runs = self._runs
        if len(ends):
            runs.append((ends, words))
        # Each is more than twice as long as the next: there are few, and a row is moved seldom.
        while len(runs) > 1 and len(runs[-2][0]) <= 2 * len(runs[-1][0]):
            runs[-2:] = [_joined(runs[-2:])]
        return ends, words

    def _resize(self, size: int) -> None:
        self._fill(size, self.rows)

    def _fill(self, size: int, rows: Rows) -> None:
        self._table, self._sums = np.zeros((size, 3), np.int64), np.zeros(size)
        _put(self._table, self._sums, *rows)


class WindowSums:
    """Sums and counts by window and key, told as means by the windows' ends.

    >>> sums = WindowSums(10, "key", "value")
    >>> sums.add(jt.Batch({"key": [1, 1, 1], "value": [2.0, 4.0, 5.0]}, times=[3, 7, 12]))
    array([10, 20])
    >>> sums.take(10, time_name="time").rows(), sums.least
    ([{'time': 10, 'key': 1, 'mean': 3.0}], 20)
    """

    def __init__(self, size: int, key: str, value: str) -> None:
        if not 1 <= size <= jt.END_OF_TIME:
            raise GraphError(f"a window must be from 1 to {jt.END_OF_TIME} long, not {size}")
        self._size = size
        self._key = key
        self._value = value
        self.words = KeyWords(key)
        self._keyed = WindowTable()
        self._nulls = WindowTable()
        """Windows of records without a key, under the word 0."""

    @property
    def shape(self) -> str:
        """What the state depends on."""
        return f"mean of {self._value} by {self._key}, tumbling {self._size}"

    def add(self, batch: jt.Batch) -> Words:
        """Add records to their windows; returns the ends of windows of new keys, in order."""
        values = batch.column(self._value)
        if not isinstance(values, np.ndarray):
            raise BatchError(f"column {self._value!r} has nulls or no numbers: no mean of it")
        ends = window_ends(batch.times, self._size)
        words, known = self.words.of(batch.column(self._key))
        numbers = plain(values, np.float64)
        if known is not None:
            none = ends[~known]
            opened, _ = self._nulls.add(none, np.zeros(len(none), np.int64), numbers[~known])
            ends, numbers = ends[known], numbers[known]
        fresh, new = self._keyed.add(ends, words, numbers)
        self.words.hold(new)
        return np.unique(fresh if known is None else np.append(fresh, opened))

    def take(self, limit: int | None, *, time_name: str) -> jt.Batch | None:
        """Take out the means of windows that end at ``limit`` or before; ``None``: of all."""
        keyed, nulls = self._keyed.take(limit), self._nulls.take(limit)
        parts = [rows for rows in (keyed, nulls) if rows is not None]
        if not parts:
            return None
        words = np.empty(0, np.int64) if keyed is None else keyed.words
        keys = self.words.back(words, 0 if nulls is None else len(nulls.ends))
        self.words.release(words)
        mean = np.concatenate([rows.sums / rows.counts for rows in parts])
        ends = np.concatenate([rows.ends for rows in parts])
        return jt.Batch.trusted({self._key: keys, "mean": mean}, ends, time_name)

    @property
    def least(self) -> int | None:
        """The end of the first window that is open."""
        open_ = [t.least for t in (self._keyed, self._nulls) if t.least is not None]
        return min(open_, default=None)

    @property
    def ends(self) -> list[int]:
        """The ends of all open windows."""
        both = np.append(self._keyed.rows.ends, self._nulls.rows.ends)
        found: list[int] = np.unique(both).tolist()
        return found

    def snapshot(self) -> pa.Table:
        """All open windows by key."""
        keyed, nulls = self._keyed.rows, self._nulls.rows
        if not len(keyed.ends) + len(nulls.ends):
            return pa.table({"bin": pa.array([], pa.uint16())})
        keys = self.words.back(keyed.words, len(nulls.ends))
        names = ("end", "key", "count", "sum")
        columns = [np.append(one, other) for one, other in zip(keyed, nulls, strict=True)]
        table = {**dict(zip(names, columns, strict=True)), "key": keys}
        return pa.table({"bin": jt.state.bins_of([keys]), **table})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Open the windows again."""
        if state.num_rows:
            batch = jt.Batch.from_arrow(state, time="end")
            words, known = self.words.of(batch.column("key"))
            there = np.ones(len(batch), dtype=bool) if known is None else known
            for table, mine in ((self._keyed, there), (self._nulls, ~there)):
                ends, counts = plain(batch.times)[mine], plain(batch["count"])[mine]
                sums = plain(batch["sum"], np.float64)[mine]
                key = words if table is self._keyed else np.zeros(len(ends), np.int64)
                table.put(Rows(ends, key, counts, sums))
            self.words.hold(words)


def window_ends(times: Words, size: int) -> Words:
    """The end of each time's window ``[n * size, (n + 1) * size)``.

    >>> window_ends(np.array([-3, 3, 12]), 10)
    array([ 0, 10, 20])
    """
    ends: Words = (times // size + 1) * size
    late = ends <= times  # wrapped around: the end of time comes before that of the window
    if late.any():
        raise TimeError(
            f"a record is at {times[late.argmax()]}: its window of {size} would end after "
            f"{jt.END_OF_TIME}, the last time there is"
        )
    return ends


def _joined(runs: Sequence[tuple[Words, Words]]) -> tuple[Words, Words]:
    """Sorted runs as one."""
    if len(runs) == 1:
        return runs[0]
    ends = np.concatenate([run[0] for run in runs])
    order = np.argsort(ends, kind="stable")
    return ends[order], np.concatenate([run[1] for run in runs])[order]


def _trimmed(part: Words) -> Words:
    """The rest of an array, copied if it is less than half: or the whole would stay for it."""
    whole = part.base
    return part.copy() if whole is not None and 2 * len(part) < len(whole) else part


@jt.njit(cache=True, inline="always")
def _home(end, word, mask):  # type: ignore[no-untyped-def]
    return scatter(scatter(word) + np.uint64(end)) & mask


@jt.njit(cache=True)
def _add_up(table, sums, ends, words, values, start, fresh, room):  # type: ignore[no-untyped-def]
    """Add records from ``start`` on, until there is no room: where it stopped, how many are new.

    ``fresh`` tells afterwards which records made new rows.
    """
    mask = np.uint64(len(table) - 1)
    made = 0
    for i in range(start, len(words)):
        end, word = ends[i], words[i]
        at = _home(end, word, mask)
        while table[at, 2] != 0 and (table[at, 0] != end or table[at, 1] != word):
            at = (at + np.uint64(1)) & mask
        if table[at, 2] == 0:
            if made == room:
                return i, made
            table[at, 0] = end
            table[at, 1] = word
            fresh[made] = i
            made += 1
        table[at, 2] += 1
        sums[at] += values[i]
    return len(words), made


@jt.njit(cache=True)
def _put(table, sums, ends, words, counts, values):  # type: ignore[no-untyped-def]
    """Fill a table with rows that are all different."""
    mask = np.uint64(len(table) - 1)
    for i in range(len(ends)):
        at = _home(ends[i], words[i], mask)
        while table[at, 2] != 0:
            at = (at + np.uint64(1)) & mask
        table[at, 0] = ends[i]
        table[at, 1] = words[i]
        table[at, 2] = counts[i]
        sums[at] = values[i]


@jt.njit(cache=True)
def _take_out(table, sums, ends, words, counts, values):  # type: ignore[no-untyped-def]
    """Take rows that are there out of a table, moving back whatever stands behind for them."""
    one = np.uint64(1)
    mask = np.uint64(len(table) - 1)
    for i in range(len(ends)):
        at = _home(ends[i], words[i], mask)
        while table[at, 0] != ends[i] or table[at, 1] != words[i] or table[at, 2] == 0:
            at = (at + one) & mask
        counts[i] = table[at, 2]
        values[i] = sums[at]
        behind = at
        while True:
            behind = (behind + one) & mask
            if table[behind, 2] == 0:
                break
            home = _home(table[behind, 0], table[behind, 1], mask)
            # It may go to the gap if that is not before the place where it wants to be.
            if ((behind - home) & mask) >= ((behind - at) & mask):
                table[at] = table[behind]
                sums[at] = sums[behind]
                at = behind
        table[at, 2] = 0
        sums[at] = 0.0
