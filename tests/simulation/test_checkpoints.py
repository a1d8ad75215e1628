"""Checkpoints, crashes and restarts under random schedules: every row arrives exactly once.

All that a long-lived query does runs here in one thread: its agents over a simulated network, with
a simulated connection to the driver each; the driver's coordinator, committer and deliveries; and a
simulated store. At random moments a checkpoint is asked for, a worker or the driver crashes, also
in the middle of an operation on the store, and another number of workers goes on from the last
version that was committed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.helpers import planned, rows_writer

import jeton as jt
from jeton.cluster.checkpoint_committer import CheckpointCommitter
from jeton.cluster.checkpoint_writer import CheckpointWriter, RestorePoint
from jeton.cluster.coordinator import REST_PATIENCE, CheckpointSchedule, Coordinator
from jeton.cluster.worker_io import OutputSink, WorkerSources
from jeton.connectors.sinks import Callback, Delivery
from jeton.connectors.sources import Batches
from jeton.runtime.in_process import Run
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.files import Files
from jeton.storage.store import FileInfo

PARTITIONS = 3
TABLES = 30
"""Tables of each partition."""
STEPS = 200_000
"""Steps after which a run counts as stuck."""


class Crashed(BaseException):
    """A process has died."""


@dataclass
class Disk:
    """The store that survives, and when the process that uses it dies."""

    files: dict[str, bytes] = field(default_factory=dict)
    left: int = -1
    """Operations until a crash, if it is not negative."""

    crashed: bool = False

    def operate(self) -> None:
        self.crashed = self.left == 0
        if self.crashed:
            raise Crashed
        self.left -= 1


class SimulatedFiles(Files):
    """Files in memory, where an operation may be the last one."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.root = PurePosixPath("/store")

    def names(self, folder: PurePosixPath) -> list[str]:
        self.disk.operate()
        return [PurePosixPath(p).name for p in self.disk.files if PurePosixPath(p).parent == folder]

    def info(self, path: PurePosixPath) -> FileInfo | None:
        self.disk.operate()
        found = self.disk.files.get(str(path))
        return None if found is None else FileInfo(len(found))

    def read(self, path: PurePosixPath) -> bytes:
        self.disk.operate()
        try:
            return self.disk.files[str(path)]
        except KeyError:
            raise FileNotFoundError(str(path)) from None

    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        return pa.py_buffer(self.read(path)[start : start + size])

    def write(self, path: PurePosixPath, buffers: Sequence[Any]) -> None:
        self.disk.operate()
        self.disk.files[str(path)] = b"".join(bytes(buffer) for buffer in buffers)

    def put(self, path: PurePosixPath, data: bytes) -> None:
        self.disk.operate()
        if str(path) in self.disk.files:
            raise FileExistsError(str(path))
        self.disk.files[str(path)] = data

    def delete(self, path: PurePosixPath) -> None:
        self.disk.operate()
        self.disk.files.pop(str(path), None)


class End:
    """One end of a simulated connection: what is sent arrives as it would from a socket."""

    def __init__(self) -> None:
        self.inbox: deque[dict[str, Any]] = deque()
        self.other = self

    def send(self, kind: str, payload: bytes = b"", **header: Any) -> None:
        self.other.inbox.append(json.loads(json.dumps({"kind": kind, **header})))

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        return self.inbox.popleft(), b""

    def has_news(self, timeout: float = 0.0) -> bool:
        return bool(self.inbox)

    def close(self) -> None:
        pass


class Unsteady(End):
    """An end whose frames of some kinds arrive a random number of times."""

    def __init__(self, random: Random, kinds: Sequence[str], times: Sequence[int]) -> None:
        super().__init__()
        self.random, self.kinds, self.times = random, kinds, times
        self.faults = 0

    def send(self, kind: str, payload: bytes = b"", **header: Any) -> None:
        times = self.random.choice(self.times) if kind in self.kinds else 1
        self.faults += times != 1
        for _ in range(times):
            super().send(kind, payload, **header)


def connection(here: End | None = None, there: End | None = None) -> tuple[End, End]:
    here, there = here or End(), there or End()
    here.other, there.other = there, here
    return here, there


def flow_with_state() -> jt.Flow:
    flow = jt.Flow("sums")
    keyed = flow.input("numbers", lateness=3).key_by("k")
    flow.output("sums", keyed.tumbling(8).sum("n"))
    flow.output("sessions", keyed.session_window(2).count())
    return flow


