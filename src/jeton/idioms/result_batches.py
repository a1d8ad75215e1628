"""Batches of answers, with the columns and types that a schema promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton.errors import BatchError


class RecordBuffer:
    """Single records that become a batch, and the least of their tokens."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin again."""
        self.token: jt.TimestampToken | None = None
        self._times: list[Any] = []
        self._records: list[Mapping[str, Any]] = []

    def add(self, token: jt.TimestampToken, time: Any, record: Mapping[str, Any]) -> None:
        """One more."""
        if self.token is None or token.time <= self.token.time:
            self.token = token
        self._times.append(time)
        self._records.append(record)

    def batch(self, time_name: str, kind: Any, schema: pa.Schema | None) -> jt.Batch:
        """All of them as columns: those of the schema, or those that all have."""
        columns = self._columns() if schema is None else self._columns_of(schema)
        return jt.Batch(columns, self._times, time_name=time_name, kind=kind)

    def _columns(self) -> dict[str, Any]:
        names = self._records[0].keys()
        for record in self._records:
            if record.keys() != names:
                raise BatchError(
                    f"answers with columns {list(names)} and {list(record)}: give the same for "
                    "all, or say with schema= which there are"
                )
        return {name: [record[name] for record in self._records] for name in names}

    def _columns_of(self, schema: pa.Schema) -> dict[str, Any]:
        known = set(schema.names)
        for record in self._records:
            if not record.keys() <= known:
                raise _unpromised(record.keys() - known, schema)
        return {
            field.name: _typed([record.get(field.name) for record in self._records], field)
            for field in schema
        }


def conform(batch: jt.Batch, schema: pa.Schema) -> jt.Batch:
    """A batch with exactly the columns of a schema, of its types.

    >>> batch = jt.Batch({"n": np.array([1, 2], dtype=np.int8)}, times=[0, 0])
    >>> conform(batch, pa.schema({"n": pa.int64()}))["n"].dtype
    dtype('int64')
    """
    if odd := set(batch.names) ^ set(schema.names):
        raise _unpromised(odd, schema)
    return batch.select(*schema.names).with_columns(
        {field.name: _typed(batch.column(field.name), field) for field in schema}
    )


def _typed(values: Any, field: pa.Field) -> Any:
    kind = field.type
    try:
        if pa.types.is_null(kind):  # only the name is known
            return values
        if isinstance(values, list):
            return pa.array(values, kind)
        have = pa.array(values) if isinstance(values, np.ndarray) else values
        if have.type != kind and not _alike(have.type, kind):
            raise TypeError(f"they are {have.type}")
        return values if have.type == kind else have.cast(kind)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise BatchError(
            f"answers have values for {field.name!r} that are not {kind}, as schema= says: {error}"
        ) from error


def _alike(have: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a cast keeps the meaning: Arrow would also make text of numbers."""
    types = pa.types
    return types.is_null(have) or any(
        all(map(same, (have, kind)))
        for same in (
            lambda one: types.is_integer(one) or types.is_floating(one),
            lambda one: types.is_string(one) or types.is_large_string(one),
            lambda one: one.id == kind.id,
        )
    )


def _unpromised(odd: set[str], schema: pa.Schema) -> BatchError:
    names = ", ".join(map(repr, sorted(odd)))
    return BatchError(
        f"answers and schema= differ in {names}: schema= says {schema.names}; give those columns"
    )
