"""cogroup against its twin."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import BatchError
from tests.operators.test_join import KEYS, LEFT, RIGHT, lefts, rights
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules


def summary(key: dict[str, Any], left: list[Row], right: list[Row]) -> Row | None:
    """The twin's result of a group; some have none."""
    if len(left) == 2 and not right:
        return None
    return {
        "lefts": len(left),
        "values": sum(row["value"] or 0 for row in left),
        "notes": ",".join(sorted(row["note"] or "?" for row in right)),
        "known": None if None in key.values() else True,
    }


def as_row(key: dict[str, Any], left: jt.Batch, right: jt.Batch) -> Any:
    return summary(key, left.rows(), right.rows())


def as_rows(key: dict[str, Any], left: jt.Batch, right: jt.Batch) -> Any:
    made = summary(key, left.rows(), right.rows())
    return [made, made] if made is not None else []


def as_columns(key: dict[str, Any], left: jt.Batch, right: jt.Batch) -> Any:
    made = summary(key, left.rows(), right.rows())
    if made is None:
        return None
    return made | {"values": [made["values"]] * 2, "notes": pa.array([made["notes"]] * 2)}


FUNCTIONS = {"row": (as_row, 1), "rows": (as_rows, 2), "columns": (as_columns, 2)}


@pytest.mark.parametrize("returned", list(FUNCTIONS))
@pytest.mark.parametrize("key", list(KEYS))
@settings(max_examples=20)
@given(left=lefts(5), right=rights(5), schedule=schedules(), loop=st.booleans())
def test_cogroup_equals_its_twin(
    returned: str, key: str, left: list[Row], right: list[Row], schedule: Schedule, loop: bool
) -> None:
    function, times = FUNCTIONS[returned]
    left_key, right_key = KEYS[key]

    def build(flow: jt.Flow) -> None:
        mine = flow.input("left", schema=LEFT)
        others = flow.input("right", schema=RIGHT)
        if loop:
            inside = flow.loop("loop")
            mine, others = mine.enter(inside), others.enter(inside)  # type: ignore[assignment]
        made = mine.key_by(*left_key).cogroup(others.key_by(*right_key), function)
        flow.output("out", made.leave() if loop else made)

    groups: dict[tuple[Any, ...], tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for side, (rows, names) in enumerate(((left, left_key), (right, right_key))):
        for row in rows:
            groups[row["time"], *(row[name] for name in names)][side].append(row)
    expected = []
    for (time, *values), (mine, others) in groups.items():
        named = dict(zip(left_key, values, strict=True))
        made = summary(named, mine, others)
        if made is not None:
            expected += [{"time": time, **named, **made}] * times
    if loop:
        schedule = replace(schedule, restart=None)
    inputs = {"left": left, "right": right}
    found = run_twin(build, inputs, schedule, schema={"left": LEFT, "right": RIGHT})
    assert_same(found["out"], expected)


def test_a_batch_may_be_returned_as_it_is() -> None:
    """An anti-join: records of the left side whose key the right side does not have."""
    flow = jt.Flow("anti")
    left, right = flow.input("left"), flow.input("right")

    def unless(key: dict[str, Any], left: jt.Batch, right: jt.Batch) -> jt.Batch | None:
        return None if len(right) else left

    flow.output("out", left.key_by("key").cogroup(right.key_by("key"), unless))
    mine = {"time": [0, 0, 1], "key": [1, 2, 2], "x": ["a", "b", "c"]}
    table = flow.run({"left": mine, "right": {"time": [0], "key": [2]}})["out"]
    assert table.to_pylist() == [{"time": 0, "key": 1, "x": "a"}, {"time": 1, "key": 2, "x": "c"}]


def test_a_declared_schema_holds() -> None:
    flow = jt.Flow("typed")
    left = flow.input("left", schema={"key": str})
    right = flow.input("right", schema={"key": str})
    made = left.key_by("key").cogroup(
        right.key_by("key"), lambda key, left, right: {"n": None}, schema={"n": float}
    )
    assert made.schema == pa.schema({"key": pa.string(), "n": pa.float64()})
    flow.output("out", made)
    rows = {"time": [0], "key": ["a"]}
    assert flow.run({"left": rows, "right": rows})["out"].schema.field("n").type == pa.float64()


def test_what_is_no_row_is_refused() -> None:
    flow = jt.Flow("refused")
    left, right = flow.input("left"), flow.input("right")
    made = left.key_by("key").cogroup(right.key_by("key"), lambda *_: "text")  # type: ignore[arg-type]
    flow.output("out", made)
    with pytest.raises(BatchError, match="must return rows or columns, not str"):
        flow.run({"left": {"time": [0], "key": [1]}, "right": {"time": [0], "key": [1]}})
