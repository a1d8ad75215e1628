"""Table files: Parquet files that workers write for tables, which do not know them yet."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jeton.connectors.sinks.sink import SinkContext, Writer, concatenated
from jeton.connectors.tables import Dialect, TableFailed, conform, require_fit
from jeton.core.errors import GraphError


class Last(NamedTuple):
    """The last version of an output that a table has, and the last attempt that wrote to it."""

    version: int = 0
    attempt: int = 0

    def require(self, context: SinkContext, where: str) -> None:
        """An error if a later attempt has written already: this one was superseded.

        >>> Last(version=7, attempt=3).require(SinkContext("3f9a", attempt=2), "the table")
        Traceback (most recent call last):
        jeton.connectors.tables.TableFailed: attempt 3 at output 'rows' writes to the table: ...
        """
        if self.attempt > context.attempt:
            raise TableFailed(
                f"attempt {self.attempt} at output {context.output!r} writes to {where}: attempt "
                f"{context.attempt} was superseded"
            )


@dataclass(frozen=True)
class Upsert:
    """How rows replace others: by which key, and which of several is the newest.

    >>> rows = pa.table({"k": ["a", "b", "a"], "time": [3, 1, 2]})
    >>> Upsert(("k",)).newest(rows).to_pylist()
    [{'k': 'b', 'time': 1}, {'k': 'a', 'time': 2}]
    >>> Upsert(("k",), order_by="time").newest(rows).to_pylist()
    [{'k': 'a', 'time': 3}, {'k': 'b', 'time': 1}]

    NaN is neither greater nor smaller than a number: like null, it gives way to any.
    """

    key: tuple[str, ...]
    order_by: str | None = None

    @staticmethod
    def of(mode: str, key: Sequence[str], order_by: str | None) -> Upsert | None:
        """The upsert settings of a sink; ``None`` if it only appends."""
        if mode not in ("append", "upsert"):
            raise GraphError(f"mode= must be 'append' or 'upsert', not {mode!r}")
        if (mode == "upsert") != bool(key) or (order_by is not None and not key):
            raise GraphError("key= and order_by= belong to mode='upsert', which needs a key=")
        return Upsert((key,) if isinstance(key, str) else tuple(key), order_by) if key else None

    def require(self, schema: pa.Schema, what: str, where: str) -> None:
        """An error unless rows of a schema have these columns."""
        named = [*self.key, *([] if self.order_by is None else [self.order_by])]
        missing = [name for name in named if name not in schema.names]
        if missing:
            raise GraphError(
                f"{what} has no columns {missing} for key= or order_by= of {where}, only "
                f"{schema.names}"
            )

    def newest(self, rows: pa.Table) -> pa.Table:
        """The last row of each key, or the one with the greatest value of ``order_by``.

        >>> rows = pa.table({"k": ["a", "a", "a"], "level": [2.0, float("nan"), None]})
        >>> Upsert(("k",), order_by="level").newest(rows)["level"].to_pylist()
        [2.0]
        """
        names = [f"key {number}" for number in range(len(self.key))]
        columns = {name: rows.column(key) for name, key in zip(names, self.key, strict=True)}
        columns["row"] = pa.array(range(rows.num_rows), pa.int64())
        # Nulls are at the end in either direction.
        order = [("row", "descending")]
        if self.order_by is not None:
            by = rows.column(self.order_by)
            if pa.types.is_floating(by.type):
                by = pc.if_else(pc.is_nan(by), pa.scalar(None, by.type), by)
            columns["order"] = by
            order.insert(0, ("order", "descending"))
        newest_first = pa.table(columns).sort_by(order)
        newest_first = newest_first.append_column("rank", columns["row"])
        first = newest_first.group_by(names).aggregate([("rank", "min")]).column("rank_min")
        return rows.take(newest_first.column("row").take(first).combine_chunks().sort())


@dataclass(frozen=True)
class StagedFile:
    """A file of rows that is not part of its table yet, as it is stored with a checkpoint."""

    path: str
    size: int
    written_at: int
    """Milliseconds since 1970."""
    partition: Mapping[str, str | None] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def all_of(staged: Sequence[Any]) -> list[StagedFile]:
        """Those that workers have staged."""
        return [StagedFile(**each) for each in staged]


class TableWriter(Writer):
    """Rows that are gathered until there are enough of them for a file, or a version is due."""

    def __init__(self, dialect: Dialect, context: SinkContext, where: str, rows: int) -> None:
        """``rows`` are about those of a file."""
        self._dialect = dialect
        self._what = f"output {context.output!r}"
        self._where = where
        self._most = rows
        self._schema: pa.Schema | None = None
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._files: list[StagedFile] = []

    def write(self, table: pa.Table) -> None:
        """Take rows."""
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows >= self._most:
            self._fill()

    def stage(self, version: int) -> list[Any]:
        """Write what is left; the table does not know the files yet."""
        if self._rows:
            self._fill()
        files, self._files = self._files, []
        return [vars(each) for each in files]

    def close(self) -> None:
        """Give up rows, and delete files that were not staged."""
        self._tables, self._rows = [], 0
        for each in self._files:
            self.delete(each.path)
        self._files = []

    @abstractmethod
    def prepare(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the table, which is created for rows of a schema if it is not there."""

    @abstractmethod
    def put(self, table: pa.Table) -> list[StagedFile]:
        """Write rows to files, one for each partition of the table."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file, or at least try to."""

    def _fill(self) -> None:
        table = concatenated(self._tables, f"rows of {self._what}")
        schema = self._dialect.schema(table.schema, self._what)
        if self._schema is None:
            self._schema = self.prepare(schema)
        require_fit(schema, self._schema, self._what, self._where)
        self._files += self.put(conform(table, self._schema, self._what))
        self._tables, self._rows = [], 0
