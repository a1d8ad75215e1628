"""Asynchronous operators: snapshots while calls are under way, and restarts from them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from tests.idioms.asking import Arrivals, Row, Told, numbers

import jeton as jt
from jeton.dataflow.activator import ThreadActivator
from jeton.errors import SnapshotError
from jeton.idioms.map_async import map_async

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def snapshot_with(run: jt.Run, *, answers: int) -> jt.state.Snapshot:
    """A snapshot from the time when that number of answers wait for earlier ones."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        run.run_to_rest()
        snapshot = run.snapshot()
        if snapshot.operators["ask"]["answers 0"].num_rows == answers:
            return snapshot
    raise AssertionError("the answers do not come")


@pytest.mark.parametrize("workers", [1, 3])
def test_calls_under_way_are_asked_again_after_a_restart(workers: int) -> None:
    service = Told()
    service.allow(1, 2, 9)
    flow = jt.Flow("restart")
    seen = Arrivals()
    answers = map_async(flow.input("in"), service.ask, concurrency=5, name="ask")
    flow.output("out", seen.after(answers))
    with flow.open(workers=2) as run:
        ns = [9, 2, 1, 8, 3, 4, 5, *range(11, 40)]
        run.input("in").send({"time": ns, "n": ns, "bin": ns})
        for worker in range(2):
            run.input("in", worker).advance_to(7)
        snapshot = snapshot_with(run, answers=1)
        assert seen.ns == [1, 2]
    assert 9 in service.asked
    service.allow_all()
    again = len(service.asked)
    with flow.open(workers=workers, restore=snapshot) as run:
        run.finish()
    assert sorted(seen.ns) == sorted(ns)
    assert sorted(service.asked[again:]) == [3, 4, 5, 8, *range(11, 40)]


def test_a_snapshot_takes_in_what_threads_did_after_the_flow_rested() -> None:
    flow, wakes, woken = jt.Flow("woken"), list[ThreadActivator](), list[bool]()

    def waking(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()
        wakes.append(info.activator.for_thread())
        return lambda input, output: woken.append(True)

    flow.output("out", flow.input("in").unary(waking))
    with flow.open() as run:
        run.run_to_rest()
        before = len(woken)
        with wakes[0] as wake:
            wake.activate()
        run.snapshot()
    assert len(woken) == before + 1


def test_inside_a_loop_there_is_no_snapshot_of_calls() -> None:
    service = Told()
    flow = jt.Flow("loop")
    loop = flow.loop()
    rows = flow.input("in").enter(loop)
    flow.output("out", map_async(rows, service.ask).leave())
    with flow.open() as run:
        run.input("in").send(numbers(3))
        run.run_to_rest()
        with pytest.raises(SnapshotError, match="loops at rest"):
            run.snapshot()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_snapshot_has_what_waits_its_turn(workers: int) -> None:
    service = Told()
    flow = jt.Flow("saturated")
    flow.output("out", map_async(flow.input("in"), service.ask, concurrency=2, name="ask"))
    with flow.open() as run:
        for n in range(20):  # messages of their own: many more than calls at a time
            run.input("in").send({"time": [n], "n": [n]})
        run.run_to_rest()
        snapshot = run.snapshot()
    service.allow_all()
    with flow.open(workers=workers, restore=snapshot) as run:
        assert sorted(run.finish()["out"]["n"].to_pylist()) == list(range(20))


class Askers:
    """Knows which workers have asked for each key."""

    def __init__(self) -> None:
        self.service = Told()
        self.of: dict[int, set[str]] = defaultdict(set)

    async def ask(self, row: Row) -> Row:
        answer = await self.service.ask(row)
        self.of[row["user"]].add(threading.current_thread().name)
        return answer


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    "pact",
    [
        jt.Exchange("user"),
        jt.Exchange("name", "user"),
        jt.Exchange(lambda batch: batch["user"] * 7),
        jt.Gather(),
    ],
    ids=["a key", "two keys", "a function", "together"],
)
def test_what_is_asked_again_is_where_the_pact_would_have_it(pact: jt.Pact, workers: int) -> None:
    askers = Askers()
    flow = jt.Flow("placed")
    flow.output("out", map_async(flow.input("in"), askers.ask, pact=pact, concurrency=2))

    def rows(times: range) -> dict[str, Any]:
        users = np.array([n % 5 for n in times])
        names = [f"user {n}" for n in users]
        return {"time": list(times), "n": list(times), "user": users, "name": names}

    with flow.open(workers=2) as run:
        run.input("in").send(rows(range(30)))
        run.run_to_rest()
        snapshot = run.snapshot()
    askers.service.allow_all()
    askers.of.clear()
    with flow.open(workers=workers, restore=snapshot) as run:
        run.input("in").send(rows(range(30, 60)))
        assert sorted(run.finish()["out"]["n"].to_pylist()) == list(range(60))
    assert {user: len(names) for user, names in askers.of.items()} == dict.fromkeys(range(5), 1)
    if isinstance(pact, jt.Gather):
        assert set.union(*askers.of.values()) == {"map_async on worker 0"}


def test_what_waits_for_one_key_is_not_taken_over_by_another() -> None:
    def flow(pact: jt.Pact) -> jt.Flow:
        made = jt.Flow("placed")
        made.output("out", map_async(made.input("in"), Told().ask, pact=pact))
        return made

    with flow(jt.Exchange("n")).open() as run:
        run.input("in").send({"time": [1], "n": [1], "m": [1]})
        run.run_to_rest()
        snapshot = run.snapshot()
    with pytest.raises(SnapshotError, match=r"asked by n.*asked by m"):
        flow(jt.Exchange("m")).open(restore=snapshot)
