"""Expressions: what they give is what Polars gives, whatever has nulls, as functions do too."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import BatchError, GraphError

WORDS = st.sampled_from(["", "a", "Ab", "ba ", "ü", "abcab", "b.b"])
MOMENTS = st.datetimes(datetime.datetime(1950, 1, 1), datetime.datetime(2100, 1, 1))
TYPES: dict[str, Any] = {
    "i": pl.Int64,
    "j": pl.Int64,
    "x": pl.Float64,
    "s": pl.String,
    "f": pl.Boolean,
    "d": pl.Datetime("us"),
}
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | st.integers(-9, 9),
            "j": st.integers(-9, 9),
            "x": st.none() | st.floats(-9, 9, width=16),
            "s": st.none() | WORDS,
            "f": st.none() | st.booleans(),
            "d": st.none() | MOMENTS,
        }
    ),
    min_size=1,
    max_size=8,
)

Column = Callable[[str], Any]


def number(col: Column, when: Any, random: Random, depth: int) -> Any:
    """A random expression of integers."""
    if depth == 0:
        return random.choice([col("i"), col("j"), col("j") + 0])

    def one() -> Any:
        return number(col, when, random, depth - 1)

    kinds: list[Callable[[], Any]] = [
        lambda: one() + one(),
        lambda: one() - one(),
        lambda: one() * 3,
        lambda: 7 - one(),
        lambda: one() // one(),
        lambda: one() % one(),
        lambda: -one(),
        lambda: one().abs(),
        lambda: one().fill_null(4),
        lambda: one().fill_null(one()),
        lambda: one().clip(-3, 3),
        lambda: text(col, random).str.len_chars().cast(int if when is jt.when else pl.Int64),
        lambda: when(truth(col, when, random, depth - 1)).then(one()).otherwise(one()),
        lambda: when(truth(col, when, random, depth - 1)).then(one()).otherwise(None),
        lambda: col("d").dt.year().cast(int if when is jt.when else pl.Int64),
        lambda: col("d").dt.weekday().cast(int if when is jt.when else pl.Int64),
        lambda: col("d").dt.hour().cast(int if when is jt.when else pl.Int64),
    ]
    return random.choice(kinds)()


def text(col: Column, random: Random) -> Any:
    """A random expression of text."""
    word = col("s")
    kinds: list[Callable[[], Any]] = [
        lambda: word + "!",
        lambda: "<" + word,
        lambda: word.str.to_uppercase(),
        lambda: word.str.to_lowercase(),
        lambda: word.str.strip_chars(),
        lambda: word.str.slice(1, 2),
        lambda: word.str.slice(-2),
        lambda: word.str.slice(-2, 1),
        lambda: word.str.slice(-2, 5),
        lambda: word.str.replace_all("b", "_"),
        lambda: word.str.replace_all(".", "_", literal=True),
        lambda: word.fill_null("none"),
        lambda: word + word,
    ]
    return random.choice(kinds)()


def truth(col: Column, when: Any, random: Random, depth: int) -> Any:
    """A random condition."""

    def one() -> Any:
        return truth(col, when, random, max(depth - 1, 0))

    def some() -> Any:
        return number(col, when, random, max(depth - 1, 0))

    leaves: list[Callable[[], Any]] = [
        lambda: col("f"),
        lambda: some() > some(),
        lambda: some() <= 2,
        lambda: some() != 3,
        lambda: some() == some(),
        lambda: some().is_null(),
        lambda: some().is_not_null(),
        lambda: some().is_in([1, 2, -3]),
        lambda: some().is_between(-2, 4),
        lambda: text(col, random) == "ab",
        lambda: text(col, random) < "b",
        lambda: text(col, random).is_in(["AB", "a!"]),
        lambda: text(col, random).str.contains("^a|b$"),
        lambda: text(col, random).str.contains(".", literal=True),
        lambda: text(col, random).str.starts_with("a"),
        lambda: text(col, random).str.ends_with("b"),
        lambda: col("x") > some(),
        lambda: (col("x") * 2).round(1) >= 1.5,
        lambda: col("x").is_nan(),
        lambda: col("d") > datetime.datetime(2000, 1, 1),
    ]
    joined: list[Callable[[], Any]] = [
        lambda: one() & one(),
        lambda: one() | one(),
        lambda: one() ^ one(),
        lambda: ~one(),
    ]
    return random.choice([*leaves, *joined] if depth else leaves)()


@pytest.mark.parametrize("kind", [number, truth])
@given(rows=ROWS, seed=st.integers(0, 1 << 30))
def test_expressions_are_those_of_polars(kind: Any, rows: list[dict[str, Any]], seed: int) -> None:
    frame = pl.DataFrame(rows, schema=TYPES)
    ours, theirs = (
        kind(col, when, Random(seed), 3) for col, when in ((jt.col, jt.when), (pl.col, pl.when))
    )
    batch = jt.Batch.from_arrow(frame.to_arrow().append_column("time", pa.array(range(len(rows)))))
    assert ours(batch).to_list() == frame.select(r=theirs)["r"].to_list(), ours


@given(rows=ROWS, seed=st.integers(0, 1 << 30))
def test_functions_of_a_batch_give_the_same(rows: list[dict[str, Any]], seed: int) -> None:
    table = pl.DataFrame(rows, schema=TYPES).to_arrow()
    table = table.append_column("time", pa.array(range(len(rows))))
    expression = truth(jt.col, jt.when, Random(seed), 2)
    flow = jt.Flow("both")
    stream = flow.input("rows")
    flow.output("a", stream.filter(expression))
    flow.output("b", stream.filter(lambda batch: expression(batch)))
    flow.output("c", stream.filter(lambda batch: expression(batch).fill_null(False)))
    result = flow.run({"rows": table}, workers=2)
    assert result["a"].sort_by("time") == result["b"].sort_by("time") == result["c"].sort_by("time")


SCHEMA = {"n": int, "s": str, "x": float, "d": datetime.datetime}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (jt.col("n") > "a", r"int64 > 'a': these do not go together"),
        (jt.col("s") > 5, r"string > 5: these do not go together"),
        (jt.col("s") * 2 == "aa", r"string \* 2: these do not go together"),
        (jt.col("m") > 1, r"no column 'm'"),
        (jt.col("n"), r"the condition is of type int64, not boolean: compare it with something"),
        (~jt.col("n").cast(float) > 1, r"~ needs booleans, not double"),
        (jt.col("n").str.contains("a"), r"functions of \.str need text, not int64"),
        (jt.col("s").dt.year() == 1, r"functions of \.dt need timestamps or dates, not string"),
        (jt.col("n").is_in(["a"]), r"is_in: int64 cannot be compared with string"),
        (jt.when(jt.col("n")).then(True).otherwise(False), r"when\(\) needs booleans, not int64"),
    ],
)
def test_what_cannot_be_is_an_error_when_the_flow_is_built(wrong: Any, message: str) -> None:
    stream = jt.Flow("f").input("i", schema=SCHEMA)
    with pytest.raises(GraphError, match=message):
        stream.filter(wrong)
    with pytest.raises(GraphError, match=message):
        stream.filter(lambda batch: wrong(batch))


def test_what_cannot_be_is_an_error_at_the_call() -> None:
    with pytest.raises(BatchError, match=r"use is_null\(\)"):
        _ = jt.col("n") == None  # noqa: E711
    with pytest.raises(ValueError, match=r"with & and \|"):
        bool(jt.col("n") > 1)
    with pytest.raises(ValueError, match=r"with & and \|"):
        _ = 1 < jt.col("n") < 5
    with pytest.raises(BatchError, match=r"when\(\) needs a condition"):
        jt.when(True)  # type: ignore[call-overload]


def test_an_expression_shows_what_it_is() -> None:
    assert repr((jt.col("a") > 1) & ~jt.col("b")) == "((col('a') > 1) & col('b').invert())"
    assert repr(np.sqrt(jt.col("x")) - 1) == "(sqrt(col('x')) - 1)"


def test_functions_of_numpy_take_expressions() -> None:
    batch = jt.Batch({"x": [4.0, None], "n": [1, 2]}, times=[0, 0])
    assert np.sqrt(jt.col("x"))(batch).to_list() == [2.0, None]
    n: Any = jt.col("n")
    assert np.maximum(n, 2)(batch).to_list() == [2, 2]
    assert (np.array([1, 5]) + jt.col("n"))(batch).to_list() == [2, 7]


def test_results_that_are_too_large_are_errors() -> None:
    batch = jt.Batch({"s": ["1", "x"]}, times=[0, 0])
    with pytest.raises(BatchError, match=r"cast: .*x"):
        batch["s"].cast(int)


def test_conditions_choose_in_functions_of_a_batch() -> None:
    def sized(batch: jt.Batch) -> Any:
        n = batch["n"]
        return jt.when(n > 9).then(n).when(n > 4).then(5).otherwise(0)

    flow = jt.Flow("when")
    stream = flow.input("i", schema={"n": int})
    chosen = stream.with_columns(size=sized, large=lambda b: jt.when(b["n"] > 9).then("large"))
    flow.output("o", chosen)
    found = flow.run({"i": {"time": [0, 1, 2, 3], "n": [12, 7, 1, None]}})["o"]
    assert found["size"].to_pylist() == [12, 5, 0, 0]
    assert found["large"].to_pylist() == ["large", None, None, None]
    numbers = jt.Batch({"n": [1]}, times=[0])["n"]
    with pytest.raises(BatchError, match=r"when\(\) needs conditions such as batch"):
        jt.when(numbers > 0).then(1).when(jt.col("n") > 1)  # type: ignore[arg-type]


def test_expressions_can_be_copied_and_have_no_other_names() -> None:
    made = copy.copy(jt.col("n") + 1)
    assert made(jt.Batch({"n": [1]}, times=[0])).to_list() == [2]
    assert not hasattr(jt.col("n"), "nonsense")
