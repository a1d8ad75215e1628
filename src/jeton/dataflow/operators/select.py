"""select, drop, rename: which columns go on, and under which names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.core.checks import described
from jeton.core.errors import BatchError, GraphError
from jeton.dataflow.column_use import ColumnUse
from jeton.dataflow.operators.stateless import stateless
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


def add_select(stream: StreamBase, *names: str, name: str) -> Stream:
    """Add the operator of `Stream.select`."""
    stream.require_columns(*names, operator=name)
    schema = stream.schema
    if schema is not None:
        schema = pa.schema([schema.field(one) for one in names if one != stream.time_name])
    use = ColumnUse(frozenset(names), passes=False)
    return stateless(stream, lambda batch: batch.select(*names), name, schema=schema, use=use)


def add_drop(stream: StreamBase, *names: str, name: str) -> Stream:
    """Add the operator of `Stream.drop`."""
    _keep_time(stream, names, name)
    stream.require_columns(*names, operator=name)
    schema, use = stream.schema, None
    if schema is not None:
        schema = pa.schema([field for field in schema if field.name not in names])
        use = ColumnUse(dropped=frozenset(names), offered=frozenset(schema.names))

    def change(batch: Batch) -> Batch:
        # Where columns are known, they were looked for above, and need not be read for this.
        for one in names if use is None else ():
            batch.column(one)  # raises if it is not there
        return batch.select(*(one for one in batch.names if one not in names))

    return stateless(stream, change, name, schema=schema, use=use)


def add_rename(stream: StreamBase, names: Mapping[str, str], *, name: str) -> Stream:
    """Add the operator of `Stream.rename`."""
    if not isinstance(names, Mapping):
        raise GraphError(f"rename needs a dictionary {{old: new}}, not {described(names)}").located(
            operator=name
        )
    names = dict(names)
    _keep_time(stream, (*names, *names.values()), name)
    stream.require_columns(*names, operator=name)
    schema = stream.schema
    if schema is not None:
        try:
            new = _renamed(tuple(schema.names), names)
        except BatchError as error:
            raise GraphError(error.message).located(operator=name) from error
        schema = pa.schema(dict(zip(new, schema.types, strict=True)))

    def change(batch: Batch) -> Batch:
        for one in names:
            batch.column(one)  # raises if it is not there
        new = _renamed(batch.names, names)
        columns = dict(zip(new, batch.columns.values(), strict=True))
        return batch.select().with_columns(columns)

    use = ColumnUse(frozenset(names), made=frozenset(names.values()))
    return stateless(stream, change, name, schema=schema, use=use)


def _keep_time(stream: StreamBase, names: tuple[str, ...], operator: str) -> None:
    if stream.time_name in names:
        raise GraphError(
            f"{stream.time_name!r} is the time column, which every stream keeps"
        ).located(operator=operator)


def _renamed(present: tuple[str, ...], names: Mapping[str, str]) -> list[str]:
    new = [names.get(name, name) for name in present]
    twice = sorted({name for name in new if new.count(name) > 1})
    if twice:
        raise BatchError(f"two columns would be called {', '.join(map(repr, twice))}")
    return new
