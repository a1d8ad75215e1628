"""Why, on Spark with two workers: planted stalls, and queries that are not running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.stalls import (
    LIMIT,
    STALLS,
    Planted,
    ask_paused,
    ask_stalled,
    ask_stopped,
    ask_without_slots,
    headline,
    planted,
    with_lateness,
)

QUICK = ("token in a dictionary", "one idle partition", "worker in an endless loop")
LONG = [pytest.param(name, marks=pytest.mark.long) for name in STALLS if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *LONG])
def test_the_culprit_comes_first(spark: SparkSession, name: str, tmp_path: Path) -> None:
    why = ask_stalled(spark, name, tmp_path)
    assert json.loads(json.dumps(why.to_dict()))["places"][0]["headline"] == headline(why)


def test_a_worker_whose_process_is_stopped(spark: SparkSession) -> None:
    silent = ask_stopped(spark).holders[0]
    assert (silent.what, silent.workers) == ("silent", (1,))
    assert silent.since is not None
    assert silent.since > 0


@pytest.mark.long
def test_a_breakpoint_that_was_left_on(spark: SparkSession) -> None:
    assert ask_paused(spark).holders[0].what == "breakpoint"


@pytest.mark.long
def test_a_query_without_slots(spark: SparkSession) -> None:
    assert [holder.what for holder in ask_without_slots(spark).holders] == ["slots"]


def test_a_query_that_has_ended_says_so(spark: SparkSession) -> None:
    with planted(spark, Planted(with_lateness(lambda stream: stream), "")) as query:
        query.await_running(LIMIT)
    assert headline(query.why("out")) == "'out' is not complete: query 'stalled' has ended"
