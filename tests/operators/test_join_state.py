"""The state of joins, their errors, and properties that the twins' rows do not show."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import BatchError, GraphError
from jeton.state import join_side
from jeton.state.chained_side import ChainedSide
from jeton.state.join_side import JoinSide
from jeton.state.key_ids import KeyIds, KeyTypes

SCHEMA = {"key": int, "word": str, "value": int}
TIMES, PER_TIME = 200, 50


def kept(run: jt.Run) -> list[Any]:
    """The containers of the last operator before the output, on all workers."""
    return [
        kept.state
        for worker in run.workers
        for operator in worker.operators
        if operator.plan.name.endswith("join")
        for kept in operator.kept.values()
    ]


def rows(time: int, random: np.random.Generator) -> dict[str, Any]:
    keys = random.integers(0, 20, PER_TIME)
    return {
        "time": np.full(PER_TIME, time),
        "key": keys,
        "word": [f"word {time} {key}" for key in keys],
        "value": random.integers(0, 100, PER_TIME),
    }


JOINS: dict[str, tuple[Callable[[jt.KeyedStream, jt.KeyedStream], jt.Stream], int]] = {
    "join": (lambda a, b: a.join(b), 0),
    "left join": (lambda a, b: a.join(b, how="left"), 0),
    "full join": (lambda a, b: a.join(b, how="full"), 0),
    "as-of join": (lambda a, b: a.asof_join(b), 0),
    "as-of join with a tolerance": (lambda a, b: a.asof_join(b, tolerance=5), 5),
    "interval join": (lambda a, b: a.interval_join(b, -3, 2), 5),
    "left interval join": (lambda a, b: a.interval_join(b, -3, 2, how="left"), 5),
    "right interval join": (lambda a, b: a.interval_join(b, -3, 2, how="right"), 5),
    "full interval join": (lambda a, b: a.interval_join(b, -3, 2, how="full"), 6),
    "interval join with the future": (lambda a, b: a.interval_join(b, 4, 5), 6),
}


@pytest.mark.parametrize("key", ["key", "word"])
@pytest.mark.parametrize("join", list(JOINS))
def test_state_stays_small_while_times_advance(join: str, key: str) -> None:
    """With text keys, nearly all of which are new at each time, only a tolerance lets go."""
    build, reach = JOINS[join]
    flow = jt.Flow("bounded")
    left, right = flow.input("left", schema=SCHEMA), flow.input("right", schema=SCHEMA)
    flow.output("out", build(left.key_by(key), right.key_by(key)))
    random = np.random.default_rng(7)
    most = 0
    with flow.open(workers=2) as run:
        inputs = [run.input(name, worker) for name in ("left", "right") for worker in (0, 1)]
        for time in range(TIMES):
            for name in ("left", "right"):
                run.input(name, worker=time % 2).send(rows(time, random))
            for handle in inputs:
                handle.advance_to(time + 1)
            run.run_to_rest()
            most = max(most, sum(map(len, kept(run))))
        sides = [side for side in kept(run) if isinstance(side, JoinSide)]
        numbered = max(len(side._ids) for side in sides)
    if join == "as-of join" and key == "word":
        # The latest record of each key stays for good.
        assert most >= TIMES * 15
        return
    # Both sides, what is in reach, and as much again that is let go of only now and then.
    assert most <= 2 * 2 * (reach + 2) * PER_TIME
    assert numbered <= 4096 + 2 * most + 2 * PER_TIME


@pytest.mark.parametrize("key", [["key"], ["word"], ["key", "word"], ["at"], ["flag", "key"]])
def test_usual_keys_and_columns_are_in_chains(key: list[str]) -> None:
    """Nulls in keys and values, and batches with and without them, change nothing about it."""
    flow = jt.Flow("chains")
    left, right = flow.input("left"), flow.input("right")
    flow.output("out", left.key_by(*key).interval_join(right.key_by(*key), -1000, 1000))
    random = np.random.default_rng(7)
    sent: dict[str, list[Any]] = {"left": [], "right": []}
    with flow.open() as run:
        for time in range(0, 200, 20):
            for name in sent:
                table = nullable(time, random, nulls=time % 60 == 40)
                sent[name] += zip(*(table[each].to_pylist() for each in key), strict=True)
                run.input(name).send(table)
            run.run_to_rest()
        sides = [side for side in kept(run) if isinstance(side, ChainedSide)]
        assert [len(side.chains) for side in sides] == [
            sum(None not in one for one in keys) for keys in sent.values()
        ]
        assert all(side.memory_bytes() > 0 and not side.runs for side in sides)
        known = [one for one in sent["left"] if None not in one]
        assert run.results()["out"].num_rows == sum(map(sent["right"].count, known)) > 0
        for name in sent:
            run.input(name).close()
        run.run_to_rest()
        assert not any(map(len, sides))


def test_the_first_record_of_a_side_may_lie_far_behind_those_of_the_other() -> None:
    """Chains are left before any of its rows is in one."""
    flow = jt.Flow("far behind")
    left, right = flow.input("left"), flow.input("right")
    flow.output("out", left.key_by("k").interval_join(right.key_by("k"), -5, 5))
    with flow.open() as run:
        run.input("left").send({"time": np.arange(10_000), "k": np.zeros(10_000, np.int64)})
        run.run_to_rest()
        run.input("right").send({"time": [7], "k": [0], "n": [1.5]})
        run.run_to_rest()
        result = run.finish()["out"]
    assert sorted(result["time"].to_pylist()) == [*[7] * 6, *range(8, 13)]


def nullable(time: int, random: np.random.Generator, *, nulls: bool) -> pa.Table:
    """Rows of many types, of which some have nulls."""
    numbers = random.integers(0, 10, 20)
    mask = random.random(20) < 0.3 if nulls else None
    return pa.table(
        {
            "time": np.arange(time, time + 20),
            "key": pa.array(numbers, mask=mask),
            "word": pa.array([f"word {number}" for number in numbers], mask=mask),
            "at": pa.array(numbers, pa.timestamp("us"), mask=mask),
            "flag": numbers > 4,
            "there": pa.array(numbers, pa.timestamp("us", "UTC"), mask=mask),
        }
    )


@pytest.mark.parametrize("join", list(JOINS))
def test_idle_sides_let_go(join: str) -> None:
    """No more records: the frontier alone empties the state (but for the latest of each key)."""
    build, _ = JOINS[join]
    flow = jt.Flow("idle")
    left, right = flow.input("left", schema=SCHEMA), flow.input("right", schema=SCHEMA)
    flow.output("out", build(left.key_by("key"), right.key_by("key")))
    random = np.random.default_rng(7)
    with flow.open() as run:
        for time in range(30):
            run.input("left").send(rows(time, random))
            run.input("right").send(rows(time, random))
        run.run_to_rest()
        assert sum(map(len, kept(run))) > 1000
        for name in ("left", "right"):
            run.input(name).advance_to(1000)
        run.run_to_rest()
        assert sum(map(len, kept(run))) <= (20 if join == "as-of join" else 0)
        run.input("left").close()
        run.run_to_rest()
        assert sum(map(len, kept(run))) == 0


def test_waiting_for_a_partner_holds_nothing_back() -> None:
    """Records of inner joins hold no token while they wait: the output's frontier moves on."""
    flow = jt.Flow("free")
    left, right = flow.input("left"), flow.input("right")
    joined = left.key_by("key").interval_join(right.key_by("key"), 0, 1000)
    flow.output("out", joined.probe("out"))
    with flow.open() as run:
        run.input("left").send({"time": [0], "key": [1]})
        run.input("left").advance_to(50)
        run.input("right").advance_to(60)
        run.run_to_rest()
        assert list(run.probe("out").frontier) == [50]
        run.input("right").send({"time": [70], "key": [1]})
        run.run_to_rest()
        assert run.results()["out"].to_pylist() == [{"time": 70, "key": 1}]


