"""deduplicate against its twin, and what it keeps and refuses."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import GraphError
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules

SCHEMA = pa.schema(
    [
        ("time", pa.int64()),
        ("key", pa.int64()),
        ("word", pa.string()),
        ("value", pa.float64()),
    ]
)


def rows() -> st.SearchStrategy[list[Row]]:
    row = st.fixed_dictionaries(
        {
            "time": st.integers(0, 30),
            "key": st.sampled_from([0, 1, 2**40, -1, None]),
            "word": st.sampled_from(["", "a", "längere Wörter", None]),
            "value": st.sampled_from([0.5, -1.0, float("nan"), None]),
        }
    )
    return st.lists(row, max_size=40)


def by_values(row: Row) -> list[Any]:
    """Nulls last, NaN the greatest number."""
    return [
        (value is None, value != value, 0 if value is None or value != value else value)
        for value in (row[name] for name in SCHEMA.names)
    ]


def firsts(rows: list[Row], key: tuple[str, ...], within: int | None) -> list[Row]:
    """The twin: row by row, in order."""
    kept: dict[Any, int] = {}
    found = []
    for row in sorted(rows, key=by_values):
        values = tuple(row[name] for name in key)
        if values not in kept or (within is not None and row["time"] > kept[values] + within):
            kept[values] = row["time"]
            found.append(row)
    return found


@pytest.mark.parametrize("key", [("key",), ("word",), ("key", "word")], ids="-".join)
@settings(max_examples=40)
@given(rows=rows(), schedule=schedules(), within=st.sampled_from([None, 0, 1, 5, 2**63]))
def test_deduplicate_equals_its_twin(
    key: tuple[str, ...], rows: list[Row], schedule: Schedule, within: int | None
) -> None:
    def build(flow: jt.Flow) -> None:
        stream = flow.input("in", schema=SCHEMA)
        kept = stream.key_by(*key).deduplicate(within=within)
        assert kept.schema == stream.schema
        flow.output("out", kept)

    found = run_twin(build, {"in": rows}, schedule, schema={"in": SCHEMA})
    assert_same(found["out"], firsts(rows, key, within))


@settings(max_examples=30)
@given(rows=rows())
def test_deduplicate_for_good_equals_unique_of_polars(rows: list[Row]) -> None:
    flow = jt.Flow("unique")
    flow.output("out", flow.input("in").key_by("key", "word").deduplicate())
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    found = flow.run({"in": table}, workers=2)["out"].to_pylist()
    frame = pl.DataFrame(pl.from_arrow(table))
    expected = frame.sort(SCHEMA.names, nulls_last=True).unique(["key", "word"], keep="first")
    assert_same(found, expected.to_dicts())


def test_keys_are_forgotten_as_time_passes() -> None:
    flow = jt.Flow("bounded")
    flow.output("out", flow.input("in").key_by("word").deduplicate(within=3))
    with flow.open() as run:
        for time in range(100):
            words = [f"word {time} {number}" for number in range(10)]
            run.input("in").send({"time": [time] * 10, "word": words})
            run.input("in").advance_to(time + 1)
            run.run_to_rest()
            [operator] = [o for o in run.workers[0].operators if o.plan.name == "deduplicate"]
            states: list[Any] = [kept.state for kept in operator.kept.values()]
            assert sum(map(len, states)) <= 5 * 10
        assert run.finish()["out"].num_rows == 1000


def test_what_is_refused() -> None:
    stream = jt.Flow("refused").input("in", schema={"key": int})
    with pytest.raises(GraphError, match="needs key columns"):
        stream.key_by().deduplicate()
    with pytest.raises(GraphError, match="within -1, a negative time"):
        stream.key_by("key").deduplicate(within=-1)
    with pytest.raises(GraphError, match="integer times"):
        stream.iterate(lambda s: (s.key_by("key").deduplicate(), s))
    with pytest.raises(GraphError, match="no column 'kye'"):
        stream.key_by("kye").deduplicate()
