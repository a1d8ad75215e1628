"""Tables: the users' data as Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns.batch import Batch
from jeton.core.errors import BatchError
from jeton.core.times import END_OF_TIME, START_OF_TIME


def as_table(data: Any) -> pa.Table:
    """An Arrow table from a table, a record batch, a dictionary, a data frame or rows.

    A pandas frame's index is not read: ``frame.reset_index()`` makes columns of it.
    """
    table = _as_table(data)
    cols.require_unique(table.column_names, "this table")
    return table


def _as_table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Batch):
        return data.to_arrow()
    if type(data).__module__.startswith("pyspark.") and hasattr(data, "toArrow"):
        raise BatchError(
            "a Spark DataFrame is not read into this process by itself: run the flow on Spark, "
            "flow.on_spark(…), or pass df.toArrow()"
        )
    try:
        if isinstance(data, Mapping):
            return pa.table({name: _readable(name, values) for name, values in data.items()})
        if isinstance(data, list):
            return _from_rows(data)
        if hasattr(data, "iloc") and hasattr(data, "columns"):
            # Before Arrow's own way, in which a frame's index would become a column.
            cols.require_unique([str(name) for name in data.columns], "this frame")
            return pa.Table.from_pandas(data, preserve_index=False)
        if hasattr(data, "__arrow_c_stream__"):
            _require_values(data)
            return pa.table(data)
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise BatchError(f"these values do not make a table: {_reason(data, error)}") from error
    raise BatchError(
        f"cannot read records from a {type(data).__name__}: pass an Arrow table, a dictionary "
        "of columns, a pandas or Polars data frame, or a list of rows"
    )


def _require_values(frame: Any) -> None:
    """Refuse a Polars frame with Python objects, of which Arrow would get the addresses."""
    schema = getattr(frame, "schema", None)
    for name, kind in schema.items() if isinstance(schema, Mapping) else ():
        if str(kind).startswith("Object"):
            raise BatchError(
                f"column {name!r} of this frame has Python objects, which cannot be read: cast it "
                "to a type with values"
            )


def _readable(name: str, values: Any) -> Any:
    """A column for Arrow, which has no times in minutes, hours or similar units."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "mM":
        unit, count = np.datetime_data(values.dtype)
        if values.dtype.kind == "M" and unit == "D" and count == 1:
            return values
        if unit not in ("s", "ms", "us", "ns") or count != 1:
            kind = "datetime64[s]" if values.dtype.kind == "M" else "timedelta64[s]"
            raise BatchError(
                f"column {name!r} is of type {values.dtype}, which Arrow does not have: "
                f"cast it, values.astype({kind!r})"
            )
    return values


def _from_rows(rows: list[Any]) -> pa.Table:
    """A table of all columns that any row has: where a row lacks one, it has a null there."""
    for row in rows:
        if not isinstance(row, Mapping):
            raise BatchError(
                f"a list of records has a dictionary for each, not {row!r}: pass a list such as "
                "[{'n': 1}, {'n': 2}], or a dictionary of columns, {'n': [1, 2]}"
            )
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _reason(data: Any, error: Exception) -> str:
    """The reason why values are refused; Arrow does not say which integer is too large."""
    if isinstance(error, OverflowError):
        columns = data if isinstance(data, Mapping) else {}
        for name, values in columns.items():
            for value in values:
                if isinstance(value, int) and not START_OF_TIME <= value <= END_OF_TIME:
                    return f"{value} in column {name!r} does not fit into 64 bits"
    return str(error)
