"""stateful_map with timers and a time-to-live, against its twin."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import GraphError, JetonError, SnapshotError
from jeton.state.snapshot import Snapshot
from tests.helpers import held, messages, operator
from tests.operators.test_top_k import place
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules

SCHEMA = pa.schema(
    [("time", pa.int64()), ("key", pa.int16()), ("act", pa.string()), ("n", pa.int64())]
)
ACTS = ["after", "at", "cancel", "cancel one", "replace", "forget", "count"]


def rows() -> st.SearchStrategy[list[Row]]:
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 20),
            "key": st.one_of(st.integers(0, 2), st.none()),
            "act": st.sampled_from(ACTS),
            "n": st.integers(0, 6),
        }
    )
    return st.lists(row, max_size=25)


def act(state: list[str], row: Row, timers: Any) -> tuple[list[str] | None, list[Row]]:
    """Do what a record says."""
    state = [*state, f"record {row['time']} {timers.pending}"]
    if row["act"] == "forget":
        return None, [{"seen": state, "named": ""}]
    if row["act"] in ("cancel", "replace"):
        timers.cancel()
    if row["act"] == "cancel one":
        timers.cancel(row["time"] + row["n"])
    if row["act"] in ("after", "replace"):
        timers.after(row["n"])
    if row["act"] == "at":
        timers.at(row["time"] + row["n"])
        timers.at(row["time"] + 2 * row["n"])
    return state, [{"seen": state, "named": ""}] if row["n"] % 2 else []


def fire(state: list[str], key: Row, timers: Any) -> tuple[list[str] | None, list[Row]]:
    """Set the next timer now and then, but not for ever."""
    assert set(key) <= {"key", "act"}
    assert not timers.processing
    state = [*state, f"timer {timers.time} {timers.pending}"]
    if len(state) % 7 == 0:
        return None, [{"seen": state, "named": str(key), "time": timers.time + 3}]
    if len(state) % 2 and len(state) < 9:
        timers.after(1 + len(state) % 3)
    return state, [{"seen": state, "named": str(key)}]


@dataclass
class TwinTimers:
    time: int = 0
    times: set[int] = field(default_factory=set)
    processing = False

    @property
    def pending(self) -> list[int]:
        return sorted(self.times)

    def at(self, time: int) -> None:
        self.times.add(time)

    def after(self, length: int) -> None:
        self.times.add(self.time + length)

    def cancel(self, time: int | None = None) -> None:
        self.times = set() if time is None else self.times - {time}


def walked(rows: list[Row], key: tuple[str, ...], ttl: int | None) -> list[Row]:
    """The twin: for each key whichever is next, a record or a timer."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in key)].append(row)
    found = []
    for values, group in groups.items():
        names = dict(zip(key, values, strict=True))
        group.sort(key=lambda r: (r["time"], *(place(r[name]) for name in ("key", "act", "n"))))
        state: Any = None
        last = 0
        timers = TwinTimers()
        while group or timers.times:
            is_record = group and group[0]["time"] <= min(timers.times, default=10**9)
            timers.time = group[0]["time"] if is_record else min(timers.times)
            if state is not None and ttl is not None and timers.time > last + ttl:
                state, timers.times = None, set()
                continue
            if is_record:
                last = timers.time
                state, said = act([] if state is None else state, group.pop(0), timers)
            else:
                timers.cancel(timers.time)
                state, said = fire(state, names, timers)
            if state is None:
                timers.cancel()
            found += [{"time": timers.time} | names | answer for answer in said]
    return found


@pytest.mark.parametrize("key", [("key",), ("key", "act"), ()], ids="-".join)
@settings(max_examples=60)
@given(rows=rows(), schedule=schedules(), ttl=st.sampled_from([None, 5, 0, 2, 2**63]))
def test_timers_and_a_time_to_live_equal_their_twin(
    key: tuple[str, ...], rows: list[Row], schedule: Schedule, ttl: int | None
) -> None:
    def build(flow: jt.Flow) -> None:
        keyed = flow.input("in").key_by(*key)
        flow.output("out", keyed.stateful_map(act, list, on_timer=fire, ttl=ttl))

    found = run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})["out"]
    assert_same(found, walked(rows, key, ttl))


