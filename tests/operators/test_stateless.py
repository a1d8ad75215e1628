"""Every stateless operator against a slow obvious twin over plain rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules

SCHEMA = pa.schema(
    [
        ("time", pa.int64()),
        ("n", pa.int64()),
        ("m", pa.int64()),
        ("x", pa.float64()),
        ("word", pa.string()),
        ("flag", pa.bool_()),
        ("items", pa.list_(pa.int32())),
    ]
)

ROW = st.fixed_dictionaries(
    {
        "time": st.integers(0, 40),
        "n": st.one_of(st.none(), st.integers(-(2**40), 2**40)),
        "m": st.integers(-9, 9),
        "x": st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(float("nan"))),
        "word": st.one_of(st.none(), st.text(max_size=4)),
        "flag": st.one_of(st.none(), st.booleans()),
        "items": st.one_of(
            st.none(), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=3)
        ),
    }
)

# Hypothesis likes short lists, but faults of whole batches want batches of some size.
ROWS = st.sampled_from([3, 0, 1, 8, 40]).flatmap(
    lambda size: st.lists(ROW, min_size=size, max_size=size)
)

twin_test = settings(max_examples=80)


@jt.kernel
def doubled(n: int) -> int:
    return n * 2


@jt.kernel
def quotient(m: int, x: float) -> float | None:
    return None if m == 0 else x / m


@jt.kernel
def large(n: int, m: int) -> bool:
    return n > m * m


@jt.kernel
def third(m: int) -> int:
    return m % 3


def check(
    build: Callable[[jt.Stream], jt.Stream],
    twin: Callable[[Row], list[Row]],
    rows: list[Row],
    schedule: Schedule,
    declared: bool | None = None,
) -> None:
    """With and without a declared schema, an operator does what its twin does to each row."""
    for known in (False, True) if declared is None else (declared,):

        def flow_of(flow: jt.Flow, known: bool = known) -> None:
            flow.output("out", build(flow.input("in", schema=SCHEMA if known else None)))

        found = run_twin(flow_of, {"in": rows}, schedule, schema={"in": SCHEMA})["out"]
        assert_same(found, [new for row in rows for new in twin(row)])


def without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


@twin_test
@given(ROWS, schedules())
def test_map(rows: list[Row], schedule: Schedule) -> None:
    check(
        lambda s: s.map(lambda batch: {"twice": batch["m"] * 2, "word": batch["word"]}),
        lambda row: [{"time": row["time"], "twice": row["m"] * 2, "word": row["word"]}],
        rows,
        schedule,
    )
    check(
        lambda s: s.map(doubled),
        lambda row: [{"time": row["time"], "doubled": None if row["n"] is None else row["n"] * 2}],
        rows,
        schedule,
    )


@twin_test
@given(ROWS, schedules())
def test_with_columns(rows: list[Row], schedule: Schedule) -> None:
    def twin(row: Row) -> list[Row]:
        x, m = row["x"], row["m"]
        new = {
            "m": m + 1,
            "odd name": row["word"],
            "q": None if x is None or m == 0 else x / m,
            "one": 1,
            "half": 0.5,
            "yes": True,
            "text": "eins",
            "nothing": None,
        }
        return [row | new]

    check(
        lambda s: s.with_columns(
            {"odd name": lambda batch: batch["word"]},
            m=lambda batch: batch["m"] + 1,
            q=quotient,  # sees m as it was
            one=1,
            half=0.5,
            yes=True,
            text="eins",
            nothing=None,
        ),
        twin,
        rows,
        schedule,
    )


@twin_test
@given(ROWS, schedules())
def test_select_drop_rename(rows: list[Row], schedule: Schedule) -> None:
    check(
        lambda s: s.select("word", "m"),
        lambda row: [{"time": row["time"], "word": row["word"], "m": row["m"]}],
        rows,
        schedule,
    )
    check(lambda s: s.drop("x", "items"), lambda row: [without(row, "x", "items")], rows, schedule)
    check(
        lambda s: s.rename({"n": "m", "m": "n"}),
        lambda row: [row | {"n": row["m"], "m": row["n"]}],
        rows,
        schedule,
    )


@twin_test
@given(ROWS, schedules())
def test_filter(rows: list[Row], schedule: Schedule) -> None:
    check(
        lambda s: s.filter(lambda batch: batch["m"] > 2),
        lambda row: [row] if row["m"] > 2 else [],
        rows,
        schedule,
    )
    check(lambda s: s.filter("flag"), lambda row: [row] if row["flag"] else [], rows, schedule)
    check(
        lambda s: s.filter(large),
        lambda row: [row] if row["n"] is not None and row["n"] > row["m"] ** 2 else [],
        rows,
        schedule,
    )
    check(
        lambda s: s.filter(lambda batch: pc.starts_with(batch["word"], "a")),
        lambda row: [row] if (row["word"] or "").startswith("a") else [],
        rows,
        schedule,
    )


@twin_test
@given(ROWS, schedules())
def test_flat_map(rows: list[Row], schedule: Schedule) -> None:
    def copies(batch: jt.Batch) -> tuple[Any, Any]:
        origins = np.repeat(np.arange(len(batch)), np.abs(batch["m"]) % 3)
        return {"m": batch["m"][origins]}, origins

    check(
        lambda s: s.flat_map(copies),
        lambda row: [{"time": row["time"], "m": row["m"]}] * (abs(row["m"]) % 3),
        rows,
        schedule,
    )

    def later(batch: jt.Batch) -> tuple[Any, Any, Any]:
        origins = np.arange(len(batch))[::-1]
        return {"m": batch["m"][origins]}, origins, batch.times[origins] + 5

    check(
        lambda s: s.flat_map(later),
        lambda row: [{"time": row["time"] + 5, "m": row["m"]}],
        rows,
        schedule,
    )


@twin_test
@given(ROWS, schedules())
def test_explode(rows: list[Row], schedule: Schedule) -> None:
    check(
        lambda s: s.explode("items"),
        lambda row: [row | {"items": item} for item in row["items"] or []],
        rows,
        schedule,
    )
    check(
        lambda s: s.explode("items", into="item"),
        lambda row: [without(row, "items") | {"item": item} for item in row["items"] or []],
        rows,
        schedule,
    )


def several(row: Row) -> Row | list[Row] | None:
    if row["m"] < -3:
        return None
    if row["m"] < 3:
        return {"word": row["word"], "m": row["m"]}
    return [{"word": "copy", "m": at, "time": row["time"] + at} for at in range(row["m"] % 4)]


def several_twin(row: Row) -> list[Row]:
    made = several(row)
    listed = [] if made is None else made if isinstance(made, list) else [made]
    return [{"time": row["time"]} | new for new in listed]


@twin_test
@given(ROWS, schedules())
def test_map_rows(rows: list[Row], schedule: Schedule) -> None:
    check(lambda s: s.map_rows(several), several_twin, rows, schedule)
    check(
        lambda s: s.map_rows(several, schema={"word": str, "m": int}), several_twin, rows, schedule
    )
    check(lambda s: s.map_rows(lambda row: row, schema=SCHEMA), lambda row: [row], rows, schedule)


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
def test_delay(rows: list[Row], schedule: Schedule) -> None:
    check(
        lambda s: s.delay(lambda batch: (batch.times // 10 + 1) * 10),
        lambda row: [row | {"time": (row["time"] // 10 + 1) * 10}],
        rows,
        schedule,
    )


@twin_test
@given(ROWS, schedules())
def test_inspect_and_probe(rows: list[Row], schedule: Schedule) -> None:
    seen: list[Row] = []
    check(
        lambda s: s.inspect(lambda batch: seen.extend(batch.rows())).probe(),
        lambda row: [row],
        rows,
        schedule,
        declared=False,
    )
    assert_same(seen, rows)


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
