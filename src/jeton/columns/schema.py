"""Schemas: which columns a stream has, and of which types, known before any data flows.

A stream's schema names its value columns; the time column is not among them. ``None`` stands for
a schema that is not known, and ``pa.null()`` for the type of a column of which only the name is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns import time_columns
from jeton.columns.batch import Batch, missing
from jeton.columns.column import Column
from jeton.columns.time_units import INTEGER
from jeton.columns.types import as_type
from jeton.core.checks import described
from jeton.core.errors import ColumnTypeError, GraphError, MissingColumn
from jeton.core.times import TimeKind

SchemaLike: TypeAlias = "pa.Schema | Mapping[str, Any]"
"""An Arrow schema, or names with Arrow, NumPy or Python types."""

EVENT_TIME = "event_time"
"""The column with a record's own time where it is sent at another: late, or at a window's end."""

T = TypeVar("T")


def time_type(declared: SchemaLike, time_name: str) -> pa.DataType | None:
    """The type of the time column, if a schema declares it.

    >>> time_type({"ts": "datetime64[ms]", "word": str}, "ts")
    TimestampType(timestamp[ms])
    """
    if time_name not in (declared.names if isinstance(declared, pa.Schema) else declared):
        return None
    if isinstance(declared, pa.Schema):
        return as_type(declared.field(time_name).type)
    return as_type(declared[time_name])


def as_schema(declared: SchemaLike, time_name: str = "time") -> pa.Schema:
    """A schema of value columns. A declared time column is left out, so a table's schema will do.

    >>> as_schema({"time": int, "word": str, "price": np.float32})
    word: string
    price: float
    """
    if isinstance(declared, pa.Schema):
        cols.require_unique(declared.names, "the schema", GraphError)
        fields = {name: as_type(declared.field(name).type) for name in declared.names}
    elif isinstance(declared, Mapping):
        fields = {name: as_type(kind) for name, kind in declared.items()}
    else:
        raise GraphError(
            "a schema is a dictionary of columns and their types, as in {'price': float}, or one "
            f"of Arrow or Spark, not {described(declared)}"
        )
    fields.pop(time_name, None)
    return pa.schema(fields)


def schema_of(batch: Batch) -> pa.Schema:
    """The schema of a batch's value columns."""
    return pa.schema({name: cols.to_arrow(column).type for name, column in batch.columns.items()})


def unify(left: pa.Schema | None, right: pa.Schema | None, what: str) -> pa.Schema | None:
    """The schema of records of either, which must have the same columns where both are known."""
    if left is None or right is None:
        return None
    if set(left.names) != set(right.names):
        odd = sorted(set(left.names) ^ set(right.names))
        raise GraphError(
            f"{what} have different columns, {left.names} and {right.names}: select() or "
            f"with_columns() so that both or neither have {', '.join(map(repr, odd))}"
        )
    return pa.schema(
        {name: _common(name, left.field(name).type, right.field(name).type) for name in left.names}
    )


def _common(name: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    common = cols.common_type(left, right)
    if common is None:
        raise GraphError(
            f"column {name!r} is {left} in one stream and {right} in another: cast one of them"
        )
    return common


class _Sample(Batch):
    """An empty batch that stands in for data while the graph is built."""

    __slots__ = ()

    def column(self, name: str) -> Column:
        if name == self.time_name and self.unit is None and self.times.ndim == 1:
            raise _TypeNotKnown(name)
        column = super().column(name)
        if not isinstance(column, np.ndarray) and pa.types.is_null(column.type):
            # A guess from no values of no type would look like knowledge.
            raise _TypeNotKnown(name)
        return column


class _TypeNotKnown(Exception):
    """A function wants a column of which only the name is known."""


def sample(schema: pa.Schema, time_name: str, kind: TimeKind, unit: str | None) -> Batch:
    """An empty batch of a schema, on which functions are tried; ``unit`` is that of its times."""
    columns = {field.name: cols.from_arrow(pa.array([], field.type)) for field in schema}
    times = time_columns.as_times(kind, [])
    return _Sample.trusted(columns, times, time_name, unit=unit if kind.integers else INTEGER)


def learn(function: Callable[[Batch], T], batch: Batch) -> T | None:
    """The result of a function on an empty batch; ``None`` if it needs data.

    A column that is not there, or types that do not go together, are errors now, since they would
    be with data too.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # means and quotients of nothing
            return function(batch)
    except (MissingColumn, ColumnTypeError):
        raise
    except (Exception, SystemExit):
        # With data it fails again, and then the error names the operator.
        return None


def require_columns(
    names: tuple[str, ...], schema: pa.Schema | None, time_name: str, operator: str, where: str
) -> None:
    """Refuse an operator that needs columns which its stream is known not to have."""
    if schema is None:
        return
    present = (*schema.names, time_name)
    for name in names:
        if name not in present:
            raise GraphError(f"{missing(name, present)} in {where}").located(operator=operator)
