"""Conditions: what a filter can be known not to keep, from the bounds of a block of records.

A reader that knows the least and the greatest value of each column in a block, as Parquet stores
them for its row groups, need not read blocks in which a condition holds for no record. Expressions
that compare a column with constants have such a condition; the filter itself still runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns.column import from_arrow, to_arrow
from jeton.columns.compute import SIGNS
from jeton.columns.series import Series
from jeton.core.errors import JetonError

COMPARISONS: Final = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
"""The operators that compare, by the names that Python's `operator` has for them."""

SHOWN: Final = 8
"""Values that a condition names."""


@dataclass(frozen=True)
class Bounds:
    """The values of one column in a block of records, as far as they are known."""

    rows: int
    nulls: int | None = None
    """How many of them are null, if that is known."""
    extremes: pa.Array | None = None
    """A value that none is less than, and one that none is greater than; nulls and NaN aside."""

    @property
    def all_null(self) -> bool:
        """Whether there is no value at all."""
        return self.nulls == self.rows


Known: TypeAlias = Callable[[str], "Bounds | None"]
"""The bounds of a column in a block, if there are any."""


class Condition(ABC):
    """A condition on records that bounds can refute."""

    @abstractmethod
    def may_hold(self, known: Known) -> bool:
        """Whether it could be true for a record of a block; if in doubt, it could."""

    def __and__(self, other: Condition | None) -> Condition:
        """Both conditions; one that is not known leaves this one."""
        return self if other is None else _Both(self, other)

    def __or__(self, other: Condition) -> Condition:
        """One of the conditions, or both."""
        return _Either(self, other)


@dataclass(frozen=True)
class Compared(Condition):
    """A column compared with a constant.

    >>> low, high = Bounds(9, 0, pa.array([3, 7])), Bounds(9, 0, pa.array([50, 90]))
    >>> [Compared("n", "gt", 10).may_hold(lambda name: each) for each in (low, high, None)]
    [False, True, True]
    """

    column: str
    operator: str
    value: Any

    def may_hold(self, known: Known) -> bool:
        """Whether a value between the bounds could compare like that."""
        bounds = known(self.column)
        if bounds is None:
            return True
        if bounds.all_null:
            return False
        extremes = _usable(bounds.extremes)
        if extremes is None:
            return True
        if self.operator == "eq":
            return _holds(extremes, 0, "le", self.value) and _holds(extremes, 1, "ge", self.value)
        if self.operator == "ne":
            # NaN differs from everything, and no bounds tell of it.
            floating = pa.types.is_floating(extremes.type)
            return (
                floating
                or _holds(extremes, 0, "ne", self.value)
                or _holds(extremes, 1, "ne", self.value)
            )
        lower = self.operator in ("lt", "le")
        return _holds(extremes, 0 if lower else 1, self.operator, self.value)

    def __str__(self) -> str:
        return f"{self.column} {SIGNS[self.operator]} {self.value!r}"


@dataclass(frozen=True)
class Among(Condition):
    """A column that has one of some values."""

    column: str
    values: Sequence[Any]

    def may_hold(self, known: Known) -> bool:
        """Whether one of the values is between the bounds; NaN, which equals itself, has none."""
        return any(
            value != value or Compared(self.column, "eq", value).may_hold(known)
            for value in self.values
        )

    def __str__(self) -> str:
        more = "" if len(self.values) <= SHOWN else f" and {len(self.values) - SHOWN:,} more"
        return f"{self.column} in {list(self.values[:SHOWN])!r}{more}"


@dataclass(frozen=True)
class Null(Condition):
    """A column that is null, or with ``wanted=False`` is not."""

    column: str
    wanted: bool = True

    def may_hold(self, known: Known) -> bool:
        """Whether there are nulls, or anything else."""
        bounds = known(self.column)
        if bounds is None or bounds.nulls is None:
            return True
        return bounds.nulls > 0 if self.wanted else not bounds.all_null

    def __str__(self) -> str:
        return f"{self.column} is {'' if self.wanted else 'not '}null"


@dataclass(frozen=True)
class _Both(Condition):
    one: Condition
    other: Condition

    def may_hold(self, known: Known) -> bool:
        return self.one.may_hold(known) and self.other.may_hold(known)

    def __str__(self) -> str:
        return f"({self.one}) and ({self.other})"


@dataclass(frozen=True)
class _Either(Condition):
    one: Condition
    other: Condition

    def may_hold(self, known: Known) -> bool:
        return self.one.may_hold(known) or self.other.may_hold(known)

    def __str__(self) -> str:
        return f"({self.one}) or ({self.other})"


def is_constant(value: Any) -> bool:
    """Whether a value is one for all records, and not a column.

    >>> is_constant("a"), is_constant(np.arange(3))
    (True, False)
    """
    return isinstance(value, str | bytes | np.generic) or not hasattr(value, "__iter__")


def _usable(extremes: pa.Array | None) -> pa.Array | None:
    """The bounds, unless a writer has put something there that is none."""
    if extremes is None or len(extremes) != 2 or extremes.null_count:
        return None
    if pa.types.is_floating(extremes.type) and pc.any(pc.is_nan(extremes)).as_py():
        return None
    return extremes


def _holds(extremes: pa.Array, which: int, operator: str, value: Any) -> bool:
    """Whether a bound compares like that, by the same rules as the records themselves."""
    try:
        found = Series(from_arrow(extremes.slice(which, 1)))._binary(operator, value)
        return to_arrow(found.values)[0].as_py() is not False
    except (JetonError, pa.ArrowException, TypeError, ValueError, OverflowError):
        # The filter says what is wrong, if it meets a record.
        return True
