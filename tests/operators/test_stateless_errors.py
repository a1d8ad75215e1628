"""Error messages of stateless operators for arguments that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jeton as jt
from jeton.errors import BatchError, GraphError, OperatorFailed, TimeError

ROWS: dict[str, Any] = {"time": [3, 4], "n": [1, 2], "word": ["a", "b"]}


def run(build: Callable[[jt.Stream], Any], rows: dict[str, Any] = ROWS) -> Any:
    flow = jt.Flow("errors")
    stream = build(flow.input("in"))
    if isinstance(stream, jt.Stream):
        flow.output("out", stream)
    return flow.run({"in": rows})


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda s: s.filter("n"), r"column 'n' is of type int64, not boolean.*'filter'"),
        (lambda s: s.filter(lambda b: b["n"]), r"the condition is of type int64, not boolean"),
        (lambda s: s.filter(lambda b: [True]), r"the mask has 1 values"),
        (lambda s: s.branch("word"), r"column 'word' is of type string.*'branch'"),
        (lambda s: s.select("m"), r"no column 'm'.*'select'"),
        (lambda s: s.drop("m"), r"no column 'm'.*'drop'"),
        (lambda s: s.rename({"m": "k"}), r"no column 'm'.*'rename'"),
        (lambda s: s.rename({"n": "word"}), r"two columns would be called 'word'"),
        (lambda s: s.with_columns(k=lambda b: 3), r"do not make a column"),
        (lambda s: s.with_columns(k=lambda b: [1]), r"'k' has 1 values, but the batch has 2"),
        (lambda s: s.partition(2, "n"), r"integers from 0 to 1, and got some from 1 to 2"),
        (lambda s: s.partition(2, "word"), r"got values of type string"),
        (lambda s: s.partition(2, lambda b: [0, None]), r"got 1 nulls"),
        (lambda s: s.partition(2, lambda b: [0]), r"1 numbers for 2 records"),
        (lambda s: s.explode("n"), r"'n' is of type int64, not of lists"),
        (lambda s: s.flat_map(lambda b: ({"n": [1]}, [2])), r"origins outside the batch of 2"),
        (lambda s: s.flat_map(lambda b: ({"n": [1]}, [0.5])), r"needs the index of the record"),
        (lambda s: s.flat_map(lambda b: ({"n": [1]}, [0, 1])), r"'n' has 1 values"),
        (lambda s: s.map_rows(lambda row: {row["word"]: 1}), r"columns \['a'\] and \['b'\]"),
        (
            lambda s: s.map_rows(lambda row: {"n": row["word"]}, schema={"n": int}),
            r"values for 'n' that are not int64",
        ),
        (
            lambda s: s.map_rows(lambda row: row, schema={"n": int}),
            r"made columns \['word'\] that schema= lacks",
        ),
    ],
)
def test_batches_that_do_not_fit(build: Callable[[jt.Stream], Any], text: str) -> None:
    with pytest.raises(BatchError, match=text):
        run(build)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda s: s.delay(lambda b: b.times - 1), r"from 3 back to 2"),
        (lambda s: s.delay(lambda b: b.times[:1]), r"1 times for 2 records"),
        (lambda s: s.map_rows(lambda row: {"time": row["time"] - 1}), r"from 3 back to 2"),
        (lambda s: s.flat_map(lambda b: ({}, [0, 1], [3, 3])), r"from 4 back to 3"),
        (lambda s: s.flat_map(lambda b: ({}, [0, 1], [3])), r"1 times for 2 records"),
    ],
)
def test_times_do_not_go_back(build: Callable[[jt.Stream], Any], text: str) -> None:
    with pytest.raises(TimeError, match=text):
        run(build)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda s: s.with_columns(time=1), r"'time' is the time column"),
        (lambda s: s.with_columns(k=[1, 2]), r"'k' is neither a constant nor a function"),
        (lambda s: s.with_columns(k=np.arange(2)), r"but a ndarray"),
        (lambda s: s.drop("time"), r"'time' is the time column"),
        (lambda s: s.rename({"time": "ts"}), r"'time' is the time column"),
        (lambda s: s.rename({"n": "time"}), r"'time' is the time column"),
        (lambda s: s.partition(0, "n"), r"at least one part"),
        (lambda s: s.exchange(), r"Exchange needs a key"),
    ],
)
def test_graphs_that_cannot_be(build: Callable[[jt.Stream], Any], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        run(build)


def test_a_function_that_fails_is_named_with_its_cause() -> None:
    with pytest.raises(OperatorFailed, match=r"ZeroDivisionError.*'split'") as failure:
        run(lambda s: s.map_rows(lambda row: {"n": 1 // 0}, name="split"))
    assert isinstance(failure.value.__cause__, ZeroDivisionError)


def test_print_shows_records(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"time": list(range(12)), "x": [0.5] * 12}
    run(lambda s: s.inspect(), rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["time   x", "   0 0.5"]
    assert lines[-1] == "… and 2 more"
    assert len(lines) == 12
