"""Why, on Spark with two workers: planted stalls, and queries that are not running."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jeton.connectors.sinks import Callback
from jeton.connectors.sources import Batches
from tests.stalls import (
    LIMIT,
    STALLS,
    Planted,
    ask_paused,
    ask_stalled,
    ask_stopped,
    ask_without_slots,
    asked,
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


def two_rows(partition: int, partitions: int) -> Any:
    yield {"time": [3, 7], "user": [1, 2]}


def test_a_query_that_is_complete_says_so(spark: SparkSession) -> None:
    flow = with_lateness(lambda stream: stream)
    with flow.start(spark, sources={"in": Batches(two_rows)}, workers=2) as query:
        assert query.await_termination(LIMIT)
    assert str(query.why("out")) == "'out' is complete"
    assert str(query.why("out", at=5)) == "'out' is complete up to 5"


def test_a_slow_sink_is_named_after_its_workers_have_left(spark: SparkSession) -> None:
    go_on = threading.Event()
    flow = with_lateness(lambda stream: stream)
    sinks = {"out": Callback(lambda table: go_on.wait())}
    ends: dict[str, Any] = {"sources": {"in": Batches(two_rows)}, "sinks": sinks}
    with flow.start(spark, **ends, workers=2) as query:
        try:
            query.await_running(LIMIT)
            for thread in query._coordinator.listeners:
                thread.join(LIMIT)  # they end when their workers hang up
            says = "'out' is complete, but not all of its rows are out: the sink of output 'out' .*"
            (slow, *others) = asked(query, says).holders
            assert (slow.what, others) == ("sink", [])
        finally:
            go_on.set()


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_sink_at_the_driver_that_is_slow_with_few_rows(
    spark: SparkSession, tmp_path: Path, checkpoints: bool
) -> None:
    go_on = threading.Event()
    flow = with_lateness(lambda stream: stream)
    sink = Callback(lambda table: go_on.wait())
    options: dict[str, Any] = {"checkpoint": tmp_path, "every": 0.5} if checkpoints else {}
    stall = Planted(flow, "", sink=sink, release=go_on.set)
    with planted(spark, stall, **options) as query:
        says = (
            r"'out' is complete up to 5, but not all of its rows are out: the sink of output 'out' "
            r"has not taken .* for \d.*: it has been taking (it|one of them) for .*test_why.py:\d+"
        )
        why = asked(query, says, at=5)
        (slow, *_) = why.holders
        assert (slow.what, slow.operator) == ("sink", "out")
        assert slow.count >= 1
        assert slow.since is not None
        assert slow.since >= 1.0
        assert any("go_on.wait()" in line for line in slow.stack)
        # The frontier stands where the source ended: the sink comes before that.
        assert [each.what for each in query.why("out").holders[:2]] == ["sink", "input"]


def test_rows_that_wait_for_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    flow = with_lateness(lambda stream: stream)
    with planted(spark, Planted(flow, ""), checkpoint=tmp_path, every=None) as query:
        says = r"12 rows of output 'out' wait for the next checkpoint: there was none for \d.*()"
        asked(query, says, at=5)
        query.checkpoint()
        assert str(query.why("out", at=5)) == "'out' is complete up to 5"
