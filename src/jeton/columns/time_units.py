"""Units of times: the meaning of the integers of a time column, and conversions.

Inside a flow times are plain integers. Batches carry their unit, so that they can be shown and
compared as timestamps: ``integer``, ``D``, ``s``, ``ms``, ``us`` or ``ns``; ``us Europe/Berlin`` if
the timestamps have a time zone, which makes them instants.
"""

from __future__ import annotations

import zoneinfo
from datetime import date, datetime, timedelta
from fractions import Fraction
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns.column import Column, as_column, bare
from jeton.columns.durations import NANOSECONDS
from jeton.columns.time_columns import Times, as_times, one
from jeton.core.errors import GraphError, TimeError
from jeton.core.times import END_OF_TIME, START_OF_TIME, Product, Time, TimeKind

INTEGER: Final = "integer"

ANY: Final = "zoned"
"""In place of a zone, where it does not matter which one it is."""

UNITS: Final = (INTEGER, *NANOSECONDS, *(f"{unit} {ANY}" for unit in NANOSECONDS))
"""All units there are, with no regard to the zone."""

Integers = npt.NDArray[np.int64]


def zone_of(unit: str) -> str | None:
    """The time zone of a unit, if it has one.

    >>> zone_of("us Europe/Berlin"), zone_of("us")
    ('Europe/Berlin', None)
    """
    return unit.partition(" ")[2] or None


def require_zone(zone: str) -> None:
    """Refuse a time zone that does not exist."""
    try:
        zoneinfo.ZoneInfo(zone)
    except (ValueError, OSError, KeyError, TypeError):
        raise GraphError(
            f"there is no time zone {zone!r}: write one such as 'Europe/Berlin' or 'UTC'"
        ) from None


def with_zone(unit: str, zone: str | None) -> str:
    """A unit of instants in a zone, or of what a clock shows if there is none."""
    bare = unit.partition(" ")[0]
    return bare if zone is None else f"{bare} {zone}"


def type_of(unit: str) -> pa.DataType:
    """The Arrow type of times in a unit.

    >>> type_of("us UTC"), type_of("integer")
    (TimestampType(timestamp[us, tz=UTC]), DataType(int64))
    """
    return pa.int64() if unit == INTEGER else pa.timestamp(unit.partition(" ")[0], zone_of(unit))


def stamped(times: Times, unit: str | None) -> Column:
    """Times of a unit as a column: timestamps, uncopied, unless they are integers.

    >>> stamped(np.array([1_700_000_000]), "s")
    array(['2023-11-14T22:13:20'], dtype='datetime64[s]')
    """
    if unit is None or unit == INTEGER or times.ndim != 1 or times.dtype != np.int64:
        return times
    if zone_of(unit) is None:
        return times.view(f"datetime64[{unit}]")
    return pa.array(times).view(type_of(unit))


def unit_of(kind: pa.DataType | np.dtype[Any]) -> str | None:
    """The unit of a column, by its Arrow or NumPy type; ``None`` if that is not one of times.

    >>> unit_of(pa.timestamp("us", "UTC")), unit_of(np.dtype("datetime64[ns]")), unit_of(pa.int32())
    ('us UTC', 'ns', 'integer')
    """
    if isinstance(kind, np.dtype):
        if kind.kind == "M":
            unit, count = np.datetime_data(kind)
            return unit if count == 1 and unit in NANOSECONDS else None
        return INTEGER if kind.kind in "iu" else None
    if pa.types.is_timestamp(kind):
        return with_zone(str(kind.unit), kind.tz)
    if pa.types.is_integer(kind):
        return INTEGER
    return "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else None


