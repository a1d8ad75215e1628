"""Means of decimals, and reductions of columns with nulls: exact, whatever the order."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jeton as jt

KIND = pa.decimal128(38, 2)


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
def test_means_of_decimals_do_not_depend_on_the_order(order: list[int]) -> None:
    values = [Decimal(1), Decimal(90071992547409931), Decimal(-90071992547409930)]
    flow = jt.Flow("mean")
    flow.output("o", flow.input("i").key_by().tumbling(10).mean("v"))
    rows = {"time": [0, 0, 0], "v": pa.array([values[at] for at in order], KIND)}
    assert flow.run({"i": rows})["o"]["mean"].to_pylist() == [2 / 3]


@given(
    st.lists(st.none() | st.decimals(-(10**20), 10**20, places=2, allow_nan=False), max_size=6),
    st.integers(0, 6),
)
def test_means_of_decimals_survive_a_restart(values: list[Decimal | None], cut: int) -> None:
    flow = jt.Flow("mean")
    flow.output("o", flow.input("i").key_by().tumbling(10).mean("v"))

    def send(run: Any, part: list[Decimal | None]) -> None:
        if part:
            run.input("i").send({"time": [0] * len(part), "v": pa.array(part, KIND)})
        run.run_to_rest()

    with flow.open() as run:
        send(run, values[:cut])
        snapshot = run.snapshot()
    with flow.open(restore=snapshot) as run:
        send(run, values[cut:])
        found = run.finish()["o"]
    known = [Fraction(value) for value in values if value is not None]
    expected = [float(sum(known) / len(known)) if known else None] if values else []
    if values:
        assert found["mean"].to_pylist() == expected


def test_sessions_of_decimals_have_means() -> None:
    flow = jt.Flow("mean")
    flow.output("o", flow.input("i").key_by().session_window(5).mean("v"))
    rows = {"time": [0, 8, 4], "v": pa.array([Decimal(1), Decimal(2), Decimal(6)], KIND)}
    assert flow.run({"i": rows})["o"]["mean"].to_pylist() == [3.0]


def test_a_null_does_not_narrow_what_reduce_returns() -> None:
    for values in ([127, 1], [127, 1, None]):
        flow = jt.Flow("sum")
        stream = flow.input("i").key_by().tumbling(10)
        flow.output("o", stream.reduce("v", lambda a, b: a + b))
        rows = {"time": [0] * len(values), "v": pa.array(values, pa.int8())}
        assert flow.run({"i": rows})["o"]["reduce"].to_pylist() == [128]


def test_keyed_values_find_nan_again() -> None:
    for key in (lambda: float("nan"), lambda: (1, float("nan"))):
        counts: jt.state.KeyedValues[int] = jt.state.KeyedValues()
        for _ in range(2):
            counts[key()] = counts.get(key(), 0) + 1
        assert list(counts.values()) == [2]
    again: jt.state.KeyedValues[int] = jt.state.KeyedValues()
    only: jt.state.KeyedValues[int] = jt.state.KeyedValues()
    only[float("nan")] = 2
    again.restore(only.snapshot(), [])
    assert again[float("nan")] == 2
    del again[float("nan")]
    assert not again
