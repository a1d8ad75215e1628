"""The report: the paper's claims and our goals beside the figures, as HTML and as Markdown.

The page is one file with its figures in it: no scripts, no fonts, nothing from elsewhere. The
templates are ``report.html`` and ``report.md``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from math import isinf, isnan
from pathlib import Path
from string import Template

from jeton_evaluation.bench.claims import CLAIMS, FAILS, GOALS, HOLDS, UNMEASURED, UNTESTED, Claim
from jeton_evaluation.bench.figures import GRID, INK
from jeton_evaluation.bench.plan import PAPER, QUERIES
from jeton_evaluation.bench.runs import LATENCIES, NAMES, Runs, short

CAPTIONS = {
    "wordcount-quantum": "Word count: latency over the quantum of timestamps, at each load.",
    "wordcount-sustained": "Word count: the highest rate at which no record takes a second, and "
    "half of them less than 20 ms.",
    "wordcount-weak-scaling": "Word count, weak scaling: the load grows with the workers.",
    "wordcount-strong-scaling": "Word count, strong scaling: the same total load.",
    "chain-length": "A chain of idle operators: latency over its length.",
    "chain-workers": "The longest chain: latency over the number of workers.",
    "traffic": "Bytes between simulated workers for each completed time, with and without relays. "
    "Hollow: counted, not simulated.",
    "migration": "Megaphone's experiment: latency over time while half of the bins of keyed counts "
    "change places, by each plan, with its maximum.",
}
Row = Sequence[str]
Table = tuple[str, str, Row, list[Row]]
"""Title, kind, head and rows."""


def write_report(runs: Runs, out: Path, drawn: Sequence[Path]) -> list[Path]:
    """Write ``index.html`` and ``README.md``; returns both."""
    page = _fill("report.html", runs, html_table, escape, [html_figure(path) for path in drawn])
    links = [f"![{CAPTIONS[path.stem]}]({path.name})\n" for path in drawn]
    readme = _fill("report.md", runs, markdown_table, str, links)
    (out / "index.html").write_text(page)
    (out / "README.md").write_text(readme.rstrip() + "\n")
    return [out / "index.html", out / "README.md"]


def _fill(
    template: str,
    runs: Runs,
    table: Callable[[Table], str],
    text: Callable[[str], str],
    figures: list[str],
) -> str:
    return Template(files(__package__).joinpath(template).read_text()).substitute(
        summary=text(summary(runs)),
        commands=text(commands(runs)),
        verdicts="\n".join(map(table, verdicts(runs))),
        tables="\n".join(table(each) for each in tables(runs) if each[3]),
        figures="\n".join(figures),
    )


# Contents


def verdicts(runs: Runs) -> list[Table]:
    """The tables of claims and goals."""

    def judged(claims: Sequence[Claim]) -> list[Row]:
        return [(claim.text, claim.where, *claim.judge(runs)) for claim in claims]

    return [
        ("The paper's claims", "claims", ("claim", "where", "verdict", "measured"), judged(CLAIMS)),
        ("Our goals", "goals", ("goal", "about", "verdict", "measured"), judged(GOALS)),
    ]


def tables(runs: Runs) -> list[Table]:
    """The other tables."""
    traffic: list[Row] = [
        (
            *(line.program, str(line.length), NAMES[line.mechanism]),
            *(f"{each:,}" for each in (line.workers, line.progress_batches, line.marks)),
            f"{line.bytes:,}" + ("" if line.simulated else " *"),
        )
        for line in runs.where("traffic").itertuples()
    ]
    memory: list[Row] = [
        (line.flow_control, f"{line.records:,}", f"{line.peak_mb:,.0f}")
        for line in runs.where("memory").itertuples()
    ]
    machines: list[Row] = [
        (name.replace("_gb", " (GB)"), str(value))
        for line in runs.lines
        if line["experiment"] == "machine"
        for name, value in line.items()
        if name not in ("experiment", "run") and value is not None
    ]
    heads = ("program", "length", "mechanism", "workers", "batches", "marks", "bytes")
    return [
        *(nexmark(runs, query) for query in QUERIES),
        ("Traffic for each completed time (*: counted, not simulated)", "traffic", heads, traffic),
        ("Memory", "memory", ("flow control", "records from one", "peak growth (MB)"), memory),
        ("The machine", "machine", ("property", "value"), machines),
    ]


def nexmark(runs: Runs, query: str) -> Table:
    """The paper's table of a query: loads and workers down, mechanisms and latencies across."""
    head = [f"{NAMES[each]} {what}" for each in PAPER for what in ("p50", "p999", "max")]
    rows: list[Row] = []
    found = runs.where("nexmark", query=query)
    if len(found):
        found = found.assign(total=found["rate_per_worker"] * found["workers"])
        for (total, workers), load in found.groupby(["total", "workers"]):
            last = load.drop_duplicates("mechanism", keep="last").set_index("mechanism")
            cells = last.reindex(PAPER)[LATENCIES].to_numpy().ravel()
            rows.append((short(total), str(workers), *map(_in_ms, cells)))
    title = f"NEXMark {query.upper()}: latency in milliseconds"
    return title, "nexmark", ("records/s", "workers", *head), rows


