"""Columns whose types differ between batches become one exactly, or are refused by name."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import BatchError, GraphError

DAY = datetime.datetime(2020, 1, 1)


def joined(left: Any, right: Any) -> tuple[str, list[Any]]:
    batches = [jt.Batch({"x": values}, times=[0] * len(values)) for values in (left, right)]
    found = jt.concat(batches)["x"]
    return str(found.type), found.to_list()


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array([253370764800], pa.timestamp("s")), pa.array([5], pa.timestamp("ns"))),
        (pa.array([2**40], pa.duration("s")), pa.array([5], pa.duration("ns"))),
        (pa.array([2**53 + 1]), pa.array([0.5])),
        (pa.array([2**63], pa.uint64()), pa.array([-1])),
        (pa.array([True]), pa.array([5])),
        (pa.array([5], pa.duration("s")), pa.array([5])),
        (pa.array([5], pa.timestamp("s")), pa.array([5])),
        (pa.array([5], pa.timestamp("s")), pa.array([5], pa.duration("s"))),
        (pa.array([5], pa.timestamp("s")), pa.array([5], pa.timestamp("s", "UTC"))),
        (pa.array(["a"]), pa.array([5])),
        (pa.array(["a"]), pa.array([b"\xff"])),
        (pa.array([Decimal("0.1")]), pa.array([0.1])),
        (pa.array([[True]]), pa.array([[5]])),
        (pa.array([{"a": "x"}]), pa.array([{"a": b"x"}])),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_what_would_change_is_refused_by_name(left: pa.Array, right: pa.Array, nulls: bool) -> None:
    if nulls:
        left = pa.concat_arrays([left, pa.nulls(1, left.type)])
    for one, other in ((left, right), (right, left)):
        with pytest.raises(BatchError, match=r"column 'x' is of type.* in .*: cast it") as error:
            joined(one, other)
        assert str(left.type) in str(error.value)
        assert str(right.type) in str(error.value)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (np.array([1, 2]), np.array([0.5]), ("double", [1.0, 2.0, 0.5])),
        (np.array([2**63 - 1]), np.array([1], np.uint64), ("int64", [2**63 - 1, 1])),
        (
            np.array([DAY], "M8[s]"),
            np.array([DAY], "M8[us]"),
            ("timestamp[us]", [DAY, DAY]),
        ),
        (
            pa.array([Decimal("1.5")]),
            np.array([2**62]),
            ("decimal128(21, 1)", [Decimal("1.5"), Decimal(2**62)]),
        ),
        (pa.array([None]), np.array([True]), ("bool", [None, True])),
        (pa.array([], pa.float64()), np.array([2**53 + 1]), ("int64", [2**53 + 1])),
        (pa.array([], pa.string()), np.array([5]), ("int64", [5])),
    ],
)
def test_what_fits_is_exact(left: Any, right: Any, expected: tuple[str, list[Any]]) -> None:
    assert joined(left, right) == expected


def test_streams_follow_the_same_rule_when_the_flow_is_built() -> None:
    flow = jt.Flow("both")
    one = flow.input("one", schema={"x": str})
    with pytest.raises(GraphError, match=r"column 'x' is string in one stream and binary in"):
        one.concat(flow.input("other", schema={"x": bytes}))
