"""The evaluation's figures, tables and verdicts, drawn from the lines of a sweep.

Axes are the paper's, so that its figures and these can be laid side by side: see
`jeton_evaluation.bench.panels`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jeton_evaluation.bench.lines import Lines
from jeton_evaluation.bench.panels import (
    NAMES,
    SETTINGS,
    STYLES,
    Column,
    Grid,
    grid,
    legend,
    power,
    short,
)
from jeton_evaluation.bench.plan import (
    COARSE,
    FINE,
    LONGEST,
    MANY_TIMES,
    MODERATE_TIMES,
    STRONG,
    WEAK,
)
from jeton_evaluation.bench.sweep import OUT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def main(argv: Sequence[str] | None = None) -> int:
    """Draw all, and write the report."""
    parser = argparse.ArgumentParser(
        prog="jeton bench figures", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--runs", type=Path, default=OUT, help=f"lines of a sweep (default: {OUT})")
    parser.add_argument(
        "--out", type=Path, default=OUT.parent, help=f"a folder (default: {OUT.parent})"
    )
    parsed = parser.parse_args(argv)
    lines = Lines.read(parsed.runs)
    if not len(lines):
        parser.error(f"{parsed.runs} has no lines: `jeton bench sweep` makes them")
    from jeton_evaluation.bench.report import write_report

    try:
        drawn = draw_all(lines, parsed.out)
    except ImportError as error:
        print(f"jeton: {error}; pip install 'jeton[figures]'", file=sys.stderr)
        return 1
    for path in [*drawn, *write_report(lines, parsed.out, drawn)]:
        print(path)
    return 0


def draw_all(lines: Lines, out: Path) -> list[Path]:
    """Draw every figure for which there are lines, as SVG and PNG; returns the SVG files."""
    from matplotlib import rc_context

    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in figures(lines):
        path = out / f"{name}.svg"
        with rc_context(SETTINGS):
            figure = draw()
            figure.savefig(path, metadata={"Date": None, "Creator": None}, transparent=False)
            figure.savefig(path.with_suffix(".png"), dpi=150, metadata={"Software": None})
        written.append(path)
    return written


def figures(lines: Lines) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """The figures for which there are lines: names, and how to draw them."""
    once = lines.where(sustained=None)
    words, links = once.where(experiment="wordcount"), once.where(experiment="chain")
    for each in (
        quantum(words),
        scaling(words.where(rate_per_worker=WEAK), "weak", f"{short(WEAK)}/s in each worker"),
        scaling(of_total(words, STRONG), "strong", f"{short(STRONG)}/s in all workers"),
        chain_length(links),
        chain_workers(links),
    ):
        if any(len(column.lines) for column in each.columns):
            yield each.name, each.draw
    searched = lines.where(experiment="wordcount", sustained=True)
    if len(searched):
        yield "wordcount-sustained", lambda: sustained(searched)
    counted = lines.where(experiment="traffic")
    if len(counted):
        yield "traffic", lambda: traffic(counted)


def quantum(words: Lines) -> Grid:
    """Latency over the quantum at each load for which the quantum was varied."""
    workers = max(words.values("workers"), default=0)
    words = words.where(workers=workers)
    rates = [
        rate
        for rate in words.values("rate_per_worker")
        if len(words.values("quantum_log2", rate_per_worker=rate)) > 2
    ]
    return Grid(
        "wordcount-quantum",
        f"Word count on {workers} workers",
        "quantum_log2",
        "quantum of timestamps (ns)",
        [
            Column(f"{short(rate)} records/s per worker", words.where(rate_per_worker=rate))
            for rate in rates
        ],
        rows=("max latency", "p999 latency", "median latency"),
        tick=power,
    )


def scaling(words: Lines, kind: str, load: str) -> Grid:
    """Latency over the number of workers, for the coarsest and the finest quantum."""
    return Grid(
        f"wordcount-{kind}-scaling",
        f"Word count, {kind} scaling: {load}",
        "workers",
        "workers",
        [
            Column(f"quantum {power(each)} ns", words.where(quantum_log2=each))
            for each in (COARSE, FINE)
        ],
    )


def of_total(words: Lines, total: float) -> Lines:
    """Those lines whose workers had this load together."""
    return Lines(each for each in words if each["rate_per_worker"] * each["workers"] == total)


def chain_length(links: Lines) -> Grid:
    """Latency over the length of a chain of idle operators."""
    workers = max(links.values("workers"), default=0)
    return Grid(
        "chain-length",
        f"A chain of idle operators on {workers} workers",
        "length",
        "operators",
        _by_rate(links.where(workers=workers)),
    )


def chain_workers(links: Lines) -> Grid:
    """Latency of the longest chain over the number of workers."""
    return Grid(
        "chain-workers",
        f"A chain of {LONGEST} idle operators",
        "workers",
        "workers",
        _by_rate(links.where(length=LONGEST)),
    )


def _by_rate(links: Lines) -> list[Column]:
    return [
        Column(f"{short(rate)} timestamps/s per worker", links.where(rate_per_worker=rate))
        for rate in (MODERATE_TIMES, MANY_TIMES)
    ]


def sustained(searched: Lines) -> Figure:
    """The highest rates, as bars: by quantum, on the most workers."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    workers = max(searched.values("workers"))
    searched = searched.where(workers=workers)
    quanta = searched.values("quantum_log2")
    mechanisms = [each for each in STYLES if len(searched.where(mechanism=each))]
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    panel = figure.subplots()
    panel.set_gid("wordcount-sustained-panel-0-0")
    width = 0.8 / len(mechanisms)
    for at, mechanism in enumerate(mechanisms):
        rates = {
            line["quantum_log2"]: line["rate_per_worker"]
            for line in searched.where(mechanism=mechanism)
        }
        places = [
            index + (at - (len(mechanisms) - 1) / 2) * width
            for index, each in enumerate(quanta)
            if each in rates
        ]
        bars = panel.bar(
            places,
            [rates[each] for each in quanta if each in rates],
            width * 0.92,
            color=STYLES[mechanism]["color"],
            label=NAMES[mechanism],
        )
        panel.bar_label(
            bars, [short(rates[each]) for each in quanta if each in rates], fontsize=8, padding=1
        )
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    panel.set_xticks(range(len(quanta)), [power(each) for each in quanta])
    panel.set_xlabel("quantum of timestamps (ns)")
    panel.set_ylabel("records/s per worker")
    panel.margins(y=0.12)
    grid(panel)
    figure.suptitle(f"Word count on {workers} workers: highest sustained rate", fontsize=11)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def traffic(counted: Lines) -> Figure:
    """Bytes between simulated workers for each time that is completed."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    shortest = min(counted.values("length", program="chain"), default=0)
    columns = [
        ("word count", counted.where(program="wordcount")),
        (f"a chain of {shortest}", counted.where(program="chain", length=shortest)),
    ]
    figure = Figure(figsize=(7.4, 3.8), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True)
    for at, (panel, (title, lines)) in enumerate(zip(axes, columns, strict=True)):
        panel.set_gid(f"traffic-panel-0-{at}")
        for mechanism in STYLES:
            points = sorted(
                (line["workers"], line["bytes"], line["simulated"])
                for line in lines.where(mechanism=mechanism)
            )
            if not points:
                continue
            color = STYLES[mechanism]["color"]
            style = {**STYLES[mechanism], "markersize": 6, "markerfacecolor": color}
            [curve] = panel.plot([x for x, _, _ in points], [y for _, y, _ in points], **style)
            curve.set_gid(f"curve-traffic-{mechanism}-{at}")
            hollow = [(x, y) for x, y, simulated in points if not simulated]
            style |= {"linestyle": "none", "markerfacecolor": "#ffffff"}
            panel.plot([x for x, _ in hollow], [y for _, y in hollow], **style)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{short(value)}B"))
        panel.set_xlabel(f"simulated workers\n{title}")
        grid(panel)
    axes[0].set_ylabel("bytes for each time")
    figure.suptitle("Coordination between workers for each time that is completed", fontsize=11)
    legend(figure, counted.values("mechanism"), noise=False)
    return figure


if __name__ == "__main__":
    raise SystemExit(main())
