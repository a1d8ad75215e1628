"""DuckDB as the oracle: a relation for each stream of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa

from tests.oracle.sql import PAST_THE_END, translate
from tests.oracle.sql_parts import quoted
from tests.oracle.steps import Shape
from tests.oracle.tables import TIME


class Refused(Exception):
    """The right outcome is an error."""


class Oracle:
    """DuckDB, in this process, with a relation for each stream of a pipeline."""

    def __init__(self) -> None:
        self._duck = duckdb.connect(config={"threads": 1})
        self._duck.execute("SET TimeZone = 'UTC'")

    def load(self, name: str, table: pa.Table) -> None:
        """A relation from a table, with its times in 128 bits."""
        self._load(name, table)
        self._make(name, f"SELECT * REPLACE (t::HUGEINT AS t) FROM {name}")
        self._refuse(name, "t IS NULL", "a record without a time")
        self._refuse(name, *PAST_THE_END)

    def _load(self, name: str, table: pa.Table) -> None:
        plain = pa.table({n: for_duckdb(n, table[n]) for n in table.column_names})
        self._duck.register("loaded", plain)
        self._make(name, "SELECT * FROM loaded")
        self._duck.unregister("loaded")

    def follow(
        self, step: Any, names: Sequence[str], shapes: Sequence[Shape], into: Sequence[str]
    ) -> None:
        """Make the relations of a step's results, or raise `Refused`."""
        checked = translate(step, names, shapes)
        if checked.refused is not None:
            raise Refused(checked.refused)
        for name, table in checked.tables.items():
            self._load(name, table)
        for name, broken, reason in checked.before:
            self._refuse(name, broken, reason)
        for name, select in zip(into, checked.selects, strict=True):
            try:
                self._make(name, select)
            except duckdb.OutOfRangeException as error:
                raise Refused("a sum too large") from error
        for broken, reason in checked.errors:
            self._refuse(into[0], broken, reason)

    def punctual(self, times: pa.ChunkedArray, pieces: Sequence[int], lateness: int) -> pa.Array:
        """The numbers of the rows that are not late, by Spark's rule.

        A row is late if its time is below the greatest in all micro-batches before its own, less
        the lateness.
        """
        rows = pa.table(
            {"t": times, "piece": pa.array(pieces, pa.int64()), "row": range(len(times))},
            schema=pa.schema({"t": pa.int64(), "piece": pa.int64(), "row": pa.int64()}),
        )
        self._duck.register("loaded", rows)
        self._make("pieces", "SELECT * REPLACE (t::HUGEINT AS t) FROM loaded")
        self._duck.unregister("loaded")
        kept = self._duck.sql(
            f"""SELECT row FROM pieces p WHERE NOT EXISTS (
                SELECT 1 FROM pieces b WHERE b.piece < p.piece AND p.t < b.t - {lateness}
            ) ORDER BY row"""
        ).to_arrow_table()
        return kept["row"]

    def table(self, name: str, shape: Shape) -> pa.Table:
        """The rows of a relation; all that has 128 bits fits in 64 by now."""
        columns = "".join(
            f", {quoted(n)}{narrow(kind)} AS {quoted(n)}" for n, kind in shape.columns.items()
        )
        return self._duck.sql(f"SELECT t::BIGINT AS t{columns} FROM {name}").to_arrow_table()

    def _make(self, name: str, select: str) -> None:
        self._duck.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {select}")

    def _refuse(self, name: str, broken: str, reason: str) -> None:
        if self._duck.execute(f"SELECT 1 FROM {name} WHERE {broken} LIMIT 1").fetchall():
            raise Refused(reason)


def narrow(kind: pa.DataType) -> str:
    """The cast that makes 64 bits of 128."""
    if pa.types.is_uint64(kind):
        return "::UBIGINT"
    ticks = pa.types.is_timestamp(kind) or pa.types.is_duration(kind)
    if pa.types.is_list(kind):
        return narrow(kind.value_type) + "[]" if narrow(kind.value_type) else ""
    return "::BIGINT" if ticks or pa.types.is_integer(kind) else ""


def for_duckdb(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column in a type that DuckDB has; timestamps and durations as integers."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return column.cast(pa.int64())
    if name == TIME:
        return column
    if pa.types.is_float16(kind):
        return column.cast(pa.float32())
    if pa.types.is_decimal256(kind):
        return column.cast(pa.decimal128(38, kind.scale))
    return column
