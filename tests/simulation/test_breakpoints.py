"""Breakpoints under random schedules: a flow that was paused gives the rows of one that was not.

All that a long-lived query does runs here in one thread, as in `test_checkpoints`: agents with
sources of several partitions, a simulated network, and the driver's coordinator, which sends its
commands at random moments. The graphs are random too: windows, joins, a loop, late records.

At rest, nothing at or after the breakpoint was emitted, and everything before it was. A checkpoint
while the flow is paused has the records that are held back: a query that goes on from it, with
another number of workers, gives the same rows.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.helpers import planned, rows_writer
from tests.simulation.test_checkpoints import Disk, SimulatedFiles

import jeton as jt
from jeton.cluster.checkpoint_committer import CheckpointCommitter
from jeton.cluster.checkpoint_writer import CheckpointWriter, RestorePoint
from jeton.cluster.coordinator import CheckpointSchedule, Coordinator
from jeton.cluster.steering import Request, Steering
from jeton.cluster.worker_io import OutputSink, WorkerSources
from jeton.connectors.sinks import Callback
from jeton.connectors.sources import Batches
from jeton.core.errors import TimeError
from jeton.runtime import steering
from jeton.runtime.in_process import Run
from jeton.storage.checkpoints import Checkpoints

PARTITIONS = 3
TABLES = 12
LAST = 3 * TABLES
STEPS = 60_000
"""Steps after which a run counts as stuck."""

Rows = Counter[tuple[Any, ...]]


class End:
    """One end of a simulated connection: what is sent arrives as it would from a socket."""

    def __init__(self) -> None:
        self.inbox: deque[tuple[dict[str, Any], bytes]] = deque()
        self.other = self

    def send(self, kind: str, payload: bytes = b"", **header: Any) -> None:
        self.other.inbox.append((json.loads(json.dumps({"kind": kind, **header})), payload))

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        return self.inbox.popleft()

    def has_news(self, timeout: float = 0.0) -> bool:
        return bool(self.inbox)

    def close(self) -> None:
        pass


# Graphs


def halved(numbers: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
    """Around until a number is odd."""
    odd, even = numbers.branch(lambda batch: batch["n"] % 2 == 0)
    return even.with_columns(n=lambda batch: batch["n"] // 2), odd


def random_flow(random: Random) -> tuple[jt.Flow, bool]:
    """A flow of library operators, and whether one of them moves records to later times."""
    flow = jt.Flow("paused")
    left = flow.input("left", lateness=random.choice([0, 2, 5]))
    right = flow.input("right", lateness=random.choice([0, 3]))
    flow.output("late", left.late)
    a, b = left.key_by("k"), right.key_by("k")
    choices = {
        "tumbling": lambda: a.tumbling(random.choice([4, 8])).sum("n"),
        "sliding": lambda: b.sliding(6, every=3).max("n"),
        "sessions": lambda: a.session_window(2).count(),
        "running": lambda: a.running(ordered=True).count(),
        "join": lambda: a.interval_join(b, -2, 2),
        "loop": lambda: left.iterate(halved),
        "windows of a loop": lambda: left.iterate(halved).key_by("n").tumbling(5).count(),
        "union": lambda: left.concat(right).key_by("k").each_time().count(),
        "filtered": lambda: right.filter(jt.col("n") > 30),
        "top": lambda: left.concat(right).key_by("k").tumbling(9).top_k(2, "n"),
        "delayed": lambda: right.delay(lambda batch: batch.times + batch["n"] % 4),
        "later windows": lambda: (
            left.delay(lambda batch: batch.times + 7).key_by("k").tumbling(4).sum("n")
        ),
    }
    names = random.sample(list(choices), random.randint(2, 4))
    for name in names:
        flow.output(name, choices[name]())
    return flow, "delayed" in names or "later windows" in names


def tables(seed: int, partition: int) -> Iterator[dict[str, list[int]] | None]:
    """A few records at a time, out of order: some are late."""
    random = Random(f"{seed}, {partition}")
    for at in range(TABLES):
        rows = range(random.randrange(6))
        times = [max(0, at * 3 + random.randrange(-4, 4)) for _ in rows]
        numbers = [random.randrange(1, 10_000) for _ in rows]
        yield {"time": times, "k": [n % 4 for n in numbers], "n": numbers} if times else None


def sources(seed: int) -> dict[str, Batches]:
    return {
        name: Batches(lambda p, _, first=first: tables(seed, first + p), PARTITIONS)  # type: ignore[misc]
        for name, first in (("left", 0), ("right", 10))
    }


def counted(table: pa.Table) -> Rows:
    names = table.column_names
    rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return Counter((row[0], *sorted(zip(names, row, strict=True))) for row in rows)


def undisturbed(flow: jt.Flow, seed: int) -> tuple[dict[str, Rows], int]:
    """The rows and the number of late records without any breakpoint."""
    with flow.open() as run:
        run.attach(0, feed=WorkerSources(run.agents[0], sources(seed), planned(sources(seed))))
        while run.turn():
            pass
        result = run.finish()
    return {name: counted(table) for name, table in result.items()}, sum(result.late.values())


# The query


class Ended(Exception):
    """The query has ended before it could answer."""


class Recorded:
    """The way of rows to the sinks, with a look at them."""

    is_full = False
    waits_for = ""

    def __init__(self, writer: CheckpointWriter, rows: dict[str, Rows]) -> None:
        self.uncommitted = writer.uncommitted
        self.taken = writer.taken
        self.poll = writer.poll
        self.finish = writer.finish
        self._writer = writer
        self._rows = rows

    def write(self, output: str, table: pa.Table) -> None:
        self._rows[output] += counted(table)
        self._writer.write(output, table)


@dataclass
class PausedQuery:
    """A query that is paused, stepped, checkpointed, restarted and resumed at random."""

    seed: int
    random: Random = field(init=False)
    committed: dict[str, Rows] = field(default_factory=dict)
    """Rows that a version covers."""
    rows: dict[str, Rows] = field(default_factory=dict)
    """All rows so far, since the beginning."""
    emitted: dict[str, Rows] = field(default_factory=dict)
    """Rows at or after the breakpoint that were there before it was set."""
    facts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.flow, self.moves_on = random_flow(self.random)
        self.expected, self.late = undisturbed(self.flow, self.seed)
        self.disk = Disk()
        self.committed = {name: Counter() for name in self.flow.outputs}

    def run(self) -> None:
        store = Checkpoints("/store", files=SimulatedFiles(self.disk))
        sinks = {name: Callback(lambda table: None) for name in self.flow.outputs}
        committer = CheckpointCommitter(
            self.flow, store, sinks, lambda seconds: False, every=None, keep=2, allow_removed=()
        )
        at: steering.At | None = None
        lives = self.random.choice([1, 1, 2, 3])
        for life in range(lives):
            self.workers = self.random.choice([1, 2, 3])
            attempt = Attempt(self, committer, at)
            at = attempt.live(dies=life < lives - 1)
        assert self.rows == self.expected, "the rows of an undisturbed run"
        if lives == 1:
            assert attempt.late == self.late
            self.facts["late"] += self.late


class Attempt:
    """The workers of a query, from a restore point to its end, or to a version that goes on."""

    def __init__(
        self, query: PausedQuery, committer: CheckpointCommitter, at: steering.At | None
    ) -> None:
        self.query, self.random, self.facts = query, query.random, query.facts
        self.committer = committer
        restore_point = committer.recover()
        share = None
        if restore_point.version is not None:
            share = restore_point.store.load(restore_point.version).share(0, 1)
        workers, seed = query.workers, self.random.randrange(1 << 30)
        query.rows = {name: Counter(rows) for name, rows in query.committed.items()}
        self.coordinator = Coordinator(workers=workers)
        # As a query that is started again: its workers are paused before they read.
        goes_on = at if at is not None and self.random.random() < 0.5 else None
        self.steering = Steering(self.coordinator, goes_on)
        self.world = Run(query.flow, workers=workers, seed=seed, check=seed % 4 == 0, restore=share)
        self.schedule = CheckpointSchedule(
            self.coordinator,
            committer,
            restore_point,
            clock=lambda: self.world.now,
            background=False,
        )
        self.ends = [self.attach(restore_point, worker) for worker in range(workers)]
        self.restored_paused = goes_on is not None
        if goes_on is not None:
            self.facts["restored while paused"] += 1
            for agent in self.world.agents:
                agent.breakpoints.pause_again(goes_on.time)

    def attach(self, restore_point: RestorePoint, worker: int) -> End:
        run, query = self.world, self.query
        agent = run.agents[worker]
        here, there = End(), End()
        here.other, there.other = there, here
        self.coordinator.join(worker, here)
        staged = {name: rows_writer(restore_point, worker) for name in query.flow.outputs}
        writer = CheckpointWriter.of(restore_point, agent, there, staged, background=False)
        run.attach(
            worker,
            feed=WorkerSources(
                agent,
                sources(query.seed),
                planned(sources(query.seed), query.workers, restore_point.positions),
                lambda: run.now,
            ),
            sink=OutputSink(agent, query.flow.outputs, Recorded(writer, query.rows)),
            driver=there,
            parts=writer,
        )
        return here

    @property
    def late(self) -> int:
        run = self.world
        return sum(run.results().late.values())

    def live(self, *, dies: bool) -> steering.At | None:
        """Pause, step and resume a few times; returns where the breakpoint is at the end."""
        with self.world:
            for _ in range(self.random.randrange(60)):
                self.act()
            try:
                if self.disturb(dies):
                    return self.steering.at
                if self.steering.at is not None:
                    self.ask(steering.resuming())
            except Ended:
                # If all inputs had ended before, nothing keeps a restarted query from its end.
                assert self.restored_paused
            self.run_until(lambda: self.is_over)
            while self.hear() or self.schedule.poll():
                pass
        self.query.committed = {name: Counter(rows) for name, rows in self.query.rows.items()}
        return None

    def disturb(self, dies: bool) -> bool:
        """Returns whether it is to go on from a checkpoint."""
        random = self.random
        for _ in range(random.randint(1, 3)):
            if self.steering.at is None:
                time = random.choice([None, random.randrange(-2, LAST + 6)])
                try:
                    if not self.pause(time):
                        continue
                except Ended:
                    return False
            self.rest()
            if random.random() < 0.5:
                self.checkpoint()
            for _ in range(random.randrange(4)):
                self.step()
                if random.random() < 0.7:
                    self.rest()
            if dies:
                self.rest()
                self.checkpoint()
                return True
            self.ask(steering.resuming())
            for _ in range(random.randrange(200)):
                self.act()
        return False

    def pause(self, time: int | None) -> bool:
        """Whether the time had not passed yet."""
        before = {name: Counter(rows) for name, rows in self.query.rows.items()}
        try:
            at = self.ask(steering.pausing(time)).time
        except jt.errors.JetonError as error:
            if "all inputs have ended" in str(error):
                return False
            if not isinstance(error, TimeError) or "has passed" not in str(error):
                raise
            assert all(agent.breakpoints.at is None for agent in self.world.agents)
            self.facts["passed"] += 1
            return False
        assert time is None or at == time
        if not self.query.moves_on:
            # Inputs that have ended let all windows close, also those of later times.
            known = [agent.frontiers() for agent in self.world.agents]
            still_open = [name for name in before if all(each[name] for each in known)]
            assert not any(row[0] >= at for name in still_open for row in before[name])
        self.query.emitted = {
            name: Counter({row: n for row, n in rows.items() if row[0] >= at})
            for name, rows in self.query.rows.items()
        }
        self.facts["paused"] += 1
        return True

    def step(self) -> None:
        assert self.steering.at is not None
        before = self.steering.at.time
        until = self.random.choice([None, before + self.random.randrange(8)])
        try:
            at = self.ask(steering.stepping(until)).time
        except jt.errors.GraphError as error:
            if "nothing is held back" not in str(error):
                raise
        else:
            assert at > before if until is None else at == until
            self.facts["stepped"] += 1

    def rest(self) -> None:
        """Come to rest, and look at what was emitted."""
        assert self.steering.at is not None
        at = self.steering.at.time
        for _ in range(STEPS // 10):
            if self.ask(steering.resting()):
                break
            for _ in range(20):
                self.act()
        else:
            raise AssertionError("it does not come to rest")
        assert {agent.breakpoints.at for agent in self.world.agents} == {at}
        for name, rows in self.query.rows.items():
            after = Counter({row: n for row, n in rows.items() if row[0] >= at})
            known = self.query.emitted.get(name, Counter())
            assert not after - known, f"{name} has emitted rows at or after {at}"
            before = Counter({row: n for row, n in rows.items() if row[0] < at})
            expected = self.query.expected[name]
            expected = Counter({row: n for row, n in expected.items() if row[0] < at})
            assert before == expected, f"{name} has emitted everything before {at}"
        held = self.ask(steering.messages())
        self.facts["held"] += sum(held.column("rows").to_pylist())
        self.facts["rested"] += 1

    def checkpoint(self) -> None:
        wanted = self.schedule.want()
        self.run_until(lambda: (self.committer.version or 0) >= wanted)
        # The flow rests: nothing was emitted since.
        self.query.committed = {name: Counter(rows) for name, rows in self.query.rows.items()}
        self.facts["checkpoints"] += 1

    # Inside

    def ask(self, protocol: steering.Protocol[Any]) -> Any:
        request: Request[Any] = self.steering.ask(protocol)
        self.run_until(lambda: request.done.is_set() or self.is_over)
        if not request.done.is_set():
            raise Ended
        return request.result()

    @property
    def is_over(self) -> bool:
        over = all(agent.is_over for agent in self.world.agents)
        return over and not any(end.inbox for end in self.ends)

    def run_until(self, reached: Any) -> None:
        for _ in range(STEPS):
            if reached():
                return
            self.act()
        raise AssertionError("it is stuck")

    def act(self) -> None:
        """Let the workers, the network or the driver do something."""
        choice = self.random.random()
        self.world.now += self.random.expovariate(30.0)
        if choice < 0.15:
            self.hear()
        elif choice < 0.2:
            self.schedule.poll()
        else:
            self.world.turn()

    def hear(self) -> bool:
        ready = [worker for worker, end in enumerate(self.ends) if end.inbox]
        if not ready:
            return False
        worker = self.random.choice(ready)
        header, payload = self.ends[worker].inbox.popleft()
        if header["kind"] in ("steered", "matched"):
            self.steering.hear(worker, header, payload)
        elif header["kind"] != "report":
            self.schedule.hear(worker, header)
        return True


def campaign(seeds: Iterable[int]) -> Counter[str]:
    facts: Counter[str] = Counter()
    for seed in seeds:
        query = PausedQuery(seed)
        try:
            query.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        facts += query.facts
    return facts


def test_a_paused_query_gives_the_rows_of_an_undisturbed_one() -> None:
    # In 67, an input that goes on from a checkpoint reads records earlier than those it holds.
    facts = campaign([*range(25), 67])
    for fact in ("paused", "passed", "stepped", "rested", "held", "checkpoints", "late"):
        assert facts[fact] > 0, facts
    assert facts["restored while paused"] > 0, facts


@pytest.mark.long
@pytest.mark.parametrize("start", range(0, 200, 50))
def test_two_hundred_seeds(start: int) -> None:
    facts = campaign(range(start, start + 50))
    print(dict(facts))
    assert facts["restored while paused"] > 0
