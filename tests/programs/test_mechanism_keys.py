"""Keys of word counts and window means: whatever their type, nulls among them or not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operators.twins import Row, Schedule, assert_same, run_twin, schedules
from tests.programs.counting import counted, means

import jeton as jt
from jeton.errors import BatchError
from jeton_evaluation.programs.mechanisms import MECHANISMS, Mechanism
from jeton_evaluation.programs.window_mean import window_mean
from jeton_evaluation.programs.word_count import word_count

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["to", "be", "or", "not", None]),
    "integers": (pa.int64(), [0, 1, -1, -(2**63), 2**63 - 1, None]),
    "small integers": (pa.uint8(), [0, 1, 255, None]),
    "bools": (pa.bool_(), [True, False, None]),
    "floats": (pa.float64(), [0.5, 1.5, None]),
}


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data(), on=schedules())
@settings(max_examples=12, deadline=None)
def test_keys_with_nulls(kind: str, data: st.DataObject, on: Schedule) -> None:
    """On every schedule, over restarts: also where batches without nulls come first."""
    arrow, values = KEYS[kind]
    pairs = st.tuples(st.integers(0, 9), st.sampled_from(values))
    given = [{"time": t, "word": w, "n": 1} for t, w in data.draw(st.lists(pairs, min_size=1))]

    def build(flow: jt.Flow) -> None:
        stream = flow.input("rows", schema={"word": arrow, "n": int})
        for mechanism in MECHANISMS:
            flow.output(f"count {mechanism}", word_count(stream, mechanism=mechanism).drop("n"))
            flow.output(
                f"mean {mechanism}",
                window_mean(stream, 4, mechanism=mechanism, key="word", value="n"),
            )

    schema = pa.schema([("time", pa.int64()), ("word", arrow), ("n", pa.int64())])
    found = run_twin(build, {"rows": given}, on, schema={"rows": schema})
    for mechanism in MECHANISMS:
        assert_same(found[f"count {mechanism}"], counted(given, "word"))
        assert_same(found[f"mean {mechanism}"], means(_valued(given), 4, "word"))


def _valued(given: list[Row]) -> list[Row]:
    return [{**row, "value": row["n"]} for row in given]


def both(mechanism: Mechanism, **declared: Any) -> jt.Flow:
    flow = jt.Flow("both")
    stream = flow.input("rows", **declared)
    flow.output("count", word_count(stream, mechanism=mechanism, key="key"))
    flow.output("mean", window_mean(stream, 10, mechanism=mechanism))
    return flow


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("declared", [False, True])
def test_categories_are_their_values(mechanism: Mechanism, declared: bool) -> None:
    """As a Categorical of pandas comes."""
    keys = pa.array(["b", "a", None, "b"]).dictionary_encode()
    kwargs = {"schema": {"key": keys.type, "value": float}} if declared else {}
    flow = both(mechanism, **kwargs)
    given = {"time": [1, 2, 3, 12], "key": keys, "value": [1.0, 2.0, 3.0, 4.0]}
    result = flow.run({"rows": given}, workers=2)
    rows = [
        {"time": t, "key": k, "value": v}
        for t, k, v in zip(given["time"], keys.to_pylist(), given["value"], strict=True)
    ]
    assert_same(result["count"].drop(["value"]).to_pylist(), counted(rows))
    assert_same(result["mean"].to_pylist(), means(rows, 10))
    known = flow.output_schema("mean")
    assert known is None or result["mean"].schema.remove(0).equals(known)


def send_all(flow: jt.Flow, *keys: pa.Array) -> jt.Result:
    with flow.open() as run:
        for time, key in enumerate(keys):
            table = {"time": [time] * len(key), "key": key, "value": [1.0] * len(key)}
            run.input("rows").send(table)
            run.input("rows").advance_to(time + 1)
            run.run_to_rest()
        return run.finish()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wider_integers_may_come_later(mechanism: Mechanism) -> None:
    narrow, wide = pa.array([5, 5], pa.int8()), pa.array([5, 2**40, None], pa.int64())
    result = send_all(both(mechanism), narrow, wide, pa.nulls(2))
    assert sorted(result["count"]["count"].to_pylist()) == [1, 1, 1, 2, 2, 3, 3]
    assert sorted(result["mean"]["key"].to_pylist(), key=str) == [2**40, 5, None]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ([pa.array([[1]])], "list"),
        ([pa.array([1]), pa.array(["1"])], "is of type string, but it was int64 before"),
        ([pa.array([1]), pa.array([1], pa.uint64())], "is of type uint64, but it was int64 before"),
        ([pa.array(["1"]), pa.array([True])], "is of type bool, but it was string before"),
    ],
)
@pytest.mark.parametrize("output", ["count", "mean"])
def test_keys_that_cannot_be_worked_with_are_refused(
    keys: list[pa.Array], says: str, output: str
) -> None:
    flow = jt.Flow("refused")
    stream = flow.input("rows")
    flow.output(
        "out", word_count(stream, key="key") if output == "count" else window_mean(stream, 10)
    )
    with pytest.raises(BatchError, match=says):
        send_all(flow, *keys)


def test_values_without_numbers_are_refused() -> None:
    flow = jt.Flow("refused")
    flow.output("mean", window_mean(flow.input("rows"), 10))
    with pytest.raises(BatchError, match="'value' has nulls"):
        flow.run({"rows": {"time": [0], "key": [1], "value": [None]}})
