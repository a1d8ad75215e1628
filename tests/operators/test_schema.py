"""Schemas: learned when the graph is built, and checked there and at inputs."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.columns.schema import as_schema, schema_of
from jeton.errors import BatchError, GraphError

COLUMNS = {"n": int, "price": float, "word": str, "flag": bool}
SCHEMA = as_schema(COLUMNS)


@jt.kernel
def total(n: int, price: float) -> float:
    return n * price


@jt.kernel
def misspelt(n: int, prise: float) -> float:
    return n * prise


def sales(flow: jt.Flow | None = None) -> jt.Stream:
    return (flow or jt.Flow("sales")).input("sales", schema=COLUMNS)


@pytest.mark.parametrize(
    "declared",
    [
        {"n": int, "x": np.float32, "w": pa.string()},
        {"time": int, "n": "int64", "x": pa.float32(), "w": str},
        pa.schema(
            [("n", pa.int64()), ("time", pa.int64()), ("x", pa.float32()), ("w", pa.string())]
        ),
    ],
)
def test_ways_to_say_a_schema(declared: Any) -> None:
    stream = jt.Flow("f").input("in", schema=declared)
    assert stream.schema == pa.schema({"n": pa.int64(), "x": pa.float32(), "w": pa.string()})


def test_types_of_time_and_nonsense() -> None:
    found = as_schema({"a": datetime.datetime, "b": datetime.date, "c": np.dtype("M8[s]")})
    assert found.types == [pa.timestamp("us"), pa.date32(), pa.timestamp("s")]
    with pytest.raises(GraphError, match="is not a type of a column"):
        as_schema({"a": object()})


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.filter("flag"),
        lambda s: s.branch("flag")[1],
        lambda s: s.partition(2, "n")[0],
        lambda s: s.exchange("word", "n"),
        lambda s: s.broadcast(),
        lambda s: s.delay(lambda batch: batch.times + batch["n"]),
        lambda s: s.inspect(),
        lambda s: s.probe(),
        lambda s: s.capture(),
        lambda s: s.concat(s),
        lambda s: s.enter(s.scope.loop()).leave(),
        lambda s: s.iterate(lambda inner: inner.branch("flag")),
    ],
)
def test_kept(build: Callable[[jt.Stream], jt.Stream]) -> None:
    assert build(sales()).schema == SCHEMA


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda s: s.select("word", "n"), {"word": str, "n": int}),
        (lambda s: s.select("time", "n"), {"n": int}),
        (lambda s: s.drop("word", "flag"), {"n": int, "price": float}),
        (
            lambda s: s.select("n", "word").rename({"n": "k"}),
            {"k": int, "word": str},
        ),
        (lambda s: s.map(total), {"total": float}),
        (lambda s: s.map(lambda b: {"a": b["n"] / 2, "b": b["word"]}), {"a": float, "b": str}),
        (lambda s: s.map(lambda b: b.select("n")), {"n": int}),
        (
            lambda s: s.select("n").with_columns(
                n=lambda b: b["n"] > 1,
                one=1,
                text="x",
                length=lambda b: pc.utf8_length(pa.array(["a"])[:0]),
            ),
            {"n": bool, "one": int, "text": str, "length": pa.int32()},
        ),
        (
            lambda s: s.select("n").with_columns(x=lambda b: b["n"].max() + b["n"]),
            {"n": int, "x": pa.null()},
        ),
        (lambda s: s.flat_map(lambda b: ({"w": b["word"]}, np.arange(len(b)))), {"w": str}),
        (
            lambda s: (
                s.select("word")
                .with_columns(words=lambda b: pc.split_pattern(b["word"], " "))
                .explode("words")
            ),
            {"word": str, "words": str},
        ),
        (lambda s: s.map_rows(lambda row: row, schema={"time": int, "a": str}), {"a": str}),
    ],
)
def test_computed(build: Callable[[jt.Stream], jt.Stream], expected: Any) -> None:
    assert build(sales()).schema == as_schema(expected)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map(lambda b: {"n": b["n"] - b["n"].max()}),  # needs a record
        lambda s: s.map(lambda b: {"n": b["n"].nonsense}),
        lambda s: s.map_rows(lambda row: row),
        lambda s: s.concat(s.flow.input("other")),
        lambda s: s.flow.unordered_input("u"),
        lambda s: s.flow.input("other").select("a", "b"),
    ],
)
def test_not_known(build: Callable[[jt.Stream], jt.Stream]) -> None:
    stream = build(sales())
    assert stream.schema is None
    stream.require_columns("anything", operator="test")
    stream.filter(lambda batch: batch["anything"] > 0).select("anything")


def test_a_type_that_is_not_known_stays_so() -> None:
    stream = sales().select("n").with_columns(x=lambda batch: batch["n"] + batch["n"].max())
    more = stream.with_columns(y=lambda batch: pc.add(batch["x"], 1))
    assert more.schema == as_schema({"n": int, "x": pa.null(), "y": pa.null()})
    assert stream.filter("x").partition(2, "x")[0].schema == stream.schema
    with pytest.raises(GraphError, match="no column 'z'"):
        stream.filter(lambda batch: batch["z"])


@pytest.mark.parametrize(
    ("operator", "build"),
    [
        ("map", lambda s: s.map(lambda b: {"n": b["prise"]})),
        ("map", lambda s: s.map(misspelt)),
        ("map", lambda s: s.map(lambda b: b.select("prise"))),
        ("with_columns", lambda s: s.with_columns(x=lambda b: b["prise"])),
        ("with_columns", lambda s: s.with_columns(x=misspelt)),
        ("select", lambda s: s.select("prise")),
        ("drop", lambda s: s.drop("prise")),
        ("rename", lambda s: s.rename({"prise": "p"})),
        ("cheap", lambda s: s.filter(lambda b: b["prise"] < 3, name="cheap")),
        ("filter", lambda s: s.filter("prise")),
        ("flat_map", lambda s: s.flat_map(lambda b: ({"p": b["prise"]}, []))),
        ("explode", lambda s: s.explode("prise")),
        ("branch", lambda s: s.branch(misspelt)),
        ("partition", lambda s: s.partition(2, "prise")),
        ("partition", lambda s: s.partition(2, lambda b: b["prise"] % 2)),
        ("exchange", lambda s: s.exchange("n", "prise")),
        ("exchange", lambda s: s.exchange(lambda b: b["prise"])),
        ("delay", lambda s: s.delay(lambda b: b["prise"])),
        ("mine", lambda s: s.unary(lambda t, i: None, pact=jt.Exchange("prise"), name="mine")),
        ("keyed", lambda s: s.require_columns("n", "prise", operator="keyed")),
        ("map", lambda s: s.enter(s.scope.loop()).map(lambda b: {"n": b["prise"]})),
    ],
)
def test_a_missing_column_is_an_error_before_data_flows(
    operator: str, build: Callable[[jt.Stream], Any]
) -> None:
    with pytest.raises(GraphError) as failure:
        build(sales())
    text = str(failure.value)
    assert "no column 'prise': did you mean 'price'?" in text
    assert f"operator '{operator}'" in text
    assert "<Stream of sales[0]>" in text


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda s: s.filter("n"), "'n' of .* is int64, not booleans"),
        (lambda s: s.partition(2, "price"), "'price' of .* is double, not integers"),
        (lambda s: s.explode("word"), "'word' of .* is string, not lists"),
        (lambda s: s.rename({"n": "word"}), "two columns would be called 'word'"),
        (lambda s: s.concat(s.drop("flag")), "different columns.*both or neither have 'flag'"),
        (
            lambda s: s.concat(s.with_columns(n="x")),
            "column 'n' is int64 in one stream and string in another",
        ),
        (
            lambda s: s.iterate(lambda inner: (inner.drop("n"), inner)),
            "ends of feedback 'iterate.feedback' have different columns",
        ),
    ],
)
def test_other_errors_before_data_flows(build: Callable[[jt.Stream], Any], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        build(sales())


def test_concat_promotes_types() -> None:
    stream = sales().select("n")
    assert stream.concat(stream.map(lambda b: {"n": b["n"] / 2})).schema == as_schema({"n": float})


def test_late_records_have_the_time_they_claim() -> None:
    flow = jt.Flow("late")
    late = flow.input("in", schema={"time": int, "n": int}).late
    assert late.time_name == "late_at"
    assert late.schema == as_schema({"time": int, "n": int}, time_name="late_at")


def send(schema: Any, **columns: Any) -> list[Any]:
    flow = jt.Flow("in")
    flow.output("out", flow.input("in", schema=schema))
    with flow.open() as run:
        run.input("in").send(**columns)
        rows: list[Any] = run.finish()["out"].drop(["time"]).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("schema", "columns", "expected"),
    [
        ({"a": int, "b": str}, {"b": ["x"], "a": [1]}, {"a": 1, "b": "x"}),
        ({"a": float}, {"a": [1]}, {"a": 1.0}),
        ({"a": np.int8}, {"a": [127]}, {"a": 127}),
        ({"a": int}, {"a": [None]}, {"a": None}),
        ({"a": pa.null()}, {"a": ["anything"]}, {"a": "anything"}),
        ({"a": pa.large_string()}, {"a": ["x"]}, {"a": "x"}),
        ({"a": str}, {"a": pa.array(["x"]).dictionary_encode()}, {"a": "x"}),
        ({"a": pa.decimal128(21, 2)}, {"a": [1]}, {"a": 1}),
    ],
)
def test_records_are_cast_where_that_is_safe(schema: Any, columns: Any, expected: Any) -> None:
    assert send(schema, **columns) == [expected]


@pytest.mark.parametrize(
    ("schema", "columns", "text"),
    [
        ({"a": int, "b": int}, {"a": [1]}, "input 'in': there is no column 'b'"),
        (
            {"a": int},
            {"a": [1], "b": [2], "c": [3]},
            "input 'in' got columns that its schema does not have: 'b', 'c'",
        ),
        ({"a": np.int8}, {"a": [128]}, "'a' is of type int64 and does not fit int8"),
        ({"a": int}, {"a": [1.5]}, "'a' is of type double and does not fit int64"),
        ({"a": int}, {"a": ["12"]}, "'a' is of type string, its schema says int64"),
        ({"a": str}, {"a": [12]}, "'a' is of type int64, its schema says string"),
        ({"a": int}, {"a": [True]}, "'a' is of type bool, its schema says int64"),
        ({"a": pa.timestamp("s")}, {"a": [1]}, "'a' is of type int64, its schema says timestamp"),
    ],
)
def test_records_that_do_not_fit_are_refused(schema: Any, columns: Any, text: str) -> None:
    with pytest.raises(BatchError, match=text):
        send(schema, **columns)


@settings(max_examples=50)
@given(
    st.lists(
        st.sampled_from(
            [
                lambda s: s.filter(lambda b: b["n"] > 0),
                lambda s: s.with_columns(n=lambda b: b["n"] * 2, extra="x"),
                lambda s: s.with_columns(price=total),
                lambda s: s.with_columns(
                    n=lambda b: b["n"] // 2, price=lambda b: b["price"] + b["n"]
                ),
                lambda s: s.select("price", "n", "word"),
                lambda s: s.rename({"price": "p"}).rename({"p": "price"}),
                lambda s: s.exchange("word"),
                lambda s: s.flat_map(
                    lambda b: (
                        {name: b[name] for name in ("word", "n", "price")},
                        np.arange(len(b)),
                    )
                ),
            ]
        ),
        max_size=5,
    )
)
def test_what_is_learned_is_what_comes(steps: list[Callable[[jt.Stream], jt.Stream]]) -> None:
    flow = jt.Flow("chain")
    stream = sales(flow)
    for step in steps:
        stream = step(stream)
    seen: list[pa.Schema] = []
    stream.inspect(lambda batch: seen.append(schema_of(batch)))
    rows = {"time": [0], "n": [8], "price": [2.5], "word": ["a"], "flag": [True]}
    flow.run({"sales": rows})
    assert seen == [stream.schema]
