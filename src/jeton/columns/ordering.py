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
_MOST: Final = 1 << 31
"""The number of rows from which on their places leave too little room in a word."""
_FEW: Final = 8
"""The bits of a key up to which it is not worth numbering its values."""
_WORD: Final = (1 << 64) - 1


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
    # Times that are among the first already, as those of windows are, need not be compared again.
    times = [key for key in time_keys(batch) if not any(key is known for known in first)]
    leading = [*first, *times]
    packed = _packed(leading)
    if packed is None:
        order: Rows = np.lexsort(leading[::-1])
        same = _same_as_next(leading, order)
    else:
        order, same = packed
    if not same.any():
        return order
    # Only records that are equal so far are compared in all columns: they are few in most batches.
    places, groups = _tied(same)
    rows = order[places]
    order[places] = rows[np.lexsort([groups, *tie_breakers(batch.take(rows))][::-1])]
    return order


def time_keys(batch: Batch) -> list[Sortable]:
    """Arrays that sort like the times of records.

    >>> time_keys(Batch({"n": [2, 1]}, times=[7, 5]))
    [array([7, 5])]
    """
    times = batch.times
    if times.dtype == object:
        # Records are then sorted within one time only.
        return [np.zeros(len(times), dtype=np.int64)]
    return [times] if times.ndim == 1 else list(times.T)


def packed_order(keys: Sequence[Sortable]) -> Rows | None:
    """The order by several arrays of integers, the first one first; those of equal rows stay.

    ``None`` if there are other arrays, or if there are too few rows for it to pay.

    >>> packed_order([np.arange(1000)[::-1] // 500])[:3]
    array([500, 501, 502])
    >>> packed_order([np.array([2, 1])])
    """
    packed = _packed(keys)
    return None if packed is None else packed[0]


def _packed(keys: Sequence[Sortable]) -> tuple[Rows, npt.NDArray[np.bool_]] | None:
    """`packed_order`, and whether each row but the last is equal to the next one in that order.

    All values of a row are put into one word, together with its place: such words are sorted many
    times as fast as rows. Where values do not fit, rows are sorted by the bits that do, and those
    that are equal so far by the others.
    """
    rows = len(keys[0]) if keys else 0
    if not _MANY <= rows < _MOST or any(k.dtype.kind not in "iub" or k.ndim != 1 for k in keys):
        return None
    places = rows.bit_length()
    room = 64 - places
    words = np.zeros(rows, dtype=np.uint64)
    left = []
    for values, width in _narrow(keys, room):
        taken = min(width, room)
        beyond = width - taken
        if taken:
            words <<= np.uint64(taken)
            words |= values >> np.uint64(beyond) if beyond else values
        if beyond:
            left.append(values & np.uint64((1 << beyond) - 1))
        room -= taken
    words <<= np.uint64(places)
    words |= np.arange(rows, dtype=np.uint64)
    words.sort()
    order: Rows = (words & np.uint64((1 << places) - 1)).view(np.int64)
    words >>= np.uint64(places)
    same = words[1:] == words[:-1]
    if left and same.any():
        tied, groups = _tied(same)
        some = order[tied]
        others = [groups, *(values[some] for values in left)]
        found = _packed(others)
        if found is None:
            by = np.lexsort(others[::-1])
            found = by, _same_as_next(others, by)
        order[tied] = some[found[0]]
        same[tied[:-1]] = found[1]
    return order, same


def _narrow(keys: Sequence[Sortable], room: int) -> list[tuple[npt.NDArray[np.uint64], int]]:
    """Keys from zero on, and the bits that they have."""
    found = []
    for key in keys:
        wide = key if key.dtype == np.uint64 else key.astype(np.int64, copy=False).view(np.uint64)
        least, most = int(key.min()), int(key.max())
        found.append((wide - np.uint64(least & _WORD), (most - least).bit_length()))
    for at, (values, width) in enumerate(found):
        if sum(each for _, each in found) <= room:
            break
        # Times mostly come in order, and those of windows are few.
        if width > _FEW and bool((values[1:] >= values[:-1]).all()):
            numbers = np.zeros(len(values), dtype=np.uint64)
            np.cumsum(values[1:] != values[:-1], out=numbers[1:])
            found[at] = numbers, int(numbers[-1]).bit_length()
    return found


def _tied(same: npt.NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """The places of rows that are equal to another one, and the number of those that each equals.

    >>> _tied(np.array([False, True, True, False, True]))
    (array([1, 2, 3, 4, 5]), array([1, 1, 1, 2, 2]))
    """
    tied = np.append(same, False)
    tied[1:] |= same
    places = np.flatnonzero(tied)
    return places, np.append(0, np.cumsum(~same))[places]


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


def _same_as_next(keys: Sequence[Sortable], order: Rows) -> npt.NDArray[np.bool_]:
    """Whether each row but the last, in some order, is equal to the next one in all keys."""
    same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for values in keys:
        ordered = values[order]
        same &= ordered[1:] == ordered[:-1]
    return same
