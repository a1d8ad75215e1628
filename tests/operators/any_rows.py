"""Rows of many types, and how an operator is compared with its twin on them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

import jeton as jt
from tests.operators.twins import Row, Schedule, assert_same, run_twin

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
