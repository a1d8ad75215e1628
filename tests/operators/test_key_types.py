"""Keys of two sides: which are equal, and which never are, on any number of workers."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import BatchError, GraphError
from jeton.idioms.arrangement import arrange
from jeton.idioms.lookup_join import lookup_join

JOINS: dict[str, Callable[[jt.Stream, jt.Stream], jt.Stream]] = {
    "join": lambda left, right: left.key_by("k").join(right.key_by("id")),
    "interval_join": lambda left, right: left.key_by("k").interval_join(right.key_by("id"), -1, 1),
    "asof_join": lambda left, right: left.key_by("k").asof_join(right.key_by("id"), how="inner"),
    "cogroup": lambda left, right: left.key_by("k").cogroup(
        right.key_by("id"),
        lambda key, mine, others: {"n": 1} if len(mine) and len(others) else None,
    ),
    "lookup_join": lambda left, right: lookup_join(left, arrange(right, "id"), on="k"),
}
DECIMALS = [Decimal("1.50"), Decimal("2.50")]
NEVER: list[tuple[pa.Array, pa.Array]] = [
    (pa.array([1, 2]), pa.array([1.0, 2.0])),
    (pa.array([1, 2], pa.timestamp("us")), pa.array([1, 2], pa.timestamp("ns"))),
    (pa.array([1, 2], pa.timestamp("us")), pa.array([1, 2], pa.timestamp("us", "UTC"))),
    (pa.array(["a", "b"]), pa.array([b"a", b"b"])),
    (pa.array(DECIMALS, pa.decimal128(9, 2)), pa.array(DECIMALS, pa.decimal128(9, 3))),
]
EQUAL: list[tuple[pa.Array, pa.Array]] = [
    (pa.array([1, 2], pa.int32()), pa.array([1, 2])),
    (pa.array([1, 2], pa.uint64()), pa.array([1, 2], pa.int8())),
    (pa.array([1.5, 2.5], pa.float32()), pa.array([1.5, 2.5])),
    (pa.array(["a", "b"], pa.large_string()), pa.array(["b", "a"]).dictionary_encode()),
    (pa.array(["a", "b"], pa.string_view()), pa.array(["b", "a"])),
    (pa.array([b"ab", b"cd"], pa.binary(2)), pa.array([b"cd", b"ab"], pa.large_binary())),
    (pa.array(DECIMALS, pa.decimal128(9, 2)), pa.array(DECIMALS, pa.decimal256(50, 2))),
]


def joined(
    join: str, left: pa.Array, right: pa.Array, workers: int, *, declared: bool = False
) -> pa.Table:
    flow = jt.Flow("types")
    sides = [
        flow.input(name, schema={key: values.type} if declared else None)
        for name, key, values in (("left", "k", left), ("right", "id", right))
    ]
    flow.output("out", JOINS[join](*sides))
    mine = {"time": [1] * len(left), "k": left}
    others = {"time": [1] * len(right), "id": right}
    return flow.run({"left": mine, "right": others}, workers=workers)["out"]


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize(("left", "right"), NEVER, ids=str)
def test_keys_that_are_never_equal_are_refused(join: str, left: pa.Array, right: pa.Array) -> None:
    for workers in (1, 2, 3, 4):
        with pytest.raises(BatchError, match=r"'(k|id)' .* never equal.*operator '") as error:
            joined(join, left, right, workers)
        # Whichever of the two comes last has the error.
        assert join in str(error.value) or "'arrange'" in str(error.value)
    with pytest.raises(GraphError, match=f"'k'.*'id'.*never equal.*operator '{join}'"):
        joined(join, left, right, 1, declared=True)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize(("left", "right"), EQUAL, ids=str)
def test_keys_of_like_types_meet(join: str, left: pa.Array, right: pa.Array) -> None:
    for workers in (1, 3):
        assert joined(join, left, right, workers).num_rows == 2


def test_keys_beyond_int64_are_not_taken_for_negative_ones() -> None:
    left, right = pa.array([2**64 - 1], pa.uint64()), pa.array([-1])
    for join in ("join", "interval_join", "asof_join"):
        with pytest.raises(BatchError, match="18446744073709551615 of one side is beyond int64"):
            joined(join, left, right, 2)
    assert joined("lookup_join", left, right, 2).num_rows == 0
    assert joined("join", left, left, 2).num_rows == 1


def test_a_restored_side_knows_its_types() -> None:
    flow = jt.Flow("types")
    left, right = flow.input("left"), flow.input("right")
    flow.output("out", left.key_by("k").interval_join(right.key_by("id"), -100, 100))
    with flow.open() as run:
        run.input("left").send({"time": [1], "k": [1]})
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=4, restore=snapshot) as run:
        run.input("right").send({"time": [1], "id": [1.0]})
        with pytest.raises(BatchError, match="never equal"):
            run.run_to_rest()