def tables(partition: int) -> Iterator[dict[str, list[int]]]:
    """A few records at a time, out of order by no more than the lateness."""
    random = Random(partition)
    for at in range(TABLES):
        rows = range(random.randrange(1, 6))
        times = [at * 3 + random.randrange(3) for _ in rows]
        yield {
            "time": times,
            "k": [random.randrange(5) for _ in rows],
            "n": [random.randrange(100) for _ in rows],
        }


SOURCE = Batches(lambda partition, partitions: tables(partition), PARTITIONS)


@dataclass
class Query:
    """One query: all its attempts, and the rows that its sinks at the driver have taken."""

    random: Random
    flow: jt.Flow = field(default_factory=flow_with_state)
    disk: Disk = field(default_factory=Disk)
    took: dict[tuple[str, int, int], list[Any]] = field(default_factory=dict)
    crashes: int = 0
    restored: int = 0
    checkpoints: int = 0
    missed: int = 0

    def __post_init__(self) -> None:
        self.hurry = self.random.choice([0.0, 0.001, 0.02])
        """How often the clock jumps, while workers come to rest."""

    def run(self) -> None:
        """Go from one attempt to the next until one comes to the end."""
        committer: CheckpointCommitter | None = None
        left = self.random.randint(2, 8)
        while True:
            dies = left > 0
            left -= 1
            in_store = dies and self.random.random() < 0.4
            self.disk.left = self.random.randrange(120) if in_store else -1
            self.disk.crashed = False
            try:
                if committer is None:
                    committer = self.driver()
                self.attempt(committer, dies)
            except (Crashed, jt.errors.OperatorFailed) as error:
                # A sink is blamed for what happens in the store while it stages rows.
                if not isinstance(error, Crashed) and not self.disk.crashed:
                    raise
                self.crashes += 1
                if self.disk.crashed or self.random.random() < 0.5:
                    committer = None
            else:
                return

    def driver(self) -> CheckpointCommitter:
        sinks = {name: Callback(self.taker(name), delivery=True) for name in self.flow.outputs}
        store = Checkpoints("/store", files=SimulatedFiles(self.disk))
        rules: dict[str, Any] = {"every": None, "keep": 2, "allow_removed": ()}
        return CheckpointCommitter(self.flow, store, sinks, lambda seconds: False, **rules)

    def taker(self, output: str) -> Any:
        def take(table: pa.Table, delivery: Delivery) -> None:
            assert delivery.version is not None
            rows = table.to_pylist()
            known = self.took.setdefault((output, delivery.version, delivery.number), rows)
            assert known == rows, "what is delivered again is the same"

        return take

    def begin(self, committer: CheckpointCommitter) -> tuple[Run, CheckpointSchedule, list[End]]:
        """Begin an attempt: its workers, and the driver's part in it."""
        random = self.random
        restore_point = committer.recover()
        workers = random.choice([1, 2, 3, 4])
        share = None
        if restore_point.version is not None:
            self.restored += 1
            share = restore_point.store.load(restore_point.version).share(0, 1)
        coordinator = Coordinator(workers=workers)
        # To check every frontier at every step takes most of the time.
        seed = random.randrange(1 << 30)
        run = Run(self.flow, workers=workers, seed=seed, check=seed % 8 == 0, restore=share)
        schedule = CheckpointSchedule(
            coordinator, committer, restore_point, clock=lambda: run.now, background=False
        )
        ends = [self.attach(run, restore_point, worker, coordinator) for worker in range(workers)]
        return run, schedule, ends

    def attempt(self, committer: CheckpointCommitter, dies: bool) -> None:
        run, schedule, ends = self.begin(committer)
        steps = self.random.randrange(1, 1200) if dies else STEPS
        with run:
            for _ in range(steps):
                if all(agent.is_over for agent in run.agents):
                    break
                self.act(run, schedule, ends)
            else:
                assert dies, "it is stuck"
                raise Crashed
            # The driver commits what all workers have written, also when they have left.
            while self.hear(schedule, ends) or schedule.poll():
                pass
        assert committer.version is not None

    def connect(self) -> tuple[End, End]:
        """The connection to a worker: the driver's end, and the worker's."""
        return connection()

    def attach(
        self, run: Run, restore_point: RestorePoint, worker: int, coordinator: Coordinator
    ) -> End:
        agent = run.agents[worker]
        here, there = self.connect()
        coordinator.join(worker, here)
        staged = {name: rows_writer(restore_point, worker) for name in self.flow.outputs}
        writer = CheckpointWriter.of(restore_point, agent, there, staged, background=False)
        run.attach(
            worker,
            feed=WorkerSources(
                agent,
                {"numbers": SOURCE},
                planned({"numbers": SOURCE}, len(run.agents), restore_point.positions),
                lambda: run.now,
            ),
            sink=OutputSink(agent, self.flow.outputs, writer),
            driver=there,
            parts=writer,
        )
        return here

    def act(self, run: Run, schedule: CheckpointSchedule, ends: list[End]) -> None:
        """Let the workers, the network or the driver do something."""
        choice = self.random.random()
        run.now += self.random.expovariate(30.0)
        if self.random.random() < self.hurry:
            # Workers that are not at rest yet give up.
            run.now += REST_PATIENCE
        if choice < 0.15:
            self.hear(schedule, ends)
        elif choice < 0.25:
            self.checkpoints += schedule.poll()
        elif choice < 0.28:
            schedule.want()
        else:
            run.turn()

    def hear(self, schedule: CheckpointSchedule, ends: list[End]) -> bool:
        """Have the driver hear one frame of one worker."""
        ready = [worker for worker, end in enumerate(ends) if end.inbox]
        if not ready:
            return False
        worker = self.random.choice(ready)
        header = ends[worker].inbox.popleft()
        self.missed += header["kind"] == "missed"
        if header["kind"] != "report":
            schedule.hear(worker, header)
        return True

    def rows(self, output: str) -> list[Any]:
        """All rows that were taken, each table once."""
        taken = (rows for (name, *_), rows in self.took.items() if name == output)
        return in_order(row for rows in taken for row in rows)


