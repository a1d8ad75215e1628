"""map_rows: plain Python for each record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from jeton.columns import time_columns
from jeton.columns.batch import Batch
from jeton.columns.column import Column, as_column, from_arrow
from jeton.columns.schema import SchemaLike, as_schema
from jeton.columns.time_units import in_words, one_time, plain_times
from jeton.core.checks import described
from jeton.core.errors import BatchError, TimeError
from jeton.core.times import Time
from jeton.dataflow.operators.stateless import stateless
from jeton.dataflow.stream_base import StreamBase
from jeton.state.accumulators import pylist

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream

Row: TypeAlias = dict[str, Any]


def add_map_rows(
    stream: StreamBase,
    function: Callable[[Row], Row | Iterable[Row] | None],
    *,
    schema: SchemaLike | None = None,
    name: str,
) -> Stream:
    """Add the operator of `Stream.map_rows`."""
    kind = stream.kind
    known = None if schema is None else as_schema(schema, stream.time_name)

    def change(batch: Batch) -> Batch:
        made: list[Row] = []
        times: list[Time] = []
        for time, row in zip(plain_times(batch.times, None), rows_of(batch), strict=True):
            at = row[batch.time_name]
            result = function(row)
            if result is None:
                continue
            for new in _rows(result):
                made.append(new)
                times.append(_time_of(new, batch, at, time))
        columns = _columns(made, batch.time_name, known)
        return Batch(
            columns, time_columns.as_times(kind, times), time_name=batch.time_name, kind=kind
        )

    return stateless(stream, change, name, schema=known)


def _rows(result: Any) -> Iterable[Row]:
    """The rows that a function has returned: one, or several."""
    if isinstance(result, dict):
        return (result,)
    if isinstance(result, Iterable):
        rows = list(result)
        if all(isinstance(row, dict) for row in rows):
            return rows
    raise BatchError(
        "map_rows needs a function that returns a row, a list of rows or None, and this one "
        f"returned {described(result)}: a row is a dictionary, {{'name': value}}"
    )


def rows_of(batch: Batch) -> Iterator[Row]:
    """The records as dictionaries of Python values, with their times."""
    names = (batch.time_name, *batch.names)
    stamps = plain_times(batch.times, batch.unit)
    values = map(pylist, batch.columns.values())
    return (dict(zip(names, row, strict=True)) for row in zip(stamps, *values, strict=True))


def _time_of(row: Row, batch: Batch, shown: Any, time: Time) -> Time:
    """The time of a new row in the flow's unit; it may name one that is not before its record's."""
    new = row.get(batch.time_name, shown)
    if new is shown:
        return time
    new = one_time(new, batch.unit, "the time of a row")
    if not time <= new:
        before = in_words(time, batch.unit)
        raise TimeError(
            f"map_rows would move a record from {before} back to {in_words(new, batch.unit)}"
        )
    return new


def _columns(rows: list[Row], time_name: str, schema: pa.Schema | None) -> dict[str, Column]:
    if schema is not None:
        known = {*schema.names, time_name}
        for row in rows:
            if not row.keys() <= known:
                unknown = row.keys() - known
                raise BatchError(f"map_rows made columns {sorted(unknown)} that schema= lacks")
        return {
            field.name: _typed(field, [row.get(field.name) for row in rows]) for field in schema
        }
    if not rows:
        return {}
    first = rows[0].keys()
    names = [name for name in first if name != time_name]
    for row in rows:
        if row.keys() != first and row.keys() - {time_name} != set(names):
            raise BatchError(
                f"map_rows made records with columns {names} and {list(row)}: make the same "
                "columns for all, or say with schema= which there are"
            )
    return {name: as_column([row[name] for row in rows]) for name in names}


def _typed(field: pa.Field, values: list[Any]) -> Column:
    try:
        return from_arrow(pa.array(values, None if pa.types.is_null(field.type) else field.type))
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise BatchError(
            f"map_rows made values for {field.name!r} that are not {field.type}: {error}"
        ) from error
