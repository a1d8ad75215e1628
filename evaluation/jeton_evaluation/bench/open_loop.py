"""Open loop: load is offered at a fixed rate, whether or not the system keeps up.

A source in each worker makes records when they are due. A measuring operator at the end records
how long after its due time each record was complete: when the frontier of all workers passed its
time. It also records when the frontier of its own worker did, behind which all answers of that
worker are out. Both are plain user code; the flow between them is measured.

All workers run on one machine and read one clock, so times are that clock's nanoseconds, or another
unit of it, cut to a quantum. Before the load begins, each worker measures the machine's noise and
waits for the others; all begin at the same time. Warm-up and cool-down are left out.
"""

from __future__ import annotations

import gc
import json
import math
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic_ns, process_time_ns
from typing import Any, Protocol

import pyarrow as pa

import jeton as jt
from jeton_evaluation.bench.histogram import Histogram, noise

SECOND = 1_000_000_000
READY = 1
"""The time that says that a worker is there: all due times are far beyond it."""
MARGIN = 0.05
"""Seconds from when all are there until the load begins: all have heard of it by then."""


@dataclass(frozen=True)
class Load:
    """The offered load: `rate` records a second in each worker, for `seconds`."""

    rate: float
    quantum: int = 1 << 8
    """Times are multiples of this number of units, a power of two."""
    unit: int = 1
    """The unit of times, in nanoseconds."""
    seconds: float = 5.0
    warm_up: float = 2.0
    cool_down: float = 0.5
    give_up: float = 1.0
    """A record that takes longer, in seconds, ends the run: it did not finish."""
    at_once: int = 1 << 17
    """The most records in a message, when the source has fallen behind."""
    noise: float = 0.5
    """Seconds in which the machine's noise is measured beforehand."""


class Schedule(Protocol):
    """When the records of a worker are due: their times, in order."""

    def time(self, position: int) -> int:
        """The time of a record."""
        ...

    def count_before(self, time: int) -> int:
        """The number of records with times before this one, a multiple of the quantum."""
        ...


@dataclass(frozen=True)
class Due:
    """A schedule at an even pace: record ``n`` of a worker is due ``n / rate`` after its start."""

    began: int
    interval: float
    mask: int

    def time(self, position: int) -> int:
        """The time of a record: its due time, cut to the quantum."""
        return (self.began + int(position * self.interval)) & self.mask

    def count_before(self, time: int) -> int:
        """The number of records with times before this one, a multiple of the quantum."""
        count = max(0, math.ceil((time - self.began) / self.interval))
        while self.time(count) < time:
            count += 1
        while count and self.time(count - 1) >= time:
            count -= 1
        return count


Plan = Callable[[int, int, int], Schedule]
"""``plan(began, worker, workers)``: when the records of a worker are due."""
Make = Callable[[Due, int, int, int], jt.Batch]
"""``make(due, first, count, worker)``: some records, from a position on, at their times."""
MakeAll = Callable[[Any, int, int, int], Sequence[jt.Batch]]
"""The same for several streams: a batch, which may be empty, for each of them."""


