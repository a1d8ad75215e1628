"""Ordering: records in an order that depends on nothing but their own values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.core.errors import BatchError
from jeton.dataflow.batch import Batch
from jeton.dataflow.columns import Column

Rows = npt.NDArray[np.intp]
Sortable = npt.NDArray[Any]


def sortable(column: Column, *, descending: bool = False) -> Sortable | None:
    """An array that sorts like a column: what comes first is least. NaN, then nulls, come last.

    ``None`` if there is no order: lists, structures and the like.

    >>> sortable(np.array([3, 1]), descending=True).argsort()
    array([0, 1])
    >>> sortable(pa.array(["b", None, "a"])).argsort()
    array([2, 0, 1])
    """
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "f":
            return -column if descending else column
        if column.dtype.kind in "mM":
            column = column.view(np.int64)
        return ~column if descending else column
    kind = column.type
    if pa.types.is_dictionary(kind):
        return sortable(column.dictionary_decode(), descending=descending)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        text = pa.types.is_string_view(kind)
        column = column.cast(pa.large_string() if text else pa.large_binary())
    elif pa.types.is_null(kind):
        return np.zeros(len(column), dtype=np.int64)
    elif pa.types.is_nested(kind):
        return None
    order = "descending" if descending else "ascending"
    ranks: Sortable = pc.rank(column, sort_keys=order, tiebreaker="dense").to_numpy()
    return ranks


def order_by(batch: Batch, *first: Sortable) -> Rows:
    """The order of records by some arrays, then by time, then by all columns, by their names.

    So that it never matters in which order records or columns came: only those that are equal in
    every column that has an order can stand for each other.
    """
    leading = [*first, *_time_keys(batch)]
    order: Rows = np.lexsort(leading[::-1])
    if not _ties(leading, order):
        return order
    others = (sortable(batch.columns[name]) for name in sorted(batch.columns))
    return np.lexsort([*leading, *(keys for keys in others if keys is not None)][::-1])


def require_sortable(column: Column, name: str, *, descending: bool = False) -> Sortable:
    """`sortable`, for a column that must have an order."""
    found = sortable(column, descending=descending)
    if found is None:
        assert not isinstance(column, np.ndarray)
        raise BatchError(f"column {name!r} is of type {column.type}, which has no order")
    return found


def _time_keys(batch: Batch) -> list[Sortable]:
    times = batch.times
    if times.dtype == object:
        return []  # records are then sorted within one time only
    return [times] if times.ndim == 1 else list(times.T)


def _ties(keys: Sequence[Sortable], order: Rows) -> bool:
    if len(order) < 2:
        return False
    same = np.ones(len(order) - 1, dtype=bool)
    for values in keys:
        after, before = values[order[1:]], values[order[:-1]]
        # NaN differs from itself, but not in order.
        same &= (after == before) | ((after != after) & (before != before))
    return bool(same.any())