@settings(max_examples=40)
@given(rows=rows(), schedule=schedules(), ttl=st.sampled_from([5, 0, 2]))
def test_a_time_to_live_without_timers_equals_its_twin(
    rows: list[Row], schedule: Schedule, ttl: int
) -> None:
    def count(n: int, row: Row) -> tuple[int | None, list[Row]]:
        return (None if row["act"] == "forget" else n + 1), [{"n": n}]

    def build(flow: jt.Flow) -> None:
        flow.output("out", flow.input("in").key_by("key").stateful_map(count, 0, ttl=ttl))

    expected = []
    counts: dict[Any, tuple[int, int]] = {}
    for row in sorted(rows, key=lambda r: (r["time"], *(place(r[n]) for n in ("key", "act", "n")))):
        n, last = counts.get(row["key"], (0, row["time"]))
        n = 0 if row["time"] > last + ttl else n
        expected.append({"time": row["time"], "key": row["key"], "n": n})
        counts[row["key"]] = (0 if row["act"] == "forget" else n + 1, row["time"])
    assert_same(run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})["out"], expected)


def flow_of(function: Any, on_timer: Any = None, **options: Any) -> jt.Flow:
    flow = jt.Flow("timers")
    mapped = (
        flow.input("in")
        .key_by("k")
        .stateful_map(function, list, on_timer=on_timer, name="mine", **options)
    )
    flow.output("out", mapped.probe())
    return flow


def tell(state: list[Any], key: Row, timers: Any) -> tuple[list[Any], list[Row]]:
    return state, [{"of": len(state), "processing": timers.processing}]


def test_a_timer_fires_once_its_time_is_complete_and_holds_a_token_until_then() -> None:
    def wait(state: list[Any], row: Row, timers: Any) -> tuple[list[Any], list[Row]]:
        timers.after(10)
        return [*state, row["time"]], []

    with flow_of(wait, tell).open() as run:
        handle = run.input("in")
        handle.send({"time": [5], "k": [1]})
        handle.advance_to(7)
        run.run_to_rest()
        assert held(run, "mine") == {15: 1}
        handle.advance_to(15)
        run.run_to_rest()
        assert run.results()["out"].num_rows == 0, "another record at 15 may come before it"
        handle.send({"time": [15], "k": [1]})
        handle.advance_to(16)
        run.run_to_rest()
        assert run.results()["out"].select(["time", "of"]).to_pylist() == [{"time": 15, "of": 2}]
        assert held(run, "mine") == {25: 1}
        handle.close()
        run.run_to_rest()
        assert run.results()["out"]["time"].to_pylist() == [15, 25], "it fires as the input ends"
        assert run.probe().done


def test_a_record_exactly_at_the_end_of_the_time_to_live_finds_the_state() -> None:
    def count(n: list[int], row: Row) -> tuple[list[int], list[Row]]:
        return [*n, row["time"]], [{"seen": len(n)}]

    table = {"time": [0, 10, 21, 31], "k": [1, 1, 1, 1]}
    found = flow_of(count, ttl=10).run({"in": table})["out"]["seen"].to_pylist()
    assert found == [0, 1, 0, 1]


def test_timers_do_not_prolong_a_life_and_end_with_it() -> None:
    """So a timer that always sets the next one ends, some time after the last record."""

    def beat(state: list[Any], row: Row, timers: Any) -> tuple[list[Any], list[Row]]:
        timers.after(10)
        return state, []

    def again(state: list[Any], key: Row, timers: Any) -> tuple[list[Any], list[Row]]:
        timers.after(10)
        return state, [{"beat": timers.time}]

    found = flow_of(beat, again, ttl=35).run({"in": {"time": [0, 5], "k": [1, 2]}})["out"]
    assert sorted(found["time"].to_pylist()) == [10, 15, 20, 25, 30, 35]


def test_keys_and_timers_are_forgotten_as_time_passes() -> None:
    def note(state: list[Any], row: Row, timers: Any) -> tuple[list[Any], list[Row]]:
        timers.cancel()
        timers.after(1000)
        return state, []

    with flow_of(note, tell, ttl=3).open() as run:
        for time in range(300):
            run.input("in").send({"time": [time] * 3, "k": [0, 2 * time + 1, 2 * time + 2]})
            run.input("in").advance_to(time + 1)
            run.run_to_rest()
            states: Any = operator(run, "mine").kept["state"].state
            assert len(states) <= 1 + 2 * 4
            assert len(states._events) == len(states)
            assert len(states._events._by_time._heap) < 100, "cancelled timers take no room"
        assert run.finish()["out"].num_rows == 0


# Processing time


@dataclass
class Op:
    """Something that happens: a record of a key, or the clock moving on."""

    key: int | None
    """``None``: the clock moves on."""
    delays: list[int]
    cancel: bool = False


def ops() -> st.SearchStrategy[list[Op]]:
    records = st.builds(
        Op, st.integers(0, 3), st.lists(st.integers(1, 9), max_size=2), st.booleans()
    )
    clocks = st.builds(Op, st.none(), st.lists(st.integers(1, 5), min_size=1, max_size=1))
    return st.lists(st.one_of(records, clocks), max_size=20)


