"""Sorting by several arrays of 64-bit integers, the first one first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt

Integers: TypeAlias = npt.NDArray[np.int64]

_SMALL: Final = 64
"""Up to how many records of equal first key are sorted by insertion."""


def sort_order(keys: Sequence[Integers]) -> npt.NDArray[np.intp]:
    """The order by several arrays.

    >>> sort_order([np.array([2, 1, 2]), np.array([7, 9, 5])])
    array([1, 2, 0])
    """
    words = _words(keys)
    # The first key alone is sorted several times as fast as all of them, and leaves little to do.
    order = np.argsort(words[0], kind="stable")
    if len(keys) > 1 and not _sort_equals(order, words, _SMALL):
        order = np.lexsort(words[::-1])
    return order


def merge_order(keys: Sequence[Integers], split: int) -> npt.NDArray[np.intp]:
    """The same where the records before ``split`` are in order, and those from there on.

    >>> merge_order([np.array([1, 5, 2, 6])], split=2)
    array([0, 2, 1, 3])
    """
    order: npt.NDArray[np.intp] = _merge(_words(keys), split)
    return order


def grouping(
    keys: Sequence[Integers], order: npt.NDArray[np.intp] | None = None
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The order by several arrays, if it is not known, and where each group of equals starts.

    >>> [part.tolist() for part in grouping([np.array([2, 1, 2])])]
    [[1, 0, 2], [0, 1]]
    """
    if order is None:
        order = sort_order(keys)
    return order, _starts(order, _words(keys))


def grouping_by_value(
    keys: Sequence[Integers],
    columns: Sequence[Any],
    order: npt.NDArray[np.intp] | None = None,
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The same where some keys are hashes of columns: groups are of equal values in these.

    >>> names, equal = pa.array(["a", "b", "a"]), np.array([7, 7, 7])
    >>> [part.tolist() for part in grouping_by_value([equal], [names])]
    [[0, 2, 1], [0, 2]]
    """
    order, starts = grouping(keys, order)
    if len(starts) < len(order) and columns:
        group = np.zeros(len(order), dtype=np.intp)
        group[starts[1:]] = 1
        later = np.setdiff1d(np.arange(len(order)), starts, assume_unique=True)
        firsts, others = order[starts[np.cumsum(group)[later]]], order[later]
        if not all(same_rows(column, firsts, column, others).all() for column in columns):
            return grouping([*keys, _numbers(columns)])
    return order, starts


def same_rows(left: Any, rows: Any, right: Any, others: Any) -> npt.NDArray[np.bool_]:
    """Whether the values at some rows of a column are those at others of another one.

    >>> same_rows(pa.array(["a", "b"]), np.array([0, 1]), pa.array(["b", "a"]), np.array([1, 1]))
    array([ True, False])
    """
    return jt.state.same_values(_taken(left, rows), _taken(right, others))


def _taken(column: Any, rows: Any) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else column.take(pa.array(rows))


def _numbers(columns: Sequence[Any]) -> Integers:
    """A number for each row, equal for rows with equal values."""
    numbers: dict[Any, int] = {}
    values = [
        ["NaN" if value != value else value for value in pa.array(column).to_pylist()]
        for column in columns
    ]
    rows = zip(*values, strict=True)
    return np.array([numbers.setdefault(row, len(numbers)) for row in rows], dtype=np.int64)


def _words(keys: Sequence[Integers]) -> tuple[Integers, ...]:
    """The keys as compiled loops want them: contiguous and writable, so that each has one version.

    >>> _words([np.array([1], dtype=np.uint64)])[0].dtype
    dtype('int64')
    """
    return tuple(np.require(key.view(np.int64), requirements=["C", "W"]) for key in keys)


@jt.njit(cache=True, inline="always")
def _less(keys, a, b):  # type: ignore[no-untyped-def]
    for key in keys:
        if key[a] != key[b]:
            return key[a] < key[b]
    return False


@jt.njit(cache=True)
def _sort_equals(order, keys, small):  # type: ignore[no-untyped-def]
    """Sort the records of each value of the first key; false if there are too many of one."""
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


@jt.njit(cache=True)
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


@jt.njit(cache=True)
def _starts(order, keys) -> Any:  # type: ignore[no-untyped-def]
    starts = np.empty(len(order), np.intp)
    count = 0
    for i in range(len(order)):
        if i == 0 or _less(keys, order[i - 1], order[i]):
            starts[count] = i
            count += 1
    return starts[:count]