def test_lonely_records_are_told_as_soon_as_the_right_side_is_complete() -> None:
    flow = jt.Flow("early")
    left, right = flow.input("left"), flow.input("right", schema={"key": int, "x": int})
    for name, joined in {
        "join": left.key_by("key").join(right.key_by("key"), how="left"),
        "asof": left.key_by("key").asof_join(right.key_by("key")),
        "past": left.key_by("key").interval_join(right.key_by("key"), -9, -5, how="left"),
    }.items():
        flow.output(name, joined)
    with flow.open() as run:
        run.input("left").send({"time": [10], "key": [1]})
        run.input("right").advance_to(5)
        run.run_to_rest()
        assert all(table.num_rows == 0 for table in run.results().values())
        run.input("right").advance_to(6)
        run.run_to_rest()
        assert {name: t.num_rows for name, t in run.results().items()} == {
            "join": 0,
            "asof": 0,
            "past": 1,
        }
        run.input("right").advance_to(10)
        run.run_to_rest()
        assert run.results()["asof"].num_rows == 0
        run.input("right").advance_to(11)
        run.run_to_rest()
        nobody = [{"time": 10, "key": 1, "x": None}]
        assert all(table.to_pylist() == nobody for table in run.results().values())


def test_many_pairs_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_side, "MOST_PAIRS", 7)
    flow = jt.Flow("hot")
    left, right = flow.input("left"), flow.input("right")
    flow.output("out", left.key_by("key").join(right.key_by("key")))
    mine = {"time": [0] * 20, "key": [1, 2] * 10, "a": range(20)}
    others = {"time": [0] * 30, "key": [1, 1, 3] * 10, "b": range(30)}
    table = flow.run({"left": mine, "right": others})["out"]
    expected = {(a, b) for a in range(0, 20, 2) for b in range(30) if b % 3 != 2}
    found = list(zip(table["a"].to_pylist(), table["b"].to_pylist(), strict=True))
    assert len(found) == len(expected)
    assert set(found) == expected


