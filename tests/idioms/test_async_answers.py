"""Asynchronous operators: what is asked with, what may be answered, and which columns it has."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.idioms.asking import Row, table

import jeton as jt
from jeton.errors import BatchError, GraphError
from jeton.idioms.asynchronous import async_operator, async_unary
from jeton.idioms.event_loop import AsyncInput, AsyncOutput
from jeton.idioms.map_async import map_async, try_map_async

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

ROWS = {"time": [1, 2], "n": [3, 4]}


async def _passes_on(input: AsyncInput, output: AsyncOutput) -> None:
    async for event in input:
        output.give(event, event.batch)


async def _ask(row: Row) -> Row:
    return row


async def _ask_with(factor: int, row: Row) -> Row:
    return {"n": factor * row["n"]}


class _Asks:
    async def __call__(self, row: Row) -> Row:
        return {"n": 2 * row["n"]}

    def plainly(self, row: Row) -> Row:
        return row

    @staticmethod
    async def yielding(row: Row) -> Any:
        yield row


@pytest.mark.parametrize("ask", [partial(_ask_with, 2), partial(partial(_ask_with), 2), _Asks()])
def test_whatever_can_be_awaited_asks(ask: Any) -> None:
    flow = jt.Flow("asks")
    flow.output("out", map_async(flow.input("in"), ask))
    assert table(flow.run({"in": ROWS}), "out") == [(1, 6), (2, 8)]


@pytest.mark.parametrize(
    "ask", [lambda row: row, _Asks().plainly, partial(_Asks().plainly), _Asks.yielding, None]
)
@pytest.mark.parametrize("how", [map_async, try_map_async, async_unary])
def test_what_cannot_be_awaited_is_refused_at_once(how: Any, ask: Any) -> None:
    rows = jt.Flow("plain").input("in")
    with pytest.raises(GraphError, match=r"not a coroutine function.*'async def'.*'mine'"):
        how(rows, ask, name="mine")


@pytest.mark.parametrize("how", [map_async, try_map_async, async_unary])
def test_a_mistyped_option_is_reported_by_the_function_that_was_called(how: Any) -> None:
    rows = jt.Flow("typo").input("in")
    with pytest.raises(TypeError, match=rf"{how.__name__}\(\) got an unexpected .*'retry'"):
        how(rows, _ask, retry=1)
    with pytest.raises(GraphError, match="order='by tme': it must be 'by time' or 'as they"):
        how(rows, _ask, order="by tme")


def test_outputs_are_checked() -> None:
    rows = jt.Flow("wrong").input("in")
    with pytest.raises(GraphError, match="at least 1"):
        async_operator(rows, _passes_on, outputs=0)
    with pytest.raises(GraphError, match="1 outputs, but schemas= has 2"):
        async_operator(rows, _passes_on, schemas=[None, None])


@pytest.mark.parametrize("how", [map_async, try_map_async])
@pytest.mark.parametrize(
    ("answer", "rows", "text"),
    [
        (5, None, "answered 5, of type int: return a record as a dictionary, several"),
        ("abc", None, "answered 'abc', of type str: return a record"),
        (["abc"], None, "answered 'abc', of type str: return a record"),
        ("x" * 100, None, "answered 'x{59}…, of type str"),
        ([{"n": 1}], 2, "of type list: return a batch, columns with 2 values each, or None"),
        ({"n": [1]}, 2, "'n' has 1 values, but there are 2 times"),
    ],
)
def test_a_malformed_answer_fails_the_flow_and_says_what_is_expected(
    how: Any, answer: Any, rows: int | None, text: str
) -> None:
    async def ask(asked: Any) -> Any:
        return answer

    flow = jt.Flow("malformed")
    streams = how(flow.input("in"), ask, rows=rows, name="mine")
    for number, stream in enumerate([streams] if how is map_async else streams):
        flow.output(f"out {number}", stream)
    with pytest.raises(BatchError, match=rf"{text}.*'mine', worker 0, time 1"):
        flow.run({"in": ROWS})


def test_no_column_of_the_users_is_overwritten() -> None:
    async def ask(row: Row) -> Row:
        raise ValueError("bad")

    flow = jt.Flow("own columns")
    schema = {"error": str, "attempts": int, "attempts_": int}
    known, unknown = (
        try_map_async(flow.input(name, schema=declared), ask)[1]
        for name, declared in [("known", schema), ("unknown", None)]
    )
    flow.output("known", known)
    flow.output("unknown", unknown)
    rows: dict[str, list[Any]] = {"time": [1], "error": ["mine"], "attempts": [7], "attempts_": [8]}
    result = flow.run({"known": rows, "unknown": rows})
    expected = [
        {**{k: v[0] for k, v in rows.items()}, "error_": "ValueError: bad", "attempts__": 1}
    ]
    assert result["known"].to_pylist() == result["unknown"].to_pylist() == expected
    assert unknown.schema is None
    assert known.schema == pa.schema([*result["known"].schema][1:])


def test_a_rejected_record_is_as_documented_when_a_name_is_the_time_column() -> None:
    async def ask(row: Row) -> Row:
        raise ValueError("bad")

    flow = jt.Flow("time is error")
    _, rejected = try_map_async(flow.input("in", time="error"), ask)
    flow.output("out", rejected)
    result = flow.run({"in": {"error": [1], "n": [2]}})
    assert result["out"].to_pylist() == [
        {"error": 1, "n": 2, "error_": "ValueError: bad", "attempts": 1}
    ]


@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("how", [map_async, try_map_async])
def test_answers_are_of_the_schema(how: Any, rows: int | None) -> None:
    async def record(row: Row) -> Row:
        return {"x": row["n"]} if row["n"] % 2 else {"x": row["n"], "text": "even"}

    async def columns(batch: jt.Batch) -> Any:
        return {"text": pa.array([None] * len(batch)), "x": batch["n"].astype(np.int16)}

    flow = jt.Flow("schema")
    schema = {"x": float, "text": str}
    made = how(flow.input("in"), record if rows is None else columns, rows=rows, schema=schema)
    stream = made if how is map_async else made[0]
    assert stream.schema == pa.schema({"x": pa.float64(), "text": pa.string()})
    with pytest.raises(GraphError, match="no column 'nope'"):
        stream.key_by("nope")
    flow.output("out", stream)
    text = "even" if rows is None else None
    none: dict[str, list[int]] = {"time": [], "n": []}
    for data in (ROWS, none):
        found = flow.run({"in": data})["out"]
        assert found.schema == pa.schema([("time", pa.int64()), *stream.schema])
        expected = [(1, 3.0, None), (2, 4.0, text)] if data is ROWS else []
        assert [tuple(row.values()) for row in found.to_pylist()] == expected


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"n": str}, "the answer: column 'n' is .*string"),
        ({"m": int}, "(the answer: there is no column 'm'|schema= lacks: it has .'m'.)"),
        ({"n": pa.list_(pa.int64())}, "the answer: column 'n' is .*list"),
    ],
)
@pytest.mark.parametrize("rows", [None, 2])
def test_answers_that_are_not_of_the_schema(schema: Any, text: str, rows: int | None) -> None:
    flow = jt.Flow("schema")
    flow.output("out", map_async(flow.input("in"), _ask, rows=rows, schema=schema, name="mine"))
    with pytest.raises(BatchError, match=rf"{text}.*'mine'"):
        flow.run({"in": ROWS})


def test_a_coroutines_own_answers_are_of_the_schema() -> None:
    flow = jt.Flow("schema")
    seen = async_unary(flow.input("in"), _passes_on, schema={"time": int, "n": float})
    flow.output("out", seen)
    assert seen.schema == pa.schema({"n": pa.float64()})
    assert flow.run({"in": ROWS})["out"]["n"].to_pylist() == [3.0, 4.0]


def test_an_error_without_text_is_its_type() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise KeyError("text")

    errors: list[Exception] = [TimeoutError(), ValueError("bad"), Unreadable()]

    async def ask(row: dict[str, Any]) -> None:
        raise errors[row["n"]]

    flow = jt.Flow("f")
    _, rejected = try_map_async(flow.input("in"), ask, order="by time")
    flow.output("out", rejected)
    found = flow.run({"in": {"time": [0, 1, 2], "n": [0, 1, 2]}})["out"]["error"].to_pylist()
    assert found[:2] == ["TimeoutError", "ValueError: bad"]
    assert found[2].startswith("Unreadable: its text cannot be had")
