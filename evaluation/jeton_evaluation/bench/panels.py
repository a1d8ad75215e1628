"""Panels: a grid of small plots of latencies, as the paper has them.

Where a mechanism did not finish there is a bar instead of a point. The shaded band is the machine's
own noise, below which no latency means anything here. Colours are Okabe and Ito's, and mechanisms
are told apart by lines and markers too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log10
from statistics import median
from typing import TYPE_CHECKING, Any

from jeton_evaluation.bench.experiment import Line
from jeton_evaluation.bench.lines import Lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

INK, GRID = "#1b1b1d", "#d4d4d8"
BAND = "#9a9aa2"
STYLES: dict[str, dict[str, Any]] = {
    # Hollow and larger, so that one shows behind the other where they are alike.
    "tokens": {"color": "#d55e00", "linestyle": "-", "marker": "s", "markersize": 4},
    "notifications": {"color": "#0072b2", "linestyle": "--", "marker": "o", "markersize": 7},
    "watermarks-x": {"color": "#009e73", "linestyle": "-.", "marker": "D", "markersize": 8},
    "watermarks-p": {"color": "#cc79a7", "linestyle": ":", "marker": "P", "markersize": 9},
}
for _name, _style in STYLES.items():
    _style["markerfacecolor"] = _style["color"] if _name == "tokens" else "none"
NAMES = {
    "tokens": "tokens",
    "notifications": "notifications",
    "watermarks-x": "watermarks-X",
    "watermarks-p": "watermarks-P",
}
SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "jeton",  # the same lines give the same bytes
}
BAR = 0.14
"""How much of a panel's height a bar takes, with its word."""
LATENCIES: dict[str, tuple[str, str | None]] = {
    "max latency": ("max_ms", "noise_max_ms"),
    "p999 latency": ("p999_ms", "noise_p999_ms"),
    "median latency": ("p50_ms", None),
}
"""What a row shows: its field, and that of the noise; half of the time there is none to see."""


@dataclass(frozen=True)
class Column:
    """One column of panels: what it shows, and the lines that it shows."""

    label: str
    lines: Lines


@dataclass(frozen=True)
class Grid:
    """A figure: a row of panels for each latency, a column for each load or quantum."""

    name: str
    title: str
    field: str
    """What x is."""
    label: str
    columns: Sequence[Column]
    rows: Sequence[str] = ("max latency", "median latency")
    tick: Callable[[Any], str] = str
    """What is written at a value of x: they stand at equal distances."""

    def draw(self) -> Figure:
        """The figure; its parts have ids that say what they are."""
        from matplotlib import rc_context

        with rc_context(SETTINGS):
            return self._draw()

    def _draw(self) -> Figure:
        from matplotlib.figure import Figure

        wide, high = len(self.columns), len(self.rows)
        figure = Figure(figsize=(1.2 + 3.1 * wide, 1.3 + 1.9 * high), layout="constrained")
        axes = figure.subplots(high, wide, sharex=True, sharey="row", squeeze=False)
        xs = sorted({x for column in self.columns for x in column.lines.values(self.field)})
        for row, latency in enumerate(self.rows):
            axes[row][0].set_yscale("log")
            axes[row][0].set_ylim(*self._limits(latency))
            for at, column in enumerate(self.columns):
                panel = axes[row][at]
                panel.set_gid(f"{self.name}-panel-{row}-{at}")
                self._panel(panel, column.lines, latency, xs, f"{row}-{at}")
                if at == 0:
                    panel.set_ylabel(latency)
                if row == high - 1:
                    panel.set_xlabel(f"{self.label}\n{column.label}")
        figure.suptitle(self.title, fontsize=11)
        legend(figure, {line["mechanism"] for column in self.columns for line in column.lines})
        return figure

    def _panel(self, panel: Axes, lines: Lines, latency: str, xs: list[Any], place: str) -> None:
        what, noise = LATENCIES[latency]
        log_milliseconds(panel)
        panel.set_xticks(range(len(xs)), [self.tick(x) for x in xs])
        panel.set_xlim(-0.6, len(xs) - 0.4)
        if noise is not None:
            floors = [line[noise] for line in lines if noise in line]
            if floors:
                band = panel.axhspan(1e-9, median(floors), color=BAND, alpha=0.3, linewidth=0)
                band.set_gid(f"noise-{self.name}-{place}")
        height = 0.97
        for mechanism in STYLES:
            by_x = {line[self.field]: line for line in lines.where(mechanism=mechanism)}
            if not by_x:
                continue
            ys = [_latency(by_x.get(x), what) for x in xs]
            [curve] = panel.plot(range(len(xs)), ys, **STYLES[mechanism])
            curve.set_zorder(10 - list(STYLES).index(mechanism))
            curve.set_gid(f"curve-{self.name}-{mechanism}-{place}")
            failed = [at for at, x in enumerate(xs) if x in by_x and by_x[x]["dnf"]]
            for first, last in stretches(failed):
                named = last - first + 1 > len(xs) * 0.4
                bar = _bar(panel, mechanism, first, last, height, named=named)
                bar.set_gid(f"dnf-{self.name}-{mechanism}-{place}-{first}")
            height -= BAR if failed else 0

    def _limits(self, latency: str) -> tuple[float, float]:
        """From the least to the greatest value of a row, with room for bars above."""
        what, noise = LATENCIES[latency]
        lines = [line for column in self.columns for line in column.lines]
        values = [_latency(line, what) for line in lines if not line["dnf"]]
        values += [line[noise] for line in lines if noise is not None and noise in line]
        low, high = log10(min(values, default=0.1)) - 0.2, log10(max(values, default=10)) + 0.2
        high = max(high, low + 1)
        bars = BAR * len({line["mechanism"] for line in lines if line["dnf"]})
        return 10**low, 10 ** (low + (high - low) / (1 - bars))


