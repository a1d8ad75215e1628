"""The tables of all queries: for a terminal, for Markdown, and into a page between its marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jeton_evaluation.bench.harness import grid
from jeton_evaluation.nexmark import queries
from jeton_evaluation.nexmark.measure import Figures, Latency

BEGIN: Final = "<!-- nexmark results: begin -->"
END: Final = "<!-- nexmark results: end -->"
"""The text between them in a page is written by ``jeton nexmark --all --write PAGE``."""
PARQUET: Final = ("<!-- nexmark parquet: begin -->", "<!-- nexmark parquet: end -->")
"""The same for ``jeton nexmark --parquet --write PAGE``."""

LATE: Final = "late: an event took longer than a second, and the run ended there."

_HEAD: Final = (
    *("query", "Jeton, batch", "Spark SQL", "ratio"),
    *("Jeton, long-lived", "Structured Streaming", "ratio", "reading", "rows", "same"),
)
_LATENCY_HEAD: Final = ("query", "offered", "achieved", "p50", "p999", "max", "noise p999")


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
    lines = grid([_HEAD, *(_row(one, marks.get(one.query, "")) for one in figures)], markdown)
    notes = [f"{marks[query]} {query}: {queries.get(query).no_stream}" for query in gaps]
    if markdown:
        notes = [f"{note}  " for note in notes[:-1]] + notes[-1:]
    below = ["", *notes] if notes else []
    return "\n".join([f"{about} Millions of events a second.", "", *lines, *below])


def lay_out_latencies(latencies: Sequence[Latency], about: str, *, markdown: bool = False) -> str:
    """The table of latencies, with what it is about above it.

    >>> seen = Latency("q4", 2, 1e6, 999_800, 1.25, 4.5, 12.34, 0.8, True)
    >>> print(lay_out_latencies([seen], "Here."))
    Here. Millions of events a second in all, and milliseconds.
    <BLANKLINE>
    query  offered  achieved   p50  p999   max  noise p999
    q4           1         1  1.25   4.5  12.3         0.8
    """
    lines = grid([_LATENCY_HEAD, *map(_latency_row, latencies)], markdown)
    late = [] if all(one.kept_up for one in latencies) else ["", LATE]
    head = f"{about} Millions of events a second in all, and milliseconds."
    return "\n".join([head, "", *lines, *late])


def write_between(page: Path, text: str, marks: tuple[str, str] = (BEGIN, END)) -> None:
    """Put a text between the marks of a page, in place of what is there."""
    whole = page.read_text()
    begin, end = marks
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{page} must have one line {begin!r} and one line {end!r}")
    before, _, rest = whole.partition(begin)
    _, _, behind = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{behind}")


def _row(one: Figures, mark: str) -> tuple[str, ...]:
    streamed = one.structured
    return (
        *(one.query, _millions(one.jeton), _millions(one.spark_sql)),
        *(_times(one.jeton / one.spark_sql), _millions(one.long_lived)),
        f"cannot{mark}" if streamed is None else _millions(streamed),
        "" if streamed is None else _times(one.long_lived / streamed),
        *(_millions(one.reading), f"{one.rows:,}", "yes" if one.equal else "NO"),
    )


def _latency_row(one: Latency) -> tuple[str, ...]:
    seen = [_milliseconds(ms) for ms in (one.p50_ms, one.p999_ms, one.max_ms)]
    return (
        *(one.query, _millions(one.offered), _millions(one.achieved)),
        *(seen if one.kept_up else ["late"] * len(seen)),
        _milliseconds(one.noise_p999_ms),
    )


def _millions(speed: float) -> str:
    return f"{speed / 1e6:.3g}"


def _milliseconds(ms: float) -> str:
    return f"{ms:.3g}" if ms < 100 else f"{ms:,.0f}"


def _times(ratio: float) -> str:
    return f"{ratio:.2g}×" if ratio < 10 else f"{ratio:,.0f}×"


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
