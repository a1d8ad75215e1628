"""The table of all queries: for a terminal, for Markdown, and into a page between its marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jeton.nexmark.measure import Figures
from jeton.nexmark.structured import CANNOT

BEGIN: Final = "<!-- nexmark results: begin -->"
END: Final = "<!-- nexmark results: end -->"
"""What is between them in a page is written by ``jeton nexmark --all --write PAGE``."""

_HEAD: Final = (
    *("query", "Jeton, batch", "Spark SQL", "ratio"),
    *("Jeton, long-lived", "Structured Streaming", "ratio", "reading", "rows", "same"),
)


def lay_out(figures: Sequence[Figures], about: str, *, markdown: bool = False) -> str:
    """The table, with what it is about above it and the reasons for gaps below.

    >>> one = Figures("q4", 1000, 2, 7, 4e6, 2e6, 1e6, 3e6, None, True)
    >>> print(lay_out([one], "Here."))
    Here. Millions of events a second.
    <BLANKLINE>
    query  Jeton, batch  Spark SQL  ratio  Jeton, long-lived  Structured Streaming  ratio ...
    q4                2          1     2×                  3              cannot¹ ...
    <BLANKLINE>
    ¹ q4: a window whose end is a column of the data, and an average of all rows so far
    """
    gaps = [one.query for one in figures if one.structured is None]
    marks = {query: _superscript(number) for number, query in enumerate(gaps, start=1)}
    rows = [_HEAD, *(_row(one, marks.get(one.query, "")) for one in figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # The names of the queries to the left, all else to the right.
    cells = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    if markdown:
        rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
        lines = [f"| {' | '.join(row)} |" for row in [cells[0], rule, *cells[1:]]]
    else:
        lines = ["  ".join(row).rstrip() for row in cells]
    notes = [f"{marks[query]} {query}: {CANNOT[query]}" for query in gaps]
    if markdown:
        notes = [f"{note}  " for note in notes[:-1]] + notes[-1:]
    below = ["", *notes] if notes else []
    return "\n".join([f"{about} Millions of events a second.", "", *lines, *below])


def write_between(page: Path, text: str) -> None:
    """Put a text between the marks of a page, in place of what is there."""
    whole = page.read_text()
    if whole.count(BEGIN) != 1 or whole.count(END) != 1:
        raise ValueError(f"{page} must have one line {BEGIN!r} and one line {END!r}")
    before, _, rest = whole.partition(BEGIN)
    _, _, behind = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{behind}")


def _row(one: Figures, mark: str) -> tuple[str, ...]:
    streamed, ratio = one.structured, one.stream_ratio
    return (
        *(one.query, _millions(one.jeton), _millions(one.spark_sql), _times(one.batch_ratio)),
        _millions(one.long_lived),
        f"cannot{mark}" if streamed is None else _millions(streamed),
        "" if ratio is None else _times(ratio),
        *(_millions(one.reading), f"{one.rows:,}", "yes" if one.equal else "NO"),
    )


def _millions(speed: float) -> str:
    return f"{speed / 1e6:.3g}"


def _times(ratio: float) -> str:
    return f"{ratio:.2g}×" if ratio < 10 else f"{ratio:,.0f}×"


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
