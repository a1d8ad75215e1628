"""The view: observations as the live page shows them.

Counts become rates, and times become text and numbers that a browser can draw: a JavaScript number
does not hold nanoseconds exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jeton.columns.durations import NANOSECONDS
from jeton.columns.time_units import INTEGER, plain_times, zone_of
from jeton.core.times import END_OF_TIME, START_OF_TIME
from jeton.dataflow.drawing import plan_svg
from jeton.runtime.latency import BOUNDS
from jeton.runtime.monitor import Observation

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow

HISTORY: Final = 600
"""Points of the time line that are kept: ten minutes."""
LAGS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""The upper bounds of the histogram's bins, in seconds; the last bin has no bound."""
_COMPLETE: Final = {"text": "complete", "short": "complete", "value": None}
_STATE: Final = ("state_rows", "state_bytes", "spilled_bytes")
_RATES: Final = (
    *("records_in", "records_out", "bytes_in", "bytes_out", "batches_in", "batches_out", "seconds"),
)
RECENT: Final = 60.0
"""Seconds that the histogram of latencies covers."""


def shown(time: Any, unit: str | None) -> dict[str, Any]:
    """A time as text, and as a number to draw, if it has one.

    >>> shown(7, None)
    {'text': '7', 'short': '7', 'value': 7.0}
    >>> shown(1_700_000_000_500_000, "us")
    {'text': '2023-11-14 22:13:20.500000', 'short': '22:13:20.500', 'value': 1700000000.5}
    >>> shown(START_OF_TIME, None)
    {'text': 'start', 'short': 'start', 'value': None}
    """
    if isinstance(time, list | tuple):
        parts = [shown(part, None if at else unit) for at, part in enumerate(time)]
        text, brief = (", ".join(part[name] for part in parts) for name in ("text", "short"))
        return {"text": f"({text})", "short": f"({brief})", "value": parts[0]["value"]}
    if not isinstance(time, int) or time in (START_OF_TIME, END_OF_TIME):
        text = {START_OF_TIME: "start", END_OF_TIME: "end"}.get(time, str(time))
        return {"text": text, "short": text, "value": None}
    if unit is None or unit == INTEGER:
        return {"text": str(time), "short": str(time), "value": float(time)}
    bare = unit.partition(" ")[0]
    value = time * NANOSECONDS[bare] / 1e9
    try:
        text = str(plain_times(np.array([time]), unit)[0])
        stamp = np.array([time]).view(f"datetime64[{bare}]").astype("datetime64[ms]")
        brief = str(stamp[0]).partition("T")[2]
    except (OverflowError, ValueError):
        text = brief = str(time)
    return {"text": text, "short": brief, "value": value}


def antichain(times: Sequence[Any], unit: str | None) -> dict[str, Any]:
    """A frontier: complete if it is empty."""
    if not times:
        return dict(_COMPLETE)
    parts = [shown(time, unit) for time in times]
    text, brief = (" ".join(part[name] for part in parts) for name in ("text", "short"))
    return {"text": text, "short": brief, "value": parts[0]["value"]}


