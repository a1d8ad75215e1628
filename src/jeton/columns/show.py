"""Records for people to read: as text, and as HTML in notebooks."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any, Final

import pyarrow as pa

from jeton.columns.column import is_text

ROWS: Final = 10
"""The number of records that are shown."""

_CELL: Final = "padding:2px 8px;border:0;background:none;color:inherit"
"""The style of all cells. Colours are those of the page, light or dark."""


def as_text(table: pa.Table) -> str:
    """A table's first records under the names of their columns; numbers are flush right.

    >>> print(as_text(pa.table({"time": [3, 12], "word": ["to", "be"]})))
    time word
       3 to
      12 be
    """
    return _aligned(table, lambda column: [], null="")


def as_typed_text(table: pa.Table) -> str:
    """The same with the types of the columns, and with nulls.

    >>> print(as_typed_text(pa.table({"time": [3, 12], "word": ["to", None]})))
     time word
    int64 string
        3 to
       12 null
    """
    return _aligned(table, lambda column: [str(column.type)], null="null")


def as_html(table: pa.Table, caption: str) -> str:
    """The same as a table of HTML, in the colours of the page.

    >>> as_html(pa.table({"a<b": [1]}), "1 row").count("<td")
    1
    """
    shown = table.slice(0, ROWS)
    names = "".join(
        f'<th style="{_CELL};text-align:{_side(column.type)}">{escape(name)}'
        f'<div style="font-weight:normal;opacity:.6">{escape(str(column.type))}</div></th>'
        for name, column in zip(table.column_names, shown.columns, strict=True)
    )
    sides = [_side(column.type) for column in shown.columns]
    lines = [
        "".join(
            f'<td style="{_CELL};text-align:{side}">{escape(_one(value, "null"))}</td>'
            for value, side in zip(row, sides, strict=True)
        )
        for row in zip(*(column.to_pylist() for column in shown.columns), strict=True)
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<div>{_more(table)}</div>" if table.num_rows > ROWS else ""
    return (
        f'<div style="margin:4px 0"><div>{escape(caption)}</div>'
        f'<table style="border-collapse:collapse"><thead><tr>{names}</tr></thead>'
        f"<tbody>{body}</tbody></table>{more}</div>"
    )


def rows(count: int) -> str:
    """A number of rows, in words.

    >>> rows(1), rows(1200)
    ('1 row', '1,200 rows')
    """
    return "1 row" if count == 1 else f"{count:,} rows"


def _aligned(
    table: pa.Table, under_name: Callable[[pa.ChunkedArray], list[str]], *, null: str
) -> str:
    shown = table.slice(0, ROWS)
    columns = []
    for name, column in zip(table.column_names, shown.columns, strict=True):
        values = [_one(value, null) for value in column.to_pylist()]
        texts = [name, *under_name(column), *values]
        width = max(map(len, texts))
        flush = str.ljust if is_text(column.type) else str.rjust
        columns.append([flush(text, width) for text in texts])
    lines = [" ".join(row).rstrip() for row in zip(*columns, strict=True)]
    if table.num_rows > ROWS:
        lines.append(_more(table))
    return "\n".join(lines)


def _more(table: pa.Table) -> str:
    return f"… and {table.num_rows - ROWS} more"


def _one(value: Any, null: str) -> str:
    if value is None:
        return null
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _side(kind: pa.DataType) -> str:
    return "left" if is_text(kind) else "right"