@settings(max_examples=60)
@given(
    ops=ops(),
    workers=st.integers(1, 3),
    seed=st.one_of(st.none(), st.integers(0, 1000)),
    restart=st.integers(0, 20),
    workers_after=st.integers(1, 3),
)
def test_processing_time_timers_equal_their_twin(
    ops: list[Op], workers: int, seed: int | None, restart: int, workers_after: int
) -> None:
    def schedule(n: list[int], row: Row, timers: Any) -> tuple[list[int], list[Row]]:
        if row["cancel"]:
            timers.cancel_processing()
        for delay in row["delays"]:
            timers.after_processing(f"{delay}s" if delay % 2 else delay)
        return [*n, row["time"]], []

    flow = flow_of(schedule, tell)
    found: list[Row] = []
    expected: list[Row] = []
    due: dict[int, set[int]] = defaultdict(set)
    records: dict[int, int] = defaultdict(int)
    now, clock = 0, 0.0

    def rest(run: jt.Run) -> None:
        while run.turn():
            pass

    run = flow.open(workers=workers, seed=seed)
    for at, op in enumerate(ops):
        if at == restart:
            rest(run)
            snapshot = run.snapshot()
            found += run.results()["out"].to_pylist()
            run.close()
            run = flow.open(workers=workers_after, seed=seed, restore=snapshot)
            clock = float(now)
        if op.key is None:
            for key, times in due.items():
                late = sorted(time for time in times if time <= now + op.delays[0])
                expected += [{"time": at, "k": key, "of": records[key]}] * len(late)
                times.difference_update(late)
            now += op.delays[0]
            run.now = now - clock
        else:
            if op.cancel:
                due[op.key].clear()
            due[op.key].update(now + delay for delay in op.delays)
            records[op.key] += 1
            row = {"time": at, "k": op.key, "cancel": op.cancel, "delays": op.delays}
            kinds = {"k": pa.int64(), "cancel": pa.bool_(), "delays": pa.list_(pa.int64())}
            schema = pa.schema({"time": pa.int64(), **kinds})
            worker = at % len(run.workers)
            run.input("in", worker).send(pa.Table.from_pylist([row], schema))
        for worker in range(len(run.workers)):
            run.input("in", worker).advance_to(at + 1)
        rest(run)
    left = [
        {"time": len(ops), "k": key, "of": records[key]}
        for key, times in due.items()
        for _ in times
    ]
    before = len(found) + run.results()["out"].num_rows
    assert before == len(expected), "one that is not due has fired"
    found += run.finish()["out"].to_pylist()
    run.close()
    assert all(row.pop("processing") for row in found)
    assert_same(found, expected + left)


def sooner(state: list[Any], row: Row, timers: Any) -> tuple[list[Any], list[Row]]:
    timers.after_processing("10s")
    return [*state, row["time"]], []


def test_a_processing_time_timer_sends_at_the_frontier_and_does_not_hold_it_back() -> None:
    with flow_of(sooner, tell).open() as run:
        handle = run.input("in")
        handle.send({"time": [5], "k": [1]})
        handle.advance_to(20)
        while run.turn():
            pass
        assert run.probe().frontier == jt.Antichain([20])
        handle.advance_to(30)
        while run.turn():
            pass
        assert run.probe().frontier == jt.Antichain([30])
        assert (run.now, run.results()["out"].num_rows) == (0.0, 0)
        run.run_to_rest()
        assert run.now == 10.0
        assert run.results()["out"].to_pylist() == [
            {"time": 30, "k": 1, "of": 1, "processing": True}
        ]
        assert held(run, "mine") == {}


def test_the_clock_wakes_for_the_next_timer_whichever_was_set_first() -> None:
    def wait(state: list[Any], row: Row, timers: Any) -> tuple[list[Any], list[Row]]:
        timers.after_processing(row["wait"])
        return state, []

    fired = []
    with flow_of(wait, tell).open() as run:
        for time, wait_for in enumerate([10, 3, 7]):
            run.input("in").send({"time": [time], "k": [wait_for], "wait": [wait_for]})
            run.input("in").advance_to(time + 1)
            while run.turn():
                pass
        for count in range(1, 4):
            run.run_until(lambda count=count: run.results()["out"].num_rows == count)  # type: ignore[misc]
            fired.append(run.now)
        assert run.results()["out"]["k"].to_pylist() == [3, 7, 10]
    assert fired == [3.0, 7.0, 10.0]


