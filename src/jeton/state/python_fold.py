"""Accumulators of Python values: for what no loop is compiled for, and for nothing at all."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from jeton.columns.column import Column, as_column, from_arrow, to_arrow
from jeton.columns.keys import key_family
from jeton.core.errors import BatchError
from jeton.state.accumulators import Accumulator, Unrepresentable, is_unknown, pylist
from jeton.state.python_values import StateCodec, brought_back, stored
from jeton.state.slot_bytes import encoded
from jeton.state.slot_pool import Slots

_NOTHING: Any = object()

_EXACT = decimal.Context(prec=120)
"""Python's own decimals would be rounded to 28 digits; 76 and as many as a count has are enough."""


class PythonFold(Accumulator):
    """A fold in plain Python, one call for each record: text, decimals, functions of the user's."""

    has_objects = True

    def __init__(
        self,
        fold: Callable[[Any, Any], Any],
        *,
        initial: Callable[[], Any] | None = None,
        finish: Callable[[Any], Any] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
        skip_nulls: bool = True,
        codec: StateCodec = "plain",
    ) -> None:
        self._fold = fold
        self._initial = initial
        self._finish = finish
        self._merge = merge
        self._skip_nulls = skip_nulls
        self._codec = codec
        self._state: list[Any] = []
        self._type: pa.DataType | None = None
        self._null_type: pa.DataType = pa.null()
        """The type of results of plain numbers if all of them are null."""

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Fold the values in, one by one."""
        for slot, value in self._records(slots, column, size):
            self._take(slot, value)

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Fold the values in; returns the result after each record."""
        out = []
        for slot, value in self._records(slots, column, size):
            self._take(slot, value)
            out.append(self._value(slot))
        return self._column(out)

    def result(self, slots: Slots) -> Column:
        """The folded values."""
        return self._column([self._value(slot) for slot in slots.tolist()])

    def clear(self, slots: Slots) -> None:
        """Back to the start."""
        for slot in slots.tolist():
            self._state[slot] = _NOTHING

    def save(self, slots: Slots) -> dict[str, Column]:
        """The folded values before they are finished."""
        states = [self._state[slot] for slot in slots.tolist()]
        plain = [None if state is _NOTHING else state for state in states]
        # Without an initial state the states are values of the column, and keep its type.
        kept = self._array(plain) if self._initial is None else stored(plain, codec=self._codec)
        return {"state": kept, "seen": np.array([s is not _NOTHING for s in states], dtype=bool)}

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The same again."""
        self._grow(size)
        column = saved["state"]
        if self._initial is None:
            self._learn_type(column)
            states = self._values(column)
        else:
            states = brought_back(to_arrow(column), codec=self._codec)
        for slot, state, seen in zip(slots.tolist(), states, pylist(saved["seen"]), strict=True):
            self._state[slot] = state if seen else _NOTHING

    def merge(self, into: Slots, others: Slots) -> None:
        """Fold groups into groups."""
        if self._merge is None:
            raise BatchError("this aggregate cannot merge groups: give it a merge function")
        for slot, other in zip(into.tolist(), others.tolist(), strict=True):
            state = self._state[other]
            if state is not _NOTHING:
                mine = self._state[slot]
                self._state[slot] = state if mine is _NOTHING else self._merge(mine, state)

    def _records(self, slots: Slots, column: Column | None, size: int) -> Any:
        self._grow(size)
        if column is None:
            raise BatchError("this aggregate needs a column")
        self._learn_type(column)
        return zip(slots.tolist(), self._values(column), strict=True)

    def _learn_type(self, column: Column) -> None:
        kind = to_arrow(column[:0]).type
        # Results of plain numbers are as wide as Python makes them, with nulls or without.
        plain = pa.types.is_primitive(kind) and not pa.types.is_temporal(kind)
        if plain:
            self._null_type = _widest(kind)
        elif not is_unknown(column):
            self._type = self._typed(kind)

    def _values(self, column: Column) -> list[Any]:
        """The values that are folded."""
        return pylist(column)

    def _take(self, slot: int, value: Any) -> None:
        if value is None and self._skip_nulls:
            return
        state = self._state[slot]
        if state is _NOTHING:
            if self._initial is None:
                self._state[slot] = value
                return
            state = self._initial()
        self._state[slot] = self._fold(state, value)

    def _value(self, slot: int) -> Any:
        state = self._state[slot]
        if state is _NOTHING:
            if self._initial is None:
                return None
            state = self._initial()
        return self._finish(state) if self._finish else state

    def _typed(self, kind: pa.DataType) -> pa.DataType:
        """The type of results of a column of some type."""
        return kind

    def _column(self, values: list[Any]) -> Column:
        own = self._initial is None and self._finish is None
        kind = self._type if own else None
        try:
            if own and (kind is not None or _is_null(values)):
                return from_arrow(self._array(values))
            return as_column(values)
        except (pa.ArrowException, OverflowError, BatchError) as error:
            raise self._misfit(values, kind) or error from None

    def _array(self, values: list[Any]) -> pa.Array:
        """Values of the column's type; nulls alone do not say that they are numbers."""
        kind = self._type
        if kind is None and _is_null(values):
            kind = self._null_type
        return _typed_array(values, kind)

    def _misfit(self, values: list[Any], kind: pa.DataType | None) -> Unrepresentable | None:
        """The error for the first result that its type cannot hold."""
        for row, value in enumerate(values):
            try:
                _typed_array([value], kind)
            except (pa.ArrowException, OverflowError):
                what = "number of 64 bits" if kind is None else kind
                return Unrepresentable(row, f"a result is {value}, which is not a {what}")
        return None

    def _grow(self, size: int) -> None:
        self._state.extend([_NOTHING] * (size - len(self._state)))


