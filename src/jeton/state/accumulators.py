"""Accumulators: what an aggregate remembers of each group, in arrays indexed by slot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns.column import Column, from_arrow, is_plain_type, plain, to_arrow
from jeton.core.errors import BatchError
from jeton.state import fold_loops as loops
from jeton.state.fused_loops import COUNT, NOTHING
from jeton.state.slot_pool import Slots, grown

Values = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

Folding = tuple[int, Values, Values, Values, Values]
"""A fold as fused loops take it: its code, what is folded and counted by slot, the values, and how
many others are in each of them (none: each is one)."""

_NO_NUMBERS: Values = np.empty(0, dtype=np.float64)
_NO_COUNTS: Values = np.empty(0, dtype=np.int64)
NO_FOLDING: Final[Folding] = (NOTHING, _NO_NUMBERS, _NO_COUNTS, _NO_NUMBERS, _NO_COUNTS)

_ALL: Mask = np.empty(0, dtype=bool)
"""The mask of a column without nulls."""

_MOST: Final = 2**63 - 1
"""The greatest sum of integers that is within both types of them."""


_FLOATS: Final = np.dtype(np.float64)
_INTEGERS: Final = np.dtype(np.int64)
_EXACT: Final = 1 << 53
"""Up to here, integers are the same as floating-point numbers."""


class Accumulator(ABC):
    """One aggregate's memory of every group."""

    has_objects = False
    """Whether it keeps Python objects, which change where they are."""

    def note_times(self, times: Values) -> None:  # noqa: B027
        """Receive the times of the records that come next, if the aggregate is ``by_time``."""

    def folding(self, column: Column | None) -> Folding | None:
        """The fold of a column's values for a fused loop, if one can do it."""
        return None

    def absorbing(self, saved: Mapping[str, Column]) -> Folding | None:
        """The fold of memory that was saved, like `absorb`, if a fused loop can do it."""
        return None

    def rolling(self, column: Column | None, rows: int, size: int) -> tuple[Folding, Values] | None:
        """The same as `folding` with room for ``size`` slots, and an array for results.

        There is one after each of ``rows`` rows; `rolled` makes columns of them.
        """
        return None

    def rolled(self, results: Values) -> Column:
        """Results of a fused loop."""
        return results

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
        """The memory of some groups, as columns."""

    @abstractmethod
    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """Remember it again."""

    @abstractmethod
    def merge(self, into: Slots, others: Slots) -> None:
        """Add what is remembered of ``others`` to ``into``, pair by pair."""

    def absorb(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """Add memory that was saved to that of groups; a slot may occur several times."""
        # Loaded beyond all slots of groups, which are free again afterwards.
        spare = np.arange(size, size + len(slots))
        self.load(spare, saved, size + len(slots))
        self.merge(slots, spare)
        self.clear(spare)


class Count(Accumulator):
    """How many records, or how many values that are not null."""

    def __init__(self) -> None:
        self._count = np.zeros(0, dtype=np.int64)

    def folding(self, column: Column | None) -> Folding | None:
        """Every record counts, if it is not about nulls."""
        if column is not None:
            return None
        return COUNT, _NO_NUMBERS, self._count, _NO_NUMBERS, _NO_COUNTS

    def absorbing(self, saved: Mapping[str, Column]) -> Folding | None:
        """Counts are added."""
        count = saved["count"]
        if not _are_counts(count):
            return None
        return COUNT, _NO_NUMBERS, self._count, _NO_NUMBERS, plain(count)

    def rolling(self, column: Column | None, rows: int, size: int) -> tuple[Folding, Values] | None:
        """The same."""
        if column is not None:
            return None
        if size > len(self._count):
            self._count = roomy(self._count, size)
        folding = (COUNT, _NO_NUMBERS, self._count, _NO_NUMBERS, _NO_COUNTS)
        return folding, np.empty(rows, _INTEGERS)

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Count."""
        self._count = roomy(self._count, size)
        loops.add_count(self._count, slots, valid_mask(column))

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Count; returns the count after each record."""
        self._count = roomy(self._count, size)
        out = np.empty(len(slots), dtype=np.int64)
        loops.roll_count(self._count, slots, valid_mask(column), out)
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

    Nulls are passed over; a group with nothing but nulls has the result null. Sums of integers,
    and means of them, are exact whatever the order: beside a sum that wraps around there is how
    often it did. While a bound of all sums shows that none does, integers are added without
    looking for it. NaN is the greatest number.
    """

    def __init__(self, how: str, *, widen: bool = False) -> None:
        self._how = how
        self._code = loops.HOW[how]
        self._widen = widen
        """Whether sums of integers are decimals."""
        self._value: Values = np.zeros(0, dtype=np.int64)
        self._carry = np.zeros(0, dtype=np.int64)
        """How often a sum of integers has wrapped around; empty while none may have."""
        self._bound = 0
        """No sum of integers is farther from zero than this."""
        self._may_wrap = False
        """Whether a sum of integers may have wrapped around: the bound is not used then."""
        self._seen = np.zeros(0, dtype=np.int64)
        self._usual: np.dtype[Any] | None = None
        """The type of plain columns that need no preparation."""
        self._shown: np.dtype[Any] | None = None
        """The type of results, where it differs from how values are kept."""

    def folding(self, column: Column | None) -> Folding | None:
        """Numbers of the type of those before, as they are; integers if no sum can wrap around."""
        return self._folding(column, _NO_COUNTS)

    def absorbing(self, saved: Mapping[str, Column]) -> Folding | None:
        """What others have folded, if none of their sums has wrapped around."""
        seen, carry = saved.get("seen"), saved.get("carry")
        if not _are_counts(seen):
            return None
        if carry is not None and (not _are_counts(carry) or carry.any()):
            return None
        return self._folding(saved.get("value"), plain(seen))

    def rolling(self, column: Column | None, rows: int, size: int) -> tuple[Folding, Values] | None:
        """The same, if sums need not become decimals."""
        if size > len(self._value):
            self._grow(size)
        folding = None if self._widen else self._folding(column, _NO_COUNTS)
        if folding is None:
            return None
        kind = _FLOATS if self._how == "mean" else self._value.dtype
        return folding, np.empty(rows, kind)

    def rolled(self, results: Values) -> Column:
        """Results of the type that they come out in."""
        return self._show(results, None)

    def _folding(self, column: Column | None, counts: Values) -> Folding | None:
        if not isinstance(column, np.ndarray) or column.dtype is not self._usual:
            return None
        values = plain(column)
        kept = self._value.dtype
        if kept != _FLOATS:
            if kept != _INTEGERS or self._may_wrap:
                return None
            if self._exact:
                rows, bits = len(values), loops.bits_of(values)
                if not (self._had_room(rows, bits) or self._find_bound(rows, bits)):
                    return None
        return self._code, self._value, self._seen, values, counts

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Fold the values in."""
        values, valid = self._prepare(column, size)
        if not self._exact:
            loops.add(self._code, self._value, self._seen, slots, values, valid)
            return
        if not self._may_wrap:
            bits = loops.add_wrapping(self._value, self._seen, slots, values, valid)
            if self._had_room(len(slots), bits):
                return
            loops.take_back(self._value, self._seen, slots, values, valid)
            self._find_bound(len(slots), bits)
        loops.add_exactly(self._value, self._carry, self._seen, slots, values, valid)

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Fold the values in; returns the result after each record."""
        values, valid = self._prepare(column, size)
        out = np.empty(len(slots), dtype=self._value.dtype)
        seen = np.empty(len(slots), dtype=np.int64)
        if not self._exact:
            loops.roll(self._code, self._value, self._seen, slots, values, valid, out, seen)
            return self._finished(out, None, seen)
        if not self._may_wrap:
            bits = loops.roll_wrapping(self._value, self._seen, slots, values, valid, out, seen)
            if self._had_room(len(slots), bits):
                return self._finished(out, None, seen)
            loops.take_back(self._value, self._seen, slots, values, valid)
            self._find_bound(len(slots), bits)
        carry = np.empty(len(slots), dtype=np.int64)
        loops.roll_exactly(
            self._value, self._carry, self._seen, slots, values, valid, out, carry, seen
        )
        return self._finished(out, carry, seen)

    def result(self, slots: Slots) -> Column:
        """The folded values."""
        carry = self._carry[slots] if self._may_wrap and self._exact else None
        return self._finished(self._value.take(slots), carry, self._seen.take(slots))

    def clear(self, slots: Slots) -> None:
        """Back to nothing."""
        loops.clear(self._value, self._seen, slots)
        if len(self._carry):
            self._carry[slots] = 0

    def save(self, slots: Slots) -> dict[str, Column]:
        """The folded values, and how many there were."""
        shown = self._show(self._value[slots], None)
        saved: dict[str, Column] = {"value": shown, "seen": self._seen[slots]}
        if self._exact:
            has = len(self._carry) > 0
            saved["carry"] = self._carry[slots] if has else np.zeros(len(slots), dtype=np.int64)
        return saved

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The same again."""
        values, _ = self._prepare(saved["value"], size)
        self._value[slots] = values
        self._seen[slots] = saved["seen"]
        carry = saved.get("carry")
        if carry is not None:
            # Groups of a worker that had seen nothing but nulls, or no integers, have none.
            carried = carry if isinstance(carry, np.ndarray) else filled(carry)
            if self._exact:
                if len(self._carry) or carried.any():
                    self._make_carry()
                    self._carry[slots] = carried
            elif self._how in ("sum", "mean"):
                self._value[slots] += carried * 2.0**64

        self._raise_bound(slots)

    def merge(self, into: Slots, others: Slots) -> None:
        """Fold groups into groups."""
        if self._exact:
            self._make_carry()
            loops.fold_exactly(self._value, self._carry, self._seen, into, others)
            self._raise_bound(into)
        else:
            loops.fold(self._code, self._value, self._seen, into, others)

    @property
    def _exact(self) -> bool:
        return self._value.dtype.kind != "f" and self._how in ("sum", "mean")

    def _had_room(self, rows: int, bits: np.uint64) -> bool:
        """Whether no sum can have wrapped around when integers of these bits were added."""
        bound = self._bound + rows * (int(bits) + 1)
        if bound > _MOST:
            return False
        self._bound = bound
        return True

    def _find_bound(self, rows: int, bits: np.uint64) -> bool:
        """Whether, when the bound has no room for a batch, another one has, and for later ones too.

        Sums may be far below the bound: groups were removed since, or signs differ. Where a new
        bound would not last for long, it is not worth the search.
        """
        reach = rows * (int(bits) + 1)
        self._bound = _farthest(self._value) + reach
        self._may_wrap = max(2 * self._bound, reach << 10) > _MOST
        # The loops that look for it read how often sums have wrapped around even if none has.
        self._make_carry()
        return not self._may_wrap

    def _raise_bound(self, slots: Slots) -> None:
        """Include the sums of slots that did not come about by adding records."""
        if self._exact and len(slots):
            self._bound = max(self._bound, _farthest(self._value[slots]))
            self._may_wrap = self._may_wrap or bool(len(self._carry) and self._carry[slots].any())

    def _prepare(self, column: Column | None, size: int) -> tuple[Values, Mask]:
        """The values as they are kept, with room for them."""
        assert column is not None, "numeric aggregates name a column"
        if isinstance(column, np.ndarray) and column.dtype is self._usual:
            # The same plain type as last time: nothing to find out.
            if size > len(self._value):
                self._grow(size)
            return plain(column), _ALL
        valid = valid_mask(column)
        if not isinstance(column, np.ndarray):
            column = plain_numbers(column, self._shown or self._value.dtype)
        if column.dtype.kind in "mM":
            if self._shown is not None and self._shown != column.dtype and self._seen.any():
                raise BatchError(
                    f"values are of type {column.dtype}, but they were {self._shown} before: cast "
                    "them to one type, or give the input a schema=…"
                )
            self._shown = column.dtype
            column = column.view(np.int64)
        elif self._how in ("min", "max") and (self._shown is None or self._shown.kind not in "mM"):
            self._shown = np.promote_types(self._shown or column.dtype, column.dtype)
        kept = _kept_type(column.dtype)
        if self._value.dtype != kept:
            self._require_common(column.dtype, kept)
            self._keep_as(np.promote_types(self._value.dtype, kept) if self._seen.any() else kept)
            if self._how in ("min", "max") and self._value.dtype.kind != column.dtype.kind:
                _require_exact(column, "values are", self._value.dtype)
        self._grow(size)
        kind = column.dtype
        usual = (
            valid is _ALL
            and kind == self._value.dtype
            and (self._shown is None or self._shown == kind)
        )
        self._usual = kind if usual else None
        return plain(column.astype(self._value.dtype, copy=False)), valid

    def _require_common(self, given: np.dtype[Any], kept: np.dtype[Any]) -> None:
        """Refuse integers of which no type holds both: of floats they would not be exact."""
        before = self._value.dtype
        if self._seen.any() and before.kind != "f" != kept.kind:
            raise BatchError(
                f"values are of type {given}, but they were {before} before, and no type of "
                "integers holds both: cast them to one type, or give the input a schema=…"
            )

    def _keep_as(self, kept: np.dtype[Any]) -> None:
        """Values of another type from here on: integers may be followed by other numbers."""
        if self._how in ("min", "max") and kept.kind == "f":
            _require_exact(self._value[self._seen > 0], "values before were", kept)
        value = self._value.astype(kept, copy=False)
        if self._exact and kept.kind == "f" and len(self._carry):
            value = value + self._carry * 2.0**64
            self._carry = np.zeros(0, dtype=np.int64)
        self._value = value

    def _grow(self, size: int) -> None:
        self._value, self._seen = roomy(self._value, size), roomy(self._seen, size)
        if self._exact and (self._may_wrap or len(self._carry)):
            self._make_carry()

    def _make_carry(self) -> None:
        """Have room to note for each slot how often its sum wraps around."""
        self._carry = grown(self._carry, len(self._value))

    def _finished(self, values: Values, carry: Values | None, counts: Values) -> Column:
        """Results of what was folded and counted; sums that may have wrapped have a carry."""
        seen = None if np.count_nonzero(counts) == len(counts) else counts > 0
        if self._how == "mean":
            sums = values if carry is None else values + carry * 2.0**64
            return self._show(sums / (counts if seen is None else np.maximum(counts, 1)), seen)
        if self._exact and self._widen:
            carry = np.zeros(len(values), dtype=np.int64) if carry is None else carry
            return _as_decimals(values, carry, counts > 0)
        if carry is not None and carry.any():
            row = int(carry.argmax() if carry.max() else carry.argmin())
            exact = int(values[row]) + (int(carry[row]) << 64)
            raise Unrepresentable(
                row,
                f"a sum is {exact}, beyond {values.dtype}: sum(…, widen=True) makes decimals",
            )
        return self._show(values, seen)

    def _show(self, values: Values, seen: Mask | None) -> Column:
        """Values as they come out, with nulls where none were ``seen`` (``None``: they all are)."""
        if values.dtype.kind == "f" and self._how in ("min", "max"):
            values = values + 0.0  # of zeros with either sign it should not matter which came first
        if self._shown is not None:
            values = (
                values.view(self._shown)
                if self._shown.kind in "mM"
                else values.astype(self._shown, copy=False)
            )
        return values if seen is None else pa.array(values, mask=~seen)


class Unrepresentable(BatchError):
    """A result that its type cannot hold; the caller, which knows the group, adds it."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row

    def of_group(
        self, aggregate: str, key: Mapping[str, Column], times: Values | None = None
    ) -> BatchError:
        """The error for users, which names the aggregate, the key and, if known, the time.

        >>> print(Unrepresentable(0, "too much").of_group("sum", {"city": pa.array(["Rome"])}))
        too much (it is 'sum' of the key city='Rome')
        """
        cells = {name: to_arrow(column[self.row : self.row + 1]) for name, column in key.items()}
        named = ", ".join(f"{name}={cell[0].as_py()!r}" for name, cell in cells.items())
        of = f" of the key {named}" if named else ""
        at = None if times is None else times[self.row].tolist()
        return BatchError(f"{self.message} (it is {aggregate!r}{of})").located(time=at)


def _are_counts(column: Column | None) -> TypeGuard[Values]:
    """Whether a column of what was saved is plain integers."""
    return isinstance(column, np.ndarray) and column.dtype == _INTEGERS


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


def plain_numbers(column: pa.Array, unknown: Any = np.int64) -> Values:
    """The same, for values that were numbers or times in earlier batches."""
    require_plain(column)
    found = filled(column, unknown)
    assert isinstance(found, np.ndarray)
    return found


def require_plain(column: pa.Array) -> None:
    """Refuse values that are not numbers or times, as those of earlier batches were."""
    kind = column.type
    if not (pa.types.is_null(kind) or pa.types.is_decimal(kind) or is_plain_type(kind)):
        raise BatchError(
            f"values are of type {kind}, but they were numbers or times before: cast them to one "
            "type, or give the input a schema=…"
        )


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


def _as_decimals(values: Values, carry: Values, seen: Mask) -> Column:
    """Sums of integers as decimals of 38 digits, which no number of them can exceed.

    >>> _as_decimals(np.array([-1, 5]), np.array([0, -1]), np.array([True, False])).to_pylist()
    [Decimal('-1'), None]
    """
    high = carry + (values >> np.int64(63)) if values.dtype == np.int64 else carry
    words = np.column_stack([values.view(np.int64), high])
    kind = pa.decimal128(38, 0)
    whole = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(words.tobytes())])
    return whole if seen.all() else pc.if_else(pa.array(seen), whole, pa.scalar(None, kind))


def _require_exact(values: Values, are: str, kept: np.dtype[Any]) -> None:
    """Refuse integers that floating-point numbers would round: one of them may be the result."""
    if values.dtype.kind in "iu" and _farthest(values) > _EXACT:
        raise BatchError(
            f"{are} integers beyond 2**53, beside floating-point numbers, and {kept} cannot hold "
            "them: cast them to one type, or give the input a schema=…"
        )


def _farthest(values: Values) -> int:
    """The greatest distance from zero of some integers.

    >>> _farthest(np.array([3, -(2**63), 5])) == 2**63
    True
    """
    return max(-int(values.min()), int(values.max())) if len(values) else 0


def _kept_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind == "f":
        return np.dtype(np.float64)
    return np.dtype(np.uint64) if dtype == np.uint64 else np.dtype(np.int64)