@dataclass
class View:
    """Makes snapshots for the page, and keeps the time line."""

    flow: Flow
    history: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=HISTORY))
    latest: dict[str, Any] = field(default_factory=dict)
    number: int = 0
    """The number of snapshots so far."""
    _before: Observation | None = None
    _operators: dict[int, _Rated] = field(default_factory=dict)
    _workers: dict[int, _Rated] = field(default_factory=dict)
    _lags: dict[str, list[int]] = field(default_factory=dict)
    _latencies: deque[tuple[float, dict[str, list[int]]]] = field(default_factory=deque)
    """For each look of the last minute the histograms then."""
    _version: tuple[Any, float] = (None, 0.0)
    _moved: dict[int, tuple[float, float]] = field(default_factory=dict)
    """For each operator the frontier behind it, and when it got there."""
    _reported: dict[int, tuple[Any, float]] = field(default_factory=dict)
    """For each worker its latest report, by the worker's clock, and when it came."""

    def graph(self) -> dict[str, Any]:
        """The picture of the flow, and what does not change about its operators."""
        flow = self.flow
        roles = {flow.handle(what, name): what for what, name in flow.handles()}
        return {
            "name": flow.name,
            "svg": plan_svg(
                flow.name,
                flow.operators,
                {(what, name): flow.handle(what, name) for what, name in flow.handles()},
                live=True,
            ),
            "operators": [
                {
                    "name": plan.name,
                    "role": roles.get(plan.index, ""),
                    "line": str(plan.defined or ""),
                    "inputs": len(plan.inputs),
                    "from": [
                        sorted({flow.operators[source.operator].name for source in port.sources})
                        for port in plan.inputs
                    ],
                }
                for plan in flow.operators
            ],
            "outputs": list(flow.outputs),
        }

    def take(self, now: Observation) -> None:
        """Make a snapshot of an observation."""
        unit = now.unit
        point = {
            "clock": now.clock,
            "values": {
                **{f"in {n}": shown(t, unit)["value"] for n, t in now.inputs.items()},
                **{n: antichain(t, unit)["value"] for n, t in now.frontiers.items()},
            },
        }
        self.history.append(point)
        workers = [self._worker(rank, now) for rank in sorted(now.reports)]
        self.latest = {
            "status": now.status,
            "clock": now.clock,
            "unit": unit,
            "zone": zone_of(unit) if unit else None,
            "point": point,
            "frontiers": {n: antichain(t, unit) for n, t in now.frontiers.items()},
            "inputs": {n: shown(t, unit) for n, t in now.inputs.items()},
            "paused_at": None if now.paused_at is None else str(now.paused_at),
            "awaited": now.awaited,
            "bins": now.bins,
            "migration": now.migration,
            "workers": workers,
            "operators": self._flow_operators(now),
            "totals": {name: now.total(name) for name in ("rows_in", "rows_out", "late")},
            "latency": self._latency(now),
            "lag": self._lag(now),
            "checkpoints": self._checkpoints(now),
        }
        self._before = now
        self.number += 1

    # Inside

    def _worker(self, rank: int, now: Observation) -> dict[str, Any]:
        report = now.reports[rank]
        metrics = report["metrics"]
        rated = self._workers.setdefault(rank, _Rated())
        names = ("rows_in", "rows_out", "late", "messages", "bytes_in", "cpu_seconds")
        counts = {name: metrics.get(name, 0) for name in names}
        rates = rated.rates(report.get("run"), metrics.get("seconds", 0.0), counts)
        mark = report.get("run"), metrics.get("seconds")
        if self._reported.get(rank, (None, 0.0))[0] != mark:
            self._reported[rank] = mark, now.clock
        levels = ("queued", "backlog", "held_up", "sink_full", "peak_rss_mb", "seconds")
        return {
            "worker": rank,
            **{name: metrics.get(name, 0) for name in (*names, *levels)},
            "rates": rates,
            "silent": now.clock - self._reported[rank][1] if now.status == "running" else 0.0,
            "inputs": {
                name: {**shown(at, now.unit), "idle": idle}
                for name, (at, idle) in report.get("inputs", {}).items()
            },
            "frontiers": {n: antichain(t, now.unit) for n, t in report["frontiers"].items()},
        }

    def _flow_operators(self, now: Observation) -> list[dict[str, Any]]:
        """Each operator: its numbers on each worker, their sums, and the skew between workers."""
        found: list[dict[str, Any]] = [
            {"name": plan.name, "workers": []} for plan in self.flow.operators
        ]
        for rank in sorted(now.reports):
            report = now.reports[rank]
            operators = report["metrics"].get("operators") or ()
            at = report.get("operators_at", report["metrics"].get("seconds", 0.0))
            counts = {
                f"{index} {name}": operator[name]
                for index, operator in enumerate(operators)
                for name in _RATES
                if name in operator
            }
            rates = self._operators.setdefault(rank, _Rated()).rates(report.get("run"), at, counts)
            for index, (operator, entry) in enumerate(zip(operators, found, strict=False)):
                entry["workers"].append(
                    {
                        "worker": rank,
                        **{n: operator.get(n) for n in ("tokens", "queued", "invocations")},
                        **{
                            n: operator.get(n)
                            for n in ("state_rows", "state_bytes", "spilled_bytes")
                        },
                        **{n: operator.get(n) for n in ("records_in", "records_out", "seconds")},
                        "frontiers": [antichain(t, now.unit) for t in operator["frontiers"]],
                        "rates": {
                            name: rates[f"{index} {name}"]
                            for name in _RATES
                            if f"{index} {name}" in rates
                        },
                    }
                )
        for entry in found:
            entry.update(_summed(entry["workers"]))
        self._hold_back(found, now)
        return found

    def _hold_back(self, found: list[dict[str, Any]], now: Observation) -> None:
        """By how much each operator's output is behind its input, and since when it stands still.

        An input of the flow is behind the furthest of all inputs. One at the start of time is
        ``waiting``: for a first record, or to advance though records have come.
        """
        readers: dict[int, list[Mapping[str, Any]]] = {}
        for plan in self.flow.operators:
            for port, frontier in zip(plan.inputs, found[plan.index]["frontiers"], strict=False):
                for source in port.sources:
                    readers.setdefault(source.operator, []).append(frontier)
        least = {index: _least(frontiers) for index, frontiers in readers.items()}
        inputs = {self.flow.handle("input", name): time for name, time in now.inputs.items()}
        for index, time in inputs.items():
            value = shown(time, now.unit)["value"]
            least[index] = float("-inf") if value is None else value
        furthest = max((least[index] for index in inputs), default=float("-inf"))
        for index, entry in enumerate(found):
            entry["behind"] = entry["still"] = entry["waiting"] = None
            if index not in least or (least[index] == float("-inf") and index not in inputs):
                continue
            came = _least(entry["frontiers"]) if entry["frontiers"] else furthest
            seen, since = self._moved.get(index, (None, now.clock))
            if seen != least[index]:
                since = now.clock
                self._moved[index] = least[index], since
            if least[index] == float("-inf"):
                sent = any(each["records_out"] for each in entry["workers"])
                if sent or furthest > least[index]:
                    entry["waiting"] = "advance" if sent else "record"
                    entry["still"] = now.clock - since
            elif came > least[index]:
                # An operator whose input is complete holds back all that is left.
                entry["behind"] = None if came == float("inf") else came - least[index]
                entry["still"] = now.clock - since

    def _latency(self, now: Observation) -> dict[str, Any] | None:
        """The latencies of the last minute at each output and probe, once a worker has some."""
        found: dict[str, list[int]] = {}
        outputs = {self.flow.handle("output", name): name for name in self.flow.outputs}
        for metrics in now.totals.values():
            for index, each in enumerate(metrics.get("operators", ())):
                if "latency" in each:
                    name = outputs.get(index, each["name"])
                    before = found.get(name, [0] * len(each["latency"]))
                    found[name] = [
                        one + other for one, other in zip(before, each["latency"], strict=True)
                    ]
        looks = self._latencies
        looks.append((now.clock, found))
        while len(looks) > 1 and looks[1][0] < now.clock - RECENT:
            looks.popleft()
        if not found:
            return None
        first = looks[0][1]
        recent = {
            name: [
                max(0, count - before)
                for count, before in zip(bins, first.get(name, [0] * len(bins)), strict=True)
            ]
            for name, bins in found.items()
        }
        return {
            "bounds": list(BOUNDS),
            "outputs": {
                name: {"bins": bins, **{f"p{q}": quantile(bins, q / 100) for q in (50, 99)}}
                for name, bins in recent.items()
            },
        }

    def _lag(self, now: Observation) -> dict[str, Any] | None:
        """How far outputs were behind the clock at each look, where times are timestamps."""
        if now.unit is None or now.unit == INTEGER:
            return None
        for name in self.flow.outputs:
            value = antichain(now.frontiers.get(name, ()), now.unit)["value"]
            if value is not None:
                bins = self._lags.setdefault(name, [0] * (len(LAGS) + 1))
                bins[int(np.searchsorted(LAGS, now.clock - value))] += 1
        return {"bounds": list(LAGS), "outputs": self._lags}

    def _checkpoints(self, now: Observation) -> dict[str, Any] | None:
        if now.checkpoints is None:
            return None
        version = now.checkpoints.get("version")
        if version != self._version[0]:
            self._version = version, now.clock
        return {**now.checkpoints, "age": now.clock - self._version[1]}


