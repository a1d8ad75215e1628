"""OpenTelemetry: metrics and traces of queries, where the program has it set up.

A program that uses OpenTelemetry has imported it and set providers before it starts a query. Then
its meter provider gets the metrics that Prometheus can read too, and its tracer provider a span for
each query and one for each of its checkpoints. Without, nothing is imported.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any, Final

from jeton.inspector.prometheus import CHECKPOINT, OPERATOR, WORKER, frontiers, in_base_units
from jeton.runtime.monitor import Monitor, Observation

Point = tuple[float, dict[str, str]]
"""A value and its attributes."""
_lock: Final = threading.Lock()
_monitors: list[Monitor] = []
"""Those of queries that have not ended."""
_made: set[int] = set()
"""The meter providers that have the instruments."""


def export(monitor: Monitor) -> bool:
    """Export the metrics and the spans of a query until it ends, if OpenTelemetry is in use.

    >>> monitor = Monitor("counts", lambda: Observation(status="running", reports={}))
    >>> export(monitor) == ("opentelemetry" in sys.modules)
    True
    >>> monitor.start()
    >>> monitor.stop()
    >>> monitor.join()
    """
    if "opentelemetry" not in sys.modules:
        return False
    from opentelemetry import metrics, trace

    provider = metrics.get_meter_provider()
    with _lock:
        _monitors.append(monitor)
        if id(provider) not in _made:
            _made.add(id(provider))
            _make_instruments(metrics.get_meter("jeton", version("jeton")))
    monitor.add_listener(_Spans(monitor, trace.get_tracer("jeton", version("jeton"))))
    return True


class _Spans:
    """A listener that makes a span of the query, and one of each checkpoint in it."""

    def __init__(self, monitor: Monitor, tracer: Any) -> None:
        self._monitor = monitor
        self._tracer = tracer
        self._span = tracer.start_span(f"query {monitor.name}", attributes=_of(monitor))
        self._version: Any = None

    def onQueryProgress(self, event: Any) -> None:
        """Make a span of a checkpoint that was committed since the last time."""
        from opentelemetry import trace

        taken = event.progress.checkpoints
        if not taken or taken.get("version") in (None, self._version) or "seconds" not in taken:
            return
        first, self._version = self._version is None, taken["version"]
        if first and not taken.get("taken"):
            return  # the one that the query started from
        seen = self._monitor.seen
        assert seen is not None, "progress is of an observation"
        end = int(seen.clock * 1e9)
        span = self._tracer.start_span(
            "checkpoint",
            context=trace.set_span_in_context(self._span),
            start_time=end - int(taken["seconds"] * 1e9),
            attributes={
                **_of(self._monitor),
                "jeton.checkpoint.version": taken["version"],
                "jeton.checkpoint.bytes": taken.get("bytes") or 0,
            },
        )
        span.end(end)

    def onQueryTerminated(self, event: Any) -> None:
        """End the query's span, as failed if it is."""
        from opentelemetry.trace import Status, StatusCode

        with _lock:
            _monitors.remove(self._monitor)
        if event.exception is not None:
            self._span.set_status(Status(StatusCode.ERROR, event.exception))
        self._span.end()


def _of(monitor: Monitor) -> dict[str, str]:
    return {"jeton.query": monitor.name}


def _make_instruments(meter: Any) -> None:
    """One instrument for each metric, which is asked for the values of all queries."""
    for families, points in ((WORKER, _workers), (OPERATOR, _operators), (CHECKPOINT, _own)):
        for field, (kind, name, about) in families.items():
            make = (
                meter.create_observable_counter
                if kind == "counter"
                else meter.create_observable_gauge
            )
            plain = name.removeprefix("jeton_").removesuffix("_total")
            make(f"jeton.{plain}", callbacks=[_callback(points, field)], description=about)
    meter.create_observable_gauge(
        "jeton.frontier",
        callbacks=[_callback(_frontiers, "")],
        description="The least time that may still pass an output or a probe.",
    )


def _callback(
    points: Callable[[Observation, str], Iterable[Point]], field: str
) -> Callable[[Any], Iterable[Any]]:
    def observe(_: Any) -> Iterator[Any]:
        from opentelemetry.metrics import Observation as Measured

        with _lock:
            monitors = list(_monitors)
        for monitor in monitors:
            seen = monitor.seen
            for value, attributes in () if seen is None else points(seen, field):
                yield Measured(value, {**_of(monitor), **attributes})

    return observe


def _workers(now: Observation, field: str) -> Iterator[Point]:
    for rank, metrics in now.totals.items():
        if field in metrics and rank in now.reports:
            yield float(in_base_units(field, metrics[field])), {"jeton.worker": str(rank)}


def _operators(now: Observation, field: str) -> Iterator[Point]:
    for rank, metrics in now.totals.items():
        for each in metrics.get("operators", ()) if rank in now.reports else ():
            if field in each:
                where = {"jeton.worker": str(rank), "jeton.operator": each["name"]}
                yield float(each[field]), where


def _own(now: Observation, field: str) -> Iterator[Point]:
    value = (now.checkpoints or {}).get(field)
    if value is not None:
        yield float(in_base_units(field, value)), {}


def _frontiers(now: Observation, _: str) -> Iterator[Point]:
    for place, time in frontiers(now).items():
        yield time, {"jeton.place": place}