def test_at_the_end_of_the_input_processing_time_timers_fire_at_once_and_set_no_more() -> None:
    def again(state: list[Any], key: Row, timers: Any) -> tuple[list[Any], list[Row]]:
        timers.after_processing(3600)
        if timers.processing:
            timers.after(100)
        return state, [{"processing": timers.processing}]

    with flow_of(sooner, again).open() as run:
        run.feed({"in": {"time": [5, 8], "k": [1, 2]}})
        result = run.finish()["out"].sort_by([("time", "ascending"), ("k", "ascending")])
        assert run.now == 0.0
    assert result.select(["time", "k", "processing"]).to_pylist() == [
        {"time": 8, "k": 1, "processing": True},
        {"time": 8, "k": 2, "processing": True},
        {"time": 108, "k": 1, "processing": False},
        {"time": 108, "k": 2, "processing": False},
    ]


def test_a_restored_processing_time_timer_does_not_send_before_its_record() -> None:
    """Though the frontier of a worker that begins anew is at the first time."""
    flow = flow_of(sooner, tell)
    with flow.open(workers=2) as run:
        run.input("in").send({"time": [5], "k": [1]})
        for worker in range(2):
            run.input("in", worker).advance_to(20)
        while run.turn():
            pass
        run.now = 4.0
        while run.turn():
            pass
        snapshot = run.snapshot()
    with flow.open(workers=3, restore=snapshot) as run:
        run.run_to_rest()
        assert run.now == 6.0, "as much as was left"
        assert run.results()["out"]["time"].to_pylist() == [20]
    for seed in range(10):
        with flow.open(workers=3, restore=snapshot, seed=seed) as run:
            run.now = 6.0  # it is due before anything else has happened
            run.run_to_rest()
            assert run.results()["out"]["time"].to_pylist() == [20]


def test_overdue_processing_time_timers_stay_apart_in_a_snapshot() -> None:
    def wait(state: list[Any], row: Row, timers: Any) -> tuple[list[Any], list[Row]]:
        for seconds in (1, 2, 30):
            timers.after_processing(seconds)
            timers.after_processing(seconds)  # at the same time: the same timer
        return state, []

    flow = flow_of(wait, tell)
    with flow.open() as run:
        run.input("in").send({"time": [5], "k": [1]})
        run.input("in").advance_to(6)
        while run.turn():
            pass
        run.now = 10.0  # nothing has been done since two of them were due
        held_back = operator(run, "mine").kept["state"].snapshot()
        snapshot = Snapshot(run.flow.name, {"mine": {"state": held_back}})
    assert held_back["processing"].to_pylist() == [[-9_000_000, -8_000_000, 20_000_000]]
    with flow.open(workers=2, restore=snapshot) as run:
        while run.turn():
            pass
        assert run.results()["out"].num_rows == 2
        assert run.finish()["out"].num_rows == 3


def at_the_end(state: list[Any], row: Row, timers: Any) -> tuple[list[Any], list[Row]]:
    if row["wait"] >= 0:
        timers.after_processing(row["wait"])
    timers.after(3)
    return [*state, row["time"]], []


def note_end(state: list[Any], key: Row, timers: Any) -> tuple[list[Any], list[Row]]:
    if timers.processing:
        timers.after(2)
    elif len(state) < 4:
        timers.after_processing(9)  # which the input's end forbids, but not sooner
    state = [*state, timers.time]
    return state, [{"seen": str(state), "processing": timers.processing}]


@settings(max_examples=40)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"time": st.integers(-5, 20), "k": st.integers(0, 5), "wait": st.integers(-1, 2)}
        ),
        min_size=1,
        max_size=12,
    ),
    schedule=schedules(),
    ttl=st.sampled_from([None, 4]),
)
def test_what_happens_at_the_end_of_the_input_does_not_depend_on_workers(
    rows: list[Row], schedule: Schedule, ttl: int | None
) -> None:
    """Processing-time timers then send at the time of the last record of all."""

    def build(flow: jt.Flow) -> None:
        keyed = flow.input("in").key_by("k")
        flow.output("out", keyed.stateful_map(at_the_end, list, on_timer=note_end, ttl=ttl))

    flow = jt.Flow("one")
    build(flow)
    expected = flow.run({"in": pa.Table.from_pylist(rows)})["out"].to_pylist()
    found = flow.run({"in": pa.Table.from_pylist(rows)}, workers=3, seed=schedule.seed)["out"]
    assert_same(found.to_pylist(), expected)
    # A restart would let the clock move on to the timers.
    assert_same(run_twin(build, {"in": rows}, replace(schedule, restart=None))["out"], expected)