def convert(values: Integers, unit: str, to: str, what: str) -> Integers:
    """Integers of one unit in another; values that cannot be converted exactly are refused.

    >>> convert(np.array([2_000]), "ns", "us", "these")
    array([2])
    >>> convert(np.array([2_001]), "ns", "us", "these")
    Traceback (most recent call last):
    jeton.core.errors.TimeError: these: 1970-01-01T00:00:00.000002001 is not a whole number of us: \
round it, or give the flow a finer unit, jt.Flow(…, unit='ns')
    """
    source, target = unit.partition(" ")[0], to.partition(" ")[0]
    if (unit == INTEGER) != (to == INTEGER) or (zone_of(unit) is None) != (zone_of(to) is None):
        raise TimeError(f"{what}: {named(unit)} cannot be compared with {named(to)}")
    if source == target:
        return values
    ratio = Fraction(NANOSECONDS[source], NANOSECONDS[target])
    if ratio.denominator > 1:
        uneven = np.flatnonzero(values % ratio.denominator)
        if len(uneven):
            value = values[uneven[0]].view(f"datetime64[{source}]")
            raise TimeError(
                f"{what}: {value} is not a whole number of {target}: round it, or give the flow a "
                f"finer unit, jt.Flow(…, unit={source!r})"
            )
        values = values // ratio.denominator
    if ratio.numerator > 1:
        most, least = END_OF_TIME // ratio.numerator, -(-START_OF_TIME // ratio.numerator)
        outside = np.flatnonzero((values > most) | (values < least))
        if len(outside):
            value = values[outside[0]].view(f"datetime64[{source}]")
            coarser = "s" if source in ("m", "h", "D", "W") else source
            raise TimeError(
                f"{what}: {value} does not fit into 64 bits of {target}: give the flow a coarser "
                f"unit, jt.Flow(…, unit={coarser!r})"
            )
        values = values * ratio.numerator
    return values


