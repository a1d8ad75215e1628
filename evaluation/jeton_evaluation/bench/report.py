"""The report: what was measured, beside the paper's claims and our goals; as HTML and Markdown.

The page is one file with its figures in it: no scripts, no fonts, nothing from elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from jeton_evaluation.bench.claims import CLAIMS
from jeton_evaluation.bench.experiment import Line
from jeton_evaluation.bench.goals import GOALS
from jeton_evaluation.bench.lines import Lines
from jeton_evaluation.bench.page import PAGE, inline
from jeton_evaluation.bench.panels import NAMES, short
from jeton_evaluation.bench.plan import PAPER, QUERIES
from jeton_evaluation.bench.verdicts import FAILS, HOLDS, UNMEASURED, UNTESTED, Claim

CAPTIONS = {
    "wordcount-quantum": "Word count: latency over the quantum of timestamps, at each load.",
    "wordcount-sustained": "Word count: the highest rate at which nothing takes a second, and half "
    "of all records less than 20 ms.",
    "wordcount-weak-scaling": "Word count, weak scaling: as much more load as there are workers.",
    "wordcount-strong-scaling": "Word count, strong scaling: the same load in all together.",
    "chain-length": "A chain of idle operators: latency over its length.",
    "chain-workers": "The longest chain: latency over the number of workers.",
    "traffic": "Bytes between simulated workers for each time that is completed. Hollow: counted "
    "from smaller sizes, not simulated.",
}
Row = Sequence[str]


def write_report(lines: Lines, out: Path, drawn: Sequence[Path]) -> list[Path]:
    """Write ``index.html`` and ``README.md``; returns both."""
    page, readme = out / "index.html", out / "README.md"
    page.write_text(html(lines, drawn))
    readme.write_text(markdown(lines, drawn))
    return [page, readme]


# What both show: tables, as rows of text


def verdicts(claims: Iterable[Claim], lines: Lines) -> list[Row]:
    """For each claim: its text, where it was made, the verdict, and the figures."""
    judged = ((claim, claim.judge(lines)) for claim in claims)
    return [(claim.text, claim.where, verdict.word, verdict.seen) for claim, verdict in judged]


def machines(lines: Lines) -> list[Row]:
    """What was measured on, a row for each property."""
    return [
        (name.replace("_gb", " (GB)"), str(value))
        for line in lines.where(experiment="machine")
        for name, value in line.items()
        if name not in ("experiment", "run") and value is not None
    ]


def nexmark(lines: Lines, query: str) -> list[Row]:
    """The paper's table of a query: loads and workers down, mechanisms and latencies across."""
    found = lines.where(experiment="nexmark", query=query, sustained=None)
    points = sorted(
        {(line["rate_per_worker"] * line["workers"], line["workers"]) for line in found}
    )
    rows: list[Row] = []
    for total, workers in points:
        cells = [short(total), str(workers)]
        for mechanism in PAPER:
            chosen = [
                line
                for line in found.where(mechanism=mechanism, workers=workers)
                if line["rate_per_worker"] * workers == total
            ]
            cells += _latencies(chosen[-1] if chosen else None)
        rows.append(tuple(cells))
    return rows


def _latencies(line: Line | None) -> list[str]:
    if line is None:
        return ["–"] * 3
    if line["dnf"]:
        return ["DNF"] * 3
    return [f"{line[field]:.2f}" for field in ("p50_ms", "p999_ms", "max_ms")]


def traffic(lines: Lines) -> list[Row]:
    """What is sent between simulated workers."""
    return [
        (
            line["program"],
            str(line["length"]),
            NAMES[line["mechanism"]],
            f"{line['workers']:,}",
            f"{line['progress_batches']:,}",
            f"{line['marks']:,}",
            f"{line['bytes']:,}" + ("" if line["simulated"] else " *"),
        )
        for line in lines.where(experiment="traffic")
    ]


def memory(lines: Lines) -> list[Row]:
    """What flow control saves."""
    return [
        (line["flow_control"], f"{line['records']:,}", f"{line['peak_mb']:,.0f}")
        for line in lines.where(experiment="memory")
    ]


HEADS: dict[str, Row] = {
    "goals": ("goal", "about", "verdict", "seen"),
    "claims": ("claim", "where", "verdict", "seen"),
    "machine": ("what", "which"),
    "nexmark": (
        *("records/s", "workers"),
        *(f"{NAMES[each]} {what}" for each in PAPER for what in ("p50", "p999", "max")),
    ),
    "traffic": ("program", "length", "mechanism", "workers", "batches", "marks", "bytes"),
    "memory": ("flow control", "records from one", "peak growth (MB)"),
}