def test_rows_at_the_end_are_at_the_time_of_the_last_record_of_all_workers() -> None:
    flow = flow_of(sooner, tell)
    rows = {"time": [*range(20), 100], "k": [*range(20), 5]}
    for workers in (1, 2, 4):
        found = flow.run({"in": rows}, workers=workers)["out"]
        assert found["time"].to_pylist() == [100] * 20
    with flow.open(workers=2) as run:
        run.input("in").send({"time": [50, 70], "k": [1, 2]})
        for worker in range(2):
            run.input("in", worker).advance_to(60)
        while run.turn():
            pass
        snapshot = run.snapshot()
    for workers in (1, 2, 5):
        with flow.open(workers=workers, restore=snapshot) as run:
            found = run.finish()["out"]
            assert found["time"].to_pylist() == [70] * 2, "also if it came before the snapshot"


# Times of rows

DAY = dt.datetime(2024, 5, 1, 12)
UTC = DAY.replace(tzinfo=dt.UTC)
SOON = dt.timedelta(seconds=90)
WAYS: dict[str, Callable[[Any, Row], None]] = {
    "datetime": lambda timers, row: timers.at(row["time"] + SOON),
    "pandas": lambda timers, row: timers.at(pd.Timestamp(row["time"]) + pd.Timedelta(SOON)),
    "text": lambda timers, row: timers.after("1m 30s"),
    "timedelta": lambda timers, row: timers.after(SOON),
    "numpy": lambda timers, row: timers.after(np.timedelta64(90, "s")),
}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("day", [DAY, UTC], ids=["clock", "zone"])
def test_timestamps_in_and_out_also_after_a_restart(
    way: str, day: dt.datetime, workers: int
) -> None:
    seen = []

    def wait(state: list[Any], row: Row, timers: Any) -> tuple[list[Any], list[Row]]:
        assert timers.time == row["time"]
        WAYS[way](timers, row)
        timers.at(row["time"] + 2 * SOON)
        timers.cancel(row["time"] + 2 * SOON)
        assert timers.pending == [row["time"] + SOON]
        return [*state, row["time"]], []

    def note(state: list[Any], key: Row, timers: Any) -> tuple[None, list[Row]]:
        seen.append((key, timers.time))
        return None, [{"since": state[0]}, {"time": timers.time + SOON}]

    flow = flow_of(wait, note, ttl="1h")
    with flow.open(workers=2) as run:
        run.input("in").send({"time": [day, day], "k": ["a", "b"]})
        for worker in range(2):
            run.input("in", worker).advance_to(day + SOON)
        run.run_to_rest()
        snapshot = run.snapshot()
    assert not seen
    with flow.open(workers=workers, restore=snapshot) as run:
        result = run.finish()["out"]
    assert sorted(seen, key=str) == [({"k": "a"}, day + SOON), ({"k": "b"}, day + SOON)]
    times = [day + SOON, day + SOON, day + 2 * SOON, day + 2 * SOON]
    assert sorted(result["time"].to_pylist()) == times
    assert result.schema.field("time").type == pa.timestamp("us", "UTC" if day is UTC else None)
    assert [t for t in result["since"].to_pylist() if t is not None] == [day, day]


def test_numpy_times_of_timers() -> None:
    def wait(state: list[Any], row: Row, timers: Any) -> tuple[list[Any], list[Row]]:
        timers.at(np.datetime64("2024-05-01T12:00:05", "ms"))
        return state, []

    found = flow_of(wait, tell).run({"in": {"time": [DAY], "k": [1]}})["out"]
    assert found["time"].to_pylist() == [DAY + dt.timedelta(seconds=5)]


# Snapshots of other shapes


def plain(state: list[Any], row: Row) -> tuple[list[Any], list[Row]]:
    return [*state, row["time"]], [{"of": len(state), "processing": False}]


def timed(state: list[Any], row: Row, timers: Any) -> tuple[list[Any], list[Row]]:
    timers.after(10)
    return plain(state, row)


def stopped(flow: jt.Flow, times: list[int], restore: Any = None) -> tuple[Any, list[Row]]:
    with flow.open(workers=2, restore=restore) as run:
        run.input("in").send({"time": times, "k": [1] * len(times)})
        for worker in range(2):
            run.input("in", worker).advance_to(times[-1] + 1)
        run.run_to_rest()
        return run.snapshot(), run.results()["out"].to_pylist()


def test_state_from_before_there_were_timers_goes_on_with_them() -> None:
    before, _ = stopped(flow_of(plain), [1, 2])
    snapshot, found = stopped(flow_of(timed, tell, ttl=100), [3], before)
    assert [row["of"] for row in found] == [2]
    _, found = stopped(flow_of(timed, tell, ttl=100), [20], snapshot)
    assert [(row["time"], row["of"]) for row in found] == [(13, 3), (20, 3)]


