"""Columns of every type of value, with nulls: what twin tests of aggregates run over."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tests.operators.twins import Row


@dataclass(frozen=True)
class ValueType:
    """An Arrow type, some of its values, and whether they can be summed."""

    kind: pa.DataType
    values: st.SearchStrategy[Any]
    sums: bool = False


def _integers(dtype: Any) -> ValueType:
    info = np.iinfo(dtype)
    # A third of them at the edges, but of 64 bits only so far that means are exact.
    edges = [info.min, info.max] if info.bits < 64 else [-(2**48), 2**48]
    values = st.one_of(st.integers(0, 9), st.integers(-9, 9), st.sampled_from(edges))
    return ValueType(pa.from_numpy_dtype(dtype), values.map(lambda v: max(v, info.min)), sums=True)


_MOMENTS = st.integers(0, 50).map(lambda days: dt.datetime(2026, 1, 1) + dt.timedelta(days))
_FLOATS = st.sampled_from([-1e30, -2.5, -0.0, 0.0, 0.5, 1.0, 3.25, 1e30])

VALUE_TYPES: dict[str, ValueType] = {
    **{
        np.dtype(dtype).name: _integers(dtype)
        for dtype in (
            np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
        )
    },
    "float32": ValueType(pa.float32(), st.sampled_from([-2.5, -0.0, 0.5, 3.25]), sums=True),
    "float64": ValueType(pa.float64(), _FLOATS.filter(lambda v: abs(v) < 1e9), sums=True),
    "bool": ValueType(pa.bool_(), st.booleans(), sums=True),
    "text": ValueType(pa.string(), st.sampled_from(["", "a", "b", "ärger", "zz"])),
    "large text": ValueType(pa.large_string(), st.sampled_from(["", "a", "b"])),
    "bytes": ValueType(pa.binary(), st.sampled_from([b"", b"a", b"b\0"])),
    "seconds": ValueType(pa.timestamp("s"), _MOMENTS),
    "milliseconds": ValueType(pa.timestamp("ms"), _MOMENTS),
    "microseconds": ValueType(pa.timestamp("us"), _MOMENTS),
    "nanoseconds": ValueType(pa.timestamp("ns"), _MOMENTS),
    "with a zone": ValueType(
        pa.timestamp("us", tz="UTC"), _MOMENTS.map(lambda m: m.replace(tzinfo=dt.UTC))
    ),
    "date": ValueType(pa.date32(), _MOMENTS.map(lambda moment: moment.date())),
    "duration": ValueType(pa.duration("us"), st.integers(-9, 9).map(lambda d: dt.timedelta(d))),
    "decimal": ValueType(
        pa.decimal128(5, 2),
        st.sampled_from([Decimal("999.99"), Decimal("-1.50"), Decimal("0.01"), Decimal("0.00")]),
        sums=True,
    ),
}  # fmt: skip


def typed_rows(
    name: str, *, nulls: bool = True, distinct_times: bool = False
) -> st.SearchStrategy[list[Row]]:
    """Rows with a time, a small key and a value of one type."""
    values = VALUE_TYPES[name].values
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 40),
            "key": st.integers(0, 3),
            "value": st.one_of(values, st.none()) if nulls else values,
        }
    )
    unique = (lambda row: row["time"]) if distinct_times else None
    return st.lists(row, max_size=20, unique_by=unique)


def schema_for(name: str) -> pa.Schema:
    """The schema of such rows."""
    return pa.schema([("time", pa.int64()), ("key", pa.int64()), ("value", VALUE_TYPES[name].kind)])


def through_arrow(rows: list[Row], schema: pa.Schema) -> list[Row]:
    """The rows as they come back from Arrow: what any result can be compared with."""
    found: list[Row] = pa.Table.from_pylist(rows, schema=schema).to_pylist()
    return found
