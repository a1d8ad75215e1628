"""Accumulators: what an aggregate remembers of each group, in arrays indexed by slot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.dataflow import compiled as nb
from jeton.dataflow.columns import Column, from_arrow, plain, to_arrow
from jeton.dataflow.state.slot_pool import Slots, grown

Values = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_ALL: Mask = np.empty(0, dtype=bool)
"""The mask of a column without nulls."""


class Accumulator(ABC):
    """One aggregate's memory of every group."""

    @abstractmethod
    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Add a value to the group of each record; there are ``size`` slots."""

    @abstractmethod
    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """The same, and the result after each record."""

    @abstractmethod
    def result(self, slots: Slots) -> Column:
        """The result of some groups."""

    @abstractmethod
    def clear(self, slots: Slots) -> None:
        """Forget some groups."""

    @abstractmethod
    def save(self, slots: Slots) -> dict[str, Column]:
        """What is remembered of some groups, as columns."""

    @abstractmethod
    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """Remember it again."""

    @abstractmethod
    def merge(self, into: Slots, others: Slots) -> None:
        """Add what is remembered of ``others`` to ``into``, pair by pair."""


class Count(Accumulator):
    """How many records, or how many values that are not null."""

    def __init__(self) -> None:
        self._count = np.zeros(0, dtype=np.int64)

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Count."""
        self._count = roomy(self._count, size)
        _add_count(self._count, slots, valid_mask(column))

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Count, and tell after each record."""
        self._count = roomy(self._count, size)
        out = np.empty(len(slots), dtype=np.int64)
        _roll_count(self._count, slots, valid_mask(column), out)
        return out

    def result(self, slots: Slots) -> Column:
        """The counts."""
        counts: Values = self._count[slots]
        return counts

    def clear(self, slots: Slots) -> None:
        """Back to nothing."""
        self._count[slots] = 0

    def save(self, slots: Slots) -> dict[str, Column]:
        """The counts."""
        return {"count": self._count[slots]}

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The counts again."""
        self._count = roomy(self._count, size)
        self._count[slots] = saved["count"]

    def merge(self, into: Slots, others: Slots) -> None:
        """Sum up."""
        np.add.at(self._count, into, self._count[others])


