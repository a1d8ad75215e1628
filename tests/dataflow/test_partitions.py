"""DESIGN §4, rule 11: lateness belongs to a partition, and an input waits for the slowest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.core.times import START_OF_TIME
from jeton.errors import GraphError, TimeError, TokenError

Sends = list[tuple[int, list[int]]]
"""Partitions and the times of their records, in the order in which they are sent."""


def echo(lateness: int | None = 10) -> jt.Flow:
    flow = jt.Flow("echo")
    numbers = flow.input("n", lateness=lateness)
    flow.output("on time", numbers)
    flow.output("late", numbers.late)
    return flow


@dataclass
class Alone:
    """The twin of a partition, which knows of no other."""

    lateness: int
    floor: int = START_OF_TIME
    late: list[int] = field(default_factory=list)

    def send(self, times: list[int], bound: int = START_OF_TIME) -> None:
        for time in times:
            if time < max(self.floor, bound):
                self.late.append(time)
            self.floor = max(self.floor, time - self.lateness, START_OF_TIME)


def late_rows(result: jt.Result) -> Counter[tuple[int, int]]:
    return Counter((row["p"], row["time"]) for row in result["late"].to_pylist())


def expected(sends: Sends, lateness: int) -> Counter[tuple[int, int]]:
    alone: dict[int, Alone] = {}
    for partition, times in sends:
        alone.setdefault(partition, Alone(lateness)).send(times)
    return Counter((p, time) for p, each in alone.items() for time in each.late)


TIMES = st.one_of(
    st.integers(-60, 60),
    st.sampled_from([START_OF_TIME, START_OF_TIME + 3, jt.END_OF_TIME, jt.END_OF_TIME - 3]),
)
SENDS = st.lists(st.tuples(st.integers(0, 5), st.lists(TIMES, max_size=6)), max_size=14)


def send(run: jt.Run, workers: int, sends: Sends) -> None:
    for partition, times in sends:
        handle = run.input("n", partition % workers).partition(partition)
        handle.send({"time": np.array(times, np.int64), "p": [partition] * len(times)})


def open_all(run: jt.Run, workers: int) -> None:
    for partition in range(6):
        run.input("n", partition % workers).partition(partition)


@settings(max_examples=150)
@given(
    sends=SENDS,
    lateness=st.sampled_from([0, 1, 10, 40, 2**63 - 1]),
    workers=st.integers(1, 4),
    seed=st.none() | st.integers(0, 2**16),
)
def test_each_partition_is_late_by_its_own_records_on_any_number_of_workers(
    sends: Sends, lateness: int, workers: int, seed: int | None
) -> None:
    with echo(lateness).open(workers=workers, seed=seed) as run:
        open_all(run, workers)
        send(run, workers, sends)
        result = run.finish()
    want = expected(sends, lateness)
    assert late_rows(result) == want
    assert result.late == {"n": want.total()}
    everything = Counter((p, time) for p, times in sends for time in times)
    rows = result["on time"].to_pylist()
    assert Counter((row["p"], row["time"]) for row in rows) == everything - want


@settings(max_examples=75)
@given(
    before=SENDS,
    after=SENDS,
    lateness=st.integers(0, 40),
    first=st.integers(1, 4),
    second=st.integers(1, 4),
    third=st.integers(1, 4),
)
def test_partitions_keep_their_floors_when_they_move(
    before: Sends, after: Sends, lateness: int, first: int, second: int, third: int
) -> None:
    flow = echo(lateness)
    found: Counter[tuple[int, int]] = Counter()
    with flow.open(workers=first) as run:
        open_all(run, first)
        send(run, first, before)
        run.run_to_rest()
        found += late_rows(run.results())
        snapshot = run.snapshot()
    # Some are opened again before the next restart, and some are only remembered.
    with flow.open(workers=second, restore=snapshot) as run:
        for partition in (0, 1, 2):
            run.input("n", partition % second).partition(partition)
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=third, restore=snapshot) as run:
        open_all(run, third)
        send(run, third, after)
        found += late_rows(run.finish())
    assert found == expected([*before, *after], lateness)


ACTS = st.lists(
    st.tuples(st.sampled_from(["send", "send", "idle", "close"]), st.integers(0, 3), TIMES),
    max_size=30,
)


@settings(max_examples=150)
@given(acts=ACTS, lateness=st.integers(0, 40))
def test_idle_and_ended_partitions_are_left_aside(
    acts: list[tuple[str, int, int]], lateness: int
) -> None:
    alone = [Alone(lateness) for _ in range(4)]
    state = ["open"] * 4
    bound = START_OF_TIME
    with echo(lateness).open() as run:
        handle = run.input("n")
        partitions = [handle.partition(p) for p in range(4)]
        for act, p, time in acts:
            if state[p] == "closed":
                continue
            if act == "send":
                partitions[p].send({"time": np.array([time]), "p": [p]})
                alone[p].send([time], bound)
                state[p] = "open"
            elif act == "idle":
                partitions[p].mark_idle()
                state[p] = "idle"
            else:
                partitions[p].close()
                state[p] = "closed"
            floors = [each.floor for each, now in zip(alone, state, strict=True) if now == "open"]
            bound = max(bound, min(floors, default=bound))
            assert handle.time == bound
            assert [each.floor for each in partitions] == [each.floor for each in alone]
        result = run.finish()
    assert late_rows(result) == Counter((p, t) for p in range(4) for t in alone[p].late)


def test_two_partitions_on_one_worker_lose_nothing() -> None:
    flow = echo(10)
    with flow.open() as run:
        fast, slow = run.input("n").partition("fast"), run.input("n").partition("slow")
        for at in range(0, 3000, 100):
            fast.send({"time": np.arange(at, at + 100) + 10**6, "p": [0] * 100})
            slow.send({"time": np.arange(at, at + 100), "p": [1] * 100})
        run.run_to_rest()
        assert run.input("n").time == 2999 - 10
        result = run.finish()
    assert result.late == {"n": 0}
    assert result["on time"].num_rows == 6000


@pytest.mark.parametrize("seed", [None, 3])
def test_a_worker_whose_partitions_are_idle_follows_the_others(seed: int | None) -> None:
    flow = jt.Flow("idle")
    flow.output("counts", flow.input("n", lateness=0).key_by().tumbling(10).count())
    with flow.open(workers=4, seed=seed) as run:
        partitions = [run.input("n", worker).partition("p") for worker in range(4)]
        partitions[0].send({"time": [25]})
        partitions[1].send({"time": [3, 40]})
        partitions[2].mark_idle()
        partitions[3].mark_idle()
        run.run_to_rest()
        # Two are idle, and neither waits for the other.
        assert run.results()["counts"]["time"].to_pylist() == [10]
        assert [run.input("n", worker).time for worker in range(4)] == [25, 40, 25, 25]
        partitions[2].send({"time": [24, 26]})
        partitions[0].send({"time": [60]})
        run.run_to_rest()
        # The one that woke up is waited for again; what the input had passed is late.
        assert [run.input("n", worker).time for worker in range(4)] == [60, 40, 26, 26]
        result = run.finish()
    assert result.late == {"n": 1}
    counts = {row["time"]: row["count"] for row in result["counts"].to_pylist()}
    assert counts == {10: 1, 30: 2, 50: 1, 70: 1}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_handle_keeps_its_own_floor_over_a_restart(workers: int) -> None:
    flow = echo(5)
    with flow.open(workers=2) as run:
        run.input("n", 0).send({"time": [100], "p": [0]})
        run.input("n", 1).send({"time": [10], "p": [1]})
        run.run_to_rest()
        snapshot = run.snapshot()
    [state] = snapshot.operators["n"].values()
    before = state.drop_columns(["worker", "floor"])
    earlier = replace(snapshot, operators={**snapshot.operators, "n": {"state": before}})
    # Snapshots of earlier versions have no floors, and on other workers there are other handles.
    for restored, late in ((snapshot, int(workers == 2)), (earlier, 0)):
        with flow.open(workers=workers, restore=restored) as run:
            run.input("n", 0).send({"time": [94, 95], "p": [0, 0]})
            run.input("n", workers - 1).send({"time": [120], "p": [workers - 1]})
            assert run.finish().late == {"n": late}


@pytest.mark.parametrize("workers", [(1, 1), (2, 2), (2, 1), (1, 2)])
@pytest.mark.parametrize("opened_between", [True, False])
def test_an_idle_partition_stays_idle_over_a_restart(
    workers: tuple[int, int], opened_between: bool
) -> None:
    flow = echo(5)

    def both(run: jt.Run, workers: int) -> list[Any]:
        return [run.input("n", p % workers).partition(p) for p in (0, 1)]

    with flow.open(workers=workers[0]) as run:
        busy, idle = both(run, workers[0])
        idle.send({"time": [10], "p": [1]})
        idle.mark_idle()
        busy.send({"time": [100], "p": [0]})
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=1, restore=snapshot) as run:
        if opened_between:
            both(run, 1)
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=workers[1], restore=snapshot) as run:
        busy, idle = both(run, workers[1])
        assert (idle.idle, idle.floor) == (True, 5)
        busy.send({"time": [200], "p": [0]})
        run.run_to_rest()
        assert [run.input("n", worker).time for worker in range(workers[1])] == [195] * workers[1]
        idle.send({"time": [150, 196], "p": [1, 1]})
        assert late_rows(run.finish()) == Counter({(1, 150): 1})


def test_partitions_without_a_lateness_advance_by_hand() -> None:
    with echo(None).open() as run:
        a, b = run.input("n").partition("a"), run.input("n").partition("b")
        a.advance_to(7)
        b.send({"time": [3], "p": [1]})
        assert run.input("n").time == START_OF_TIME
        b.advance_to(5)
        assert run.input("n").time == 5
        a.send({"time": [6], "p": [0]})
        with pytest.raises(TimeError, match="partition 'a' of input 'n' is at 7"):
            a.advance_to(6)
        a.close()
        with pytest.raises(TokenError, match="partition 'a' of input 'n' is closed"):
            a.send({"time": [9], "p": [0]})
        assert late_rows(run.finish()) == Counter({(0, 6): 1})


@settings(max_examples=60)
@given(
    times=st.lists(TIMES, max_size=40),
    lateness=st.sampled_from([0, 5, 2**62]),
    workers=st.integers(1, 4),
    seed=st.none() | st.integers(0, 2**16),
)
def test_nothing_of_a_whole_table_is_late(
    times: list[int], lateness: int, workers: int, seed: int | None
) -> None:
    table = {"time": np.array(times, np.int64), "p": [0] * len(times)}
    result = echo(lateness).run({"n": table}, workers=workers, seed=seed)
    assert result.late == {"n": 0}
    assert result["late"].num_rows == 0
    assert result["on time"]["time"].to_pylist() == sorted(times)


def test_idle_after_must_be_above_zero() -> None:
    with pytest.raises(GraphError, match="idle after 0 seconds"):
        jt.Flow("flow").input("n", lateness=1, idle_after=0)
