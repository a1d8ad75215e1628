"""Records as text for people, as ``print(batch)`` shows them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from jeton.columns.column import is_text

ROWS = 10
"""The number of records that are shown."""


def as_text(table: pa.Table) -> str:
    """A table's first records under the names of their columns; numbers are flush right.

    >>> print(as_text(pa.table({"time": [3, 12], "word": ["to", "be"]})))
    time word
       3 to
      12 be
    """
    shown = table.slice(0, ROWS)
    columns = []
    for name, column in zip(table.column_names, shown.columns, strict=True):
        texts = [name, *("" if value is None else _one(value) for value in column.to_pylist())]
        width = max(map(len, texts))
        flush = str.ljust if is_text(column.type) else str.rjust
        columns.append([flush(text, width) for text in texts])
    lines = [" ".join(row).rstrip() for row in zip(*columns, strict=True)]
    if table.num_rows > ROWS:
        lines.append(f"… and {table.num_rows - ROWS} more")
    return "\n".join(lines)


def _one(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
