"""Every answer beside DuckDB's: 300 random pipelines over random tables.

`python -m tests.oracle` runs as many more as there is time for.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession

from tests.oracle import groups
from tests.oracle.aggregates import ALL
from tests.oracle.campaign import campaign
from tests.oracle.case import Case
from tests.oracle.duck import Oracle
from tests.oracle.pipelines import NEWER, SHAPES, cases, seeded
from tests.oracle.spark_hosts import MICRO, WHOLE, judged
from tests.oracle.verdicts import WRONG, judge

# NumPy warns of divisions by zero and numbers that are too large, as it does without Jeton.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

ORACLE = Oracle()

GROUPS = {
    "aggregates": (1623, 1689, 2453),
    "calendar": (975, 1885, 1319),
    "gap_session": (2378, 145, 1799),
    "running_aggregates": (47, 355, 966),
    "rolling": (344, 2917, 349),
    "rolling_rows": (344, 2917, 349),
}
"""Seeds of cases that have all aggregates between them, in each kind of group."""
OTHERS = {
    "expressions": (
        1481, 389, 1357, 293, 313, 1195, 909, 1220, 387, 1194, 336, 1077, 705, 1396, 1454, 1428
    ),
    "outer_join": (1, 2, 9, 12, 16),
    "outer_interval_join": (18, 20, 21, 23, 34),
    "join_static": (0, 1, 2, 6),
    "deduplicate": (0, 1, 2, 7, 14),
}  # fmt: skip
CHOSEN = GROUPS | OTHERS

random_cases = settings(
    max_examples=52,
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


@pytest.mark.parametrize("shape", NEWER)
def test_chosen_pipelines(shape: str) -> None:
    for seed in CHOSEN[shape]:
        check(seeded(seed, shapes=[shape]))


@pytest.mark.parametrize("shape", GROUPS)
def test_chosen_pipelines_have_every_aggregate(shape: str) -> None:
    made = {
        aggregate.how
        for seed in GROUPS[shape]
        for node in seeded(seed, shapes=[shape]).nodes
        if isinstance(node.step, groups.Group | groups.Moving)
        for aggregate in node.step.aggregates
    }
    assert made == set(ALL)


@pytest.mark.parametrize(
    ("host", "seed", "shapes"), [(WHOLE, 3, SHAPES), (WHOLE, 2, NEWER), (MICRO, 2, SHAPES)]
)
def test_on_spark(
    spark: SparkSession, tmp_path: Path, host: str, seed: int, shapes: tuple[str, ...]
) -> None:
    for number, case, verdict in judged(spark, seed, 11, host, tmp_path, shapes):
        assert verdict.outcome != WRONG, f"seed {number}: {verdict.why}\n{case}"


def test_a_campaign_counts_its_cases_and_stops_in_time() -> None:
    counts = campaign(5, seed=1)
    assert counts.cases == 5
    assert not counts.failures
    assert campaign(5, seed=1, budget_seconds=0).cases == 0
    assert "rightly refused" in str(counts)
