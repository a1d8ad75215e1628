"""Units of times: the meaning of the integers of a time column, and conversions.

Inside a flow times are plain integers. Batches carry the unit in which they came in, so that a
column of timestamps can be compared with them: ``integer``, ``D``, ``s``, ``ms``, ``us`` or ``ns``;
``us zoned`` if the timestamps have a time zone, which makes them instants.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns.column import Column
from jeton.core.errors import TimeError
from jeton.core.times import END_OF_TIME, START_OF_TIME

INTEGER: Final = "integer"
ZONED: Final = " zoned"

_NANOSECONDS: Final = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "D": 86400 * 10**9,
    "W": 7 * 86400 * 10**9,
}

UNITS: Final = (INTEGER, *_NANOSECONDS, *(unit + ZONED for unit in _NANOSECONDS))
"""All units there are."""

Integers = npt.NDArray[np.int64]


class Units:
    """The unit of all times of a worker, once it is known: from its inputs, or from its peers."""

    __slots__ = ("unit",)

    def __init__(self) -> None:
        self.unit: str | None = None

    def learn(self, unit: str) -> None:
        """Record the unit of times that came in, which must be that of all."""
        if self.unit is None:
            self.unit = unit
        elif self.unit != unit:
            raise TimeError(
                f"times in {_named(unit)} meet times in {_named(self.unit)}: cast the time columns "
                "of all inputs and partitions to one type"
            )


def unit_of(kind: pa.DataType | np.dtype[Any]) -> str | None:
    """The unit of a column, by its Arrow or NumPy type; ``None`` if that is not one of times.

    >>> unit_of(pa.timestamp("us", "UTC")), unit_of(np.dtype("datetime64[ns]")), unit_of(pa.int32())
    ('us zoned', 'ns', 'integer')
    """
    if isinstance(kind, np.dtype):
        if kind.kind == "M":
            unit, count = np.datetime_data(kind)
            return unit if count == 1 and unit in _NANOSECONDS else None
        return INTEGER if kind.kind in "iu" else None
    if pa.types.is_timestamp(kind):
        return str(kind.unit) + (ZONED if kind.tz is not None else "")
    if pa.types.is_integer(kind):
        return INTEGER
    return "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else None


def convert(values: Integers, unit: str, to: str, what: str) -> Integers:
    """Integers of one unit in another; values that cannot be converted exactly are refused.

    >>> convert(np.array([2_000]), "ns", "us", "these")
    array([2])
    >>> convert(np.array([2_001]), "ns", "us", "these")
    Traceback (most recent call last):
    jeton.core.errors.TimeError: these: 2001 ns is not a whole number of us: round it first
    """
    if unit == to:
        return values
    zoned, target_zoned = unit.endswith(ZONED), to.endswith(ZONED)
    if INTEGER in (unit, to) or zoned != target_zoned:
        raise TimeError(f"{what}: {_named(unit)} cannot be compared with times in {_named(to)}")
    source, target = unit.removesuffix(ZONED), to.removesuffix(ZONED)
    ratio = Fraction(_NANOSECONDS[source], _NANOSECONDS[target])
    if ratio.denominator > 1:
        uneven = np.flatnonzero(values % ratio.denominator)
        if len(uneven):
            value = values[uneven[0]]
            raise TimeError(
                f"{what}: {value} {source} is not a whole number of {target}: round it first"
            )
        values = values // ratio.denominator
    if ratio.numerator > 1:
        most, least = END_OF_TIME // ratio.numerator, -(-START_OF_TIME // ratio.numerator)
        outside = np.flatnonzero((values > most) | (values < least))
        if len(outside):
            value = values[outside[0]]
            raise TimeError(f"{what}: {value} {source} does not fit into 64 bits of {target}")
        values = values * ratio.numerator
    return values


def column_times(column: Column, to: str | None, what: str) -> Integers:
    """A column of times as integers in the unit of a flow's own times, if that is known.

    >>> column_times(np.array(["2024-01-01"], "datetime64[s]"), "us", "column 'end'")
    array([1704067200000000])
    >>> column_times(np.array([5]), "us", "column 'end'")
    Traceback (most recent call last):
    jeton.core.errors.TimeError: column 'end': integers cannot be compared with times in us
    """
    unit = unit_of(column.dtype if isinstance(column, np.ndarray) else column.type)
    if unit is None:
        kind = column.dtype if isinstance(column, np.ndarray) else column.type
        raise TimeError(f"{what} is of type {kind}, not integers, timestamps or dates")
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "M" and np.isnat(column).any():
            raise TimeError(f"{what} has nulls (NaT)")
        values = column
    else:
        if column.null_count:
            raise TimeError(f"{what} has {column.null_count} nulls")
        narrow = pa.types.is_date32(column.type)
        values = column.cast(pa.int32() if narrow else pa.int64()).to_numpy()
    if values.dtype == np.uint64 and len(values) and int(values.max()) > END_OF_TIME:
        raise TimeError(f"{what}: {values.max()} does not fit into 64 bits with a sign")
    whole = values.view(np.int64) if values.dtype.kind == "M" else values.astype(np.int64)
    return convert(whole, unit, unit if to is None else to, what)


def column_lengths(column: Column, to: str | None, what: str) -> Integers:
    """A column of lengths of time as integers in the unit of a flow's own times.

    >>> column_lengths(np.array([5], "timedelta64[s]"), "ms", "column 'gap'")
    array([5000])
    >>> column_lengths(np.array([2.5]), "ms", "column 'gap'")
    Traceback (most recent call last):
    jeton.core.errors.TimeError: column 'gap' is of type float64, not integers or durations
    """
    kind = column.dtype if isinstance(column, np.ndarray) else column.type
    array = pa.array(column) if isinstance(column, np.ndarray) else column
    if array.null_count:
        raise TimeError(f"{what} has {array.null_count} nulls")
    if pa.types.is_integer(array.type):
        try:
            lengths: Integers = array.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid as error:
            raise TimeError(f"{what} does not fit into 64 bits with a sign: {error}") from None
        return lengths
    if not pa.types.is_duration(array.type):
        raise TimeError(f"{what} is of type {kind}, not integers or durations")
    unit = INTEGER if to is None else to.removesuffix(ZONED)
    return convert(array.cast(pa.int64()).to_numpy(), array.type.unit, unit, what)


def _named(unit: str) -> str:
    if unit == INTEGER:
        return "integers"
    bare = unit.removesuffix(ZONED)
    return f"{bare} with a time zone" if unit != bare else bare
