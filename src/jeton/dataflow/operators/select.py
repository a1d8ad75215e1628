"""select, drop, rename: which columns go on, and under which names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.core.errors import BatchError, GraphError
from jeton.dataflow.operators.stateless import StatelessBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class Select(StatelessBase):
    """Adds `select`, `drop` and `rename` to streams."""

    def select(self, *names: str, name: str = "select") -> Stream:
        """Only these columns, in this order; the time column always stays.

        >>> import jeton as jt
        >>> flow = jt.Flow("narrow")
        >>> flow.output("narrow", flow.input("wide").select("b"))
        >>> flow.run({"wide": {"time": [3], "a": [1], "b": [2]}})["narrow"].to_pylist()
        [{'time': 3, 'b': 2}]
        """
        self.require_columns(*names, operator=name)
        schema = self.schema
        if schema is not None:
            schema = pa.schema([schema.field(one) for one in names if one != self.time_name])
        return self._stateless(lambda batch: batch.select(*names), name, schema=schema)

    def drop(self, *names: str, name: str = "drop") -> Stream:
        """All columns but these.

        >>> import jeton as jt
        >>> flow = jt.Flow("narrow")
        >>> flow.output("narrow", flow.input("wide").drop("b"))
        >>> flow.run({"wide": {"time": [3], "a": [1], "b": [2]}})["narrow"].to_pylist()
        [{'time': 3, 'a': 1}]
        """
        self._keep_time(names, name)
        self.require_columns(*names, operator=name)
        schema = self.schema
        if schema is not None:
            schema = pa.schema([field for field in schema if field.name not in names])

        def change(batch: Batch) -> Batch:
            for one in names:
                batch.column(one)  # raises if it is not there
            return batch.select(*(one for one in batch.names if one not in names))

        return self._stateless(change, name, schema=schema)

    def rename(self, names: Mapping[str, str], *, name: str = "rename") -> Stream:
        """Columns under new names, given as ``{old: new}``; the others stay as they are.

        >>> import jeton as jt
        >>> flow = jt.Flow("renamed")
        >>> flow.output("out", flow.input("in").rename({"n": "number"}))
        >>> flow.run({"in": {"time": [0], "n": [1], "m": [2]}})["out"].to_pylist()
        [{'time': 0, 'number': 1, 'm': 2}]
        """
        names = dict(names)
        self._keep_time((*names, *names.values()), name)
        self.require_columns(*names, operator=name)
        schema = self.schema
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

        return self._stateless(change, name, schema=schema)

    def _keep_time(self, names: tuple[str, ...], operator: str) -> None:
        if self.time_name in names:
            raise GraphError(
                f"{self.time_name!r} is the time column, which every stream keeps"
            ).located(operator=operator)


def _renamed(present: tuple[str, ...], names: Mapping[str, str]) -> list[str]:
    new = [names.get(name, name) for name in present]
    twice = sorted({name for name in new if new.count(name) > 1})
    if twice:
        raise BatchError(f"two columns would be called {', '.join(map(repr, twice))}")
    return new
