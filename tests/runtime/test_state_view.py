"""The state of operators as people see it: keys, values, times and tokens."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest

import jeton as jt

START = datetime(2024, 1, 1, tzinfo=UTC)


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


def timed(state: int, row: dict[str, Any], timers: Any) -> Any:
    timers.after("30s")
    return state + row["n"], []


def never(state: int, time: Any, timers: Any) -> Any:
    return state, []


Keyed = jt.KeyedStream
OPERATORS: dict[str, Callable[[Keyed, Keyed], jt.Stream]] = {
    "running": lambda k, _: k.running().sum("n"),
    "ordered": lambda k, _: k.running(ordered=True).count(),
    "each time": lambda k, _: k.each_time().count(),
    "sliding": lambda k, _: k.sliding("10s", every="5s").mean("n"),
    "until": lambda k, _: k.until("until").count(),
    "sessions": lambda k, _: k.session_window("3s").count(),
    "first": lambda k, _: k.tumbling("10s").first("n"),
    "collect": lambda k, _: k.tumbling("10s").collect("n"),
    "median": lambda k, _: k.tumbling("10s").median("n"),
    "about": lambda k, _: k.tumbling("10s").approx_count_distinct("n"),
    "quantile": lambda k, _: k.tumbling("10s").approx_quantile("n", 0.5),
    "fold": lambda k, _: k.tumbling("10s").fold("n", set, lambda s, v: s | {v}),
    "top": lambda k, _: k.tumbling("10s").top_k(2, "n"),
    "distinct": lambda k, _: k.distinct(),
    "map": lambda k, _: k.stateful_map(lambda s, row: ({**s, row["n"]: 1}, []), {}),
    "timers": lambda k, _: k.stateful_map(timed, 0, on_timer=never, ttl="60s"),
    "join": lambda k, other: k.join(other),
    "asof": lambda k, other: k.asof_join(other, how="inner"),
    "interval": lambda k, other: k.interval_join(other, "-5s", "5s"),
    "cogroup": lambda k, other: k.cogroup(other, lambda key, a, b: {"c": len(a)}),
    "rolling": lambda k, _: k.rolling("10s").sum("n"),
    "last rows": lambda k, _: k.rolling(rows=3).sum("n"),
    "deduplicate": lambda k, _: k.deduplicate(within="20s"),
}


def state_of(name: str) -> pd.DataFrame:
    flow = jt.Flow("states")
    left, right = (flow.input(each, lateness="5s") for each in ("left", "right"))
    flow.output("out", OPERATORS[name](left.key_by("k").named("it"), right.key_by("k")))
    rows = {
        "time": [at(1), at(2), at(13)],
        "k": ["a", "b", "a"],
        "n": [1, 2, 3],
        "until": [at(20), at(20), at(30)],
    }
    with flow.open(workers=2) as run:
        for each in ("left", "right"):
            for worker in range(2):
                run.input(each, worker).send(rows)
        run.pause_at()
        run.run_to_rest()
        return run.state("it")


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_shows_keys_values_and_times(name: str) -> None:
    state = state_of(name)
    assert len(state)
    assert {"worker", "tokens", "token_time"} <= set(state.columns)
    for column in state.columns:
        values = [value for value in state[column].tolist() if pd.notna(value) is not False]
        for value in values:
            assert not isinstance(value, bytes), f"{column} is not readable: {value!r}"
            assert not (isinstance(value, int | float) and abs(value) > 1e14), f"{column}: {value}"
            if isinstance(value, datetime):
                assert START <= value < START + timedelta(minutes=2), f"{column}: {value}"
    keys = [column for column in state.columns if column.endswith(".k")]
    assert {key for column in keys for key in state[column].dropna()} == {"a", "b"} - (
        # Sessions and records of 'b' are complete.
        {"b"} if name in ("each time", "sessions", "join", "interval", "cogroup") else set()
    )


def test_values_of_the_users_own_are_shown_as_python_shows_them() -> None:
    assert sorted(state_of("fold")["of.fold.state"]) == ["{1}", "{2}", "{3}"]
    states = state_of("map")["state"].dropna()
    assert sorted(states) == ["{1: 1}", "{2: 1}"]
    assert sorted(state_of("about")["of.approx_count_distinct.value"]) == [1, 1, 1]


def test_integers_stay_integers_beside_other_containers() -> None:
    state = state_of("last rows")
    assert state["number"].dropna().tolist() == [0, 1, 0, 1]
    assert "time" not in state.columns


def test_tokens_of_an_operator_that_keeps_nothing_else() -> None:
    def hoard(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()
        held: list[jt.TimestampToken] = []

        def step(input: jt.Input, output: jt.Output) -> None:
            held.extend(ref.retain() for ref, _ in input)

        return step

    flow = jt.Flow("hoard")
    flow.output("out", flow.input("in").unary(hoard, name="hoard"))
    with flow.open(workers=2) as run:
        for n in (7, 5):
            run.input("in", worker=1).send({"time": [at(n)], "n": [n]})
        run.pause_at()
        run.run_to_rest()
        assert run.state("hoard").to_dict("records") == [
            {"worker": 1, "tokens": 2, "token_time": pd.Timestamp(at(5))}
        ]


def test_records_of_a_join_whose_columns_have_other_types() -> None:
    flow = jt.Flow("join")
    left, right = flow.input("left"), flow.input("right")
    flow.output("out", left.key_by("k").interval_join(right.key_by("k"), -5, 5).named("it"))
    with flow.open() as run:
        run.input("left").send({"time": [1], "k": [1], "v": [1.5]})
        run.input("right").send({"time": [2], "k": [1], "v": ["x"]})
        run.pause_at()
        run.run_to_rest()
        state = run.state("interval_join")
        assert sorted(state["row.v"]) == ["1.5", "x"]


@pytest.mark.parametrize("other", [None, START])
def test_a_worker_without_rows_does_not_change_the_types(other: datetime | None) -> None:
    """Its columns have no rows, and it may not even know that times are timestamps."""
    flow = jt.Flow("one sided")
    flow.output(
        "out", flow.input("in", lateness="0s").key_by("k").named("it").tumbling("1h").count()
    )
    with flow.open(workers=2) as run:
        run.input("in").send({"time": [at(1)], "k": [1]})
        if other is not None:
            run.input("in", worker=1).send({"time": [other], "k": [1]})
        run.pause_at()
        run.run_to_rest()
        state = run.state("it")
        assert state["end"].tolist() == [pd.Timestamp(at(3600))]
        assert state["token_time"].tolist() == [pd.Timestamp(at(3600))]
