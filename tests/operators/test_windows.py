"""Tumbling, sliding and data-dependent windows, and groups for each time, against their twins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.dataflow.operators import partial_windows
from jeton.dataflow.operators.panes import has_panes
from jeton.dataflow.operators.windows import Sliding
from tests.operators.twins import ALL_TIMES, Row, Schedule, assert_same, run_twin, schedules

SCHEMA = pa.schema(
    [
        ("time", pa.int64()),
        ("key", pa.int64()),
        ("word", pa.string()),
        ("value", pa.int64()),
        ("ends", pa.int64()),
    ]
)


def rows() -> st.SearchStrategy[list[Row]]:
    row: st.SearchStrategy[Row] = st.fixed_dictionaries(
        {
            "time": st.integers(0, 40),
            "key": st.one_of(st.integers(0, 4), st.sampled_from([2**40, -7]), st.none()),
            "word": st.one_of(st.sampled_from(["", "a", "b", "längere Wörter"]), st.none()),
            "value": st.one_of(st.integers(-5, 5), st.none()),
            "ends": st.integers(0, 20),
        }
    )
    return st.lists(row, max_size=25).map(
        lambda found: [row | {"ends": row["time"] + row["ends"]} for row in found]
    )


def aggregate(group: list[Row]) -> Row:
    values = [row["value"] for row in group if row["value"] is not None]
    words = [row["word"] for row in group if row["word"] is not None]
    return {
        "n": len(group),
        "known": len(values),
        "total": sum(values) if values else None,
        "least": min(values, default=None),
        "most": max(values, default=None),
        "average": sum(values) / len(values) if values else None,
        "last": max(words, default=None),
    }


AGGREGATES = {
    "n": jt.agg.count(),
    "known": jt.agg.count("value"),
    "total": jt.agg.sum("value"),
    "least": jt.agg.min("value"),
    "most": jt.agg.max("value"),
    "average": jt.agg.mean("value"),
    "last": jt.agg.max("word"),
}

WHEN: dict[str, tuple[Callable[[jt.KeyedStream], Any], Callable[[Row], list[int]]]] = {
    "each time": (lambda k: k.each_time(), lambda row: [row["time"]]),
    "tumbling": (lambda k: k.tumbling(10), lambda row: [(row["time"] // 10 + 1) * 10]),
    "tumbling with an offset": (
        lambda k: k.tumbling(10, offset=3),
        lambda row: [end for end in range(3, 80, 10) if end - 10 <= row["time"] < end],
    ),
    "sliding": (
        lambda k: k.sliding(15, every=5),
        lambda row: [end for end in range(0, 80, 5) if end - 15 <= row["time"] < end],
    ),
    "sliding by a part": (
        lambda k: k.sliding(10, every=4),
        lambda row: [end for end in range(0, 80, 4) if end - 10 <= row["time"] < end],
    ),
    "until": (lambda k: k.until("ends"), lambda row: [row["ends"]]),
}

KEYS = [("key",), ("word",), ("key", "word"), ()]


def test_records_at_the_end_that_they_give_belong_together() -> None:
    flow = jt.Flow("until")
    flow.output("counts", flow.input("in").key_by("key").until("ends").count())
    with flow.open() as run:
        for _ in range(2):
            run.input("in").send({"time": [3], "key": [7], "ends": [3]})
            run.input("in").advance_to(3)
            run.run_to_rest()
        found = run.finish()["counts"].to_pylist()
    assert found == [{"time": 3, "key": 7, "count": 2}]


@pytest.mark.parametrize("when", list(WHEN))
@pytest.mark.parametrize("key", KEYS, ids="-".join)
@settings(max_examples=25)
@given(rows=rows(), schedule=schedules())
def test_windows_equal_their_twin(
    when: str, key: tuple[str, ...], rows: list[Row], schedule: Schedule
) -> None:
    group_by, ends = WHEN[when]

    def build(flow: jt.Flow) -> None:
        flow.output("out", group_by(flow.input("in").key_by(*key)).aggregate(**AGGREGATES))

    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        for end in ends(row):
            groups[end, *(row[name] for name in key)].append(row)
    expected = [
        {"time": end, **dict(zip(key, values, strict=True)), **aggregate(group)}
        for (end, *values), group in groups.items()
    ]
    found = run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})
    assert_same(found["out"], expected)


def test_restored_windows_are_emitted_once_with_their_values() -> None:
    """Several restores with windows that stay open between them, of small integer keys."""
    flow = jt.Flow("means")
    flow.output("out", flow.input("in").key_by("k").tumbling(100).mean("v"))
    rows, run = [], flow.open()
    for batch in range(4):
        numbers = np.arange(batch * 300, batch * 300 + 300)
        handle = run.input("in")
        handle.send({"time": 100 + numbers, "k": numbers % 5, "v": numbers * 0.5})
        handle.advance_to(100 + int(numbers[-1]))
        run.run_to_rest()
        rows += run.results()["out"].to_pylist()
        run = flow.open(restore=run.snapshot())
    rows += run.finish()["out"].to_pylist()
    assert len(rows) == 12 * 5
    for row in rows:
        values = [0.5 * n for n in range(row["time"] - 200, row["time"] - 100) if n % 5 == row["k"]]
        assert row["mean"] == pytest.approx(sum(values) / len(values))


@settings(max_examples=40)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "time": st.integers(-20, 40),
                "key": st.sampled_from([1, 2, None]),
                "n": st.sampled_from([1, -7, 2**40, None]),
            }
        ),
        max_size=30,
    ),
    steps=st.integers(1, 4),
    offset=st.integers(0, 4),
    schedule=schedules(),
    most=st.sampled_from([0, 2, 1000]),
)
def test_sliding_windows_of_panes_equal_their_twin(
    rows: list[Row], steps: int, offset: int, schedule: Schedule, most: int
) -> None:
    """Windows of a whole number of steps, of aggregates that panes can be added up of."""
    with pytest.MonkeyPatch.context() as patch:
        # Panes are sent before they are complete once there are more than this.
        patch.setattr(partial_windows, "MOST_PARTIAL", most)
        check_panes(rows, steps, offset, schedule)


def check_panes(rows: list[Row], steps: int, offset: int, schedule: Schedule) -> None:
    every, size = 5, 5 * steps
    schema = pa.schema([("time", pa.int64()), ("key", pa.int64()), ("n", pa.int64())])

    def build(flow: jt.Flow) -> None:
        keyed = flow.input("in", schema=schema.remove(0)).key_by("key")
        windows = keyed.sliding(size, every=every, offset=offset, bounds=True)
        aggregates: dict[str, Any] = {
            "count": jt.agg.count(),
            "known": jt.agg.count("n"),
            "sum": jt.agg.sum("n"),
            "mean": jt.agg.mean("n"),
            "least": jt.agg.min("n"),
            "most": jt.agg.max("n"),
        }
        assert has_panes(keyed, Sliding(size, every, offset), aggregates)
        flow.output("out", windows.aggregate(**aggregates))

    found = run_twin(build, {"in": rows}, schedule, schema={"in": schema}, kind=ALL_TIMES)
    expected = []
    for end in range(-40 + offset, 80, every):
        for key in (1, 2, None):
            inside = [r for r in rows if r["key"] == key and end - size <= r["time"] < end]
            known = [row["n"] for row in inside if row["n"] is not None]
            if inside:
                expected.append(
                    {
                        "time": end,
                        "key": key,
                        "window_start": end - size,
                        "window_end": end,
                        "count": len(inside),
                        "known": len(known),
                        "sum": sum(known) if known else None,
                        "mean": sum(known) / len(known) if known else None,
                        "least": min(known, default=None),
                        "most": max(known, default=None),
                    }
                )
    assert_same(found["out"], expected)


def test_windows_are_made_of_panes_only_where_that_is_exact() -> None:
    flow = jt.Flow("panes")
    keyed = flow.input("in", schema={"k": int, "n": int, "x": float}).key_by("k")
    whole, part = Sliding(10, 5, 0), Sliding(12, 5, 0)
    assert has_panes(keyed, whole, {"n": jt.agg.sum("n"), "x": jt.agg.max("x")})
    assert not has_panes(keyed, part, {"n": jt.agg.sum("n")})
    assert not has_panes(keyed, whole, {"x": jt.agg.sum("x")})
    assert not has_panes(keyed, whole, {"all": jt.agg.collect("n")})
    assert not has_panes(flow.input("unknown").key_by("k"), whole, {"n": jt.agg.sum("n")})


def test_snapshots_of_sliding_windows_without_panes_are_read() -> None:
    """Those of a schema that is not known have no panes."""

    def flow_of(schema: Any) -> jt.Flow:
        flow = jt.Flow("sums")
        keyed = flow.input("in", schema=schema).key_by("k")
        flow.output("sums", keyed.sliding(10, every=5).sum("n"))
        return flow

    with flow_of(None).open(workers=2) as run:
        run.input("in").send({"time": [1, 2, 6], "k": [1, 2, 1], "n": [1, 2, 4]})
        for worker in range(2):
            run.input("in", worker).advance_to(5)
        run.run_to_rest()
        before = run.results()["sums"].to_pylist()
        snapshot = run.snapshot()
    assert {(row["time"], row["k"], row["sum"]) for row in before} == {(5, 1, 1), (5, 2, 2)}
    with flow_of({"k": int, "n": int}).open(workers=3, restore=snapshot) as run:
        run.input("in").send({"time": [7], "k": [1], "n": [8]})
        found = run.finish()["sums"].to_pylist()
    assert {(row["time"], row["k"], row["sum"]) for row in found} == {
        (10, 1, 13), (10, 2, 2), (15, 1, 12),
    }  # fmt: skip