def column_times(column: Column, to: str | None, what: str) -> Integers:
    """A column of times as integers in the unit of a flow's own times, if that is known.

    >>> column_times(np.array(["2024-01-01"], "datetime64[s]"), "us", "column 'end'")
    array([1704067200000000])
    >>> column_times(np.array([5]), "us", "column 'end'")
    Traceback (most recent call last):
    jeton.core.errors.TimeError: column 'end': integers cannot be compared with timestamps
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
        if to is not None and to != INTEGER:
            raise TimeError(f"{what} has integers, but times are timestamps: give it durations")
        try:
            lengths: Integers = array.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid as error:
            raise TimeError(f"{what} does not fit into 64 bits with a sign: {error}") from None
        return lengths
    if not pa.types.is_duration(array.type):
        raise TimeError(f"{what} is of type {kind}, not integers or durations")
    unit = INTEGER if to is None else with_zone(to, None)
    return convert(array.cast(pa.int64()).to_numpy(), array.type.unit, unit, what)


def one_time(value: Any, unit: str | None, what: str) -> Any:
    """A time as a user writes it, in the unit of a flow's own; all but timestamps are unchanged.

    >>> one_time(np.datetime64("2024-01-01"), "s", "the time"), one_time(5, "s", "the time")
    (1704067200, 5)
    """
    if not is_timestamp(value):
        return value
    if value != value:
        raise TimeError(f"{what} is null (NaT)")
    return int(column_times(_single(value), unit, what)[0])


def plain_times(times: Times, unit: str | None) -> list[Any]:
    """Times as Python has them: integers, ``datetime``, or times of the user's own.

    >>> plain_times(np.array([0]), "us")
    [datetime.datetime(1970, 1, 1, 0, 0)]
    """
    if times.ndim > 1:
        return [one(times, index) for index in range(len(times))]
    shown = stamped(times, unit)
    if shown is times:
        listed: list[Any] = times.tolist()
        return listed
    try:
        found: list[Any] = pa.array(shown).to_pylist()
    except (OverflowError, ValueError) as error:
        assert unit is not None
        far = next((time for time in times.tolist() if not _is_plain(time, unit)), times[0])
        raise TimeError(
            f"the time {time_text(far, unit)} cannot be a datetime of Python ({error}): its years "
            "are 1 … 9999"
        ) from None
    return found


def plain_time(time: Time, unit: str | None) -> Any:
    """One time as the records of a flow have it, for programs.

    A timestamp that a ``datetime`` cannot have, such as the start of time, is the first or the last
    that it can have. A time inside a loop has such a time outside.

    >>> plain_time(0, "us"), plain_time(START_OF_TIME, "s"), plain_time(START_OF_TIME, "integer")
    (datetime.datetime(1970, 1, 1, 0, 0), datetime.datetime(1, 1, 1, 0, 0), -9223372036854775808)
    >>> plain_time(Product(60, 2), "s")
    Product(datetime.datetime(1970, 1, 1, 0, 1), 2)
    """
    if isinstance(time, Product):
        return Product.of((plain_time(time[0], unit), *time[1:]))
    if type(time) is not int or unit is None or unit == INTEGER:
        return time
    # The first integer of all is not a timestamp.
    first = max(_plain_bound(datetime.min, 1, unit), START_OF_TIME + 1)
    return plain_times(np.array([min(max(time, first), last_plain(unit))]), unit)[0]


@cache
def last_plain(unit: str) -> int:
    """The last time in a unit of timestamps that a ``datetime`` can have, in any zone.

    >>> time_text(last_plain("s"), "s")
    '9999-12-31 23:59:59'
    """
    return _plain_bound(datetime.max, -1, unit)


def time_text(time: int, unit: str | None) -> str:
    """A time for people, also if it is beyond those that Python or 64 bits have.

    >>> time_text(5, "integer"), time_text(5, "s"), time_text(2**62, "s UTC")
    ('5', '1970-01-01 00:00:05', '146138514283-06-19T07:45:04+00:00')
    """
    if unit is None or unit == INTEGER:
        return str(time)
    if _is_plain(time, unit):
        return str(plain_times(np.array([time]), unit)[0])
    bare = unit.partition(" ")[0]
    if not START_OF_TIME < time <= END_OF_TIME:  # the first of all is NaT
        return f"{time} {bare}"
    far = np.array([time]).view(f"datetime64[{bare}]")[0]
    return f"{far}+00:00" if zone_of(unit) is not None else str(far)


def _is_plain(time: int, unit: str) -> bool:
    return _plain_bound(datetime.min, 1, unit) <= time <= last_plain(unit)


def _plain_bound(time: datetime, inwards: int, unit: str) -> int:
    """A time in a unit; a day further inwards if there are zones."""
    length = time - datetime(1970, 1, 1)
    if zone_of(unit) is not None:
        length += timedelta(days=inwards)
    exact = length // timedelta(microseconds=1) * 1000 // NANOSECONDS[unit.partition(" ")[0]]
    return min(max(exact, START_OF_TIME), END_OF_TIME)


def length_text(length: int, unit: str | None) -> str:
    """A length of time for people.

    >>> length_text(5, "integer"), length_text(90_000, "ms"), length_text(1500, "ns UTC")
    ('5', '0:01:30', '1500 ns')
    """
    if unit is None or unit == INTEGER:
        return str(length)
    bare = unit.partition(" ")[0]
    whole, rest = divmod(length * NANOSECONDS[bare], 1000)
    try:
        return f"{length} {bare}" if rest else str(timedelta(microseconds=whole))
    except OverflowError:
        return f"{length} {bare}"


def given_times(kind: TimeKind, values: Any, unit: str | None, what: str) -> Times:
    """Times that a user's function gives: timestamps, or integers in the unit of a flow's own.

    >>> from jeton.core.times import IntegerTimes
    >>> given_times(IntegerTimes(), np.array(["2024-01-01"], "datetime64[D]"), "s", "these times")
    array([1704067200])
    """
    if kind.integers:
        values = bare(values)
        if isinstance(values, pa.ChunkedArray) or (
            isinstance(values, list) and values and is_timestamp(values[0])
        ):
            values = as_column(values)
        if isinstance(values, pa.Array) or getattr(values, "dtype", np.dtype(int)).kind == "M":
            return column_times(values, unit, what)
    return as_times(kind, values)


def is_timestamp(value: object) -> bool:
    """Whether a value is a point in time of Python, pandas, NumPy or Arrow."""
    return isinstance(value, date | np.datetime64 | pa.TimestampScalar | pa.Date32Scalar)


def unit_of_one(value: Any) -> str:
    """The unit of a single timestamp."""
    column = _single(value)
    return unit_of(column.dtype if isinstance(column, np.ndarray) else column.type) or INTEGER


def _single(value: Any) -> Column:
    if isinstance(value, pa.Scalar):
        return as_column(pa.array([value.as_py()], value.type))
    if getattr(value, "nanosecond", 0):
        # A Timestamp of pandas: Arrow takes it for a datetime, which ends at microseconds.
        zone = None if value.tz is None else str(value.tz)
        return as_column(pa.array([value], pa.timestamp("ns", zone)))
    return np.array([value]) if isinstance(value, np.datetime64) else as_column([value])


def named(unit: str) -> str:
    """A unit in words, for errors."""
    if unit == INTEGER:
        return "integers"
    return "timestamps" if zone_of(unit) is None else "timestamps with a time zone"


def in_words(time: Time, unit: str | None) -> str:
    """A time for people: a timestamp, where the unit of the flow is known.

    >>> in_words(3, None), in_words(Product(3, 2), None), in_words(1_700_000_000, "s")
    ('3', '3 in round 2', '2023-11-14 22:13:20')
    """
    if isinstance(time, Product):
        return f"{in_words(time.outer, unit)} in round {time.inner}"
    if type(time) is not int:
        return str(time)
    if time == START_OF_TIME:
        return "the start of time"
    if time == END_OF_TIME:
        return "the end of time"
    return time_text(time, unit)
