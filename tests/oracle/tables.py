"""Random tables: columns of every Arrow type, with the values at which programs break."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.oracle.choices import Choices

LEAST, MOST = -(2**63), 2**63 - 1
INTEGER = pa.int64()
TIME = "t"
"""The time column of every table."""

_DAY = dt.date(2026, 3, 29)
_WORDS = ["a", "", "b", "aa", "ä", "ß", "日本", "😀", "a\0b", " ", "Z" * 40]
_FLOATS = [0.0, 1.0, -0.0, 0.5, -2.25, 1e6, float("nan"), float("inf"), float("-inf"), 5e-324, 0.1]
_WHOLE = [0, 1, 2, 3, -1, 7]


@dataclass(frozen=True)
class Kind:
    """An Arrow type with some values, and the uses that the documentation allows for it."""

    name: str
    type: pa.DataType
    values: Sequence[Any]
    key: bool = True
    order: bool = True
    sums: bool = False
    spark: bool = True
    many: Callable[[int], Any] | None = None
    """Makes any number of other values."""

    def __str__(self) -> str:
        return self.name


def _integers(kind: pa.DataType, *, signed: bool) -> Kind:
    bits = kind.bit_width
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    values = [value for value in _WHOLE if value >= least] + [least, most, most - 1]
    many = (lambda n: n * 2**40 - 2**52) if kind == INTEGER else None
    return Kind(str(kind), kind, values, sums=True, spark=signed, many=many)


def _moments(unit: str, zone: str | None = None) -> Kind:
    kind = pa.timestamp(unit, zone)
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    # Ticks, since Python's moments have no nanoseconds. The years stay within what all can hold.
    ticks = [0, 1, -1, 1774749599 * per_second, 1774749600 * per_second, -4 * 10**9 * per_second]
    return Kind(str(kind), kind, ticks, spark=unit == "us")


def _decimals(*digits: str) -> list[Decimal]:
    return [Decimal(one) for one in digits]


KINDS: tuple[Kind, ...] = (
    _integers(pa.int64(), signed=True),
    Kind("string", pa.string(), _WORDS, many=lambda n: f"k{n}"),
    Kind("double", pa.float64(), [*_FLOATS, 1e100], sums=True, many=lambda n: n / 8),
    _integers(pa.int32(), signed=True),
    _integers(pa.int16(), signed=True),
    _integers(pa.int8(), signed=True),
    _integers(pa.uint64(), signed=False),
    _integers(pa.uint32(), signed=False),
    _integers(pa.uint16(), signed=False),
    _integers(pa.uint8(), signed=False),
    Kind("bool", pa.bool_(), [False, True], sums=True),
    Kind("float", pa.float32(), [v for v in _FLOATS if v not in (5e-324, 0.1)], sums=True),
    Kind("halffloat", pa.float16(), [0.0, 1.0, -2.5, float("nan")], key=False, order=False,
         spark=False),
    Kind("large_string", pa.large_string(), _WORDS, spark=False),
    Kind("string_view", pa.string_view(), _WORDS, spark=False),
    Kind("dictionary", pa.dictionary(pa.int32(), pa.string()), _WORDS[:5], spark=False),
    Kind("binary", pa.binary(), [b"a", b"", b"\0", b"\xff\xfe", b"a\0"]),
    Kind("large_binary", pa.large_binary(), [b"a", b"", b"\0"], spark=False),
    Kind("binary_view", pa.binary_view(), [b"a", b"", b"0123456789abcdef"], spark=False),
    Kind("fixed_size_binary", pa.binary(2), [b"ab", b"\0\0", b"\xff\0"], spark=False),
    Kind("date32", pa.date32(), [_DAY, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    Kind("date64", pa.date64(), [_DAY, dt.date(1969, 12, 31)], spark=False),
    Kind("time32", pa.time32("ms"), [dt.time(0), dt.time(23, 59, 59, 999000)], spark=False),
    Kind("time64", pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999)], spark=False),
    _moments("s"),
    _moments("ms"),
    _moments("us"),
    _moments("ns"),
    _moments("us", "UTC"),
    _moments("ns", "Europe/Berlin"),
    Kind("duration", pa.duration("us"), [0, 1, -1, 10**12], spark=False),
    Kind("decimal", pa.decimal128(9, 2), _decimals("0.00", "1.50", "-1.50", "9999999.99"),
         sums=True),
    Kind("wide decimal", pa.decimal128(38, 3), _decimals("1.000", "-0.001", "9" * 35 + ".999"),
         sums=True),
    Kind("decimal256", pa.decimal256(40, 2), _decimals("0.00", "1.50", "-7.25"), sums=True,
         spark=False),
    Kind("list", pa.list_(pa.int64()), [[], [1], [1, None, 3], [2, 2]], key=False, order=False),
    Kind("large_list", pa.large_list(pa.string()), [[], ["a"], ["b", None]], key=False, order=False,
         spark=False),
    Kind("struct", pa.struct([("x", pa.int64()), ("y", pa.string())]),
         [{"x": 1, "y": "a"}, {"x": None, "y": None}], key=False, order=False),
    Kind("map", pa.map_(pa.string(), pa.int64()), [[], [("a", 1)]], key=False, order=False,
         spark=False),
    Kind("null", pa.null(), [None], order=False, spark=False),
)  # fmt: skip
"""The simplest first: cases shrink towards them."""

BY_NAME = {kind.name: kind for kind in KINDS}
ALIKE = (
    ("int64", "int32", "int16", "int8", "uint32", "uint16", "uint8"),
    ("string", "large_string", "string_view", "dictionary"),
    ("binary", "large_binary", "binary_view"),
    ("double", "float"),
)
"""Kinds whose values can be equal to each other, so that keys of one may join those of another."""
UNLIKE = {
    "int64": "double",
    "double": "int64",
    "timestamp[us]": "timestamp[ns]",
    "string": "binary",
}
"""Kinds whose values cannot be equal: as the keys of a join they are an error."""
NAMES = (
    "a_key", "end", "first", "emitted", "state", "bin", "key", "value", "seen", "slot", "time",
    "times", "left", "right", "id", "ids", "hash", "count", "sum", "n", "__worker", "__output",
    "__bin", "a b", "a`b", "x.y", "Ä", "select", "index", "data", "closed", "kind", "batch",
)  # fmt: skip
"""Names for keys: such as operators use themselves, and such as other systems quote."""
_SIZES = (3, 1, 0, 2, 5, 8, 13, 30, 80, 300)


@dataclass(frozen=True)
class Column:
    """A column's name and kind."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class TimeRange:
    """Where the times of a table lie, and how."""

    name: str
    least: int
    most: int
    distinct: bool = False
    type: pa.DataType = INTEGER


