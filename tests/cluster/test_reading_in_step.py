"""Partitions are read in step where results wait for times, but not for one that stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.cluster import worker_io
from jeton.cluster.worker_io import LEAD_PATIENCE, WorkerSources
from jeton.connectors.sources import Batches
from jeton.dataflow.plan import answers_at_once
from jeton.runtime.read_ahead import ReadAhead
from tests.helpers import dropping, planned

ROWS = 50
LEAD = 4 * ROWS * 16
"""Four batches."""
Make = Callable[[int, int], Iterator[Any]]


@pytest.fixture(autouse=True)
def _lead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_io, "LEAD", LEAD)


def batch(number: int, key: int = 0) -> jt.Batch:
    """Fifty records of a key, at times of their own."""
    times = np.arange(number * ROWS, (number + 1) * ROWS)
    return jt.Batch({"key": np.full(ROWS, key)}, times)


def windows(lateness: int | None = 0) -> jt.Flow:
    flow = jt.Flow("counts")
    rows = flow.input("rows", lateness=lateness, schema={"key": int})
    flow.output("counts", rows.key_by("key").tumbling(100).count())
    return flow


def attach(run: jt.Run, make: Make, partitions: int, clock: Callable[[], float]) -> None:
    source = {"rows": Batches(make, partitions)}
    plan = planned(source, len(run.agents))
    for worker, agent in enumerate(run.agents):
        run.attach(worker, feed=WorkerSources(agent, source, plan, clock))


def slow(partition: int, partitions: int) -> Iterator[Any]:
    """Forty batches; the second partition has one every fifth time only."""
    for number in range(40):
        if partition == 1:
            yield from [None] * 4
        yield batch(number, partition)


def sent(run: jt.Run) -> list[int]:
    return [run.input("rows", worker).sent_count for worker in range(len(run.agents))]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_partition_waits_for_a_slower_one(workers: int) -> None:
    """The clock stands still: the slower one alone lets the other go on."""
    ahead = 0
    with windows().open(workers=workers, seed=1) as run:
        attach(run, slow, 2, lambda: 0.0)
        while any(not agent.feed.ended for agent in run.agents):
            run.turn()
            floors = [
                partition["floor"]
                for agent in run.agents
                for partition in agent.feed.positions()["rows"].values()
                if not partition["ended"]
            ]
            if len(floors) == 2 and min(floors) >= 0:
                ahead = max(ahead, max(floors) - min(floors))
        result = run.finish()
    # A batch that was begun is read whole, and what others have read is heard of a little later.
    assert 3 * ROWS <= ahead <= 6 * ROWS
    assert result["counts"].num_rows == 2 * 20
    assert not any(result.late.values())


def test_a_partition_that_stands_still_holds_no_other_back_for_long() -> None:
    now = 0.0

    def make(partition: int, partitions: int) -> Iterator[Any]:
        yield batch(0, partition)
        while partition == 1 and sent(run)[0] < 20 * ROWS:
            yield None
        for number in range(1, 20):
            yield batch(number, partition)

    with windows().open(workers=2) as run:
        attach(run, make, 2, lambda: now)
        for _ in range(100):
            run.turn()
        waits = sent(run)[0]
        assert waits <= 6 * ROWS
        now += LEAD_PATIENCE / 2
        for _ in range(100):
            run.turn()
        assert sent(run)[0] == waits
        now += LEAD_PATIENCE
        while any(not agent.feed.ended for agent in run.agents):
            run.turn()
            now += LEAD_PATIENCE
        result = run.finish()
    assert sum(result["counts"]["count"].to_pylist()) == 2 * 20 * ROWS


def test_a_partition_that_creeps_does_not_hold_the_others_for_long() -> None:
    now = 0.0

    def make(partition: int, partitions: int) -> Iterator[Any]:
        if partition == 1:
            # It advances all the time, by less than the others read at once.
            for at in range(2_000):
                yield jt.Batch({"key": [1]}, times=[at])
        else:
            for number in range(1, 40):
                yield batch(number, partition)

    with windows().open(workers=2) as run:
        attach(run, make, 2, lambda: now)
        turns = 0
        while not run.agents[0].feed.ended:
            run.turn()
            now += LEAD_PATIENCE / 10
            turns += 1
        # Each time it waits it may read twice as far.
        assert turns < 600
        assert not run.agents[1].feed.ended


def test_results_that_wait_for_no_time_come_at_once() -> None:
    flow = jt.Flow("some")
    rows = flow.input("rows", lateness=0, schema={"key": int})
    flow.output("counts", rows.key_by("key").tumbling(100).count())
    flow.output("rows", rows)
    with flow.open(workers=2) as run:
        attach(
            run, lambda n, _: iter([batch(0), None] if n else map(batch, range(20))), 2, lambda: 0
        )
        for _ in range(100):
            run.turn()
        assert sent(run) == [20 * ROWS, ROWS]


def passing(input: jt.Input, output: jt.Output) -> None:
    for ref, batch in input:
        output.session(ref).give(batch)


WAITING: list[Callable[[jt.Stream], jt.Stream]] = [
    lambda rows: rows.key_by("key").tumbling(5).count(),
    lambda rows: rows.filter(jt.col("key") > 1).key_by("key").sliding(4, every=2).count(),
    lambda rows: rows.key_by("key", combine=True).tumbling(5).count(),
    lambda rows: rows.key_by("key").session_window(5).count(),
    lambda rows: rows.key_by("key").distinct(),
    lambda rows: rows.key_by("key").tumbling(5).count().select("key"),
]
AT_ONCE: list[Callable[[jt.Stream], jt.Stream]] = [
    lambda rows: rows,
    lambda rows: rows.key_by("key").running().count(),
    lambda rows: rows.key_by("key").interval_join(rows.key_by("key"), -1, 1),
    lambda rows: rows.unary_frontier(dropping(passing)),
    lambda rows: rows.unary_frontier(dropping(passing), pact=jt.Pipeline(local_frontier=True)),
    lambda rows: (
        rows.key_by("key").tumbling(5).count().concat(rows.with_columns(count=jt.col("key")))
    ),
]


@pytest.mark.parametrize("at_once", [False, True])
def test_which_flows_answer_at_once(at_once: bool) -> None:
    for add in AT_ONCE if at_once else WAITING:
        flow = jt.Flow("some")
        rows, other = (flow.input(n, schema={"key": int}, lateness=5) for n in ("rows", "other"))
        flow.output("results", add(rows))
        flow.output("late", rows.late)
        flow.output("others", other)
        rows.probe("how far")
        assert answers_at_once(flow.operators, flow.handle("input", "rows")) is at_once
        assert answers_at_once(flow.operators, flow.handle("input", "other"))


def test_an_input_does_not_wait_for_another_one() -> None:
    flow = jt.Flow("two")
    for name, lateness in (("soon", 0), ("late", 10**6)):
        rows = flow.input(name, lateness=lateness, schema={"key": int})
        flow.output(name, rows.key_by("key").tumbling(100).count())

    def make(partition: int, partitions: int) -> Iterator[Any]:
        return map(batch, range(100))

    with flow.open() as run:
        sources = {name: Batches(make, 1) for name in flow.inputs}
        feed = WorkerSources(run.agents[0], sources, planned(sources), lambda: 0.0)
        run.attach(0, feed=feed)
        for _ in range(400):
            run.turn()
        assert [run.input(name).sent_count for name in flow.inputs] == [100 * ROWS, 100 * ROWS]


def test_records_that_come_late_do_not_make_a_partition_wait() -> None:
    """After one record far ahead of all others, the rest of its partition is late."""

    def make(partition: int, partitions: int) -> Iterator[Any]:
        if partition == 0:
            yield jt.Batch({"key": [0]}, [10**9])
        yield from map(batch, range(100))

    with windows().open(seed=1) as run:
        attach(run, make, 2, lambda: 0.0)
        for _ in range(400):
            run.turn()
        assert run.input("rows").late_count == 100 * ROWS
        run.finish()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Slowest:
    """In place of a tracker: the time of the slowest is set by hand."""

    time: int | None = 0

    def least_anywhere(self, location: int) -> tuple[int, ...]:
        return () if self.time is None else (self.time,)


def measure(clock: Clock, slowest: Slowest, **limits: Any) -> ReadAhead:
    tracker: Any = slowest
    return ReadAhead(tracker, 0, **{"most": 100, "patience": 1.0, **limits}, clock=clock)


def test_after_waiting_in_vain_twice_as_much_is_enough() -> None:
    clock, slowest = Clock(), Slowest()
    ahead = measure(clock, slowest)
    waits, at = [], 0
    for _ in range(6400):
        at += 1
        ahead.took(at, 1)
        if ahead.is_enough():
            assert ahead.until == clock.now + 1.0
            waits.append(at)
            clock.now += 1.0
            assert not ahead.is_enough()
            assert ahead.until is None
    assert waits == [100, 200, 400, 800, 1600, 3200, 6400]
    slowest.time = at
    for _ in range(1000):
        clock.now += 1.0
        at += 100
        ahead.took(at, 100)
        if not ahead.is_enough():
            slowest.time = at
            clock.now += 1.0
            assert not ahead.is_enough()
        else:
            return
    raise AssertionError("it does not wait any more")


def test_a_reader_waits_for_the_slowest_as_long_as_its_patience_lasts() -> None:
    clock, slowest = Clock(), Slowest()
    ahead = measure(clock, slowest)
    ahead.took(50, 100)
    for time in range(10):
        slowest.time = time
        assert ahead.is_enough()
        clock.now += 0.09
    slowest.time = 50
    assert not ahead.is_enough()
    ahead.took(60, 100)
    assert ahead.is_enough()
    for time in range(51, 60):
        slowest.time = time
        assert ahead.is_enough() == (clock.now < 1.9)
        clock.now += 0.2
    slowest.time = None
    assert not ahead.is_enough()


def test_a_few_reads_are_never_enough() -> None:
    ahead = measure(Clock(), Slowest(), reads=4)
    for at in range(1, 4):
        ahead.took(at, 1000)
        assert not ahead.is_enough()
    ahead.took(4, 1000)
    assert ahead.is_enough()


@given(st.lists(st.integers(0, 50), max_size=300), st.integers(1, 8))
def test_few_reads_are_noted_and_no_byte_is_lost(sizes: list[int], reads: int) -> None:
    slowest = Slowest()
    ahead = measure(Clock(), slowest, most=1, reads=reads)
    for at, size in enumerate(sizes, 1):
        ahead.took(at, size)
    assert len(ahead._read) <= 150 + reads
    assert ahead._bytes == sum(size for _, size in ahead._read) == sum(sizes)
    slowest.time = len(sizes)
    ahead.is_enough()
    assert not ahead._read or sum(sizes) == 0 or len(ahead._read) < reads


@settings(max_examples=30)
@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(0, 2**32),
    st.sampled_from([None, 0, 70, 10_000]),
)
def test_rows_do_not_depend_on_it(
    workers: int, partitions: int, seed: int, lateness: int | None
) -> None:
    random = np.random.default_rng(seed)
    shares: list[list[Any]] = []
    for partition in range(partitions):
        first, gaps = int(random.integers(0, 30)), random.integers(1, 4, 12)
        numbers = (first + np.cumsum(gaps)).tolist()
        some = [batch(number, partition) for number in numbers]
        shares.append([each for pair in zip(some, [None] * 12, strict=True) for each in pair])
    now = 0.0
    with windows(lateness).open(workers=workers, seed=seed % 1000) as run:
        attach(run, lambda partition, _: iter(shares[partition]), partitions, lambda: now)
        while any(not agent.feed.ended for agent in run.agents):
            run.turn()
            now += LEAD_PATIENCE / 10
        result = run.finish()
    assert sum(result["counts"]["count"].to_pylist()) == partitions * 12 * ROWS
