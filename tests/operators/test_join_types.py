"""Joins over keys and values of every type."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules
from tests.operators.value_types import VALUE_TYPES, schema_for, through_arrow, typed_rows


@pytest.mark.parametrize("kind", list(VALUE_TYPES))
@settings(max_examples=15)
@given(data=st.data(), schedule=schedules())
def test_joins_take_every_type_as_key_and_value(
    kind: str, data: st.DataObject, schedule: Schedule
) -> None:
    schema = schema_for(kind)
    left, right = (through_arrow(data.draw(typed_rows(kind)), schema) for _ in range(2))

    def build(flow: jt.Flow) -> None:
        mine, others = flow.input("left", schema=schema), flow.input("right", schema=schema)
        by_value = mine.key_by("value").interval_join(others.key_by("value"), -10, 10, how="left")
        flow.output("by value", by_value)
        # Few times, so that records at equal ones differ by their values only.
        coarse = [s.delay(lambda batch: (batch.times // 8 + 1) * 8) for s in (mine, others)]
        flow.output("latest", coarse[0].key_by("key").asof_join(coarse[1].key_by("key")))

    inputs = {"left": left, "right": right}
    found = run_twin(build, inputs, schedule, schema={"left": schema, "right": schema})
    assert_same(found["by value"], near(left, right))
    assert_same(found["latest"], latest(left, right))


def near(left: list[Row], right: list[Row]) -> list[Row]:
    expected = []
    for row in left:
        partners = [
            {"time": max(row["time"], other["time"]), "key_right": other["key"]}
            for other in right
            if row["value"] is not None
            and row["value"] == other["value"]
            and abs(row["time"] - other["time"]) <= 10
        ]
        alone = {"time": row["time"] + 10, "key_right": None}
        expected += [row | partner for partner in partners or [alone]]
    return expected


def latest(left: list[Row], right: list[Row]) -> list[Row]:
    def coarse(rows: list[Row]) -> list[Row]:
        return [row | {"time": (row["time"] // 8 + 1) * 8} for row in rows]

    expected = []
    for row in coarse(left):
        best: Row | None = None
        for other in coarse(right):
            if other["key"] == row["key"] and other["time"] <= row["time"]:
                best = other if best is None else greater(best, other)
        expected.append(row | {"value_right": None if best is None else best["value"]})
    return expected


def greater(one: Row, other: Row) -> Row:
    """The later one; of two at the same time the one with the greater value."""
    if one["time"] != other["time"]:
        return max(one, other, key=lambda row: row["time"])
    known = [row for row in (one, other) if row["value"] is not None]
    return max(known, key=lambda row: row["value"]) if known else one
