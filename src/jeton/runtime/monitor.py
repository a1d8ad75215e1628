"""The monitor: looks at a run or a query once a second, and keeps what it saw.

It works from the reports that workers make anyway. Progress records in the shape of Spark's, their
listeners, the live page and the event log are all fed by it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from jeton.core.errors import GraphError
from jeton.runtime.metrics import Totals, carried, furthest

log = logging.getLogger(__name__)

EVERY: Final = 1.0
"""Seconds from one look to the next."""
KEPT: Final = 100
"""Progress records that are kept, as many as Spark keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A run or a query at one moment."""

    status: str
    reports: Mapping[int, Mapping[str, Any]]
    """The latest report of each worker: see `Agent.reported`."""
    before: Totals = field(default_factory=dict)
    """The metrics of workers in earlier runs: attempts at a query, micro-batches, actions."""
    checkpoints: Mapping[str, Any] | None = None
    paused_at: Any = None
    awaited: str | None = None
    """What a flow that does not rest at its breakpoint yet waits for, if it is known."""
    bins: Mapping[int, int] | None = None
    """How many bins each worker owns, where state can move."""
    migration: Mapping[str, int] | None = None
    """How many bins have moved, and of how many, while state moves."""
    rebalancing: Mapping[str, Any] | None = None
    clock: float = field(default_factory=time.time)
    """Seconds since 1970."""

    @property
    def unit(self) -> str | None:
        """The unit of all times, as far as any worker knows it."""
        units = (report.get("unit") for report in self.reports.values())
        return next((unit for unit in units if unit is not None), None)

    @property
    def frontiers(self) -> dict[str, list[Any]]:
        """For each output and probe the best lower bound that any worker knows."""
        found: dict[str, list[Any]] = {}
        for report in self.reports.values():
            for place, times in report["frontiers"].items():
                found[place] = furthest(found[place], times) if place in found else times
        return found

    @property
    def inputs(self) -> dict[str, Any]:
        """How far each input is that is open on some worker: the least of all workers' times."""
        found: dict[str, Any] = {}
        for report in self.reports.values():
            for name, (at, _) in report.get("inputs", {}).items():
                found[name] = min(found[name], at) if name in found else at
        return found

    @property
    def totals(self) -> Totals:
        """The metrics of each worker over all runs: counts never go back."""
        return carried(self.before, self.reports) if self.before else _metrics(self.reports)

    def total(self, name: str) -> int:
        """A count over all runs, summed over the workers."""
        of_all = (*self.before.values(), *_metrics(self.reports).values())
        return sum(int(metrics.get(name, 0)) for metrics in of_all)


def _metrics(reports: Mapping[int, Mapping[str, Any]]) -> Totals:
    return {rank: report["metrics"] for rank, report in reports.items()}


class Progress(dict[str, Any]):
    """A record of a query's progress, with the names that Spark's ``StreamingQueryProgress`` has.

    Fields are keys and attributes. Counts are those since the record before, rates are per second.

    >>> record = Progress(name="counts", numInputRows=7)
    >>> record["numInputRows"], record.numInputRows, record.json
    (7, 7, '{"name": "counts", "numInputRows": 7}')
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a progress record has no {name!r}: {list(self)}") from None

    @property
    def json(self) -> str:
        """The record as JSON."""
        return json.dumps(self, default=str)

    @property
    def prettyJson(self) -> str:
        """The record as indented JSON."""
        return json.dumps(self, default=str, indent=4)


class Listener(Protocol):
    """The methods of Spark's ``StreamingQueryListener``; a monitor calls those that there are."""

    def onQueryStarted(self, event: Any) -> None:
        """The query has begun: ``event`` has ``id``, ``runId``, ``name`` and ``timestamp``."""
        ...

    def onQueryProgress(self, event: Any) -> None:
        """``event.progress`` is the latest `Progress`."""
        ...

    def onQueryTerminated(self, event: Any) -> None:
        """The query has ended; ``event.exception`` is the text of its error, if it failed."""
        ...


class Log(Protocol):
    """Writes observations."""

    def take(self, now: Observation) -> None:
        """Write one."""
        ...

    def close(self) -> None:
        """There are no more."""
        ...


class Event(Progress):
    """A call of a listener: its fields are keys and attributes too."""