def in_order(rows: Any) -> list[Any]:
    return sorted(tuple(row.items()) for row in rows)


def undisturbed(flow: jt.Flow) -> dict[str, list[Any]]:
    whole: dict[str, list[int]] = {"time": [], "k": [], "n": []}
    for partition in range(PARTITIONS):
        for table in tables(partition):
            for name, values in table.items():
                whole[name] += values
    result = flow.run({"numbers": whole})
    return {name: in_order(table.to_pylist()) for name, table in result.items()}


EXPECTED = undisturbed(flow_with_state())


@pytest.mark.parametrize("start", range(0, 40, 20))
def test_every_row_arrives_once_whatever_crashes(start: int) -> None:
    crashes = restored = missed = 0
    for seed in range(start, start + 20):
        query = Query(Random(seed))
        query.run()
        for output, rows in EXPECTED.items():
            assert query.rows(output) == rows, f"seed {seed}"
        crashes += query.crashes
        restored += query.restored
        missed += query.missed
    assert crashes > 10
    assert restored > 3, "some attempts go on from a version"
    assert missed > 3, "some versions are given up"


@dataclass
class Disturbed(Query):
    """A query whose commands and answers are lost, or arrive more than once."""

    commands: Sequence[int] = (1,)
    """How many times commands may arrive."""
    answers: Sequence[int] = (1,)
    ends: list[Unsteady] = field(default_factory=list)

    def connect(self) -> tuple[End, End]:
        here = Unsteady(self.random, ("checkpoint", "stop"), self.commands)
        if 0 in self.commands:
            here.kinds = ("checkpoint",)
        there = Unsteady(self.random, ("complete", "missed", "part"), self.answers)
        self.ends += [here, there]
        return connection(here, there)


@pytest.mark.parametrize(
    "times",
    [{"commands": (1, 2, 3)}, {"commands": (0, 1, 1, 1)}, {"answers": (1, 2, 3)}],
    ids=["doubled commands", "lost commands", "doubled answers"],
)
def test_frames_that_are_lost_or_come_twice_change_nothing(times: dict[str, Any]) -> None:
    faults = 0
    for seed in range(4):
        query = Disturbed(Random(seed), **times)
        query.run()
        for output, rows in EXPECTED.items():
            assert query.rows(output) == rows, f"seed {seed}"
        faults += sum(end.faults for end in query.ends)
    assert faults > 10


def test_one_request_makes_one_version() -> None:
    query = Query(Random(3))
    query.hurry = 0.0
    committer = query.driver()
    run, schedule, ends = query.begin(committer)

    with run:
        for _ in range(3):
            wanted = schedule.want()
            while committer.version != wanted:
                run.now += 0.01
                if not (query.hear(schedule, ends) or schedule.poll()):
                    run.turn()
            run.now += 60.0
            assert not schedule.poll(), "no more than one was asked for"
