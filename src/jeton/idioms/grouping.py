"""Grouping by several arrays of 64-bit integers, or by the values that they are hashes of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt

Integers: TypeAlias = npt.NDArray[np.int64]


def plain(array: Integers) -> Integers:
    """An array as compiled loops take it: contiguous and writable, so that each has one version."""
    return np.require(array, requirements=["C", "W"])


def order_of(keys: Sequence[Integers]) -> npt.NDArray[np.intp]:
    """The order by several arrays.

    >>> order_of([np.array([2, 1, 2]), np.array([7, 9, 5])])
    array([1, 2, 0])
    """
    order = jt.state.sort_order(keys)
    return np.arange(len(keys[0])) if order is None else order


def grouping(
    keys: Sequence[Integers], order: npt.NDArray[np.intp] | None = None
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The order by several arrays, if it is not known, and where each group of equals starts.

    >>> [part.tolist() for part in grouping([np.array([2, 1, 2])])]
    [[1, 0, 2], [0, 1]]
    """
    if order is None:
        order = order_of(keys)
    opens = np.zeros(len(order), dtype=bool)
    opens[:1] = True
    for key in keys:
        ordered = key[order]
        opens[1:] |= ordered[1:] != ordered[:-1]
    return order, np.flatnonzero(opens)


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
            numbers, _ = jt.state.KeySlots(len(columns)).find(columns, len(order))
            return grouping([*keys, numbers])
    return order, starts


def same_rows(left: Any, rows: Any, right: Any, others: Any) -> npt.NDArray[np.bool_]:
    """Whether the values at some rows of a column are those at others of another one.

    >>> same_rows(pa.array(["a", "b"]), np.array([0, 1]), pa.array(["b", "a"]), np.array([1, 1]))
    array([ True, False])
    """
    return jt.state.same_values(_taken(left, rows), _taken(right, others))


def _taken(column: Any, rows: Any) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else column.take(pa.array(rows))