def test_columns_of_the_same_name() -> None:
    flow = jt.Flow("names")
    left = flow.input("left", time="ts", schema={"key": int, "value": int, "time": int})
    right = flow.input("right", schema={"id": int, "value": str, "ts": str})
    joined = left.key_by("key").join(right.key_by("id"), suffix="2")
    assert joined.schema == pa.schema(
        {
            "key": pa.int64(),
            "value": pa.int64(),
            "time": pa.int64(),
            "value2": pa.string(),
            "ts2": pa.string(),
        }
    )
    flow.output("out", joined)
    rows = flow.run(
        {
            "left": {"ts": [3], "key": [1], "value": [5], "time": [9]},
            "right": {"time": [3], "id": [1], "value": ["v"], "ts": ["t"]},
        }
    )["out"].to_pylist()
    assert rows == [{"ts": 3, "key": 1, "value": 5, "time": 9, "value2": "v", "ts2": "t"}]


def streams(**schemas: Any) -> list[jt.Stream]:
    flow = jt.Flow("refused")
    return [flow.input(name, schema=schema) for name, schema in schemas.items()]


def test_what_is_refused_when_the_flow_is_built() -> None:
    a, b = streams(a={"key": int, "x": int, "x_right": int}, b={"key": int, "x": int})
    text, unknown = streams(text={"key": str}, unknown=None)
    with pytest.raises(GraphError, match=r"interval_join\(other.key_by"):
        a.key_by("key").interval_join(b, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="different lengths"):
        a.key_by("key").join(b.key_by("key", "x"))
    with pytest.raises(GraphError, match=r"would be called 'x_right'.*\n?.*operator 'join'"):
        a.key_by("key").join(b.key_by("key"))
    with pytest.raises(GraphError, match="how='outer'"):
        b.key_by("key").join(a.key_by("key"), how="outer")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="must know the columns of its right side"):
        text.key_by("key").asof_join(unknown.key_by("key"))
    with pytest.raises(GraphError, match="must know the columns of its left side"):
        unknown.key_by("key").join(text.key_by("key"), how="right")
    with pytest.raises(GraphError, match="must know the columns of its right side"):
        text.key_by("key").interval_join(unknown.key_by("key"), 0, 1, how="full")
    with pytest.raises(GraphError, match="'time' is the time column, and records without"):
        b.key_by("time").interval_join(b.key_by("key"), 0, 1, how="left")
    with pytest.raises(GraphError, match="how='full' is not known"):
        a.key_by("key").asof_join(b.key_by("key"), how="full")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"'key' \(int64\) and 'key' \(string\)"):
        a.key_by("key").cogroup(text.key_by("key"), lambda key, left, right: None)
    with pytest.raises(GraphError, match="from 3 to 2 is empty"):
        b.key_by("key").interval_join(a.key_by("key"), 3, 2)
    with pytest.raises(GraphError, match="cannot be negative"):
        b.key_by("key").asof_join(a.key_by("key"), tolerance=-1)
    with pytest.raises(GraphError, match="no column 'kye'"):
        a.key_by("kye").join(b.key_by("key"))
    with pytest.raises(GraphError, match="integer times"):
        a.iterate(lambda s: (s.key_by("x").asof_join(s.key_by("x"), how="inner"), s))
    with pytest.raises(GraphError, match="different flows"):
        a.key_by("x").join(streams(c={"x": int})[0].key_by("x"))


