"""Metrics as Prometheus' text, for any system that reads it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from jeton.columns.durations import NANOSECONDS
from jeton.columns.time_units import INTEGER
from jeton.core.times import END_OF_TIME, START_OF_TIME
from jeton.runtime.latency import BOUNDS
from jeton.runtime.metrics import Totals
from jeton.runtime.monitor import Observation

STATUSES: Final = (
    *("not started", "starting", "running", "busy", "streaming", "rescaling", "restarting"),
    *("stopping", "complete", "ended", "failed"),
)
"""Where something that is looked at can be in its life."""
_OVER: Final = ("not started", "complete", "ended", "failed")
WORKER: Final = {
    "rows_in": ("counter", "jeton_rows_in_total", "Records that were sent to inputs."),
    "rows_out": ("counter", "jeton_rows_out_total", "Rows that sinks have taken."),
    "late": ("counter", "jeton_late_rows_total", "Records that came too late."),
    "messages": ("counter", "jeton_messages_total", "Messages sent to other workers."),
    "bytes_in": ("counter", "jeton_received_bytes_total", "Bytes of messages from other workers."),
    "progress_batches": ("counter", "jeton_progress_batches_total", "Progress batches sent."),
    "progress_bytes": ("counter", "jeton_progress_bytes_total", "Bytes of progress batches sent."),
    "cpu_seconds": ("counter", "jeton_cpu_seconds_total", "Processor time of the process."),
    "queued": ("gauge", "jeton_queued_messages", "Messages that wait in inputs."),
    "backlog": ("gauge", "jeton_backlog_bytes", "Bytes that wait to go out to one worker."),
    "held_up": ("gauge", "jeton_held_up", "Whether sources wait for other workers."),
    "sink_full": ("gauge", "jeton_sink_full", "Whether rows wait for a sink."),
    "peak_rss_mb": ("gauge", "jeton_peak_rss_bytes", "The most memory of the process."),
}
OPERATOR: Final = {
    "invocations": ("counter", "jeton_operator_invocations_total", "Invocations."),
    "records_in": ("counter", "jeton_operator_records_in_total", "Records that came in."),
    "records_out": ("counter", "jeton_operator_records_out_total", "Records sent."),
    "bytes_in": ("counter", "jeton_operator_bytes_in_total", "Bytes of records that came in."),
    "bytes_out": ("counter", "jeton_operator_bytes_out_total", "Bytes of records sent."),
    "seconds": ("counter", "jeton_operator_seconds_total", "Time spent in it."),
    "tokens": ("gauge", "jeton_operator_tokens", "Tokens held."),
    "queued": ("gauge", "jeton_operator_queued_messages", "Messages that wait."),
    "state_rows": ("gauge", "jeton_operator_state_rows", "Rows of state in the last snapshot."),
    "state_bytes": ("gauge", "jeton_operator_state_bytes", "Bytes of that state."),
    "memory_bytes": ("gauge", "jeton_operator_memory_bytes", "Bytes of memory of bounded state."),
    "spilled_bytes": ("gauge", "jeton_operator_spilled_bytes", "Bytes of state on disk."),
    "spilled_bins": ("gauge", "jeton_operator_spilled_bins", "Bins whose state is on disk."),
    "spilled_held": ("gauge", "jeton_operator_spilled_held", "Records that wait for such state."),
    "brought_back": ("counter", "jeton_operator_brought_back_total", "Times state came back."),
}
CHECKPOINT: Final = {
    "version": ("gauge", "jeton_checkpoint_version", "The latest version."),
    "taken": ("counter", "jeton_checkpoints_total", "Checkpoints that were committed."),
    "missed": ("counter", "jeton_checkpoints_missed_total", "Checkpoints that were missed."),
    "restarts": ("counter", "jeton_restarts_total", "Restarts after a failure."),
    "pause_ms": ("gauge", "jeton_checkpoint_pause_seconds", "For how long the flow stopped."),
    "seconds": ("gauge", "jeton_checkpoint_seconds", "Seconds that the latest took."),
    "bytes": ("gauge", "jeton_checkpoint_bytes", "Bytes that the latest wrote."),
}

_SCALES: Final = {"peak_rss_mb": 1 << 20, "pause_ms": 1e-3}
"""Fields in other units than seconds and bytes."""


def in_base_units(field: str, value: float) -> float:
    """A number in seconds or bytes.

    >>> in_base_units("pause_ms", 250), in_base_units("queued", 3)
    (0.25, 3)
    """
    scale = _SCALES.get(field)
    return value if scale is None else value * scale


def exposition(query: str, now: Observation) -> str:
    r"""An observation in Prometheus' text format.

    >>> metrics = {"rows_in": 7, "operators": [{"name": 'a "b"', "tokens": 1}]}
    >>> now = Observation(
    ...     status="running", reports={0: {"metrics": metrics, "frontiers": {"out": [12]}}}
    ... )
    >>> for line in exposition("counts", now).splitlines():
    ...     if not line.startswith("#"):
    ...         print(line)
    jeton_up{query="counts"} 1
    jeton_status{query="counts",status="not started"} 0
    jeton_status{query="counts",status="starting"} 0
    jeton_status{query="counts",status="running"} 1
    ...
    jeton_workers{query="counts"} 1
    jeton_rows_in_total{query="counts",worker="0"} 7
    jeton_operator_tokens{query="counts",worker="0",operator="a \"b\""} 1
    jeton_frontier{query="counts",place="out"} 12
    """
    totals = {rank: each for rank, each in now.totals.items() if rank in now.reports}
    lines = [
        *_family("gauge", "jeton_up", "Whether the query is active, also if it starts again."),
        _line("jeton_up", {"query": query}, now.status not in _OVER),
        *_family("gauge", "jeton_status", "1 for the status that the query has."),
        *(
            _line("jeton_status", {"query": query, "status": status}, status == now.status)
            for status in STATUSES
        ),
        *_family("gauge", "jeton_workers", "Workers that have reported."),
        _line("jeton_workers", {"query": query}, len(now.reports)),
    ]
    for field, (kind, name, about) in WORKER.items():
        rows = [
            _line(name, {"query": query, "worker": rank}, in_base_units(field, metrics[field]))
            for rank, metrics in totals.items()
            if field in metrics
        ]
        lines += [*_family(kind, name, about), *rows] if rows else []
    for field, (kind, name, about) in OPERATOR.items():
        rows = [
            _line(name, {"query": query, "worker": rank, "operator": each["name"]}, each[field])
            for rank, metrics in totals.items()
            for each in metrics.get("operators", ())
            if field in each
        ]
        lines += [*_family(kind, name, about), *rows] if rows else []
    for field, (kind, name, about) in CHECKPOINT.items():
        value = (now.checkpoints or {}).get(field)
        if value is not None:
            line = _line(name, {"query": query}, in_base_units(field, value))
            lines += [*_family(kind, name, about), line]
    lines += [*_latency(query, totals), *_frontiers(query, now)]
    return "\n".join(lines) + "\n"


def frontiers(now: Observation) -> dict[str, float]:
    """The first time of each frontier that has one: a timestamp in seconds since 1970."""
    unit = now.unit
    stamped = unit is not None and unit != INTEGER
    scale = NANOSECONDS[unit.partition(" ")[0]] / 1e9 if unit is not None and stamped else None
    return {
        place: times[0] if scale is None else times[0] * scale
        for place, times in now.frontiers.items()
        if times and isinstance(times[0], int) and times[0] not in (START_OF_TIME, END_OF_TIME)
    }


def _frontiers(query: str, now: Observation) -> Iterator[str]:
    known = frontiers(now)
    if not known:
        return
    name, about = "jeton_frontier", "The least time that may still pass."
    if now.unit is not None and now.unit != INTEGER:
        name, about = "jeton_frontier_seconds", "The same, in seconds since 1970."
    yield from _family("gauge", name, about)
    for place, time in known.items():
        yield _line(name, {"query": query, "place": place}, time)


def _latency(query: str, totals: Totals) -> Iterator[str]:
    """A histogram for each worker and output."""
    name = "jeton_latency_seconds"
    found = [
        ({"query": query, "worker": rank, "output": each["name"]}, each)
        for rank, metrics in totals.items()
        for each in metrics.get("operators", ())
        if "latency" in each
    ]
    if found:
        yield from _family("histogram", name, "From an input's advance to the output's frontier.")
    for labels, each in found:
        counts = list(itertools.accumulate(each["latency"]))
        for bound, count in zip((*BOUNDS, "+Inf"), counts, strict=True):
            yield _line(f"{name}_bucket", {**labels, "le": bound}, count)
        yield _line(f"{name}_sum", labels, each["latency_seconds"])
        yield _line(f"{name}_count", labels, counts[-1])


def _family(kind: str, name: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _line(name: str, labels: Mapping[str, Any], value: float) -> str:
    inner = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
    return f"{name}{{{inner}}} {int(value) if isinstance(value, bool) else value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
