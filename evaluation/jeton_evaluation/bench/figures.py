"""The evaluation's figures, tables and verdicts, drawn from the runs of a sweep.

Axes are the paper's, so that its figures and these can be laid side by side. A bar stands where a
mechanism did not finish. The shaded band is the machine's own noise: smaller latencies mean
nothing. Colours are Okabe and Ito's; lines and markers differ too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from jeton_evaluation.bench.harness import Line, OptionError, Say, command
from jeton_evaluation.bench.plan import (
    COARSE,
    FINE,
    LONGEST,
    MANY_TIMES,
    MODERATE_TIMES,
    STRONG,
    WEAK,
)
from jeton_evaluation.bench.runs import NAMES, Runs, power, short
from jeton_evaluation.bench.sweep import OUT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID, BAND = "#1b1b1d", "#d4d4d8", "#9a9aa2"
STYLES: dict[str, dict[str, Any]] = {
    # Hollow and larger, so that one shows behind the other where they are alike.
    "tokens": {"color": "#d55e00", "linestyle": "-", "marker": "s", "markersize": 4},
    "notifications": {"color": "#0072b2", "linestyle": "--", "marker": "o", "markersize": 7},
    "watermarks-x": {"color": "#009e73", "linestyle": "-.", "marker": "D", "markersize": 8},
    "watermarks-p": {"color": "#cc79a7", "linestyle": ":", "marker": "P", "markersize": 9},
}
for _name, _style in STYLES.items():
    _style["markerfacecolor"] = _style["color"] if _name == "tokens" else "none"
RELAYED: dict[str, Any] = {
    "color": "#e69f00",
    "linestyle": (0, (5, 1)),
    "marker": "^",
    "markersize": 6,
    "markerfacecolor": "#e69f00",
}
"""Tokens through relays, in the figure of traffic."""
PLANS: dict[str, dict[str, Any]] = {
    "all at once": {"color": "#0072b2", "linestyle": "--", "linewidth": 1.2},
    "batched": {"color": "#009e73", "linestyle": "-.", "linewidth": 1.2},
    "fluid": {"color": "#d55e00", "linestyle": "-", "linewidth": 1.2},
}
"""The plans of a migration."""
SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10.0,
    **dict.fromkeys(
        ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK
    ),
    "svg.fonttype": "none",
    "svg.hashsalt": "jeton",  # the same runs give the same bytes
}
BAR = 0.14
"""The part of a panel's height that a bar takes, with its label."""
ROWS = {
    "max latency": ("max_ms", "noise_max_ms"),
    "p999 latency": ("p999_ms", "noise_p999_ms"),
    "median latency": ("p50_ms", None),
}
"""The columns behind each row of panels: the latency, and the noise, which a median never shows."""


def run(
    say: Say,
    runs: Annotated[Path, "runs of a sweep"] = OUT,
    out: Annotated[Path, "a folder"] = OUT.parent,
) -> Generator[Line, None, int]:
    """Draw all figures and write the report; yields the files."""
    found = Runs.read(runs)
    if not found.lines:
        raise OptionError(f"{runs} has no runs: `jeton bench sweep` makes them")
    from jeton_evaluation.bench.report import write_report

    try:
        drawn = draw_all(found, out)
    except ImportError as error:
        print(f"jeton: {error}; pip install 'jeton-evaluation[figures]'", file=sys.stderr)
        return 1
    for path in [*drawn, *write_report(found, out, drawn)]:
        say(str(path))
        yield {"file": str(path)}
    return 0


main = command(run)


def draw_all(runs: Runs, out: Path) -> list[Path]:
    """Draw every figure that has runs, as SVG and PNG; returns the SVG files."""
    from matplotlib import rc_context

    out.mkdir(parents=True, exist_ok=True)
    written = []
    with rc_context(SETTINGS):
        for name, figure in figures(runs):
            path = out / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None, "Creator": None}, transparent=False)
            figure.savefig(path.with_suffix(".png"), dpi=150, metadata={"Software": None})
            written.append(path)
    return written