def _in_ms(latency: float) -> str:
    return "–" if isnan(latency) else "DNF" if isinf(latency) else f"{latency:.2f}"


def summary(runs: Runs) -> str:
    """The number of claims with each verdict, and the machine, in a few sentences."""
    counted = Counter(claim.judge(runs)[0] for claim in CLAIMS)
    plural = {HOLDS: "hold", FAILS: "do not hold", UNMEASURED: "are not measured"}
    counts = ", ".join(f"{count} {plural.get(word, word)}" for word, count in counted.items())
    machines = dict.fromkeys(
        f"{line.cpu}, {line.cores} cores" for line in runs.where("machine").itertuples()
    )
    measured = {at: found for at, found in runs.measured.items() if found}
    commits = "; ".join(f"{', '.join(found)} at {at}" for at, found in measured.items())
    where = f" Measured on {' and '.join(machines)}: {commits}." if machines else ""
    seconds = lengths(runs)
    long = f" Each run was measured for {' or '.join(seconds)} s." if seconds else ""
    return f"Of the paper's {len(CLAIMS)} claims, {counts}.{where}{long}"


def lengths(runs: Runs) -> list[str]:
    """The seconds for which runs were measured."""
    measured = [line for line in runs.lines if "p50_ms" in line and "seconds" in line]
    return sorted({f"{line['seconds']:g}" for line in measured}, key=float)


def commands(runs: Runs) -> str:
    """The commands that make the report again."""
    sweeps = [f"jeton bench sweep --seconds {seconds}" for seconds in lengths(runs)]
    peers = ["jeton bench peers --out docs/evaluation/runs.jsonl"] * bool(len(runs.where("peers")))
    moves = [
        f"jeton bench migrate --keys {line.keys} --rate {line.rate_per_worker} "
        f"--workers {line.workers} --out docs/evaluation/runs.jsonl"
        for line in runs.where("migration", plan="fluid").itertuples()
    ]
    figures = "jeton bench figures --runs docs/evaluation/runs.jsonl --out docs/evaluation/"
    return "\n".join(["make setup", *sweeps, *peers, *moves, figures])


# HTML and Markdown


def html_table(table: Table) -> str:
    """A table of the page; a verdict has a class, which colours it."""
    title, kind, head, rows = table
    classes = {HOLDS: "holds", FAILS: "fails", UNMEASURED: "unknown", UNTESTED: "unknown"}

    def cell(text: str) -> str:
        marked = f' class="{classes[text]}"' if text in classes else ""
        return f"<td{marked}>{escape(text)}</td>"

    heads = "".join(f"<th scope=col>{escape(each)}</th>" for each in head)
    body = "\n".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return (
        f'<h2>{escape(title)}</h2>\n<div class=wide><table class="{kind}"><thead><tr>{heads}</tr>'
        f"</thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def html_figure(path: Path) -> str:
    """A drawing inside the page: in the page's colours, with ids of its own."""
    caption, drawing = escape(CAPTIONS[path.stem]), path.read_text()
    drawing = drawing[drawing.index("<svg") :]
    drawing = drawing.replace("<svg", f'<svg role="img" aria-label="{caption}"', 1)
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    # Ids must not clash with those of the page's other figures.
    drawing = re.sub(r'\b(id=")', rf"\g<1>{path.stem}.", drawing)
    drawing = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{path.stem}.", drawing)
    for size in ("width", "height"):
        drawing = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", drawing, count=1)
    for drawn, meant in ((INK, "var(--ink)"), (GRID, "var(--grid)"), ("#ffffff", "var(--paper)")):
        drawing = drawing.replace(drawn, meant)
    return f"<figure>{drawing}<figcaption>{caption}</figcaption></figure>"


def markdown_table(table: Table) -> str:
    """A table of the Markdown page."""
    title, _, head, rows = table

    def line(cells: Row) -> str:
        return "| " + " | ".join(re.sub(r"[|\n]", " ", cell) for cell in cells) + " |"

    return "\n".join([f"## {title}", line(head), "|" + "---|" * len(head), *map(line, rows), ""])
