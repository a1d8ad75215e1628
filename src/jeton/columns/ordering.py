"""Ordering: records in an order that depends on nothing but their own values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns.batch import Batch
from jeton.columns.column import Column
from jeton.columns.keys import is_float
from jeton.core.errors import BatchError

Rows = npt.NDArray[np.intp]
Sortable = npt.NDArray[Any]

_MANY: Final = 512
"""The number of rows from which on it pays to sort words in place of rows."""


def sortable(column: Column, *, descending: bool = False) -> Sortable | None:
    """An array that sorts like a column, the first value least.

    NaN is the greatest number, zeros of both signs are equal, and nulls come last in either
    direction. ``None`` if there is no order: lists and structures, for example.

    >>> sortable(np.array([3.0, np.nan, 1.0]), descending=True).argsort()
    array([1, 0, 2])
    >>> sortable(pa.array(["b", None, "a"])).argsort()
    array([2, 0, 1])
    """
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "f":
            return _float_keys(column, descending)
        if column.dtype.kind in "mM":
            column = column.view(np.int64)
        return ~column if descending else column
    kind = column.type
    if pa.types.is_dictionary(kind):
        return sortable(column.dictionary_decode(), descending=descending)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        text = pa.types.is_string_view(kind)
        column = column.cast(pa.large_string() if text else pa.large_binary())
    elif pa.types.is_floating(kind):
        known = column.is_valid().to_numpy(zero_copy_only=False)
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy()
        return np.where(known, _float_keys(numbers, descending), np.iinfo(np.int64).max)
    elif pa.types.is_null(kind):
        return np.zeros(len(column), dtype=np.int64)
    elif pa.types.is_nested(kind) or pa.types.is_interval(kind):
        return None
    order = "descending" if descending else "ascending"
    ranks: Sortable = pc.rank(column, sort_keys=order, tiebreaker="dense").to_numpy()
    return ranks


def order_by(batch: Batch, *first: Sortable) -> Rows:
    """The order of records by some arrays, then by time, then by their columns, first to last.

    So that it never matters in which order records came: only those that are equal in every
    column can stand for each other.

    >>> order_by(Batch({"z": [2, 1, 1], "a": [0, 7, 3]}, times=[5, 5, 5]))
    array([2, 1, 0])
    """
    leading = [*first, *_time_keys(batch)]
    packed = packed_order(leading)
    order: Rows = np.lexsort(leading[::-1]) if packed is None else packed
    same = _same_as_next(leading, order)
    if not same.any():
        return order
    # Only records that are equal so far are compared in all columns: they are few in most batches.
    tied = np.append(same, False)
    tied[1:] |= same
    places = np.flatnonzero(tied)
    rows = order[places]
    groups = np.append(0, np.cumsum(~same))[places]
    order[places] = rows[np.lexsort([groups, *tie_breakers(batch.take(rows))][::-1])]
    return order


def packed_order(keys: Sequence[Sortable]) -> Rows | None:
    """The order by several arrays of integers, the first one first; those of equal rows stay.

    All values of a row are put into one word, together with its place: such words are sorted many
    times as fast as rows. ``None`` if they do not fit, or if there are too few for it to pay.

    >>> packed_order([np.arange(1000)[::-1] // 500])[:3]
    array([500, 501, 502])
    >>> packed_order([np.array([2, 1])])
    """
    rows = len(keys[0]) if keys else 0
    if rows < _MANY or any(key.dtype.kind not in "iu" or key.ndim != 1 for key in keys):
        return None
    places = rows.bit_length()
    spans = [(int(key.min()), int(key.max())) for key in keys]
    widths = [(greatest - least).bit_length() for least, greatest in spans]
    if sum(widths) + places > 63:
        return None
    words = np.zeros(rows, dtype=np.int64)
    for key, (least, _), width in zip(keys, spans, widths, strict=True):
        wide = key if key.dtype == np.uint64 else key.astype(np.int64, copy=False)
        words <<= width
        words |= (wide - wide.dtype.type(least)).astype(np.int64, copy=False)
    words <<= places
    words |= np.arange(rows)
    words.sort()
    words &= (1 << places) - 1
    return words


def stable_order(values: Sortable) -> Rows:
    """The order of an array, in which equal values stay as they are.

    >>> stable_order(np.array([7, 5, 7]))
    array([1, 0, 2])
    """
    packed = packed_order([values])
    return np.argsort(values, kind="stable") if packed is None else packed


def tie_breakers(batch: Batch, *, descending: bool = False) -> list[Sortable]:
    """Arrays that sort like the columns of a batch, from the first to the last.

    Values that have no order, such as lists, are sorted by their text: any order will do, as long
    as it follows from the values. Values that are equal but not the same, such as the zeros
    of both signs, are separated at the end.
    """
    found, forms = [], []
    for column in batch.columns.values():
        keys = sortable(column, descending=descending)
        if keys is None:
            assert not isinstance(column, np.ndarray)
            texts = pa.array([repr(value) for value in column.to_pylist()])
            keys = sortable(texts, descending=descending)
            assert keys is not None
        found.append(keys)
        if is_float(column):
            forms.append(_forms(column))
    return found + forms


def _forms(column: Column) -> Sortable:
    """The bits of floating-point numbers."""
    if not isinstance(column, np.ndarray):
        column = column.cast(pa.float64()).fill_null(0.0).to_numpy()
    bits: Sortable = column.astype(np.float64).view(np.int64)
    return bits


def require_sortable(column: Column, name: str, *, descending: bool = False) -> Sortable:
    """`sortable`, for a column that must have an order."""
    found = sortable(column, descending=descending)
    if found is None:
        assert not isinstance(column, np.ndarray)
        raise BatchError(f"column {name!r} is of type {column.type}, which has no order")
    return found


def _float_keys(column: Sortable, descending: bool) -> Sortable:
    """Integers that sort like floating-point numbers."""
    numbers = column.astype(np.float64) + 0.0  # zero has one sign from here on
    numbers[np.isnan(numbers)] = np.nan
    bits = np.abs(numbers).view(np.int64)
    keys: Sortable = np.where(numbers < 0, -bits, bits)
    return ~keys if descending else keys


def _time_keys(batch: Batch) -> list[Sortable]:
    times = batch.times
    if times.dtype == object:
        # Records are then sorted within one time only.
        return [np.zeros(len(times), dtype=np.int64)]
    return [times] if times.ndim == 1 else list(times.T)


def _same_as_next(keys: Sequence[Sortable], order: Rows) -> npt.NDArray[np.bool_]:
    """Whether each row but the last, in some order, is equal to the next one in all keys."""
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for values in keys:
        ordered = values[order]
        same &= ordered[1:] == ordered[:-1]
    return same