def figures(runs: Runs) -> Iterator[tuple[str, Figure]]:
    """The figures that have runs, each with its name."""
    if len(words := runs.where("wordcount")):
        yield from _word_count(words)
    if len(links := runs.where("chain")):
        yield from _chain(links)
    if len(searched := runs.where("wordcount sustained")):
        yield "wordcount-sustained", sustained(searched)
    if len(counted := runs.where("traffic")):
        yield "traffic", traffic(counted)
    if len(moved := runs.where("migration")):
        yield "migration", migration(moved)


def _word_count(words: Any) -> Iterator[tuple[str, Figure]]:
    """Latency over the quantum, for each load at which it was varied; and over the workers."""
    workers, rate, quantum = words["workers"], words["rate_per_worker"], words["quantum_log2"]
    most = workers.max()
    varied = {
        f"{short(load)} records/s per worker": found
        for load, found in words[workers == most].groupby("rate_per_worker")
        if found["quantum_log2"].nunique() > 2
    }
    x, title = ("quantum_log2", "quantum of timestamps (ns)"), f"Word count on {most} workers"
    yield from latencies("wordcount-quantum", title, x, varied, rows=list(ROWS), tick=power)
    for kind, load, chosen in (
        ("weak", f"{short(WEAK)}/s in each worker", rate == WEAK),
        ("strong", f"{short(STRONG)}/s in all workers", rate * workers == STRONG),
    ):
        columns = {f"quantum {power(q)} ns": words[chosen & (quantum == q)] for q in (COARSE, FINE)}
        name, title = f"wordcount-{kind}-scaling", f"Word count, {kind} scaling: {load}"
        yield from latencies(name, title, ("workers", "workers"), columns)


def _chain(links: Any) -> Iterator[tuple[str, Figure]]:
    """Latency of a chain of idle operators over its length, and over the number of workers."""
    workers = links["workers"].max()
    longest = links[links["length"] == LONGEST]
    links = links[links["workers"] == workers]
    for name, title, x, found in (
        ("length", f"idle operators on {workers} workers", ("length", "operators"), links),
        ("workers", f"{LONGEST} idle operators", ("workers", "workers"), longest),
    ):
        columns = {
            f"{short(rate)} timestamps/s per worker": found[found["rate_per_worker"] == rate]
            for rate in (MODERATE_TIMES, MANY_TIMES)
        }
        yield from latencies(f"chain-{name}", f"A chain of {title}", x, columns)


def latencies(
    name: str,
    title: str,
    x: tuple[str, str],
    columns: dict[str, Any],
    rows: Sequence[str] = ("max latency", "median latency"),
    tick: Callable[[Any], str] = str,
) -> Iterator[tuple[str, Figure]]:
    """A grid of panels: a row for each latency, a column for each data frame of runs.

    ``x`` has the column for the x axis and its label; values stand at equal distances. Parts of
    the drawing have ids that name them.
    """
    from matplotlib.figure import Figure

    shown = [frame for frame in columns.values() if len(frame)]
    if not shown:
        return
    every = pd.concat(shown)
    xs = sorted(every[x[0]].unique())
    figure = Figure(figsize=(1.2 + 3.1 * len(columns), 1.3 + 1.9 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(columns), sharex=True, sharey="row", squeeze=False)
    for row, latency in enumerate(rows):
        axes[row][0].set_yscale("log")
        axes[row][0].set_ylim(*_limits(every, *ROWS[latency]))
        axes[row][0].set_ylabel(latency)
        for at, frame in enumerate(columns.values()):
            panel = axes[row][at]
            panel.set_gid(f"{name}-panel-{row}-{at}")
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:g} ms")
            panel.yaxis.set_minor_formatter(lambda value, _: "")
            panel.set_xticks(range(len(xs)), [tick(each) for each in xs])
            panel.set_xlim(-0.6, len(xs) - 0.4)
            _curves(panel, frame, x[0], xs, *ROWS[latency], f"{name}-{{}}-{row}-{at}")
            _grid(panel)
    for panel, label in zip(axes[-1], columns, strict=True):
        panel.set_xlabel(f"{x[1]}\n{label}")
    figure.suptitle(title, fontsize=11)
    _legend(figure, every["mechanism"].unique())
    yield name, figure


