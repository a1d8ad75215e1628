"""SortedRuns: rows in order of time, in a few sorted runs, and the orders to sort and merge by.

A block of rows is sorted once, when it comes. Blocks of which each begins where another one ends,
as those of one sender mostly do, are a run, however many they are. Blocks are merged when there are
many, or many runs, and a frontier cuts a slice off each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from jeton.columns import compiled as nb
from jeton.columns.column import plain
from jeton.columns.ordering import stable_order
from jeton.columns.time_arithmetic import Integers
from jeton.core.errors import BatchError

_MOST: Final = 12
"""The number of runs beyond which blocks are merged."""
_MOST_BLOCKS: Final = 48
"""The number of blocks beyond which they are merged, though they may be one run."""
_FEW: Final = 4
"""The number of runs up to which merging them is faster than sorting their rows."""
_SMALL: Final = 64
"""The number of rows of equal first key up to which they are sorted by insertion."""


class Rows(Protocol):
    """Rows with integer times: a `Batch`, or arrays of equal length."""

    @property
    def times(self) -> npt.NDArray[Any]:
        """The time of each row."""
        ...

    def take(self, rows: npt.NDArray[np.intp]) -> Self:
        """Some of the rows, in that order."""
        ...

    def slice(self, start: int, stop: int) -> Self:
        """The rows from ``start`` up to ``stop``."""
        ...

    def __len__(self) -> int: ...


R = TypeVar("R", bound=Rows)


class _Block(NamedTuple, Generic[R]):
    """Rows in order of time, and their first and last times."""

    first: int
    last: int
    rows: R
    needed: int = 0
    """A number of rows that had to stay when some were to be dropped, if that has been tried."""


class SortedRuns(Generic[R]):
    """Blocks of rows in, blocks of rows out, in order of time.

    ``concat`` makes one block of several. ``shrink`` may drop rows of a block when runs are merged;
    it must keep the order of the others. Rows that it had to leave are given to it again once there
    are as many others among them.

    >>> import jeton as jt
    >>> waiting = SortedRuns(jt.concat)
    >>> waiting.add(jt.Batch({"n": [50, 10]}, times=[5, 1]))
    1
    >>> waiting.add(jt.Batch({"n": [30]}, times=[3]))
    3
    >>> waiting.take(5)["n"].to_list(), waiting.least, len(waiting)
    ([10, 30], 5, 1)
    >>> waiting.take(5, inclusive=True)["n"].to_list(), waiting.take(None)
    ([50], None)
    """

    __slots__ = ("_blocks", "_concat", "_count", "_ends", "_shrink", "least")

    def __init__(
        self, concat: Callable[[Sequence[R]], R], *, shrink: Callable[[R], R] | None = None
    ) -> None:
        self._concat = concat
        self._shrink = shrink
        self._blocks: list[_Block[R]] = []
        """In the order in which they were added."""
        self._ends: list[int] = []
        """The last time of each run."""
        self._count = 0
        self.least: int | None = None
        """The least time of all rows, if there are any."""

    def add(self, rows: R) -> int:
        """Add one or more rows, in any order; returns their least time."""
        times = rows.times
        if times.dtype.kind != "i" or times.shape != (len(rows),) or not len(times):
            raise BatchError(
                f"{len(rows)} rows with {len(times)} times of type {times.dtype}: SortedRuns takes "
                "one or more rows, each with an integer time"
            )
        in_order, first, last = _span(plain(times))
        if not in_order:
            rows = rows.take(stable_order(times))
        blocks = self._blocks
        blocks.append(_Block(first, last, rows))
        _put(last, _run_for(first, self._ends), self._ends)
        self._count += len(rows)
        if self.least is None or first < self.least:
            self.least = first
        start = merge_from([len(block.rows) for block in blocks]) if self._has_many else None
        if start is not None:
            merged = self._joined(blocks[start:])
            needed = max(block.needed for block in blocks[start:])
            if self._shrink is not None and len(merged) >= 2 * needed:
                merged = self._shrink(merged)
                needed = len(merged)
            times = merged.times
            block = [_Block(int(times[0]), int(times[-1]), merged, needed)] if len(merged) else []
            self._replace_blocks([*blocks[:start], *block])
        return int(first)

    @property
    def _has_many(self) -> bool:
        """Whether blocks should be merged: there are many, or rows may be dropped by that."""
        blocks = len(self._blocks)
        if blocks <= _MOST:
            return False
        return self._shrink is not None or blocks > _MOST_BLOCKS or len(self._ends) > _MOST

    def take(self, limit: int | None, *, inclusive: bool = False) -> R | None:
        """Take out the rows before ``limit``, in order; all if it is ``None``.

        With ``inclusive``, those at ``limit`` too.
        """
        if self.least is None:
            return None
        if limit is not None and (limit < self.least or (limit == self.least and not inclusive)):
            return None
        done, left = [], []
        for block in self._blocks:
            first, last, rows, _ = block
            if limit is None or last < limit or (inclusive and last == limit):
                done.append(block)
            elif first > limit or (first == limit and not inclusive):
                left.append(block)
            else:
                times = rows.times
                cut = int(times.searchsorted(limit, "right" if inclusive else "left"))
                done.append(_Block(first, int(times[cut - 1]), rows.slice(0, cut)))
                left.append(_Block(int(times[cut]), last, rows.slice(cut, len(rows))))
        self._replace_blocks(left)
        return self._joined(done)

    def keep(self, stays: Callable[[R], npt.NDArray[np.bool_]]) -> None:
        """Keep the rows for which a function is true, and drop the others.

        >>> import jeton as jt
        >>> waiting = SortedRuns(jt.concat)
        >>> waiting.add(jt.Batch({"n": [50, 10]}, times=[5, 1]))
        1
        >>> waiting.keep(lambda batch: batch.column("n") > 20)
        >>> waiting.least, len(waiting)
        (5, 1)
        """
        left = []
        for block in self._blocks:
            rows = block.rows.take(np.flatnonzero(stays(block.rows)))
            if len(rows):
                left.append(_Block(int(rows.times[0]), int(rows.times[-1]), rows))
        self._replace_blocks(left)

    @property
    def times(self) -> list[int]:
        """The distinct times of all rows, in order."""
        return sorted({int(t) for block in self._blocks for t in np.unique(block.rows.times)})

    @property
    def whole(self) -> R | None:
        """All rows in one block, in order; they stay."""
        return self._joined(self._blocks) if self._blocks else None

    def __iter__(self) -> Iterator[R]:
        """The blocks, each in order."""
        return (block.rows for block in self._blocks)

    def __len__(self) -> int:
        """The number of rows."""
        return self._count

    def _replace_blocks(self, blocks: list[_Block[R]]) -> None:
        self._blocks = blocks
        self._ends = []
        for first, last, _, _ in blocks:
            _put(last, _run_for(first, self._ends), self._ends)
        self._count = sum([len(block.rows) for block in blocks])
        self.least = min([block.first for block in blocks]) if blocks else None

    def _joined(self, blocks: list[_Block[R]]) -> R:
        if len(blocks) == 1:
            return blocks[0].rows
        whole = self._concat([block.rows for block in blocks])
        heads, following = _runs_of(blocks)
        if len(heads) == 1:
            return whole
        if len(heads) > _FEW:
            return whole.take(stable_order(whole.times))
        starts = np.array([0, *accumulate([len(block.rows) for block in blocks])])
        times = plain(whole.times.astype(np.int64, copy=False))
        return whole.take(_merge_runs(times, starts, np.array(following), np.array(heads)))


def _runs_of(blocks: Sequence[_Block[Any]]) -> tuple[list[int], list[int]]:
    """The first block of each run, and for each block the next one of its run, or -1.

    >>> spans = [(0, 5), (2, 4), (6, 9), (4, 8), (9, 9)]
    >>> _runs_of([_Block(first, last, None) for first, last in spans])
    ([0, 1], [2, 3, 4, -1, -1])
    """
    heads: list[int] = []
    tails: list[int] = []
    ends: list[int] = []
    following = [-1] * len(blocks)
    for at, block in enumerate(blocks):
        run = _run_for(block.first, ends)
        if run == len(ends):
            heads.append(at)
        else:
            following[tails[run]] = at
        _put(at, run, tails)
        _put(block.last, run, ends)
    return heads, following


def _run_for(first: int, ends: Sequence[int]) -> int:
    """The run, of those that end at these times, that a block continues; a new one if none.

    It is the run that leaves the least gap, so that others stay open for what comes earlier.

    >>> _run_for(6, [4, 7, 5]), _run_for(3, [4, 7, 5])
    (2, 3)
    """
    chosen = len(ends)
    for run, last in enumerate(ends):
        if last <= first and (chosen == len(ends) or last > ends[chosen]):
            chosen = run
    return chosen


def _put(value: int, at: int, values: list[int]) -> None:
    """Replace a value of a list, or add it at the end."""
    if at == len(values):
        values.append(value)
    else:
        values[at] = value


def merge_from(sizes: Sequence[int], most: int = _MOST) -> int | None:
    """The run from which on all should become one, or ``None`` if there are few enough.

    A run is merged with those after it once they are half its size together. So there are never
    more than ``most`` runs beyond the logarithm of the number of rows, and a row is moved no more
    often than that either.

    >>> merge_from([1] * 12), merge_from([1] * 13), merge_from([100] + [1] * 12)
    (None, 0, 1)
    >>> merge_from([11, 4, 1], most=1), merge_from([9, 4, 1], most=1)
    (None, 0)
    """
    if len(sizes) <= most:
        return None
    first = None
    after = sizes[-1]
    for run in range(len(sizes) - 2, -1, -1):
        if sizes[run] <= 2 * after:
            first = run
        after += sizes[run]
    return first


def sort_order(keys: Sequence[Integers], *, stable: bool = True) -> npt.NDArray[np.intp] | None:
    """The order by several arrays of integers, the first one first; ``None`` if rows are in it.

    Unless it must be ``stable``, equal rows may come in any order, which can be faster.

    >>> sort_order([np.array([2, 1, 2]), np.array([7, 9, 5])])
    array([1, 2, 0])
    >>> sort_order([np.array([2, 3]), np.array([7, 5])])
    """
    words = _words(keys)
    first = words[0]
    if len(first) < 2 or (len(words) == 2 and _is_sorted(first, words[1])):
        return None
    if len(words) == 2 and not stable:
        least, early = int(first.min()), int(words[1].min())
        bits = (int(words[1].max()) - early).bit_length()
        if (int(first.max()) - least).bit_length() + bits <= 63:
            # Both in one word: half the time of sorting by two.
            return np.argsort(((first - least) << bits) | (words[1] - early))
    # The first key alone is sorted several times as fast as all of them, and leaves little to do.
    order = stable_order(first)
    if len(words) == 2:
        done = _sort_pairs(order, *words, _SMALL)
    else:
        done = len(words) == 1 or _sort_equals(order, words, _SMALL)
    return order if done else np.lexsort(words[::-1])


def merge_order(keys: Sequence[Integers], split: int) -> npt.NDArray[np.intp]:
    """The same where the rows before ``split`` are in order, and those from there on.

    >>> merge_order([np.array([1, 5, 2, 6])], split=2)
    array([0, 2, 1, 3])
    """
    words = _words(keys)
    if not 0 <= split <= len(words[0]):
        raise BatchError(f"there are {len(words[0])} rows, and none to split at {split}")
    order: npt.NDArray[np.intp]
    order = _merge_two(*words, split) if len(words) == 2 else _merge(words, split)
    return order


def _words(keys: Sequence[Integers]) -> tuple[Integers, ...]:
    """The keys as compiled loops take them: contiguous and writable, so that each has one version.

    >>> _words([np.array([1], dtype=np.uint64)])[0].dtype
    dtype('int64')
    """
    words = tuple(map(_as_words, keys))
    if not words:
        raise BatchError("an order needs at least one array of integers")
    rows = len(words[0])
    for word in words:
        if len(word) != rows:
            raise BatchError(f"arrays to sort by have {rows} and {len(word)} rows")
    return words


def _as_words(key: Integers) -> Integers:
    key = np.asarray(key)
    if key.ndim != 1 or key.dtype.kind not in "biumM":
        raise BatchError(f"rows are sorted by integers, not by {key.ndim}-d {key.dtype}")
    if key.dtype.itemsize < 8:
        return key.astype(np.int64)
    return plain(key.view(np.int64))


@nb.njit(cache=True)
def _span(times: Integers) -> tuple[bool, int, int]:
    """Whether times are in order, and the least and the greatest of them.

    >>> _span(np.array([3, 5, 5])), _span(np.array([5, 3, 4]))
    ((True, 3, 5), (False, 3, 5))
    """
    first = last = times[0]
    in_order = True
    for time in times:
        if time < last:
            in_order = False
            first = min(first, time)
        else:
            last = time
    return in_order, first, last


@nb.njit(cache=True)
def _merge_runs(times, starts, following, heads):  # type: ignore[no-untyped-def]
    """The order of rows in blocks that make a few runs; rows of equal times stay as they are.

    >>> times, starts = np.array([1, 5, 2, 5, 5, 7]), np.array([0, 2, 4, 6])
    >>> _merge_runs(times, starts, np.array([2, -1, -1]), np.array([0, 1]))
    array([0, 2, 1, 3, 4, 5])
    """
    runs = len(heads)
    order = np.empty(len(times), np.intp)
    at, end, block = starts[heads], starts[heads + 1], heads.copy()
    for k in range(len(times)):
        chosen, place, time = -1, 0, times[0]
        for run in range(runs):
            here = at[run]
            if block[run] >= 0 and (
                chosen < 0 or times[here] < time or (times[here] == time and here < place)
            ):
                chosen, place, time = run, here, times[here]
        order[k] = place
        at[chosen] += 1
        if at[chosen] == end[chosen]:
            following_block = following[block[chosen]]
            block[chosen] = following_block
            if following_block >= 0:
                at[chosen], end[chosen] = starts[following_block], starts[following_block + 1]
    return order


@nb.njit(cache=True)
def _is_sorted(first: Integers, second: Integers) -> bool:
    for i in range(1, len(first)):
        if first[i] < first[i - 1] or (first[i] == first[i - 1] and second[i] < second[i - 1]):
            return False
    return True


@nb.njit(cache=True, inline="always")
def _less(keys, a, b):  # type: ignore[no-untyped-def]
    for key in keys:
        if key[a] != key[b]:
            return key[a] < key[b]
    return False


@nb.njit(cache=True)
def _sort_equals(order, keys, small):  # type: ignore[no-untyped-def]
    """Sort the rows of each value of the first key; false if there are too many of one."""
    first = keys[0]
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and first[order[stop]] == first[order[start]]:
            stop += 1
        for i in range(start + 1, stop):
            row = order[i]
            j = i
            while j > start and _less(keys, row, order[j - 1]):
                order[j] = order[j - 1]
                j -= 1
                if i - j > small:
                    return False
            order[j] = row
        start = stop
    return True


@nb.njit(cache=True)
def _sort_pairs(order, first, second, small):  # type: ignore[no-untyped-def]
    """The same for two keys: a tuple of them takes longer."""
    start = 0
    for i in range(1, len(order)):
        row = order[i]
        if first[row] != first[order[start]]:
            start = i
            continue
        j = i
        while j > start and second[row] < second[order[j - 1]]:
            order[j] = order[j - 1]
            j -= 1
            if i - j > small:
                return False
        order[j] = row
    return True


@nb.njit(cache=True)
def _merge(keys, split):  # type: ignore[no-untyped-def]
    count = len(keys[0])
    order = np.empty(count, np.intp)
    i, j = 0, split
    for k in range(count):
        if j == count or (i < split and not _less(keys, j, i)):
            order[k] = i
            i += 1
        else:
            order[k] = j
            j += 1
    return order


@nb.njit(cache=True)
def _merge_two(first, second, split):  # type: ignore[no-untyped-def]
    """The same for two keys: a tuple of them takes longer."""
    count = len(first)
    order = np.empty(count, np.intp)
    i, j = 0, split
    for k in range(count):
        if j == count or (
            i < split and (first[i] < first[j] or (first[i] == first[j] and second[i] <= second[j]))
        ):
            order[k] = i
            i += 1
        else:
            order[k] = j
            j += 1
    return order
