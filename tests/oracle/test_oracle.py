"""Every answer beside DuckDB's: 300 random pipelines over random tables.

`python -m tests.oracle` runs as many more as there is time for.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession

from tests.oracle import spark_hosts
from tests.oracle.campaign import WRONG, campaign, compared, judge
from tests.oracle.case import Case
from tests.oracle.duck import Oracle
from tests.oracle.pipelines import SHAPES, cases

ORACLE = Oracle()

random_cases = settings(
    max_examples=67,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def check(case: Case) -> None:
    verdict = judge(case, ORACLE)
    assert verdict.outcome != WRONG, f"{verdict.why}\n{case}"


@given(case=cases(shapes=SHAPES[0::4]))
@random_cases
def test_first_quarter_of_pipelines(case: Case) -> None:
    check(case)


@given(case=cases(shapes=SHAPES[1::4]))
@random_cases
def test_second_quarter_of_pipelines(case: Case) -> None:
    check(case)


@given(case=cases(shapes=SHAPES[2::4]))
@random_cases
def test_third_quarter_of_pipelines(case: Case) -> None:
    check(case)


@given(case=cases(shapes=SHAPES[3::4]))
@random_cases
def test_fourth_quarter_of_pipelines(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("times", [pa.int64(), pa.timestamp("us")], ids=str)
def test_on_spark(spark: SparkSession, times: pa.DataType) -> None:
    some = [case for _, case in spark_hosts.suitable(0, 10, spark_hosts.BATCH, times)]
    found = spark_hosts.in_one_batch(spark, some, workers=3)
    for case, tables in zip(some, found, strict=True):
        verdict = compared(case, tables, case.expected(ORACLE), typed=False)
        assert verdict.outcome != WRONG, f"{verdict.why}\n{case}"


def test_in_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    limits = spark_hosts.MICRO_BATCHES
    some = [case for _, case in spark_hosts.suitable(0, 12, limits, pa.int64())]
    found = spark_hosts.in_micro_batches(spark, some, tmp_path, workers=3)
    for case, tables in zip(some, found, strict=True):
        expected = spark_hosts.expected_in_micro_batches(case, ORACLE)
        verdict = compared(case, tables, expected, typed=False)
        assert verdict.outcome != WRONG, f"{verdict.why}\n{case}"


def test_a_campaign_counts_its_cases_and_stops_in_time() -> None:
    counts = campaign(5, seed=1)
    assert counts.cases == 5
    assert not counts.failures
    assert campaign(5, seed=1, budget_seconds=0).cases == 0
    assert "rightly refused" in str(counts)