class Trial:
    """One run in one worker: what its source and its measuring operator share."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.mask = ~(load.quantum - 1)
        self.plan: Callable[[int], Schedule] = self._evenly
        self.due: Schedule | None = None
        self.began = 0
        self.all_ready = self.over = False
        self.prepare: Callable[[], object] = lambda: None
        self.wake_clock: Callable[[], None] = lambda: None
        """Invokes the operator that decides the workers' start."""
        self.wake_measure: Callable[[], None] = lambda: None
        self.complete = 0
        """All of this worker's records before this time are complete."""
        self.offered = self.rows_out = 0
        self.stalled = False
        self.latencies = Histogram()
        self.answered = 0
        """All answers of this worker before this time are out."""
        self.answers = Histogram()
        """How long they took, with as many of them as there are records of this worker."""
        self.waits = Histogram()
        """In a run that stalled: how long the records that were due had waited by then."""
        self.noise = Histogram()
        self.pauses = Pauses()
        self._cpu = self._cpu_from = 0
        self._measured = load.seconds
        self.reached = 0.0

    def _evenly(self, began: int) -> Schedule:
        return Due(began, self._length(1 / self.load.rate), self.mask)

    def _length(self, seconds: float) -> float:
        return seconds * SECOND / self.load.unit

    def begin(self, agreed: int) -> None:
        """All workers are there: records are due from this time on."""
        self.began = (agreed & self.mask) + self.load.quantum
        self.due = self.plan(self.began)
        self.complete = self.answered = self.began
        self.first = (self.began + int(self._length(self.load.warm_up))) & self.mask
        self.last = (self.first + int(self._length(self.load.seconds))) & self.mask
        self.end = (self.last + int(self._length(self.load.cool_down))) & self.mask
        self._cpu_at_start = process_time_ns()

    def watch(self, time: int) -> None:
        """Note what can only be noted while it runs."""
        if not self._cpu_from and time >= self.first:
            self._cpu_from = process_time_ns()
            self.pauses.start()
        elif not self._cpu and time >= self.last:
            self._cpu = process_time_ns() - self._cpu_from
            self.pauses.stop()
        if time - self.complete > self._length(self.load.give_up) and time < self.end:
            self._stall(time)

    def _stall(self, time: int) -> None:
        """It did not finish: say what was reached, and how long the rest has waited so far."""
        self.stalled = True
        self.wake_measure()
        assert self.due is not None
        unit = self.load.unit
        done = self.due.count_before(self.complete)
        waiting = self.due.count_before(time & self.mask) - done
        self.waits.record_evenly(0, (time - self.complete) * unit, waiting)
        self._cpu = process_time_ns() - self._cpu_at_start
        self._measured = (time - self.began) * unit / SECOND
        self.reached = done / self._measured

    def finish(self, offered: int) -> None:
        """Nothing more is offered."""
        self.offered = offered
        self.over = True
        self.wake_clock()

    def completed(self, upto: int, now: int) -> None:
        """The frontier of all workers has passed all times before ``upto``."""
        self._note(self.latencies, self.complete, upto, now)
        self.complete = max(self.complete, upto)

    def has_answered(self, upto: int, now: int) -> None:
        """The frontier of this worker has passed all times before ``upto``."""
        self._note(self.answers, self.answered, upto, now)
        self.answered = max(self.answered, upto)

    def _note(self, latencies: Histogram, since: int, upto: int, now: int) -> None:
        low, high = max(since, self.first), min(upto, self.last)
        if high > low and self.due is not None:
            count = self.due.count_before(high) - self.due.count_before(low)
            unit = self.load.unit
            latencies.record_evenly(now - high * unit, now - low * unit, count)

    def report(self) -> dict[str, Any]:
        """All that was seen."""
        return {
            "latencies": self.latencies.to_json(),
            "answers": self.answers.to_json(),
            "noise": self.noise.to_json(),
            "began": self.began,
            "offered": self.offered,
            "rows_out": self.rows_out,
            "waits": self.waits.to_json(),
            "dnf": self.stalled,
            "achieved": self.reached if self.stalled else self.latencies.count / self.load.seconds,
            "cpu": self._cpu / (self._measured * SECOND),
            "gc_pauses": self.pauses.count,
            "gc_longest_ms": self.pauses.longest / 1e6,
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


class Pauses:
    """The number and the longest of the pauses of Python's garbage collector."""

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
    if make is None:
        return offer_all(flow, load, None, [None])[0]
    one = make
    return offer_all(flow, load, lambda *some: [one(*some)], [None])[0]


def offer_all(
    flow: jt.Flow,
    load: Load,
    make: MakeAll | None,
    schemas: Sequence[pa.Schema | None],
    *,
    plan: Plan | None = None,
    prepare: Callable[[], object] | None = None,
    time: str = "time",
) -> tuple[jt.Stream, ...]:
    """Several streams of records when they are due, one for each schema.

    Each worker calls ``prepare`` before it says that it is there: it may compile, or load what is.
    """

    def build(
        tokens: list[jt.TimestampToken], info: jt.OperatorInfo
    ) -> Callable[[Sequence[jt.Input], Sequence[jt.Output]], None]:
        trial = info.shared("trial", lambda: Trial(load))
        if plan is not None:
            trial.plan = lambda began: plan(began, info.worker, info.workers)
        if prepare is not None:
            trial.prepare = prepare
        sent = 0

        def step(_: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
            nonlocal sent
            due = trial.due
            if due is None:
                info.activator.after(0.001)
                return
            now = monotonic_ns() // load.unit
            trial.watch(now)
            upto = max(min(now & trial.mask, trial.end), trial.began)
            if make is not None:
                before = due.count_before(upto)
                if before > sent:
                    count = min(before - sent, load.at_once)
                    made = make(due, sent, count, info.worker)
                    for token, output, batch in zip(tokens, outputs, made, strict=True):
                        if len(batch):
                            output.session(token).give(batch)
                    sent += count
                upto = min(upto, due.time(sent))
            if upto > tokens[0].time:
                for token in tokens:
                    token.downgrade(upto)
            if trial.stalled or upto >= trial.end:
                trial.finish(sent)
                for token in tokens:
                    token.drop()
                return
            info.activator.activate()

        return step

    op = flow.operator("load", time=time)
    for schema in schemas:
        op.output(schema=schema)
    return op.build(build)


def measure(flow: jt.Flow, stream: jt.Stream, load: Load) -> None:
    """Note when records are complete at the end of a stream; the flow's output is the report."""

    def answer(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Output], None]:
        token.drop()
        trial = info.shared("trial", lambda: Trial(load))

        def step(input: jt.Input, output: jt.Output) -> None:
            for _, batch in input:
                trial.rows_out += len(batch)
            frontier = input.frontier.only
            if trial.due is not None:
                upto = trial.end if frontier is None else frontier
                if upto > trial.answered:
                    trial.has_answered(upto, monotonic_ns())

        return step

    def build(
        tokens: list[jt.TimestampToken], info: jt.OperatorInfo
    ) -> Callable[[Sequence[jt.Input], Sequence[jt.Output]], None]:
        trial = info.shared("trial", lambda: Trial(load))
        trial.wake_measure = info.activator.activate
        reported = False

        def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
            nonlocal reported
            frontier = inputs[0].frontier.only
            now = monotonic_ns()
            if reported:
                return
            if frontier is None or trial.stalled:
                if not trial.stalled:
                    trial.completed(trial.end, now)
                reported = True
                with tokens[0] as token, outputs[0].session(token) as session:
                    session.give(worker=info.worker, report=json.dumps(trial.report()))
            elif trial.due is not None and frontier > trial.complete:
                trial.completed(frontier, now)

        return step

    op = flow.operator("measure")
    # It observes: it sees when all workers have passed a time.
    op.input(stream.unary_frontier(answer, name="answer", notify="always"), observes=True)
    op.output()
    [reports] = op.build(build, notify="always")
    flow.output("report", reports)
    _begin_together(flow, load)


def _begin_together(flow: jt.Flow, load: Load) -> None:
    """Have all workers begin at the same time, by tokens alone.

    Each worker announces itself. When all have, each proposes its current time, and holds its
    token for that time to the end. So all see the same frontier, the least of the proposals, at
    any later moment.
    """

    def propose(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
        trial = info.shared("trial", lambda: Trial(load))
        trial.wake_clock = info.activator.activate

        def step(output: jt.Output) -> None:
            if trial.over:
                token.drop()
            elif token.time < READY:
                trial.prepare()
                trial.noise = noise(load.noise)
                token.downgrade(READY)
            elif trial.all_ready and token.time == READY:
                token.downgrade(monotonic_ns() // load.unit)

        return step

    def agree(
        tokens: list[jt.TimestampToken], info: jt.OperatorInfo
    ) -> Callable[[Sequence[jt.Input], Sequence[jt.Output]], None]:
        trial = info.shared("trial", lambda: Trial(load))

        def step(inputs: Sequence[jt.Input], _: Sequence[jt.Output]) -> None:
            frontier = inputs[0].frontier.only
            if frontier is None or frontier < READY or trial.due is not None:
                return
            if frontier == READY:
                trial.all_ready = True
                trial.wake_clock()
            else:
                trial.begin(frontier + int(MARGIN * SECOND) // load.unit)

        return step

    op = flow.operator("agree")
    # It observes: what it sees is the least of all workers' proposals.
    op.input(flow.source(propose, name="clock"), observes=True)
    op.build(agree, notify="always")