def _latency(line: Line | None, field: str) -> float:
    """A value on a log axis; none where the run is missing or did not finish."""
    return float("nan") if line is None or line["dnf"] else max(float(line[field]), 1e-6)


def _bar(
    panel: Axes, mechanism: str, first: int, last: int, height: float, *, named: bool
) -> Line2D:
    """Did not finish: a thick line from the first such x to the last, with a word on it."""
    color = STYLES[mechanism]["color"]
    across = panel.get_xaxis_transform()
    [bar] = panel.plot(
        [first - 0.35, last + 0.35],
        [height - BAR + 0.02] * 2,
        color=color,
        linewidth=3.5,
        solid_capstyle="butt",
        transform=across,
    )
    panel.text(
        (first + last) / 2,
        height - BAR + 0.04,
        f"{NAMES[mechanism]} DNF" if named else "DNF",
        color=color,
        fontsize=8,
        ha="center",
        va="bottom",
        transform=across,
    )
    return bar


def stretches(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers that follow each other, as their first and last.

    >>> stretches([0, 1, 2, 5])
    [(0, 2), (5, 5)]
    """
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def log_milliseconds(panel: Axes) -> None:
    """Milliseconds along a log axis, and a quiet grid."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} ms"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    grid(panel)


def grid(panel: Axes) -> None:
    """Lines to read values by, behind everything."""
    panel.grid(True, which="major", color=GRID, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.patch.set_alpha(0)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def legend(figure: Figure, mechanisms: Iterable[str], *, noise: bool = True) -> None:
    """What the lines are: the same in all figures."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    used = set(mechanisms)
    handles: list[Any] = [
        Line2D([], [], label=NAMES[each], **style) for each, style in STYLES.items() if each in used
    ]
    if noise:
        handles.append(Patch(color=BAND, alpha=0.3, label="noise of the machine"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, frameon=False, handlelength=3.2
    )


def power(exponent: int) -> str:
    """A power of two as people write it.

    >>> power(12)
    '2¹²'
    """
    return "2" + str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def short(number: float) -> str:
    """A large number in few signs.

    >>> short(244_140), short(4e6), short(1.5e6)
    ('244K', '4M', '1.5M')
    """
    for size, sign in ((1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g}{sign}"
    return f"{number:g}"