def _curves(
    panel: Axes, frame: Any, x: str, xs: list[Any], field: str, noise: str | None, ids: str
) -> None:
    """A curve for each mechanism, bars where it did not finish, and the band of noise."""
    if noise in frame and len(frame):
        band = panel.axhspan(1e-9, frame[noise].median(), color=BAND, alpha=0.3, linewidth=0)
        band.set_gid(f"noise-{ids.replace('{}-', '')}")
    height = 0.97
    for order, (mechanism, style) in enumerate(STYLES.items()):
        found = frame[frame["mechanism"] == mechanism].drop_duplicates(x, keep="last")
        if found.empty:
            continue
        ys = found.set_index(x)[field].clip(lower=1e-6).reindex(xs).to_numpy()
        [curve] = panel.plot(range(len(xs)), np.where(np.isinf(ys), np.nan, ys), **style)
        curve.set_zorder(10 - order)
        curve.set_gid("curve-" + ids.format(mechanism))
        failed = np.flatnonzero(np.isinf(ys))
        for stretch in np.split(failed, np.flatnonzero(np.diff(failed) > 1) + 1):
            if not len(stretch):
                continue
            first, last = stretch[0], stretch[-1]
            across = panel.get_xaxis_transform()
            [bar] = panel.plot(
                [first - 0.35, last + 0.35],
                [height - BAR + 0.02] * 2,
                color=style["color"],
                linewidth=3.5,
                solid_capstyle="butt",
                transform=across,
            )
            bar.set_gid(f"dnf-{ids.format(mechanism)}-{first}")
            panel.text(
                (first + last) / 2,
                height - BAR + 0.04,
                f"{NAMES[mechanism]} DNF" if len(stretch) > len(xs) * 0.4 else "DNF",
                color=style["color"],
                fontsize=8,
                ha="center",
                va="bottom",
                transform=across,
            )
        height -= BAR if len(failed) else 0


def _limits(runs: Any, field: str, noise: str | None) -> tuple[float, float]:
    """From the least to the greatest value of a row, with room for bars above."""
    values = runs.loc[~runs["dnf"], field].clip(lower=1e-6).to_list()
    values += runs[noise].dropna().to_list() if noise in runs else []
    low, high = log10(min(values, default=0.1)) - 0.2, log10(max(values, default=10)) + 0.2
    high = max(high, low + 1)
    bars = BAR * runs.loc[runs["dnf"], "mechanism"].nunique()
    return 10**low, 10 ** (low + (high - low) / (1 - bars))


