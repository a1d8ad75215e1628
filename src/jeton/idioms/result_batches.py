"""Batches of answers, with the columns and types that a schema promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
                raise BatchError(
                    f"the answer has columns {sorted(record.keys() - known)}, which schema= lacks: "
                    f"it has {schema.names}"
                )
        return {
            field.name: _typed([record.get(field.name) for record in self._records], field)
            for field in schema
        }


def _typed(values: list[Any], field: pa.Field) -> Any:
    try:
        return values if pa.types.is_null(field.type) else pa.array(values, field.type)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise BatchError(
            f"the answer: column {field.name!r} is not {field.type}, as schema= says: {error}"
        ) from error
