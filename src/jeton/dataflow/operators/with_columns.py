"""with_columns: add or replace columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.column import Column, as_column, from_arrow, to_arrow
from jeton.core.errors import BatchError, GraphError
from jeton.dataflow.column_use import use_of
from jeton.dataflow.operators.stateless import stateless
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream

Expression: TypeAlias = "Callable[[Batch], Any] | bool | int | float | str | object"
"""A function of the batch, a kernel, or a constant."""


def add_with_columns(stream: StreamBase, columns: Mapping[str, Expression]) -> Stream:
    """Add the operator of `Stream.with_columns`."""
    functions = {
        name: value if callable(value) else _constant(name, value)
        for name, value in columns.items()
    }
    if stream.time_name in functions:
        raise GraphError(
            f"{stream.time_name!r} is the time column: use delay() to change times"
        ).located(operator="with_columns")

    def change(batch: Batch) -> Batch:
        return batch.with_columns({name: make(batch) for name, make in functions.items()})

    computed = [value for value in columns.values() if callable(value)]
    return stateless(
        stream,
        change,
        "with_columns",
        schema=_schema_with(stream, functions),
        use=use_of(*computed, made=functions),
    )


def _schema_with(
    stream: StreamBase, functions: Mapping[str, Callable[[Batch], Any]]
) -> pa.Schema | None:
    if stream.schema is None:
        return None
    types = dict(zip(stream.schema.names, stream.schema.types, strict=True))
    for name, make in functions.items():
        # One at a time, so that a column whose type needs data has its name at least.
        made = stream.learn(partial(_made, make), operator="with_columns")
        types[name] = pa.null() if made is None else to_arrow(made).type
    return pa.schema(types)


def _made(make: Callable[[Batch], Any], batch: Batch) -> Column:
    return as_column(make(batch))


def _constant(name: str, value: Any) -> Callable[[Batch], Column]:
    if isinstance(value, bool | int | float | np.generic):
        return lambda batch: np.full(len(batch), value)
    if isinstance(value, Mapping | list | tuple | set | np.ndarray | pa.Array | pa.ChunkedArray):
        raise GraphError(
            f"column {name!r} is neither a constant nor a function of the batch, but a "
            f"{type(value).__name__}: batches have no fixed length"
        ).located(operator="with_columns")
    try:
        scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise BatchError(f"{value!r} cannot be the value of column {name!r}: {error}") from error
    return lambda batch: from_arrow(pa.repeat(scalar, len(batch)))