def tables(lines: Lines) -> list[tuple[str, str, list[Row]]]:
    """Title, kind and rows of each table that has any; verdicts are always there."""
    each = [
        ("The paper's claims", "claims", verdicts(CLAIMS, lines)),
        ("Our goals", "goals", verdicts(GOALS, lines)),
        *(
            (f"NEXMark {query.upper()}: latency in milliseconds", "nexmark", nexmark(lines, query))
            for query in QUERIES
        ),
        ("Traffic for each time that is completed (*: not simulated)", "traffic", traffic(lines)),
        ("Memory", "memory", memory(lines)),
        ("The machine", "machine", machines(lines)),
    ]
    return [table for table in each if table[2]]


def summary(lines: Lines) -> str:
    """How many of the paper's claims hold, and on what machine, in a few sentences."""
    counted = Counter(claim.judge(lines).word for claim in CLAIMS)
    plural = {HOLDS: "hold", FAILS: "do not hold", UNMEASURED: "are not measured"}
    counts = ", ".join(f"{count} {plural.get(word, word)}" for word, count in counted.items())
    where = "".join(
        f" Measured on {line['cpu']}, {line['cores']} cores, at commit {line['commit']}."
        for line in lines.where(experiment="machine")
    )
    seconds = lengths(lines)
    long = f" A run was measured for {' or '.join(seconds)} s." if seconds else ""
    return f"Of the paper's {len(CLAIMS)} claims {counts}.{where}{long}"


def lengths(lines: Lines) -> list[str]:
    """For how many seconds runs were measured."""
    found = {f"{line['seconds']:g}" for line in lines if "p50_ms" in line and "seconds" in line}
    return sorted(found, key=float)


def commands(lines: Lines) -> str:
    """What makes the report again."""
    sweeps = [f"jeton bench sweep --seconds {seconds}" for seconds in lengths(lines)]
    peers = "jeton bench peers --out docs/evaluation/runs.jsonl"
    has_peers = any(lines.where(experiment="peers"))
    figures = "jeton bench figures --runs docs/evaluation/runs.jsonl --out docs/evaluation/"
    return "\n".join(["make setup", *sweeps, *([peers] if has_peers else []), figures])


# As HTML, and as Markdown


def html(lines: Lines, drawn: Sequence[Path]) -> str:
    """The page."""
    parts = [f"<p class=lead>{escape(summary(lines))}</p>"]
    shown = tables(lines)
    parts += [_html_table(*table) for table in shown if table[1] in ("claims", "goals")]
    parts.append("<h2>Figures</h2>")
    for path in drawn:
        caption = CAPTIONS[path.stem]
        parts.append(
            f"<figure>{inline(path, caption)}<figcaption>{escape(caption)}</figcaption></figure>"
        )
    parts += [_html_table(*table) for table in shown if table[1] not in ("claims", "goals")]
    parts.append(f"<h2>How to make this again</h2><pre>{escape(commands(lines))}</pre>")
    return PAGE.replace("<!-- body -->", "\n".join(parts))


def _html_table(title: str, kind: str, rows: Sequence[Row]) -> str:
    head = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in HEADS[kind])
    body = "\n".join(
        "<tr>" + "".join(f"<td{_marked(cell)}>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<h2>{escape(title)}</h2>\n<div class=wide><table class="{kind}"><thead><tr>{head}</tr>'
        f"</thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _marked(cell: str) -> str:
    """Verdicts have a class of their own, by which they are coloured."""
    kinds = {HOLDS: "holds", FAILS: "fails", UNMEASURED: "unknown", UNTESTED: "unknown"}
    return f' class="{kinds[cell]}"' if cell in kinds else ""


def markdown(lines: Lines, drawn: Sequence[Path]) -> str:
    """The page's text, to be read where it lies."""
    parts = [
        "# Evaluation",
        "The paper's §7 on a machine with two cores. `index.html` is the whole report in one file; "
        "`runs.jsonl` has a line for each run. Both this page and that one are written by "
        "`jeton bench figures`: verdicts are computed from the lines, not by hand.",
        summary(lines),
        f"```sh\n{commands(lines)}\n```",
    ]
    for title, kind, rows in tables(lines):
        parts.append(f"## {title}\n" + _markdown_table(HEADS[kind], rows))
    parts.append("## Figures")
    parts += [f"![{CAPTIONS[path.stem]}]({path.name})" for path in drawn]
    return "\n\n".join(parts) + "\n"


def _markdown_table(head: Row, rows: Sequence[Row]) -> str:
    def line(cells: Row) -> str:
        return "| " + " | ".join(re.sub(r"[|\n]", " ", cell) for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])
