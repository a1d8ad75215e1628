"""stateful_map against its twin."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from threading import Lock
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import JetonError, SnapshotError
from tests.helpers import messages
from tests.operators.test_top_k import place
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules

SCHEMA = pa.schema(
    [("time", pa.int64()), ("key", pa.int16()), ("word", pa.string()), ("n", pa.float32())]
)


def rows() -> st.SearchStrategy[list[Row]]:
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 15),
            "key": st.one_of(st.integers(0, 2), st.none()),
            "word": st.sampled_from(["open", "close", "", None]),
            "n": st.sampled_from([0.0, 1.0, 2.5, None, float("nan")]),
        }
    )
    return st.lists(row, max_size=25)


def door(state: Any, row: Row) -> tuple[Any, list[Row]]:
    """Counts what comes between "open" and "close", and forgets the key then."""
    words, since = state["words"], state["since"]
    if row["word"] == "open":
        return {"words": [], "since": row["time"]}, []
    words = [*words, row["word"], str(row["n"])]
    if row["word"] == "close":
        return None, [{"since": since, "words": words}, {"words": None, "time": row["time"] + 5}]
    return {"words": words, "since": since}, []


INITIAL = {"words": ["new"], "since": -1}


def walked(rows: list[Row], key: tuple[str, ...]) -> list[Row]:
    """The twin: each key's records by time and then by all columns, one after the other."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in key)].append(row)
    found = []
    for values, group in groups.items():
        group.sort(key=lambda r: (r["time"], *(place(r[name]) for name in ("key", "word", "n"))))
        state: Any = None
        for row in group:
            state, said = door(INITIAL if state is None else state, row)
            for answer in said:
                at = {"time": row["time"], "since": None}
                found.append(at | dict(zip(key, values, strict=True)) | answer)
    return found


@pytest.mark.parametrize("key", [("key",), ("key", "word"), ()], ids="-".join)
@settings(max_examples=50)
@given(rows=rows(), schedule=schedules())
def test_a_state_machine_equals_its_twin(
    key: tuple[str, ...], rows: list[Row], schedule: Schedule
) -> None:
    def build(flow: jt.Flow) -> None:
        flow.output("out", flow.input("in").key_by(*key).stateful_map(door, INITIAL))

    found = run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})["out"]
    # `since` is missing where a run has nothing but answers without it.
    assert_same([{"since": None} | row for row in found], walked(rows, key))


@settings(max_examples=25)
@given(n=st.lists(st.integers(0, 6), max_size=10), schedule=schedules())
def test_a_state_machine_in_a_loop_sees_rounds_in_order(n: list[int], schedule: Schedule) -> None:
    def ascending(last: int, row: Row) -> tuple[int, list[Row]]:
        assert row["round"] >= last
        return row["round"], [{"round": row["round"]}]

    def body(stream: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        going = stream.filter(lambda batch: batch["n"] > 0)
        again = going.with_columns(n=lambda b: b["n"] - 1, round=lambda b: b["round"] + 1)
        return again, stream.key_by("key").stateful_map(ascending, 0)

    def build(flow: jt.Flow) -> None:
        flow.output("out", flow.input("in").iterate(body))

    rows = [{"time": 0, "key": i % 2, "n": rounds, "round": 0} for i, rounds in enumerate(n)]
    found = run_twin(build, {"in": rows}, replace(schedule, restart=None))
    expected = [
        {"time": 0, "key": row["key"], "round": r} for row in rows for r in range(row["n"] + 1)
    ]
    assert_same(found["out"], expected)


def test_a_state_that_is_changed_in_place_is_not_shared() -> None:
    def collect(state: list[int], row: Row) -> tuple[list[int], list[Row]]:
        state.append(row["n"])
        return state, [{"all": list(state)}]

    flow = jt.Flow("lists")
    keyed = flow.input("in").key_by("k")
    flow.output("value", keyed.stateful_map(collect, []))
    flow.output("made", keyed.stateful_map(collect, list))
    rows = {"time": [0, 1, 2], "k": [1, 2, 1], "n": [10, 20, 30]}
    result = flow.run({"in": rows})
    for name in ("value", "made"):
        assert result[name]["all"].to_pylist() == [[10], [20], [10, 30]]


def test_answers_keep_the_types_of_their_keys() -> None:
    flow = jt.Flow("types")
    keyed = flow.input("in").key_by("k", "at")
    flow.output("out", keyed.stateful_map(lambda s, row: (s, [{"n": 1}]), 0))
    kinds = {"time": pa.int64(), "k": pa.int8(), "at": pa.timestamp("ms")}
    table = pa.table({"time": [0], "k": [1], "at": [0]}).cast(pa.schema(kinds))
    schema = flow.run({"in": table})["out"].schema
    assert {name: schema.field(name).type for name in kinds} == kinds


def test_an_answer_may_name_another_key_and_its_neighbours_keep_theirs() -> None:
    flow = jt.Flow("others")
    keyed = flow.input("in").key_by("k")
    said = [{"n": 1}, {"k": 9, "n": 2}]
    flow.output("out", keyed.stateful_map(lambda state, row: (state, said), 0))
    found = flow.run({"in": {"time": [0, 1], "k": [5, 6]}})["out"].to_pylist()
    assert [(row["k"], row["n"]) for row in found] == [(5, 1), (9, 2), (6, 1), (9, 2)]


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda state, row: state, "must return"),
        (lambda state, row: (state, {"n": 1}), "put the row into a list"),
        (lambda state, row: (state, None), "without rows, return an empty list"),
        (lambda state, row: (state, 7), "must return (state, list of rows), not (0, 7)"),
        (lambda state, row: (state, [1]), "rows"),
        (lambda state, row: (state, [{"time": row["time"] - 1}]), "before"),
        (lambda state, row: (state, [{"x": object()}]), "column"),
    ],
)
def test_wrong_answers_are_errors_that_say_so(function: Any, complaint: str) -> None:
    flow = jt.Flow("wrong")
    flow.output("out", flow.input("in").key_by("k").stateful_map(function, 0, name="mine"))
    with pytest.raises(JetonError) as caught:
        flow.run({"in": {"time": [5], "k": [1]}})
    assert complaint in messages(caught.value)
    assert "mine" in messages(caught.value)


