"""Inputs that allow for lateness: out of order within the bound is right, later is counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import GraphError
from tests.helpers import seeded


def windows(lateness: int | None) -> jt.Flow:
    flow = jt.Flow("windows")
    readings = flow.input("readings", lateness=lateness)
    flow.output("counts", readings.key_by("key").tumbling(100).count())
    flow.output("late", readings.late)
    return flow


def within(bound: int, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Records in the order of their arrival, each at most ``bound`` after its time."""
    random = np.random.default_rng(seed)
    times = np.sort(random.integers(0, 10 * rows, rows))
    order = np.argsort(times + random.integers(0, bound + 1, rows), kind="stable")
    return {"time": times[order], "key": random.integers(0, 20, rows)[order]}


def counted(table: dict[str, np.ndarray]) -> Counter[tuple[int, int]]:
    ends = (table["time"] // 100 + 1) * 100
    return Counter(zip(ends.tolist(), table["key"].tolist(), strict=True))


def found(result: jt.Result) -> Counter[tuple[int, int]]:
    rows = result["counts"].to_pylist()
    assert len({(row["time"], row["key"]) for row in rows}) == len(rows), "a window emitted twice"
    return Counter({(row["time"], row["key"]): row["count"] for row in rows})


@seeded
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_out_of_order_within_the_bound_nothing_is_late(workers: int, seed: int | None) -> None:
    # What other systems get wrong on two workers, whose clocks follow each partition's data with
    # no frontier across them: some put a fifth to a half of these records aside as late.
    table = within(500, 400)
    result = windows(500).run({"readings": table}, workers=workers, seed=seed)
    assert result.late == {"readings": 0}
    assert result["late"].num_rows == 0
    assert found(result) == counted(table)


def test_two_workers_on_a_larger_scale_and_windows_come_early() -> None:
    table = within(10_000, 20_000)
    flow = windows(10_000)
    with flow.open(workers=2) as run:
        pieces = np.array_split(np.arange(20_000), 200)
        for at, rows in enumerate(pieces):
            run.input("readings", at % 2).send({n: c[rows] for n, c in table.items()})
        run.run_to_rest()
        early = run.results()["counts"]
        # All but the last stretch within the bound is out before the inputs are closed.
        assert early.num_rows > 0.9 * len(counted(table))
        result = run.finish()
    assert result.late == {"readings": 0}
    assert found(result) == counted(table)


@settings(max_examples=100)
@given(
    times=st.lists(st.integers(0, 60), max_size=40),
    lateness=st.integers(0, 30),
    cuts=st.lists(st.integers(1, 10), min_size=1, max_size=10),
)
def test_what_is_late_does_not_depend_on_batches(
    times: list[int], lateness: int, cuts: list[int]
) -> None:
    flow = jt.Flow("late")
    readings = flow.input("n", lateness=lateness)
    flow.output("on time", readings)
    flow.output("late", readings.late)
    on_time: list[int] = []
    late: list[int] = []
    floor = -(2**63)
    for time in times:
        (late if time < floor else on_time).append(time)
        floor = max(floor, time - lateness)
    with flow.open() as run:
        at, turn = 0, 0
        while at < len(times):
            size = cuts[turn % len(cuts)]
            run.input("n").send({"time": times[at : at + size]})
            at, turn = at + size, turn + 1
        assert run.input("n").time == floor
        result = run.finish()
    assert result["on time"]["time"].to_pylist() == sorted(on_time)
    late_rows = result["late"].to_pylist()
    assert sorted(row["time"] for row in late_rows) == sorted(late)
    assert all(row["time"] < floor for row in late_rows)
    assert result.late == {"n": len(late)}


def test_later_than_the_bound_goes_to_the_late_output() -> None:
    flow = windows(50)
    table = {"time": [10, 120, 90, 60, 180, 70, 131], "key": [1] * 7}
    with flow.open() as run:
        run.input("readings").send(table)
        result = run.finish()
    assert result.late == {"readings": 2}
    assert sorted(result["late"]["time"].to_pylist()) == [60, 70]
    counts = {row["time"]: row["count"] for row in result["counts"].to_pylist()}
    assert counts == {100: 2, 200: 3}


def test_an_input_with_a_lateness_goes_on_after_a_restart() -> None:
    flow = windows(50)
    with flow.open(workers=2) as run:
        for worker, times in enumerate(([100, 210], [190])):
            run.input("readings", worker).send({"time": times, "key": [1] * len(times)})
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=3, restore=snapshot) as run:
        # The slower of the two had seen 190: nothing before 140 was promised to come.
        assert {run.input("readings", worker).time for worker in range(3)} == {140}
        run.input("readings").send({"time": [139, 140], "key": [1, 1]})
        result = run.finish()
    assert result.late == {"readings": 1}
    counts = {row["time"]: row["count"] for row in result["counts"].to_pylist()}
    assert counts == {200: 3, 300: 1}


def test_advancing_by_hand_and_times_before_the_bound() -> None:
    flow = windows(50)
    with flow.open() as run:
        handle = run.input("readings")
        handle.send({"time": [3], "key": [1]})
        assert handle.time == 3 - 50
        handle.advance_to(200)
        handle.send({"time": [220, 199], "key": [1, 1]})
        assert handle.time == 200
        assert handle.late_count == 1
        run.finish()


def test_lateness_needs_integer_times_and_is_not_negative() -> None:
    with pytest.raises(GraphError, match="lateness"):
        jt.Flow("negative").input("in", lateness=-1)
    flow = jt.Flow("least", time=jt.IntegerTimes(minimum=-100))
    flow.output("out", flow.input("in", lateness=2**62).key_by().tumbling(10).count())
    assert flow.run({"in": {"time": [-100, 5]}}).late == {"in": 0}
