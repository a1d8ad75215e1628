"""The same program by tokens, notifications and watermarks: the same answer on every schedule."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedule_of
from tests.programs.counting import counted, means

import jeton as jt
from jeton.errors import GraphError
from jeton_evaluation.programs.chain import chain
from jeton_evaluation.programs.mechanisms import MECHANISMS, Mechanism
from jeton_evaluation.programs.window_mean import window_mean
from jeton_evaluation.programs.word_count import word_count


def rows(seed: int, *, most: int = 30) -> list[Row]:
    random = Random(seed)
    return [
        {"time": random.randint(0, 25), "key": random.randint(-2, 4), "value": random.randint(0, 9)}
        for _ in range(random.randint(1, most))
    ]


def run_all(build: Any, given: list[Row], on: Schedule) -> dict[str, list[Row]]:
    """Every mechanism's rows, all in one flow."""

    def build_all(flow: jt.Flow) -> None:
        stream = flow.input("rows")
        for mechanism in MECHANISMS:
            flow.output(mechanism, build(stream, mechanism))

    return run_twin(build_all, {"rows": given}, on)


@pytest.mark.parametrize("seed", range(70))
def test_word_count(seed: int) -> None:
    def build(stream: jt.Stream, mechanism: Mechanism) -> jt.Stream:
        return word_count(stream, mechanism=mechanism, key="key").drop("value")

    given = rows(seed)
    for found in run_all(build, given, schedule_of(seed)).values():
        assert_same(found, counted(given))


@pytest.mark.parametrize("seed", range(70))
def test_window_mean(seed: int) -> None:
    size = 1 + seed % 9

    def build(stream: jt.Stream, mechanism: Mechanism) -> jt.Stream:
        return window_mean(stream, size, mechanism=mechanism)

    given = rows(seed)
    for found in run_all(build, given, schedule_of(seed)).values():
        assert_same(found, means(given, size))


@pytest.mark.parametrize("seed", range(60))
def test_chain(seed: int) -> None:
    def build(stream: jt.Stream, mechanism: Mechanism) -> jt.Stream:
        return chain(stream, seed % 4, mechanism=mechanism, key=["key", None][seed % 2])

    given = rows(seed, most=15)
    for found in run_all(build, given, schedule_of(seed)).values():
        assert_same(found, given)


