"""Stateless operators that split, merge and move streams against slow obvious twins over rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import jeton as jt
from tests.operators.any_rows import ROWS, SCHEMA, check, large, third, twin_test
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules


@twin_test
@given(ROWS, ROWS, schedules())
def test_concat(left: list[Row], right: list[Row], schedule: Schedule) -> None:
    def build(flow: jt.Flow) -> None:
        one, other = flow.input("left"), flow.input("right", schema=SCHEMA)
        flow.output("both", one.concat(other, one))

    found = run_twin(
        build, {"left": left, "right": right}, schedule, schema={"left": SCHEMA, "right": SCHEMA}
    )
    assert_same(found["both"], [*left, *left, *right])


@twin_test
@given(ROWS, schedules())
def test_branch(rows: list[Row], schedule: Schedule) -> None:
    conditions: dict[str, tuple[Any, Callable[[Row], Any]]] = {
        "flag": ("flag", lambda row: row["flag"]),
        "kernel": (large, lambda row: row["n"] is not None and row["n"] > row["m"] ** 2),
        "function": (lambda batch: batch.times > 20, lambda row: row["time"] > 20),
    }

    def build(flow: jt.Flow) -> None:
        stream = flow.input("in")
        for form, (condition, _) in conditions.items():
            no, yes = stream.branch(condition)
            flow.output(f"{form} no", no)
            flow.output(f"{form} yes", yes)

    found = run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})
    for form, (_, twin) in conditions.items():
        assert_same(found[f"{form} yes"], [row for row in rows if twin(row)])
        assert_same(found[f"{form} no"], [row for row in rows if not twin(row)])


@twin_test
@given(ROWS, schedules())
def test_partition(rows: list[Row], schedule: Schedule) -> None:
    ways: dict[str, Any] = {
        "column": "part",
        "kernel": third,
        "function": lambda batch: batch["m"] % 3,
    }

    def build(flow: jt.Flow) -> None:
        numbered = flow.input("in").with_columns(part=third)
        for way, to in ways.items():
            for number, part in enumerate(numbered.partition(3, to)):
                flow.output(f"{way} {number}", part.drop("part"))

    found = run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})
    for way in ways:
        for number in range(3):
            expected = [row for row in rows if row["m"] % 3 == number]
            assert_same(found[f"{way} {number}"], expected)


@twin_test
@given(ROWS, schedules(), st.sampled_from([("word",), ("n", "word"), ("m",)]))
def test_exchange(rows: list[Row], schedule: Schedule, key: tuple[str, ...]) -> None:
    check(lambda s: s.exchange(*key), lambda row: [row], rows, schedule)
    check(lambda s: s.exchange(third), lambda row: [row], rows, schedule)


@twin_test
@given(ROWS, st.integers(1, 4), st.integers(0, 99))
def test_exchange_brings_equal_keys_together(rows: list[Row], workers: int, seed: int) -> None:
    flow = jt.Flow("keys")
    flow.input("in").exchange("word", "m").capture("moved")
    with flow.open(workers=workers, seed=seed) as run:
        for at, row in enumerate(rows):
            run.input("in", at % workers).send(pa.Table.from_pylist([row], schema=SCHEMA))
        run.finish()
        owner: dict[Any, int] = {}
        for worker, events in enumerate(run.captured("moved")):
            for event in events:
                batch = getattr(event, "batch", None)
                for row in batch.rows() if batch is not None else []:
                    assert owner.setdefault((row["word"], row["m"]), worker) == worker


@twin_test
@given(ROWS, schedules())
def test_broadcast(rows: list[Row], schedule: Schedule) -> None:
    # Without a restart: it is as many workers as there are when a record is sent.
    check(
        lambda s: s.broadcast(),
        lambda row: [row] * schedule.workers,
        rows,
        replace(schedule, restart=None),
    )


@twin_test
@given(ROWS, schedules())
def test_a_chain(rows: list[Row], schedule: Schedule) -> None:
    def twin(row: Row) -> list[Row]:
        if not row["flag"]:
            return []
        return [
            {"time": row["time"] + 1, "item": item, "square": row["m"] ** 2}
            for item in row["items"] or []
        ]

    check(
        lambda s: (
            s.filter("flag")
            .with_columns(square=lambda batch: batch["m"] ** 2)
            .explode("items", into="item")
            .exchange("item")
            .delay(lambda batch: batch.times + 1)
            .select("item", "square")
        ),
        twin,
        rows,
        schedule,
    )


@twin_test
@given(st.lists(st.integers(1, 60), max_size=12), st.integers(1, 3), st.integers(0, 99))
def test_in_a_loop(numbers: list[int], workers: int, seed: int) -> None:
    """Times of a loop have two coordinates, for operators on batches and for plain Python."""

    def halve(row: Row) -> list[Row]:
        outer, turn = row["time"].outer, row["time"].inner
        assert row["n"] * 2**turn == row["start"]
        return [{"n": row["n"] // 2, "start": row["start"], "time": jt.Product(outer, turn)}]

    def body(stream: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        even, odd = stream.branch(lambda batch: batch["n"] % 2 == 1)
        part, other = even.partition(2, lambda batch: batch["start"] % 4 // 2)
        plain = part.map_rows(halve, schema={"n": int, "start": int})
        whole = other.exchange("start").with_columns(n=lambda batch: batch["n"] // 2)
        return plain.concat(whole), odd

    flow = jt.Flow("halves")
    start = flow.input("in", schema={"n": int, "start": int})
    flow.output("out", start.iterate(body))
    rows = [{"time": at, "n": n, "start": n} for at, n in enumerate(numbers)]
    table = pa.Table.from_pylist(
        rows, schema=pa.schema({"time": pa.int64(), "n": pa.int64(), "start": pa.int64()})
    )
    found = flow.run({"in": table}, workers=workers, seed=seed)["out"].to_pylist()
    assert_same(found, [row | {"n": row["n"] // (row["n"] & -row["n"])} for row in rows])
