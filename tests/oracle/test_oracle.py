"""Every answer beside DuckDB's: 300 random pipelines over random tables.

`python -m tests.oracle` runs as many more as there is time for.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession

from tests.oracle.campaign import campaign
from tests.oracle.case import Case
from tests.oracle.duck import Oracle
from tests.oracle.pipelines import SHAPES, cases
from tests.oracle.spark_hosts import MICRO, WHOLE, judged
from tests.oracle.verdicts import WRONG, judge

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


@pytest.mark.parametrize(("host", "seed"), [(WHOLE, 3), (WHOLE, 2), (MICRO, 2)])
def test_on_spark(spark: SparkSession, tmp_path: Path, host: str, seed: int) -> None:
    for number, case, verdict in judged(spark, seed, 11, host, tmp_path):
        assert verdict.outcome != WRONG, f"seed {number}: {verdict.why}\n{case}"


def test_a_campaign_counts_its_cases_and_stops_in_time() -> None:
    counts = campaign(5, seed=1)
    assert counts.cases == 5
    assert not counts.failures
    assert campaign(5, seed=1, budget_seconds=0).cases == 0
    assert "rightly refused" in str(counts)