class Numeric(Accumulator):
    """A fold over numbers, or over times as numbers: sum, least, greatest, mean.

    Nulls are passed over; a group with nothing but nulls has the result null.
    """

    def __init__(self, how: str) -> None:
        self._how = how
        self._code = _HOW[how]
        self._value: Values = np.zeros(0, dtype=np.float64 if how == "mean" else np.int64)
        self._seen = np.zeros(0, dtype=np.int64)
        self._usual: np.dtype[Any] | None = None
        """The type of plain columns that need no preparation."""
        self._shown: np.dtype[Any] | None = None
        """The type of results, where it differs from how values are kept."""

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Fold the values in."""
        values, valid = self._prepare(column, size)
        _add(self._code, self._value, self._seen, slots, values, valid)

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Fold the values in, and tell after each record."""
        values, valid = self._prepare(column, size)
        out = np.empty(len(slots), dtype=self._value.dtype)
        seen = np.empty(len(slots), dtype=bool)
        _roll(self._code, self._value, self._seen, slots, values, valid, out, seen)
        return self._show(out, seen)

    def result(self, slots: Slots) -> Column:
        """The folded values."""
        value, seen = self._value[slots], self._seen[slots]
        if self._how == "mean":
            value = value / np.maximum(seen, 1)
        return self._show(value, seen > 0)

    def clear(self, slots: Slots) -> None:
        """Back to nothing."""
        self._value[slots] = 0
        self._seen[slots] = 0

    def save(self, slots: Slots) -> dict[str, Column]:
        """The folded values, and how many there were."""
        shown = self._show(self._value[slots], np.ones(len(slots), dtype=bool))
        return {"value": shown, "seen": self._seen[slots]}

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The same again."""
        values, _ = self._prepare(saved["value"], size)
        self._value[slots] = values
        self._seen[slots] = saved["seen"]

    def merge(self, into: Slots, others: Slots) -> None:
        """Fold groups into groups."""
        _fold(self._code, self._value, self._seen, into, others)

    def _prepare(self, column: Column | None, size: int) -> tuple[Values, Mask]:
        """The values as they are kept, with room for them."""
        assert column is not None, "numeric aggregates name a column"
        if isinstance(column, np.ndarray) and column.dtype is self._usual:
            # The same plain type as last time: nothing to find out.
            if size > len(self._value):
                self._value, self._seen = roomy(self._value, size), roomy(self._seen, size)
            return plain(column), _ALL
        valid = valid_mask(column)
        if not isinstance(column, np.ndarray):
            column = filled(column, self._shown or self._value.dtype)
            assert isinstance(column, np.ndarray), "other types have accumulators of their own"
        if column.dtype.kind in "mM":
            self._shown = column.dtype
            column = column.view(np.int64)
        elif self._how in ("min", "max") and (self._shown is None or self._shown.kind not in "mM"):
            self._shown = np.promote_types(self._shown or column.dtype, column.dtype)
        kept = _kept_type(column.dtype, self._how)
        if self._value.dtype != kept:
            kept = np.promote_types(self._value.dtype, kept) if self._seen.any() else kept
            self._value = self._value.astype(kept, copy=False)
        self._value = roomy(self._value, size)
        self._seen = roomy(self._seen, size)
        usual = valid is _ALL and column.dtype == self._value.dtype and self._shown is None
        self._usual = column.dtype if usual else None
        return plain(column.astype(self._value.dtype, copy=False)), valid

    def _show(self, values: Values, seen: Mask) -> Column:
        if self._shown is not None:
            values = (
                values.view(self._shown)
                if self._shown.kind in "mM"
                else values.astype(self._shown, copy=False)
            )
        return values if seen.all() else pa.array(values, mask=~seen)


def is_unknown(column: Column | None) -> bool:
    """Whether a column has nothing but nulls, of no type."""
    return isinstance(column, pa.Array) and bool(pa.types.is_null(column.type))


def filled(column: pa.Array, unknown: Any = np.int64) -> Column:
    """A column with zeros for nulls, and floating-point numbers for decimals."""
    if is_unknown(column):
        return np.zeros(len(column), dtype=unknown)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return from_arrow(column.fill_null(pa.scalar(0).cast(column.type)))


def valid_mask(column: Column | None) -> Mask:
    """Which values are not null; empty if all are."""
    if column is None or isinstance(column, np.ndarray) or column.null_count == 0:
        return _ALL
    return plain(column.is_valid().to_numpy(zero_copy_only=False))


def roomy(array: Values, size: int) -> Values:
    """The array, made longer if there are more slots than it has."""
    return array if size <= len(array) else grown(array, max(size, 2 * len(array), 256))


def pylist(column: Column) -> list[Any]:
    """A column as Python values."""
    # NumPy's own list of times would have integers where Python's times are too coarse.
    plain_numbers = isinstance(column, np.ndarray) and column.dtype.kind not in "mM"
    values: list[Any] = column.tolist() if plain_numbers else to_arrow(column).to_pylist()
    return values


def _kept_type(dtype: np.dtype[Any], how: str) -> np.dtype[Any]:
    if how == "mean" or dtype.kind == "f":
        return np.dtype(np.float64)
    return np.dtype(np.uint64) if dtype == np.uint64 else np.dtype(np.int64)


@nb.njit(cache=True)
def _add_count(count, slots, valid):  # type: ignore[no-untyped-def]
    if len(valid) == 0:
        for i in range(len(slots)):
            count[slots[i]] += 1
    else:
        for i in range(len(slots)):
            if valid[i]:
                count[slots[i]] += 1


@nb.njit(cache=True)
def _roll_count(count, slots, valid, out):  # type: ignore[no-untyped-def]
    every = len(valid) == 0
    for i in range(len(slots)):
        slot = slots[i]
        if every or valid[i]:
            count[slot] += 1
        out[i] = count[slot]


_SUM, _MIN, _MAX, _MEAN = range(4)
_HOW = {"sum": _SUM, "min": _MIN, "max": _MAX, "mean": _MEAN}


@nb.njit(cache=True, inline="always")
def _combine(how, left, right):  # type: ignore[no-untyped-def]
    if how == 1:
        return min(left, right)
    if how == 2:
        return max(left, right)
    return left + right


@nb.njit(cache=True)
def _add(how, value, seen, slots, values, valid):  # type: ignore[no-untyped-def]
    every = len(valid) == 0
    for i in range(len(slots)):
        if every or valid[i]:
            slot = slots[i]
            if seen[slot]:
                value[slot] = _combine(how, value[slot], values[i])
            else:
                value[slot] = values[i]
            seen[slot] += 1


@nb.njit(cache=True)
def _roll(how, value, seen, slots, values, valid, out, known):  # type: ignore[no-untyped-def]
    every = len(valid) == 0
    for i in range(len(slots)):
        slot = slots[i]
        if every or valid[i]:
            if seen[slot]:
                value[slot] = _combine(how, value[slot], values[i])
            else:
                value[slot] = values[i]
            seen[slot] += 1
        # Two statements, since one expression would make integers floating-point numbers.
        if how == 3:
            out[i] = value[slot] / max(seen[slot], 1)
        else:
            out[i] = value[slot]
        known[i] = seen[slot] > 0


@nb.njit(cache=True)
def _fold(how, value, seen, into, others):  # type: ignore[no-untyped-def]
    for i in range(len(into)):
        slot, other = into[i], others[i]
        if seen[other]:
            if seen[slot]:
                value[slot] = _combine(how, value[slot], value[other])
            else:
                value[slot] = value[other]
            seen[slot] += seen[other]