@pytest.mark.parametrize("function", [plain, timed])
def test_keys_from_before_a_time_to_live_count_from_the_time_of_the_snapshot(function: Any) -> None:
    """On all workers, also on those that no record reaches for a while."""
    timer = tell if function is timed else None
    flow = flow_of(function, timer)
    with flow.open(workers=2) as run:
        run.input("in").send({"time": [1] * 8, "k": list(range(8))})
        for worker in range(2):
            run.input("in", worker).advance_to(50)
        run.run_to_rest()
        before = run.snapshot()
    later = {"time": [55, *([60] * 4), *([61] * 3)], "k": [9, *range(7)]}
    for workers in (1, 2, 5):
        with flow_of(function, timer, ttl=10).open(workers=workers, restore=before) as run:
            run.run_to_rest()
            # The time stays known from one snapshot to the next.
            again = run.snapshot()
        for snapshot in (before, again):
            flow = flow_of(function, timer, ttl=10)
            with flow.open(workers=workers, restore=snapshot) as run:
                run.input("in").send(later)
                result = run.finish()["out"]
            found = {row["k"]: row["of"] for row in result.to_pylist() if row["time"] in (60, 61)}
            assert found == {0: 1, 1: 1, 2: 1, 3: 1, 4: 0, 5: 0, 6: 0}


def test_keys_of_which_no_time_is_known_count_from_their_own_next_record() -> None:
    """Snapshots of earlier releases do not say which time they were taken at."""
    before, _ = stopped(flow_of(plain), [1, 2])
    without = before.without("mine/reached")
    later = {"time": [90, 100, 110, 121], "k": [2, 1, 1, 1]}
    for workers in (1, 3):
        with flow_of(plain, ttl=10).open(workers=workers, restore=without) as run:
            run.input("in").send(later)
            rows = run.finish()["out"].to_pylist()
        assert [row["of"] for row in rows if row["k"] == 1] == [2, 3, 0]


def test_an_operator_without_keys_is_removed_without_a_word() -> None:
    snapshot, _ = stopped(flow_of(lambda state, row: (None, [])), [1])
    other = jt.Flow("timers")
    other.output("out", other.input("in"))
    other.open(restore=snapshot).close()


def test_a_time_to_live_may_change_or_go_but_timers_are_not_lost() -> None:
    snapshot, _ = stopped(flow_of(plain, ttl=3), [1])
    assert stopped(flow_of(plain, ttl=30), [20], snapshot)[1][0]["of"] == 1
    assert stopped(flow_of(plain), [50], snapshot)[1][0]["of"] == 1
    snapshot, _ = stopped(flow_of(timed, tell), [1])
    for options in ({}, {"ttl": 5}):
        with pytest.raises(SnapshotError, match=r"has timers .* no on_timer= now"):
            stopped(flow_of(plain, **options), [2], snapshot)
    snapshot, _ = stopped(flow_of(timed, lambda state, key, timers: (state, [])), [1])
    fired, _ = stopped(flow_of(lambda s, r, t: (s, []), lambda s, k, t: (s, [])), [50], snapshot)
    assert stopped(flow_of(plain), [60], fired)[1][0]["of"] == 1, "none is left"


# Mistakes


