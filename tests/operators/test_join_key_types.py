"""Keys of two widths: a join that sends keys of both sides changes none of them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import BatchError

PAIRS = [
    (pa.array([0.5], pa.float32()), pa.array([0.5, 0.1])),
    (pa.array([7], pa.int8()), pa.array([7, 2**40])),
    (pa.array([Decimal("1.5")]), pa.array([Decimal("1.5"), Decimal("1234.5")])),
    (pa.array(["a"]), pa.array(["a", "b"], pa.large_string())),
]


def joined(left: pa.Array, right: pa.Array, how: Any, *, typed: bool, suffix: str = "") -> Any:
    flow = jt.Flow("join")
    mine = flow.input("left", schema={"k": left.type, "a": pa.int64()}).key_by("k")
    schema = {"k" + suffix: right.type, "b": pa.int64()} if typed or how == "full" else None
    others = flow.input("right", schema=schema).key_by("k" + suffix)
    stream = mine.join(others, how=how)
    flow.output("out", stream)
    rows = {
        "left": {"time": [0] * len(left), "k": left, "a": list(range(len(left)))},
        "right": {"time": [0] * len(right), "k" + suffix: right, "b": list(range(len(right)))},
    }
    return flow.run(rows, workers=2)["out"], stream.schema


@pytest.mark.parametrize("how", ["right", "full"])
@pytest.mark.parametrize(("left", "right"), PAIRS, ids=lambda array: str(array.type))
def test_keys_of_right_records_stay_what_they_are(
    left: pa.Array, right: pa.Array, how: str
) -> None:
    for suffix in ("", "2"):
        found, schema = joined(left, right, how, typed=True, suffix=suffix)
        pairs = zip(found["k"].to_pylist(), found["a"].to_pylist(), strict=True)
        values = right.to_pylist()
        assert sorted(pairs, key=str) == sorted([(values[0], 0), (values[1], None)], key=str)
        assert found.schema.field("k").type == schema.field("k").type


def test_inner_joins_keep_the_left_type() -> None:
    found, schema = joined(*PAIRS[0], "inner", typed=True)
    assert found["k"].type == schema.field("k").type == pa.float32()


def test_a_key_that_the_known_type_does_not_hold_is_refused() -> None:
    with pytest.raises(BatchError, match=r"the key 'k' comes out as float.*double.*cast one"):
        joined(*PAIRS[0], "right", typed=False)
    found, _ = joined(PAIRS[0][0], pa.array([0.5, 0.25]), "right", typed=False)
    assert sorted(found["k"].to_pylist()) == [0.25, 0.5]


@pytest.mark.parametrize("typed", [True, False])
def test_cogroup_sends_keys_of_both_sides(typed: bool) -> None:
    flow = jt.Flow("groups")
    left = flow.input("left", schema={"k": np.float32}).key_by("k")
    right = flow.input("right", schema={"k": float} if typed else None).key_by("k")
    flow.output("out", left.cogroup(right, lambda key, a, b: {"n": 1}, schema={"n": int}))
    rows = {
        "left": {"time": [0], "k": np.array([0.5], np.float32)},
        "right": {"time": [0], "k": [0.1]},
    }
    if typed:
        assert sorted(flow.run(rows)["out"]["k"].to_pylist()) == [0.1, 0.5]
    else:
        with pytest.raises(BatchError, match=r"the key 'k' comes out as float.*cast one"):
            flow.run(rows)