def sustained(searched: Any) -> Figure:
    """The highest rates, as bars: by quantum, on the most workers."""
    from matplotlib.figure import Figure

    workers = searched["workers"].max()
    rates = searched[searched["workers"] == workers].pivot_table(
        "rate_per_worker", "quantum_log2", "mechanism", aggfunc="last"
    )
    mechanisms = [each for each in STYLES if each in rates]
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    panel = figure.subplots()
    panel.set_gid("wordcount-sustained-panel-0-0")
    width = 0.8 / len(mechanisms)
    for at, mechanism in enumerate(mechanisms):
        measured = rates[mechanism].notna().to_numpy()
        heights = rates[mechanism][measured].to_list()
        bars = panel.bar(
            np.flatnonzero(measured) + (at - (len(mechanisms) - 1) / 2) * width,
            heights,
            width * 0.92,
            color=STYLES[mechanism]["color"],
            label=NAMES[mechanism],
        )
        panel.bar_label(bars, [short(each) for each in heights], fontsize=8, padding=1)
    panel.yaxis.set_major_formatter(lambda value, _: short(value))
    panel.set_xticks(range(len(rates)), [power(each) for each in rates.index])
    panel.set_xlabel("quantum of timestamps (ns)")
    panel.set_ylabel("records/s per worker")
    panel.margins(y=0.12)
    _grid(panel)
    figure.suptitle(f"Word count on {workers} workers: highest sustained rate", fontsize=11)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def traffic(counted: Any) -> Figure:
    """Bytes between simulated workers for each time that is completed."""
    from matplotlib.figure import Figure

    chain = counted[counted["program"] == "chain"]
    shortest = min(chain["length"], default=0)
    columns = {
        "word count": counted[counted["program"] == "wordcount"],
        f"a chain of {shortest}": chain[chain["length"] == shortest],
    }
    styles = {**STYLES, "tokens-relayed": RELAYED}
    figure = Figure(figsize=(7.4, 3.8), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True)
    for at, (panel, (title, frame)) in enumerate(zip(axes, columns.items(), strict=True)):
        panel.set_gid(f"traffic-panel-0-{at}")
        for mechanism, style in styles.items():
            found = frame[frame["mechanism"] == mechanism].sort_values("workers")
            if found.empty:
                continue
            style = {**style, "markersize": 6, "markerfacecolor": style["color"]}
            [curve] = panel.plot(found["workers"], found["bytes"], **style)
            curve.set_gid(f"curve-traffic-{mechanism}-{at}")
            hollow = found[~found["simulated"]]
            style |= {"linestyle": "none", "markerfacecolor": "#ffffff"}
            panel.plot(hollow["workers"], hollow["bytes"], **style)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.xaxis.set_minor_formatter(lambda value, _: "")
        panel.yaxis.set_major_formatter(lambda value, _: f"{short(value)}B")
        panel.set_xlabel(f"simulated workers\n{title}")
        _grid(panel)
    axes[0].set_ylabel("bytes for each time")
    figure.suptitle("Coordination between workers for each time that is completed", fontsize=11)
    _legend(figure, counted["mechanism"].unique(), styles, noise=False)
    return figure


def migration(moved: Any) -> Figure:
    """Latency over time while half of the bins move, with the maximum of each plan."""
    from matplotlib.figure import Figure

    loads = list(moved.groupby(["keys", "workers", "rate_per_worker"]))
    figure = Figure(figsize=(1.4 + 3.6 * len(loads), 4.4), layout="constrained")
    axes = figure.subplots(1, len(loads), sharey=True, squeeze=False)[0]
    for at, (panel, ((keys, workers, rate), found)) in enumerate(zip(axes, loads, strict=True)):
        panel.set_gid(f"migration-panel-0-{at}")
        for plan, style in PLANS.items():
            for line in found[found["plan"] == plan].tail(1).to_dict("records"):
                times, lags = zip(*line["over_time"], strict=True)
                label = f"{plan}: at most {line['max_ms']:,.0f} ms"
                [drawn] = panel.plot(times, np.clip(lags, 1e-2, None), label=label, **style)
                drawn.set_gid(f"curve-migration-{plan.replace(' ', '-')}-{at}")
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:g} ms")
        panel.set_xlabel(
            f"seconds from the start of the migration\n{short(keys)} keys, {workers} workers with "
            f"{short(rate)} records/s each"
        )
        panel.legend(loc="upper right", fontsize=8, frameon=False)
        panel.margins(y=0.25)
        _grid(panel)
    axes[0].set_ylabel("latency")
    figure.suptitle("Keyed counts while half of the bins move between workers", fontsize=11)
    return figure


def _grid(panel: Axes) -> None:
    """Lines to read values by, behind everything."""
    panel.grid(True, which="major", color=GRID, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.patch.set_alpha(0)
    panel.spines[["top", "right"]].set_visible(False)


def _legend(
    figure: Figure,
    mechanisms: Iterable[str],
    styles: Mapping[str, Mapping[str, Any]] = STYLES,
    *,
    noise: bool = True,
) -> None:
    """The legend, which is the same in all figures."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    used = set(mechanisms)
    handles: list[Any] = [
        Line2D([], [], label=NAMES[each], **style) for each, style in styles.items() if each in used
    ]
    if noise:
        handles.append(Patch(color=BAND, alpha=0.3, label="noise of the machine"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, frameon=False, handlelength=3.2
    )
