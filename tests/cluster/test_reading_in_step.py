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
from jeton.cluster.worker_io import STILL, WorkerSources
from jeton.connectors.sources import Batches
from jeton.dataflow.plan import answers_at_once
from tests.helpers import planned

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
        now += STILL / 2
        for _ in range(100):
            run.turn()
        assert sent(run)[0] == waits
        now += STILL
        while any(not agent.feed.ended for agent in run.agents):
            run.turn()
            now += STILL
        result = run.finish()
    assert sum(result["counts"]["count"].to_pylist()) == 2 * 20 * ROWS


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


def node(flow: jt.Flow, *names: str) -> list[int]:
    return [flow.handle("input", name) for name in names]


def test_which_flows_answer_at_once() -> None:
    flow = jt.Flow("some")
    first = flow.input("first", schema={"key": int}, lateness=5)
    second = flow.input("second", schema={"key": int})
    flow.output("windows", first.filter(jt.col("key") > 1).key_by("key").tumbling(5).count())
    flow.output("late", first.late)
    first.probe("how far")
    assert not answers_at_once(flow.operators, node(flow, "first"))
    flow.output("rows", second.select("key"))
    assert answers_at_once(flow.operators, node(flow, "second"))
    assert answers_at_once(flow.operators, node(flow, "first", "second"))
    flow.output("copy", first)
    assert answers_at_once(flow.operators, node(flow, "first"))


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
            now += STILL / 10
        result = run.finish()
    assert sum(result["counts"]["count"].to_pylist()) == partitions * 12 * ROWS