class Monitor:
    """Looks at something that runs, once a second, until it has ended.

    >>> import jeton as jt
    >>> flow = jt.Flow("echo")
    >>> flow.output("out", flow.input("in", lateness=0))
    >>> with flow.open() as run:
    ...     monitor = Monitor("echo", run.observe)
    ...     before = monitor.look()
    ...     run.input("in").send({"time": [3, 7], "n": [1, 2]})
    ...     run.run_to_rest()
    ...     now = monitor.look()
    >>> monitor.recent[-1].numInputRows, monitor.recent[-1].frontiers
    (2, {'out': [7]})
    """

    def __init__(
        self,
        name: str,
        observe: Callable[[], Observation],
        *,
        identity: str = "",
        every: float = EVERY,
    ) -> None:
        self.name = name
        self.every = every
        self.recent: deque[Progress] = deque(maxlen=KEPT)
        self.looks = 0
        """The number of observations so far."""
        self.changed = threading.Condition()
        self._calling = threading.RLock()
        self._observe = observe
        self._identity = identity or name
        self._seen: Observation | None = None
        self._watchers: list[Callable[[Observation], None]] = []
        self._listeners: list[Any] = []
        self._log: Log | None = None
        self._over = threading.Event()
        self._error: str | None = None
        self._thread: threading.Thread | None = None

    @property
    def seen(self) -> Observation | None:
        """The latest observation."""
        return self._seen

    def watch(self, watcher: Callable[[Observation], None]) -> None:
        """Call a function with each observation from now on, in the monitor's thread."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[Observation], None]) -> None:
        """No longer call a function."""
        self._watchers.remove(watcher)

    def log(self, log: Log) -> None:
        """Write a log of each observation from now on, and close it at the end."""
        if self._log is not None:
            raise GraphError(f"an event log of {self.name!r} is written already")
        self._log = log
        self.watch(log.take)

    def add_listener(self, listener: Any) -> None:
        """Call the methods of a listener from now on."""
        self._listeners.append(listener)
        if self._thread is not None:
            self._call(listener, "onQueryStarted", self._event())

    def remove_listener(self, listener: Any) -> None:
        """Call a listener no more."""
        self._listeners.remove(listener)

    def start(self) -> None:
        """Look every second, in a thread of its own; twice is harmless."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"jeton-monitor-{self.name}", daemon=True
            )
            self._thread.start()

    def stop(self, error: str | None = None) -> None:
        """Look for the last time, and end the thread; ``error`` says why the query failed."""
        self._error = error
        self._over.set()

    def join(self) -> None:
        """Wait for the end of the thread."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def is_over(self) -> bool:
        """Whether the last look has been taken, or is about to be."""
        return self._over.is_set()

    def look(self) -> Observation:
        """Observe once, now; from any thread."""
        now = self._observe()
        # Watchers and listeners are called by one thread at a time, in the order of the clock.
        with self._calling:
            before = self._seen
            if before is not None and before.clock > now.clock:
                return before
            self._seen = now
            record = self._progress(before, now)
            self.recent.append(record)
            for watcher in list(self._watchers):
                watcher(now)
            with self.changed:
                self.looks += 1
                self.changed.notify_all()
            for listener in list(self._listeners):
                self._call(listener, "onQueryProgress", Event(progress=record))
        return now

    # Inside

    def _run(self) -> None:
        for listener in list(self._listeners):
            self._call(listener, "onQueryStarted", self._event())
        over = False
        while not over:
            over = self._over.wait(self.every)
            try:
                self.look()
            except Exception:
                log.exception("the monitor of %r could not look", self.name)
        if self._log is not None:
            with self._calling:
                self.unwatch(self._log.take)
                self._log.close()
        event = self._event(exception=self._error, errorClassOnException=None)
        for listener in list(self._listeners):
            self._call(listener, "onQueryTerminated", event)

    def _call(self, listener: Any, method: str, event: Event) -> None:
        function = getattr(listener, method, None)
        if function is None:
            return
        try:
            function(event)
        except Exception:
            log.exception("listener %r of query %r failed", listener, self.name)

    def _event(self, **more: Any) -> Event:
        return Event(
            id=self._identity,
            runId=self._identity,
            name=self.name,
            timestamp=_iso(time.time()),
            **more,
        )

    def _progress(self, before: Observation | None, now: Observation) -> Progress:
        seconds = now.clock - before.clock if before is not None else 0.0
        rows_in, rows_out, late = (
            since(before, now, name) for name in ("rows_in", "rows_out", "late")
        )
        rate = rows_in / seconds if seconds > 0 else 0.0
        return Progress(
            id=self._identity,
            runId=self._identity,
            name=self.name,
            timestamp=_iso(now.clock),
            status=now.status,
            batchId=self.looks,
            batchDuration=round(seconds * 1e3),
            numInputRows=rows_in,
            inputRowsPerSecond=round(rate, 1),
            processedRowsPerSecond=round(rate, 1),
            numLateRows=late,
            frontiers=now.frontiers,
            stateOperators=_state(now),
            sources=[{"description": name, "endOffset": at} for name, at in now.inputs.items()],
            sink={"numOutputRows": rows_out},
            checkpoints=now.checkpoints,
            rebalancing=now.rebalancing,
        )


def since(before: Observation | None, now: Observation, name: str) -> int:
    """By how much a count has grown."""
    return max(0, now.total(name) - (0 if before is None else before.total(name)))


def _state(now: Observation) -> list[dict[str, Any]]:
    rows: dict[str, int] = {}
    size: dict[str, int] = {}
    for report in now.reports.values():
        for operator in report["metrics"].get("operators", ()):
            name = operator["name"]
            rows[name] = rows.get(name, 0) + (operator.get("state_rows") or 0)
            size[name] = size.get(name, 0) + (operator.get("state_bytes") or 0)
    return [
        {"operatorName": name, "numRowsTotal": rows[name], "memoryUsedBytes": size[name]}
        for name in rows
        if rows[name]
    ]


def _iso(clock: float) -> str:
    return datetime.fromtimestamp(clock, UTC).isoformat(timespec="milliseconds")
