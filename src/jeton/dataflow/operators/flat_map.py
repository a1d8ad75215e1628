"""flat_map, explode: any number of records from each record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns.batch import Batch
from jeton.columns.column import as_column, to_arrow
from jeton.core.errors import BatchError
from jeton.dataflow.operators.stateless import later_times, require_type, schema_after, stateless
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


Expansion: TypeAlias = "tuple[Mapping[str, Any], Any] | tuple[Mapping[str, Any], Any, Any]"
"""New columns, the index of the record that each new one came from, and perhaps their times."""


def add_flat_map(
    stream: StreamBase,
    function: Callable[[Batch], Expansion],
    *,
    name: str,
) -> Stream:
    """Add the operator of `Stream.flat_map`."""
    kind = stream.kind

    def change(batch: Batch) -> Batch:
        columns, origins, *own = function(batch)
        origins = np.asarray(origins)
        if origins.ndim != 1 or (len(origins) and origins.dtype.kind not in "iu"):
            raise BatchError("flat_map needs the index of the record each new one came from")
        if len(origins) and not 0 <= origins.min() <= origins.max() < len(batch):
            raise BatchError(f"flat_map gave origins outside the batch of {len(batch)} records")
        times = batch.times[origins.astype(np.intp, copy=False)]
        if own:
            times = later_times(batch, times, own[0], kind, "flat_map")
        return Batch.trusted({}, times, batch.time_name).with_columns(columns)

    return stateless(stream, change, name, schema=schema_after(stream, change, name))


def add_explode(stream: StreamBase, column: str, *, into: str | None = None, name: str) -> Stream:
    """Add the operator of `Stream.explode`."""
    require_type(stream, column, _is_list, "lists", name)

    def change(batch: Batch) -> Batch:
        lists = to_arrow(as_column(batch.column(column)))
        if not _is_list(lists.type):
            raise BatchError(f"column {column!r} is of type {lists.type}, not of lists")
        if pa.types.is_fixed_size_list(lists.type):
            lists = lists.cast(pa.list_(lists.type.value_type))
        origins = pc.list_parent_indices(lists).to_numpy()
        others = batch.select(*(one for one in batch.names if one != column)).take(origins)
        elements = as_column(lists.flatten())
        if into is not None and into in others:
            raise BatchError(f"there is a column {into!r} already: choose another into=")
        columns = {
            (into or one) if one == column else one: elements
            if one == column
            else others.column(one)
            for one in batch.names
        }
        return others.select().with_columns(columns)

    return stateless(stream, change, name, schema=schema_after(stream, change, name))


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
