"""Stateless operators on the records of one stream against slow obvious twins over plain rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc
from hypothesis import given

import jeton as jt
from tests.operators.any_rows import ROWS, SCHEMA, check, large, twin_test, without
from tests.operators.twins import Row, Schedule, assert_same, schedules


@jt.kernel
def doubled(n: int) -> int:
    return n * 2


@jt.kernel
def quotient(m: int, x: float) -> float | None:
    return None if m == 0 else x / m


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