def test_a_state_that_cannot_be_pickled_is_an_error_of_the_snapshot() -> None:
    flow = jt.Flow("objects")
    flow.output("out", flow.input("in").key_by("k").stateful_map(lambda s, r: (s, []), Lock))
    with flow.open() as run:
        run.input("in").send({"time": [5], "k": [1]})
        run.input("in").advance_to(6)
        run.run_to_rest()
        with pytest.raises(SnapshotError, match=r"cannot be stored.*pickle"):
            run.snapshot()
        run.finish()


def follow(state: int, row: Row) -> tuple[int, list[Row]]:
    return state + 1, [{"n": state, "word": "odd"} if state % 2 else {"n": state}]


def counted(schema: Any, on_timer: Any = None, types: Any = None) -> jt.Flow:
    flow = jt.Flow("declared")
    keyed = flow.input("in", schema=types or {"k": pa.int8(), "at": pa.timestamp("ms")})
    function: Any = follow if on_timer is None else lambda s, row, timers: follow(s, row)
    mapped = keyed.key_by("k").stateful_map(
        function, 0, on_timer=on_timer, schema=schema, name="mine"
    )
    flow.output("out", mapped)
    return flow


@pytest.mark.parametrize("on_timer", [None, lambda state, key, timers: (state, [])])
def test_a_schema_declares_the_columns_of_the_rows(on_timer: Any) -> None:
    flow = counted({"n": pa.int32(), "word": str, "gone": float}, on_timer)
    kinds = {"k": pa.int8(), "n": pa.int32(), "word": pa.string(), "gone": pa.float64()}
    assert flow.output_schema("out") == pa.schema(kinds)
    table = pa.table({"time": [0, 1], "k": pa.array([5, 5], pa.int8()), "at": pa.nulls(2)})
    found = flow.run({"in": table})["out"]
    assert found.schema == pa.schema({"time": pa.int64(), **kinds})
    assert found.to_pylist() == [
        {"time": 0, "k": 5, "n": 0, "word": None, "gone": None},
        {"time": 1, "k": 5, "n": 1, "word": "odd", "gone": None},
    ]
    # Also where there are no rows of which the types could be learnt.
    assert flow.run({"in": table.slice(0, 0)})["out"].schema == found.schema


def test_a_schema_may_name_the_key_if_the_input_has_none() -> None:
    flow = jt.Flow("named")
    keyed = flow.input("in").key_by("k")
    flow.output("out", keyed.stateful_map(follow, 0, schema={"k": pa.int16(), "n": int}))
    with pytest.raises(JetonError, match=r"columns \['word'\] that schema= lacks"):
        flow.run({"in": {"time": [0, 1], "k": [5, 5]}})
    found = flow.run({"in": {"time": [0, 1], "k": [5, 6]}})["out"]
    assert found.schema.field("k").type == pa.int16()
    assert found["k"].to_pylist() == [5, 6]


def test_a_row_that_does_not_fit_its_schema_is_an_error_that_says_so() -> None:
    with pytest.raises(
        JetonError, match="values for 'n' that are not string, as schema= says"
    ) as e:
        counted({"n": str, "word": str}).run({"in": {"time": [0], "k": [1], "at": [None]}})
    assert "mine" in messages(e.value)
