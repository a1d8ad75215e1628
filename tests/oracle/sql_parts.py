"""Parts of SQL statements: names, plain values, times as integers and places in a calendar."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_EPOCH = dt.datetime(1970, 1, 1)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str], of: str = "") -> str:
    """Columns with a comma before each."""
    return "".join(f", {of}{quoted(name)}" for name in names)


def literal(value: Any) -> str:
    """A plain value; timestamps and durations in nanoseconds."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return f"{value}::HUGEINT"
    if isinstance(value, float):
        return f"'{value!r}'::DOUBLE"
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dt.datetime):
        return literal(value.replace(tzinfo=None) - _EPOCH)
    if isinstance(value, dt.timedelta):
        return f"{value // dt.timedelta(microseconds=1) * 1000}::HUGEINT"
    if isinstance(value, dt.date):
        return f"'{value}'::DATE"
    return "'" + str(value).replace("'", "''") + "'"


def modulo(value: str, size: int | str) -> str:
    """The remainder that is never negative, unlike SQL's."""
    return f"((({value}) % ({size}) + ({size})) % ({size}))"


def quotient(value: str, size: int | str) -> str:
    """The quotient that is rounded down, unlike SQL's."""
    return f"((({value}) - {modulo(value, size)}) // ({size}))"


def in_unit(value: str, unit: str, other: str) -> str:
    """Ticks of a unit as those of another, rounded down."""
    have, want = NANOSECONDS[unit], NANOSECONDS[other]
    wide = f"({value})::HUGEINT"
    return f"({wide} * {have // want})" if have >= want else quotient(wide, want // have)


def on_clock(ticks: str, unit: str, zone: str | None) -> str:
    """The reading of a clock at a time: a TIMESTAMP."""
    microseconds = f"{in_unit(ticks, unit, 'us')}::BIGINT"
    if zone is None:
        return f"make_timestamp({microseconds})"
    return f"timezone({literal(zone)}, make_timestamptz({microseconds}))"


def off_clock(moment: str, unit: str, zone: str | None) -> str:
    """The time at which a clock shows a TIMESTAMP, in ticks."""
    instant = moment if zone is None else f"timezone({literal(zone)}, {moment})"
    return in_unit(f"epoch_us({instant})", "us", unit)


def is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def partitioned(key: Sequence[str], *more: str) -> str:
    parts = [*map(quoted, key), *more]
    return "PARTITION BY " + ", ".join(parts) if parts else ""