@dataclass
class _Rated:
    """Counts of a worker that become rates, by the worker's own clock."""

    run: Any = None
    at: float = 0.0
    counts: Mapping[str, float] = field(default_factory=dict)
    latest: dict[str, float] = field(default_factory=dict)

    def rates(self, run: Any, at: float, counts: Mapping[str, float]) -> dict[str, float]:
        """Each count's growth per second since the report before."""
        if run != self.run or at < self.at:
            # The worker was started again, or is in the next micro-batch, and counts from zero.
            self.run, self.at, self.counts = run, 0.0, {}
        if at > self.at:
            seconds = at - self.at
            self.latest = {
                name: max(0.0, count - self.counts.get(name, 0)) / seconds
                for name, count in counts.items()
                # The process may be older than the run.
                if name in self.counts or name != "cpu_seconds"
            }
            self.at, self.counts = at, dict(counts)
        return self.latest


def quantile(bins: Sequence[int], share: float) -> float | None:
    """Seconds within which a share of a histogram of latencies is, evenly within a bin.

    >>> quantile([0, 0, 8, 2, *[0] * 11], 0.5)
    0.0007375
    >>> quantile([0] * 15, 0.5) is None
    True
    """
    left = share * sum(bins)
    if not left:
        return None
    least = 0.0
    for count, bound in zip(bins, BOUNDS, strict=False):
        if left <= count:
            return round(least + (bound - least) * left / count, 9)
        left, least = left - count, bound
    return least


def _summed(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums over the workers; the skew is the most that one worker does, by the mean."""
    total: dict[str, Any] = {
        name: None
        if all(each[name] is None for each in workers)
        else sum(each[name] or 0 for each in workers)
        for name in (
            *("tokens", "queued", "invocations"),
            *_STATE,
        )
    }
    total["rates"] = {
        name: sum(each["rates"].get(name, 0.0) for each in workers)
        for name in _RATES
        if any(name in each["rates"] for each in workers)
    }
    ports = zip(*(each["frontiers"] for each in workers), strict=False)
    total["frontiers"] = [_best(port) for port in ports]
    records = [each["records_in"] or each["records_out"] or 0 for each in workers]
    mean = sum(records) / len(records) if records else 0.0
    total["skew"] = round(max(records) / mean, 2) if mean else None
    return total


def _least(frontiers: Sequence[Mapping[str, Any]]) -> float:
    """The least time of several frontiers: infinity if all are complete."""
    found = [float("inf") if each["text"] == "complete" else each["value"] for each in frontiers]
    return min((float("-inf") if time is None else time for time in found), default=float("inf"))


def _best(port: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The furthest of the workers' lower bounds of one frontier."""
    if any(each["text"] == "complete" for each in port):
        return _COMPLETE
    return max(port, key=lambda each: float("-inf") if each["value"] is None else each["value"])