def setting(use: Callable[[Any], Any], state: Any = 1) -> Callable[..., Any]:
    def function(before: Any, what: Row, timers: Any) -> tuple[Any, list[Row]]:
        use(timers)
        return state, []

    return function


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "before": (lambda t: t.at(4), r"timers.at\(4\) is at 4, which is before the record at 5"),
    "back": (lambda t: t.after(-1), r"timers.after\(-1\) is at 4, which is before the record"),
    "float": (lambda t: t.at(7.5), r"timers.at\(7.5\) is not at an integer, as times are"),
    "text": (lambda t: t.at("noon"), r"timers.at\('noon'\) is not at an integer, as times are"),
    "bool": (lambda t: t.at(True), r"timers.at\(True\) is not at an integer, as times are"),
    "no bool": (lambda t: t.cancel(True), r"timers.cancel\(True\) is not at an integer, as times"),
    "timestamp": (lambda t: t.at(DAY), r"timers.at\(datetime.*is not at an integer, as times are"),
    "far": (lambda t: t.at(2**70), r"timers.at\(1180591620717411303424\), for the record at 5, is"),
    "longer": (lambda t: t.after(-(2**70)), "which is before the record at 5"),
    "duration": (lambda t: t.after("5s"), r"timers.after\('5s'\) has a duration, but times are in"),
    "length": (lambda t: t.after(2.5), r"timers.after\(2.5\) cannot be: pass an integer"),
    "end": (lambda t: t.after(2**63), "is at 9223372036854775813, after 9223372036854775807, the"),
    "clock": (lambda t: t.after_processing("soon"), "'soon', which is not a duration"),
    "past": (lambda t: t.after_processing("-1s"), "'-1s'.* is not a time from now on"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_timer_that_cannot_be_is_an_error_that_says_why(mistake: str) -> None:
    use, complaint = MISTAKES[mistake]
    with pytest.raises(JetonError, match=complaint) as caught:
        flow_of(setting(use), tell).run({"in": {"time": [5], "k": [1]}})
    assert "mine" in messages(caught.value)


STAMPS = {
    "integer": (lambda t: t.after(30), r"has an integer, but times .*write timers.after\('30s'\)"),
    "unit": (lambda t: t.after("3ns"), "not a whole number of us"),
    "zone": (lambda t: t.at(UTC), "cannot be compared with timestamps"),
    "null": (lambda t: t.at(pd.NaT), r"the time of timers.at\(NaT\) is null"),
    "numpy null": (lambda t: t.cancel(np.datetime64("NaT", "s")), r"timers.cancel\(.*\) is null"),
    "number": (lambda t: t.at(10**18), r"timers.at\(1000000000000000000\) is not at a timestamp"),
    "cancelled": (lambda t: t.cancel(5), r"timers.cancel\(5\) is not at a timestamp, as times are"),
    "bool": (lambda t: t.at(True), r"timers.at\(True\) is not at a timestamp, as times are"),
    "text": (lambda t: t.at("noon"), r"timers.at\('noon'\) is not at a timestamp, as times are"),
    "far": (
        lambda t: t.after("4000000 days"),
        "for the record at 2024-05-01 12:00:00, is at 12975-12-17T12:00:00.000000, after 9999-1",
    ),
    "farther": (lambda t: t.after("500000000 days"), r"is at \d+ us, after 9999-12-31"),
    "before": (
        lambda t: t.at(DAY - SOON),
        "is at 2024-05-01 11:58:30, which is before the record at 2024-05-01 12:00:00",
    ),
}


@pytest.mark.parametrize("mistake", STAMPS)
def test_mistakes_with_timestamps(mistake: str) -> None:
    use, complaint = STAMPS[mistake]
    with pytest.raises(JetonError, match=complaint) as caught:
        flow_of(setting(use), tell).run({"in": {"time": [DAY], "k": [1]}})
    assert "mine" in messages(caught.value)


def test_records_that_python_has_no_datetime_for_are_an_error_that_says_so() -> None:
    times = pa.array([10**18], pa.int64()).cast(pa.timestamp("us"))
    with pytest.raises(JetonError, match=r"the time 33658-09-27T01:46:40.000000 cannot be a date"):
        flow_of(timed, tell).run({"in": pa.table({"time": times, "k": [1]})})


def test_a_timer_sets_only_later_ones() -> None:
    for use in (lambda t: t.after(0), lambda t: t.at(15)):
        flow = flow_of(setting(lambda t: t.at(15)), setting(use))
        with pytest.raises(JetonError, match="is at 15, which is not after the timer at 15"):
            flow.run({"in": {"time": [5], "k": [1]}})


def test_a_forgotten_key_has_no_timers() -> None:
    flow = flow_of(setting(lambda t: t.after(5), state=None), tell)
    with pytest.raises(JetonError, match="function set a timer and returned None"):
        flow.run({"in": {"time": [5], "k": [1]}})
    flow = flow_of(setting(lambda t: (t.after(5), t.cancel()), state=None), tell)
    assert flow.run({"in": {"time": [5], "k": [1]}})["out"].num_rows == 0


def test_a_timer_that_is_set_and_cancelled_does_not_keep_a_key_that_has_others() -> None:
    def function(state: Any, row: Row, timers: Any) -> tuple[Any, list[Row]]:
        if row["time"] == 0:
            timers.after(100)
            timers.after_processing(100)
            return [1], []
        timers.after(5)
        timers.cancel(row["time"] + 5)
        return None, [{"of": len(state), "processing": False}]

    found = flow_of(function, tell).run({"in": {"time": [0, 1], "k": [1, 1]}})["out"]
    assert found.to_pylist() == [{"time": 1, "k": 1, "of": 1, "processing": False}]


def test_a_key_has_one_form_for_all_timers() -> None:
    seen = []

    def function(state: Any, row: Row, timers: Any) -> tuple[Any, list[Row]]:
        row["k"] = "changed"
        timers.after(10)
        return 1, []

    def fired(state: Any, key: Row, timers: Any) -> tuple[Any, list[Row]]:
        seen.append((timers.time, str(key["k"])))
        return state, []

    flow = flow_of(function, fired)
    with flow.open() as run:
        run.input("in").send({"time": [0, 1, 30], "k": [0.0, -0.0, -0.0]})
        run.input("in").advance_to(31)
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(restore=snapshot) as run:
        run.finish()
    assert seen == [(10, "0.0"), (11, "0.0"), (40, "0.0")]


def test_timers_are_for_one_call() -> None:
    taken: list[Any] = []
    flow_of(setting(taken.append), tell).run({"in": {"time": [5], "k": [1]}})
    uses: list[Callable[[Any], Any]] = [
        lambda t: t.after(5),
        lambda t: t.time,
        lambda t: t.cancel_processing(),
    ]
    for use in uses:
        with pytest.raises(JetonError, match="belong to one call"):
            use(taken[0])


def test_wrong_answers_of_timers() -> None:
    for answer, complaint in [
        (3, "late must return"),
        ((1, 2), r"late must return \(state, list of rows\), not \(1, 2\)"),
        ((1, None), "without rows, return an empty list"),
        ((1, {"of": 1}), "put the row into a list"),
        ((1, [{"time": 9}]), "before its timer at 15"),
        ((1, [{"time": None}]), "cannot send a row at None, which is not an integer"),
        ((1, [{"time": True}]), "cannot send a row at True, which is not an integer"),
    ]:

        def late(state: Any, key: Row, timers: Any, answer: Any = answer) -> Any:
            return answer

        with pytest.raises(JetonError, match=complaint):
            flow_of(setting(lambda t: t.at(15)), late).run({"in": {"time": [5], "k": [1]}})


def test_wrong_times_of_rows_are_shown_as_timestamps() -> None:
    for time, complaint in [
        (DAY - SOON, "row at 2024-05-01 11:58:30, before its record at 2024-05-01 12:00:00"),
        (pd.NaT, r"the time of a row is null \(NaT\)"),
        (None, "row at None, which is not a timestamp"),
    ]:

        def early(state: Any, row: Row, time: Any = time) -> Any:
            return state, [{"time": time}]

        with pytest.raises(JetonError, match=complaint):
            flow_of(early).run({"in": {"time": [DAY], "k": [1]}})


def test_calls_that_are_refused() -> None:
    keyed: Any = jt.Flow("refused").input("in", schema={"time": int, "k": int}).key_by("k")
    with pytest.raises(GraphError, match=r"timed takes three arguments.* no on_timer="):
        keyed.stateful_map(timed, list)
    with pytest.raises(GraphError, match=r"called with \(state, row, timers\), which plain does"):
        keyed.stateful_map(plain, list, on_timer=tell)
    with pytest.raises(GraphError, match=r"on_timer=plain must be a function of \(state, key, t"):
        keyed.stateful_map(timed, list, on_timer=plain)
    with pytest.raises(GraphError, match="on_timer=5 must be a function"):
        keyed.stateful_map(timed, list, on_timer=5)
    with pytest.raises(GraphError, match=r"ttl= .* -1, a negative time"):
        keyed.stateful_map(plain, list, ttl=-1)
    with pytest.raises(GraphError, match=r"ttl='1h'\) has a duration .* 'in' are integers"):
        keyed.stateful_map(plain, list, ttl="1h")
    with pytest.raises(GraphError, match="timers and ttl= of stateful_map need integer times"):
        keyed.stream.iterate(lambda s: (s.key_by("k").stateful_map(plain, list, ttl=5), s))


def test_nanoseconds_of_pandas_are_kept() -> None:
    def first(state: Any, row: dict[str, Any], timers: Any) -> Any:
        timers.at(row["time"])
        timers.after("2ns")
        timers.cancel(timers.pending[-1])
        return 1, []

    def fired(state: Any, key: Any, timers: Any) -> Any:
        return state, [{"time": timers.time, "fired": True}]

    flow = jt.Flow("fine", unit="ns")
    keyed = flow.input("in").key_by("k")
    flow.output("out", keyed.stateful_map(first, 0, on_timer=fired))
    at = np.array(["2024-01-01T00:00:00.000000001"], "datetime64[ns]")
    found = flow.run({"in": pa.table({"time": at, "k": [1]})})["out"]
    assert found["time"].cast(pa.int64()).to_pylist() == at.view(np.int64).tolist()
