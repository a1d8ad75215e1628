"""All queries: whatever workers, schedule and mechanism, the rows that Spark SQL has."""

from __future__ import annotations

import doctest
import importlib
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jeton.errors import GraphError
from jeton_evaluation import nexmark
from jeton_evaluation.nexmark import queries, truth
from jeton_evaluation.programs.mechanisms import Mechanism

# So slow that a few thousand events last for several windows of all queries.
IN_ORDER = nexmark.Config(rate=200, seed=5, in_flight_auctions=20, active_people=30)
DISORDER = replace(IN_ORDER, seed=6, out_of_order_group_size=70)
LARGE = nexmark.Config(rate=2_000, seed=7)

CASES: list[tuple[str, Mechanism | None]] = [(name, None) for name in queries.names()]
CASES += [(name, mechanism) for name in ("q4", "q7") for mechanism in queries.get(name).mechanisms]
each_case = pytest.mark.parametrize(("name", "mechanism"), CASES)


def rows(table: pa.Table) -> Counter[Any]:
    return Counter(tuple(row.items()) for row in table.to_pylist())


def answer(spark: SparkSession, name: str, config: nexmark.Config, events: int) -> Counter[Any]:
    key = (name, config, events)
    if key not in _answers:
        query = queries.get(name)
        frames = nexmark.frames(spark, config, events, columns=query.columns)
        _answers[key] = rows(truth.answer(spark, query, frames).toArrow())
    return _answers[key]


_answers: dict[Any, Counter[Any]] = {}


@cache
def tables(config: nexmark.Config, events: int) -> dict[str, pa.Table]:
    return nexmark.tables(config, events)


def run(
    name: str, mechanism: Mechanism | None, config: nexmark.Config, events: int, **options: Any
) -> Counter[Any]:
    query = queries.get(name)
    wanted = {
        str(kind): tables(config, events)[kind].select(["ts", *columns])
        for kind, columns in query.columns.items()
    }
    result = query.flow(config, mechanism).run(wanted, **options)
    assert not result.leaks
    return rows(result[queries.RESULT])


@each_case
def test_here(name: str, mechanism: Mechanism | None, spark: SparkSession) -> None:
    wanted = answer(spark, name, IN_ORDER, 8_000)
    assert sum(wanted.values()) > 1, "this would not show much"
    for workers in (1, 3):
        assert run(name, mechanism, IN_ORDER, 8_000, workers=workers) == wanted


@each_case
def test_on_any_schedule(name: str, mechanism: Mechanism | None, spark: SparkSession) -> None:
    wanted = answer(spark, name, DISORDER, 2_000)
    for seed in range(6):
        found = run(name, mechanism, DISORDER, 2_000, workers=1 + seed % 3, seed=seed)
        assert found == wanted, f"seed {seed}"


@each_case
def test_on_spark(name: str, mechanism: Mechanism | None, spark: SparkSession) -> None:
    query = queries.get(name)
    verdict = truth.check(spark, query, LARGE, 100_000, workers=2, mechanism=mechanism)
    assert verdict.equal, str(verdict)
    assert verdict.rows > 1


def test_names_are_in_order_of_numbers() -> None:
    numbers = [int(name.removeprefix("q")) for name in queries.names()]
    assert numbers == sorted(numbers)
    assert all(queries.get(name).title for name in queries.names())


def test_a_query_refuses_a_mechanism_that_it_has_not() -> None:
    with pytest.raises(GraphError, match="q8 cannot be had with 'notifications'"):
        queries.get("q8").flow(IN_ORDER, "notifications")


def test_differences_are_told(spark: SparkSession) -> None:
    schema = "ts long, price double"
    wanted = spark.createDataFrame([(1, 2.0), (1, 2.0), (2, None), (3, 4.0)], schema)
    got = spark.createDataFrame([(1, 2.0), (2, None), (3, 4.5), (3, 4.5)], schema)
    verdict = truth.compare(got, wanted)
    assert not verdict.equal
    assert (verdict.rows, verdict.missing, verdict.extra) == (4, 2, 2)
    assert {"ts": 3, "price": 4.0} in verdict.missing_rows
    assert verdict.extra_rows == ({"ts": 3, "price": 4.5},)
    assert truth.compare(wanted, wanted) == truth.Verdict(4, 0, 0)
    with pytest.raises(ValueError, match="cannot be compared"):
        truth.compare(got, wanted.withColumnRenamed("price", "cost"))


def test_examples_of_truth(spark: SparkSession) -> None:
    module = importlib.import_module("jeton_evaluation.nexmark.truth")
    result = doctest.testmod(module, extraglobs={"spark": spark})
    assert result.attempted > 0
    assert result.failed == 0, "see what was captured"