RANGES = (
    TimeRange("small", 0, 40),
    TimeRange("dense", 0, 5),
    TimeRange("distinct", 0, 40, distinct=True),
    TimeRange("around zero", -30, 30),
    TimeRange("before zero", -(10**12), -(10**12) + 60),
    TimeRange("far", 10**17, 10**17 + 60),
    TimeRange("int32", 0, 60, type=pa.int32()),
    TimeRange("seconds", 0, 60, type=pa.timestamp("s")),
    TimeRange("microseconds", 1774749590, 1774749650, type=pa.timestamp("us")),
    TimeRange("nanoseconds", -30, 30, type=pa.timestamp("ns")),
    TimeRange("zoned", 1774749590, 1774749650, type=pa.timestamp("us", "Europe/Berlin")),
    TimeRange("unsigned", MOST - 60, MOST + 3, type=pa.uint64()),
    TimeRange("the end", MOST - 60, MOST),
    TimeRange("the beginning", LEAST, LEAST + 60),
)

CALENDAR = (
    TimeRange("spring", 1774000000, 1777000000, type=pa.timestamp("s", "Europe/Berlin")),
    TimeRange("spring, no zone", 1774 * 10**12, 1777 * 10**12, type=pa.timestamp("us")),
    TimeRange("autumn", 1792 * 10**12, 1794 * 10**12, type=pa.timestamp("us", "UTC")),
    TimeRange("midnight", 15412 * 10**14, 15413 * 10**14, type=pa.timestamp("ns", "UTC")),
    TimeRange("years", -(2 * 10**12), 2 * 10**12, type=pa.timestamp("ms", "Europe/Berlin")),
    TimeRange("seventies", -(10**8), 10**8, type=pa.timestamp("s")),
)
"""Times on both sides of days on which clocks change, at midnight in Brazil in 2018."""
ZONES = ("UTC", "America/New_York", "America/Sao_Paulo", "Asia/Kathmandu")


def table(
    choices: Choices, columns: Sequence[Column], times: TimeRange, *, sorting: str
) -> pa.Table:
    """A table with a time column and others; ``sorting`` says in which order its rows come."""
    size = choices.one_of(_SIZES[: len(_SIZES) - choices.one_of([1, 0, 1])])
    if times.distinct:
        size = min(size, times.most - times.least + 1)
        stamps = choices.shuffled(range(times.least, times.most + 1))[:size]
    else:
        stamps = [choices.integer(times.least, times.most) for _ in range(size)]
    if sorting == "sorted":
        stamps.sort()
    elif sorting == "nearly":
        # Disorder within a small bound.
        stamps = [s for _, s in sorted((s + choices.integer(0, 3), s) for s in stamps)]
    arrays = {TIME: _times(choices, stamps, times.type)}
    for column in columns:
        arrays[column.name] = array(choices, column.kind, size)
    return pa.table(arrays)


def _times(choices: Choices, stamps: list[int], kind: pa.DataType) -> pa.Array:
    """A time column; rarely one has a null, which must be an error."""
    values: list[int | None] = list(stamps)
    if stamps and choices.chance(1):
        values[-1] = None
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


def array(choices: Choices, kind: Kind, size: int) -> pa.Array:
    """Values of a kind, few of them different, so that keys meet and ties happen."""
    nulls = choices.one_of([0, 20, 0, 100, 60]) if size else 0
    few = choices.shuffled(kind.values)[: choices.integer(1, len(kind.values))]
    values = [None if choices.chance(nulls) else choices.one_of(few) for _ in range(size)]
    if kind.many is not None and choices.chance(30):
        # Enough different ones that state has to grow.
        values = [
            None if value is None else kind.many(choices.integer(0, 9999)) for value in values
        ]
    if pa.types.is_timestamp(kind.type) or pa.types.is_duration(kind.type):
        return pa.array(values, pa.int64()).cast(kind.type)
    if pa.types.is_dictionary(kind.type):
        return pa.array(values, pa.string()).dictionary_encode()
    if pa.types.is_float16(kind.type):
        return pa.array(values, pa.float32()).cast(pa.float16())
    return pa.array(values, kind.type)