def test_keys_of_different_types_are_refused_when_they_come() -> None:
    flow = jt.Flow("types")
    left, right = flow.input("left"), flow.input("right")
    flow.output("out", left.key_by("key").join(right.key_by("key")))
    inputs = {"left": {"time": [0], "key": [1]}, "right": {"time": [0], "key": [1.0]}}
    with pytest.raises(BatchError, match=r"'key' \(double\) and 'key' \(int64\) are never equal"):
        flow.run(inputs)


def test_nan_equals_nan_and_zero_minus_zero() -> None:
    flow = jt.Flow("floats")
    left, right = flow.input("left"), flow.input("right")
    flow.output("out", left.key_by("key").join(right.key_by("key")))
    mine = {"time": [0, 0], "key": [float("nan"), 0.0], "a": [1, 2]}
    others = {"time": [0, 0], "key": [-0.0, float("nan")], "b": [20, 10]}
    table = flow.run({"left": mine, "right": others})["out"]
    found = zip(table["a"].to_pylist(), table["b"].to_pylist(), strict=True)
    assert sorted(found) == [(1, 10), (2, 20)]


def test_runs_stay_few_and_sorted() -> None:
    side = JoinSide(
        (), KeyTypes(), KeyIds(), join_side.Clock(jt.IntegerTimes()), lambda ids, at: at
    )
    random = np.random.default_rng(3)
    for _ in range(300):
        size = int(random.integers(1, 40))
        side.add(side.run(jt.Batch({"x": range(size)}, times=random.integers(0, 1000, size))))
        lengths = [len(run) for run in side.runs]
        assert all(a > 2 * b for a, b in pairwise(lengths))
        assert all((np.diff(run.at) >= 0).all() for run in side.runs)
    rows = len(side)
    side.expire(500)
    assert len(side) < 0.6 * rows
    side.expire(None)
    assert len(side) == 0


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("left_key", [["time"], ["time", "k"]])
@pytest.mark.parametrize("join", ["interval_join", "asof_join"])
def test_keys_that_are_times_survive_restarts_and_migrations(
    join: str, left_key: list[str], stamped: bool
) -> None:
    def times(*hours: int) -> pa.Array:
        if not stamped:
            return pa.array(hours)
        return pa.array([hour * 3_600_000_000 for hour in hours], pa.timestamp("us"))

    flow = jt.Flow("times as keys")
    left = flow.input("left").key_by(*left_key)
    right = flow.input("right").key_by("at", *left_key[1:])
    if join == "interval_join":
        out = left.interval_join(right, 0, "5h" if stamped else 5)
    else:
        out = right.asof_join(left, how="inner")
    flow.output("out", out)
    run = flow.open(workers=2)
    for number, hour in enumerate((1, 2, 3)):
        run.input("left").send({"time": times(hour, hour), "k": [0, 1], "v": [hour, hour]})
        run.run_to_rest()
        snapshot = run.snapshot()
        run.close()
        run = flow.open(workers=1 + number, restore=snapshot)
        run.migrate({bin: bin % len(run.workers) for bin in range(0, 4096, 3)})
        run.run_to_rest()
    run.input("right").send({"time": times(4, 4, 5), "at": times(1, 3, 4), "k": [0, 1, 0]})
    found = run.finish()["out"]
    run.close()
    both = join == "interval_join" and left_key == ["time"]
    assert sorted(found["v"].to_pylist()) == ([1, 1, 3, 3] if both else [1, 3])
