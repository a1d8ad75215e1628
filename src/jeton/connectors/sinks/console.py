"""Console: rows printed at the driver."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import pyarrow as pa

from jeton.connectors.sinks.driver_sink import Delivery, DriverSink


class Console(DriverSink):
    """Rows as text, printed by the driver: to look at a query that is being written.

    Of each table, at most ``rows`` rows are printed, to ``file`` or to standard output.

    >>> console = Console(rows=2)
    >>> console.receive(pa.table({"word": ["a", "bcd", "e"], "count": [10, 2, 1]}), Delivery())
    rows: 3 rows
    word  count
    a        10
    bcd       2
    1 more
    """

    def __init__(self, *, rows: int = 20, file: TextIO | None = None) -> None:
        self.rows = rows
        self._file = file

    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        """Print rows."""
        version = "" if delivery.version is None else f", version {delivery.version}"
        lines = [f"{delivery.context.output}: {table.num_rows} rows{version}"]
        lines += _aligned(table.slice(0, self.rows))
        if table.num_rows > self.rows:
            lines.append(f"{table.num_rows - self.rows} more")
        print("\n".join(lines), file=self._file or sys.stdout, flush=True)


def _aligned(table: pa.Table) -> list[str]:
    """A line for the names, and one for each row; numbers are aligned at their right."""
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        cells = [name, *(_cell(value) for value in column.to_pylist())]
        width = max(map(len, cells))
        right = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in cells])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