class Extreme(PythonFold):
    """The least or the greatest of values other than plain numbers: text, decimals, times."""

    has_objects = False

    _first_type: pa.DataType | None = None

    def _values(self, column: Column) -> list[Any]:
        """Times as integers: Python's own have no nanoseconds, and end with the year 9999."""
        self._require_one_type(to_arrow(column[:0]).type)
        if not isinstance(column, np.ndarray):
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            kind = column.type
            if pa.types.is_date32(kind) or pa.types.is_time32(kind):
                column = column.cast(pa.int32())
            elif pa.types.is_time64(kind) or pa.types.is_timestamp(kind):
                column = column.cast(pa.int64())
        return pylist(column)

    def _require_one_type(self, kind: pa.DataType) -> None:
        """Refuse values of two types that do not compare."""
        if pa.types.is_null(kind):
            return
        self._first_type = self._first_type or kind
        if key_family(kind) != key_family(self._first_type):
            raise BatchError(
                f"values are of type {kind}, but they were {self._first_type} before: cast them "
                "to one type, or give the input a schema=…"
            )


class DecimalSum(PythonFold):
    """Exact sums of decimals: with as many digits as needed, until they are emitted."""

    has_objects = False

    def __init__(self) -> None:
        super().__init__(_EXACT.add, merge=_EXACT.add)

    def save(self, slots: Slots) -> dict[str, Column]:
        """The sums as decimals of their type, and how often each exceeds all of its digits."""
        states = [self._state[slot] for slot in slots.tolist()]
        zero, whole = decimal.Decimal(0), self._whole
        parts = [_EXACT.divmod(zero if s is _NOTHING else s, whole) for s in states]
        return {
            "state": pa.array([rest for _, rest in parts], self._type),
            "carry": np.array([int(times) for times, _ in parts], dtype=np.int64),
            "seen": np.array([state is not _NOTHING for state in states], dtype=bool),
        }

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The sums again."""
        super().load(slots, saved, size)
        carry = saved.get("carry")
        carried = [] if carry is None else pylist(carry)
        for slot, times in zip(slots.tolist(), carried, strict=carry is not None):
            if times:
                self._state[slot] = _EXACT.fma(times, self._whole, self._state[slot])

    @property
    def _whole(self) -> decimal.Decimal:
        """One more than the greatest number that the digits of the type can hold."""
        assert self._type is not None, "only columns of decimals are summed up here"
        return decimal.Decimal(1).scaleb(self._type.precision - self._type.scale)

    def _typed(self, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_decimal256(kind):
            return pa.decimal256(76, kind.scale)
        return pa.decimal128(38, kind.scale)


class DecimalMean(DecimalSum):
    """Means of decimals: of exact sums, so that no order of the values makes another."""

    def __init__(self) -> None:
        super().__init__()
        self._count: list[int] = []

    def clear(self, slots: Slots) -> None:
        """Back to the start."""
        super().clear(slots)
        for slot in slots.tolist():
            self._count[slot] = 0

    def save(self, slots: Slots) -> dict[str, Column]:
        """The sums, and of how many values."""
        counts = np.array([self._count[slot] for slot in slots.tolist()], dtype=np.int64)
        return {**super().save(slots), "count": counts}

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The same again."""
        super().load(slots, saved, size)
        for slot, count in zip(slots.tolist(), pylist(saved["count"]), strict=True):
            self._count[slot] = count or 0

    def merge(self, into: Slots, others: Slots) -> None:
        """Fold groups into groups."""
        super().merge(into, others)
        for slot, other in zip(into.tolist(), others.tolist(), strict=True):
            self._count[slot] += self._count[other]

    def _take(self, slot: int, value: Any) -> None:
        super()._take(slot, value)
        self._count[slot] += value is not None

    def _value(self, slot: int) -> Any:
        total = super()._value(slot)
        return None if total is None else float(_EXACT.divide(total, self._count[slot]))

    def _column(self, values: list[Any]) -> Column:
        return from_arrow(pa.array(values, pa.float64()))

    def _grow(self, size: int) -> None:
        super()._grow(size)
        self._count.extend([0] * (size - len(self._count)))


class NullFold(Accumulator):
    """The memory of a column that has been null throughout, so that its type is not known yet."""

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """There is nothing to remember."""

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Nulls."""
        return pa.nulls(len(slots))

    def result(self, slots: Slots) -> Column:
        """Nulls."""
        return pa.nulls(len(slots))

    def clear(self, slots: Slots) -> None:
        """There is nothing to forget."""

    def save(self, slots: Slots) -> dict[str, Column]:
        """Nothing."""
        return {}

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """Nothing."""

    def merge(self, into: Slots, others: Slots) -> None:
        """Nothing."""


def _is_null(values: list[Any]) -> bool:
    """Whether there are values, but none that says of which type they are."""
    return bool(values) and all(value is None for value in values)


def _widest(kind: pa.DataType) -> pa.DataType:
    """The type of plain numbers once Python has computed with them.

    >>> _widest(pa.int8()), _widest(pa.float32()), _widest(pa.bool_())
    (DataType(int64), DataType(double), DataType(bool))
    """
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else kind


def _typed_array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    """Values as an Arrow array; Arrow itself makes dictionaries of few types only."""
    if kind is not None and pa.types.is_dictionary(kind):
        return encoded(pa.array(values, kind.value_type), kind)
    return pa.array(values, kind)