@pytest.mark.parametrize("seed", range(6))
def test_times_below_zero(seed: int) -> None:
    given = [{**row, "time": row["time"] - 20} for row in rows(seed)]
    flow = jt.Flow("below zero", time=jt.IntegerTimes(minimum=-100))
    stream = flow.input("rows")
    for mechanism in MECHANISMS:
        flow.output(f"count {mechanism}", word_count(stream, mechanism=mechanism, key="key"))
        flow.output(f"mean {mechanism}", window_mean(stream, 7, mechanism=mechanism))
    result = flow.run({"rows": given}, workers=1 + seed % 3, seed=seed)
    for mechanism in MECHANISMS:
        assert_same(result[f"count {mechanism}"].drop(["value"]).to_pylist(), counted(given))
        assert_same(result[f"mean {mechanism}"].to_pylist(), means(given, 7))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_agrees_with_the_librarys_own_operators(mechanism: Mechanism) -> None:
    flow = jt.Flow("both")
    stream = flow.input("rows", schema={"key": int, "value": int})
    keyed = stream.key_by("key")
    mine = word_count(stream, mechanism=mechanism, key="key")
    flow.output("count", mine.drop("value"))
    flow.output("library count", keyed.running(ordered=True).count().drop("value"))
    flow.output("mean", window_mean(stream, 7, mechanism=mechanism))
    flow.output("library mean", keyed.tumbling(7).mean("value"))
    given = rows(5, most=300)
    result = flow.run({"rows": given}, workers=3)
    for name in ("count", "mean"):
        assert_same(result[name].to_pylist(), result[f"library {name}"].to_pylist())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_many_keys(mechanism: Mechanism) -> None:
    """Tables grow, and shrink once their windows are emitted."""
    flow = jt.Flow("many")
    stream = flow.input("rows")
    flow.output("count", word_count(stream, mechanism=mechanism, key="key"))
    flow.output("mean", window_mean(stream, 400, mechanism=mechanism))
    random = Random(3)
    given = [
        {"time": n // 10, "key": random.randrange(-(2**62), 2**62), "value": n}
        for n in range(4_000)
    ]
    given += [{**row, "time": row["time"] + 7} for row in given]
    with flow.open(workers=2) as run:
        for at in range(0, len(given), 500):
            run.input("rows", at // 500 % 2).send(given[at : at + 500])
            run.run_to_rest()
        result = run.finish()
    found = [{n: row[n] for n in ("time", "key", "count")} for row in result["count"].to_pylist()]
    assert_same(found, counted(given))
    assert_same(result["mean"].to_pylist(), means(given, 400))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_many_windows_of_few_keys(mechanism: Mechanism) -> None:
    flow = jt.Flow("many")
    flow.output("mean", window_mean(flow.input("rows"), 2, mechanism=mechanism))
    given = [{"time": n // 3, "key": n % 3, "value": n} for n in range(6_000)]
    with flow.open() as run:
        run.input("rows").send(given)
        run.run_to_rest()
        assert_same(run.finish()["mean"].to_pylist(), means(given, 2))


def test_marks_cross_workers_at_every_link_of_x_and_at_none_of_p() -> None:
    def messages(mechanism: Mechanism) -> int:
        flow = jt.Flow("links")
        flow.output("out", chain(flow.input("rows"), 5, mechanism=mechanism))
        with flow.open(workers=3) as run:
            for worker in range(3):
                run.input("rows", worker).advance_to(7)
            run.run_to_rest()
            return run.network.messages

    assert [messages(m) for m in ("tokens", "notifications", "watermarks-p")] == [0, 0, 0]
    # From each of three workers to two others, at five links, for one moved frontier.
    assert messages("watermarks-x") == 3 * 2 * 5


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_results_come_out_as_soon_as_their_time_is_complete(mechanism: Mechanism) -> None:
    flow = jt.Flow("prompt")
    stream = flow.input("rows")
    flow.output("count", word_count(stream, mechanism=mechanism, key="key"))
    flow.output("mean", window_mean(stream, 10, mechanism=mechanism))
    with flow.open(workers=2) as run:
        run.input("rows", 1).send([{"time": t, "key": 1, "value": t} for t in (12, 9, 3)])
        for time, counts, emitted in [(3, 0, 0), (4, 1, 0), (10, 2, 1), (12, 2, 1), (13, 3, 1)]:
            for worker in range(2):
                run.input("rows", worker).advance_to(time)
            run.run_to_rest()
            result = run.results()
            assert (result["count"].num_rows, result["mean"].num_rows) == (counts, emitted)


@pytest.mark.parametrize("mechanism", ["tokens", "notifications"])
def test_a_chain_in_a_loop(mechanism: Mechanism) -> None:
    flow = jt.Flow("looped")

    def body(numbers: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        more, done = chain(numbers, 3, mechanism=mechanism).branch(lambda batch: batch["n"] < 1)
        return more.with_columns(n=lambda batch: batch["n"] - 1), done

    loop = flow.loop()
    again = loop.feedback()
    more, done = body(flow.input("n").enter(loop).concat(again.stream))
    again.connect(more)
    flow.output("done", done.leave())
    for seed in range(5):
        table = {"time": [0, 1, 1], "n": [2, 0, 3]}
        result = flow.run({"n": table}, workers=1 + seed % 3, seed=seed)
        assert result["done"]["time"].to_pylist() == [0, 1, 1]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_schemas_are_known_behind(mechanism: Mechanism) -> None:
    flow = jt.Flow("known")
    stream = flow.input("rows", schema={"key": str, "value": float})
    counts = word_count(chain(stream, 2, mechanism=mechanism), mechanism=mechanism, key="key")
    means = window_mean(stream, 5, mechanism=mechanism)
    assert counts.schema is not None
    assert means.schema is not None
    assert counts.schema.names == ["key", "value", "count"]
    assert means.schema.names == ["key", "mean"]
    flow.output("counts", counts)
    flow.output("means", means)
    result = flow.run({"rows": {"time": [1], "key": ["a"], "value": [2.0]}})
    for name, known in (("counts", counts.schema), ("means", means.schema)):
        assert result[name].schema.remove(0).equals(known)


def test_what_makes_no_sense_is_refused() -> None:
    flow = jt.Flow("refused")
    stream = flow.input("rows", schema={"key": int, "value": float, "word": str})
    with pytest.raises(GraphError, match=r"no mechanism 'barriers'.*watermarks-p"):
        word_count(stream, mechanism="barriers", key="key")  # type: ignore[arg-type]
    for mechanism in MECHANISMS:
        with pytest.raises(GraphError, match="'kye'"):
            word_count(stream, mechanism=mechanism, key="kye")
        with pytest.raises(GraphError, match="from 1 to"):
            window_mean(stream, 0, mechanism=mechanism)
        with pytest.raises(GraphError, match="'time' is when windows end"):
            window_mean(stream, 5, mechanism=mechanism, key="time")
    with pytest.raises(GraphError, match="cannot be used inside a loop"):
        chain(stream.enter(flow.loop()), 1, mechanism="watermarks-p")
