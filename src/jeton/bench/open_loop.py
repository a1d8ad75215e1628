"""Open loop: load is offered at its rate, whether or not the system keeps up.

A source in each worker makes records when they are due, and a measuring operator at the end notes
how long after its due time each record was complete: when the frontier there passed its time. Both
are plain user code; the flow between them is what is measured.

All workers run on one machine and read one clock, so times are that clock's nanoseconds, cut to a
quantum. Before the load begins, each worker measures the machine's noise and waits for the others.
Some seconds at both ends are left out, while things warm up and while what is under way drains.
"""

from __future__ import annotations

import gc
import json
import math
import resource
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns, process_time_ns
from typing import Any

import jeton as jt
from jeton.bench.histogram import Histogram
from jeton.bench.noise import noise

SECOND = 1_000_000_000
READY = 1
"""The time that says that a worker is there: all due times are far beyond it."""


@dataclass(frozen=True)
class Load:
    """What is offered: so many records a second in each worker, for so long."""

    rate: float
    quantum: int = 1 << 8
    """Times are multiples of so many nanoseconds, a power of two."""
    seconds: float = 5.0
    warm_up: float = 2.0
    cool_down: float = 0.5
    give_up: float = 1.0
    """A record that takes longer than so many seconds ends the run: it did not finish."""
    at_once: int = 1 << 17
    """At most so many records in a message, when the source has fallen behind."""
    noise: float = 0.5
    """Seconds in which the machine's noise is measured beforehand."""


@dataclass(frozen=True)
class Due:
    """When records are due: record ``n`` of a worker is so ``n / rate`` after its start."""

    began: int
    interval: float
    mask: int

    def time(self, position: int) -> int:
        """The time of a record: its due time, cut to the quantum."""
        return (self.began + int(position * self.interval)) & self.mask

    def count_before(self, time: int) -> int:
        """How many records have times before this one, a multiple of the quantum."""
        count = max(0, math.ceil((time - self.began) / self.interval))
        while self.time(count) < time:
            count += 1
        while count and self.time(count - 1) >= time:
            count -= 1
        return count


Make = Callable[[Due, int, int, int], jt.Batch]
"""``make(due, first, count, worker)``: some records, from a position on, at their times."""


class Trial:
    """One run in one worker: what its source and its measuring operator share."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.mask = ~(load.quantum - 1)
        self.due: Due | None = None
        self.complete = 0
        """All of this worker's records before this time are complete."""
        self.offered = self.rows_out = 0
        self.stalled = False
        self.latencies = Histogram()
        self.noise = Histogram()
        self.pauses = Pauses()
        self._cpu = self._cpu_from = 0

    def begin(self, now: int) -> None:
        """All workers are there: records are due from now on."""
        began = (now & self.mask) + self.load.quantum
        self.due = Due(began, SECOND / self.load.rate, self.mask)
        self.complete = began
        self.first = (began + int(self.load.warm_up * SECOND)) & self.mask
        self.last = (self.first + int(self.load.seconds * SECOND)) & self.mask
        self.end = (self.last + int(self.load.cool_down * SECOND)) & self.mask

    def watch(self, now: int) -> None:
        """Note what can only be noted while it runs."""
        if not self._cpu_from and now >= self.first:
            self._cpu_from = process_time_ns()
            self.pauses.start()
        elif not self._cpu and now >= self.last:
            self._cpu = process_time_ns() - self._cpu_from
            self.pauses.stop()
        if now - self.complete > self.load.give_up * SECOND and now < self.end:
            self.stalled = True

    def completed(self, upto: int, now: int) -> None:
        """The frontier has passed all times before ``upto``."""
        low, high = max(self.complete, self.first), min(upto, self.last)
        if high > low and self.due is not None:
            count = self.due.count_before(high) - self.due.count_before(low)
            self.latencies.record_evenly(now - high, now - low, count)
        self.complete = max(self.complete, upto)

    def report(self) -> dict[str, Any]:
        """All that was seen."""
        return {
            "latencies": self.latencies.to_json(),
            "noise": self.noise.to_json(),
            "offered": self.offered,
            "rows_out": self.rows_out,
            "dnf": self.stalled,
            "cpu": self._cpu / (self.load.seconds * SECOND),
            "gc_pauses": self.pauses.count,
            "gc_longest_ms": self.pauses.longest / 1e6,
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


class Pauses:
    """How often, and for how long at most, Python's collector stopped everything."""

    def __init__(self) -> None:
        self.count = self.longest = 0
        self._began = 0

    def start(self) -> None:
        """Listen to the collector."""
        gc.callbacks.append(self._heard)

    def stop(self) -> None:
        """Listen no longer."""
        gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = monotonic_ns()
        else:
            self.count += 1
            self.longest = max(self.longest, monotonic_ns() - self._began)


def offer(flow: jt.Flow, load: Load, make: Make | None) -> jt.Stream:
    """A stream of records when they are due; without ``make``, only times pass."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
        trial = info.shared("trial", lambda: Trial(load))
        sent = 0

        def step(output: jt.Output) -> None:
            nonlocal sent
            due = trial.due
            if due is None:
                if token.time < READY:
                    trial.noise = noise(load.noise)
                    token.downgrade(READY)
                info.activator.after(0.001)
                return
            now = monotonic_ns()
            trial.watch(now)
            upto = max(min(now & due.mask, trial.end), due.began)
            if make is not None:
                before = due.count_before(upto)
                if before > sent:
                    count = min(before - sent, load.at_once)
                    output.session(token).give(make(due, sent, count, info.worker))
                    sent += count
                upto = min(upto, due.time(sent))
            if upto > token.time:
                token.downgrade(upto)
            if trial.stalled or upto >= trial.end:
                trial.offered = sent
                token.drop()
                return
            info.activator.activate()

        return step

    return flow.source(build, name="load")


def measure(flow: jt.Flow, stream: jt.Stream, load: Load) -> None:
    """Note when records are complete at the end of a stream; the flow's output is the report."""

    def build(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Output], None]:
        trial = info.shared("trial", lambda: Trial(load))

        def step(input: jt.Input, output: jt.Output) -> None:
            for _, batch in input:
                trial.rows_out += len(batch)
            frontier = input.frontier.only
            now = monotonic_ns()
            if frontier is None:
                if trial.due is not None and not trial.stalled:
                    trial.completed(trial.end, now)
                with token, output.session(token) as session:
                    session.give(worker=info.worker, report=json.dumps(trial.report()))
            elif trial.due is None:
                if frontier >= READY:
                    trial.begin(now)
            elif frontier > trial.complete:
                trial.completed(frontier, now)

        return step

    told = stream.unary_frontier(build, name="measure", notify="always")
    flow.output("report", told)
