"""Partitions of long-lived sources: each with its own floor, idle or not, wherever it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jeton as jt
from jeton.connectors.source_plan import share
from jeton.connectors.source_reader import SourceReader
from jeton.connectors.sources import Batches
from jeton.core.times import START_OF_TIME
from jeton.runtime.agent import Agent
from tests.helpers import planned

Make = Callable[[int, int], Iterable[Any]]


def flow_of(lateness: int | None = 10, idle_after: float | None = None) -> jt.Flow:
    flow = jt.Flow("fed")
    flow.output("out", flow.input("n", lateness=lateness, idle_after=idle_after))
    return flow


class Fed:
    """One worker's end of an input, and the feed that reads for it, by a clock set by hand."""

    def __init__(
        self,
        flow: jt.Flow,
        make: Make,
        partitions: int,
        known: Any = None,
        at: tuple[int, int] = (0, 1),
    ) -> None:
        self.now = 0.0
        agent = Agent(flow)
        self.handle = agent.worker.handles[flow.handle("input", "n")]
        source = Batches(make, partitions)
        mine = share(planned({"n": source}, at[1], {"n": known or {}})["n"], *at)
        self.feed = SourceReader("n", self.handle, source, mine, clock=lambda: self.now)

    def read(self, times: int) -> None:
        for _ in range(times):
            self.feed.read()


def steady(partition: int, partitions: int) -> Iterator[Any]:
    """Partition 1 is far behind partition 0; both are out of order by less than 10."""
    for at in range(30):
        base = 100 * at + 1_000_000 * (1 - partition)
        yield {"time": [base + 9, base, base + 5]}


def test_two_partitions_on_one_worker_lose_nothing() -> None:
    fed = Fed(flow_of(), steady, 2)
    fed.read(30)
    assert fed.handle.sent_count == 180
    assert fed.handle.late_count == 0
    assert fed.handle.time == 2909 - 10


def test_floors_move_with_their_partitions() -> None:
    flow = flow_of()
    before = Fed(flow, steady, 2)
    before.read(10)
    positions = before.feed.positions()
    assert {n: at["floor"] for n, at in positions.items()} == {"0/2": 1_000_899, "1/2": 899}
    after = [Fed(flow, steady, 2, positions, (worker, 2)) for worker in (0, 1)]
    for fed in after:
        fed.read(20)
    assert [fed.handle.time for fed in after] == [1_002_899, 2_899]
    assert [fed.handle.late_count for fed in after] == [0, 0]
    together = Fed(flow, steady, 2, positions)
    together.feed.read()
    assert together.handle.time == 999


def test_a_record_below_the_floor_before_a_restart_is_late_after_it() -> None:
    def make(partition: int, partitions: int) -> Iterator[Any]:
        yield {"time": [100]}
        yield {"time": [89, 90]}

    flow = flow_of()
    before = Fed(flow, make, 1)
    before.feed.read()
    after = Fed(flow, make, 1, before.feed.positions())
    after.feed.read()
    assert after.handle.late_count == 1


def test_checkpoints_without_floors_are_read() -> None:
    old = {"0/1": {"position": 10, "ended": False, "time": 42}}
    fed = Fed(flow_of(), steady, 1, old)
    assert fed.feed.positions()["0/1"]["floor"] == 42
    fed.feed.read()
    assert fed.handle.time == 1_001_009 - 10


def quiet(partition: int, partitions: int) -> Iterator[Any]:
    """Partition 0 goes on, partition 1 has nothing after its first record for ten rounds."""
    yield {"time": [50]}
    for at in range(10):
        yield None if partition else {"time": [100 + 10 * at]}
    yield {"time": [60, 300]}


def test_an_idle_partition_is_left_aside_and_waited_for_again() -> None:
    fed = Fed(flow_of(0, idle_after=5.0), quiet, 2)
    fed.read(4)
    assert fed.handle.time == 50
    fed.now = 4.9
    fed.read(1)
    assert fed.handle.time == 50
    fed.now = 5.0
    fed.read(1)
    assert fed.handle.time == 140
    fed.read(5)
    assert fed.handle.time == 190
    # Its floor was 50, but the input has passed 60.
    fed.read(1)
    assert fed.handle.late_count == 2
    assert fed.handle.time == 300


def test_an_idle_partition_is_idle_after_a_restart() -> None:
    fed = Fed(flow_of(0, idle_after=5.0), quiet, 2)
    fed.read(1)
    fed.now = 6.0
    fed.read(1)
    positions = fed.feed.positions()
    assert [positions[number]["idle"] for number in ("0/2", "1/2")] == [False, True]
    after = Fed(flow_of(0, idle_after=5.0), quiet, 2, positions)
    after.read(1)
    # It does not wait five more seconds for a partition that was quiet before.
    assert (fed.handle.time, after.handle.time) == (100, 110)
    del positions["1/2"]["idle"]  # as in checkpoints of earlier versions
    earlier = Fed(flow_of(0, idle_after=5.0), quiet, 2, positions)
    earlier.read(1)
    assert earlier.handle.time == 50


def test_without_a_limit_a_partition_is_waited_for_indefinitely() -> None:
    fed = Fed(flow_of(0), quiet, 2)
    fed.now = 1e9
    fed.read(11)
    assert fed.handle.time == 50
    fed.read(1)
    assert fed.handle.late_count == 1  # partition 0 itself goes back from 190 to 60


def test_all_idle_follows_other_workers_until_it_wakes_up() -> None:
    def make(partition: int, partitions: int) -> Iterator[Any]:
        yield None
        yield None
        yield {"time": [69, 71]}

    fed = Fed(flow_of(0, idle_after=1.0), make, 1)
    fed.feed.read()
    assert fed.feed.state == (START_OF_TIME, False)
    fed.feed.follow(70)
    assert fed.handle.time == START_OF_TIME
    fed.now = 1.0
    fed.feed.read()
    assert fed.feed.state == (START_OF_TIME, True)
    fed.feed.follow(70)
    assert fed.feed.state == (70, True)
    fed.feed.read()
    assert fed.feed.state == (71, False)
    assert fed.handle.late_count == 1


def test_a_worker_without_partitions_holds_nobody_back() -> None:
    fed = Fed(flow_of(), steady, 1, at=(1, 2))
    assert fed.handle.closed
