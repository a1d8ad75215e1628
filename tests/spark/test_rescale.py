"""Long-lived queries go on with another number of workers, and no row is lost or doubled."""

from __future__ import annotations

import threading
from contextlib import suppress
from random import Random

import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sources import Rate
from jeton.errors import GraphError, JetonError
from tests.spark.gated import LIMIT, TABLES, Place


def test_it_goes_on_with_other_workers_and_every_row_comes_once(
    spark: SparkSession, place: Place
) -> None:
    with place.start(spark) as query:
        for at, workers in enumerate((4, 1, 3)):
            place.read_to(query, 3 * (at + 1), before=3 * at)
            before = query.workers
            change = query.rescale(workers, timeout=LIMIT)
            assert (change.before, change.after, query.workers) == (before, workers, workers)
            assert 0 < change.stopped <= change.silent
            assert query.status == "running"
            assert set(query.metrics()["workers"]) == set(range(workers))
        assert query.metrics()["checkpoints"]["restarts"] == 0
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    place.check()


def test_the_same_number_changes_nothing(spark: SparkSession, place: Place) -> None:
    with place.start(spark) as query:
        change = query.rescale(2)
        assert (change.before, change.after, change.stopped, change.silent) == (2, 2, 0.0, 0.0)
        assert query.metrics()["checkpoints"]["taken"] == 0


def test_a_breakpoint_outlives_it(spark: SparkSession, place: Place) -> None:
    with place.start(spark) as query:
        place.read_to(query, 2)
        at = query.pause_at()
        place.gate.open_to(TABLES)
        query.rescale(3, timeout=LIMIT)
        query.await_paused(LIMIT)
        assert query.paused_at == at
        query.resume()
        assert query.await_termination(LIMIT)
    place.check()


def test_a_worker_that_is_killed_meanwhile_is_replaced(spark: SparkSession, place: Place) -> None:
    with place.start(spark) as query:
        place.read_to(query, 4)
        query.checkpoint(LIMIT)
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(query.rescale(3, timeout=LIMIT)))
        thread.start()
        place.kill(0)
        thread.join(LIMIT)
        assert query.workers == 3
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    assert found
    place.check()


def test_it_says_why_it_cannot(spark: SparkSession, place: Place) -> None:
    flow = jt.Flow("plain")
    flow.output("n", flow.input("n"))
    ticks = Rate(1000, lambda positions: {"n": positions})
    none = "has no checkpoints for other workers to go on from"
    with (
        flow.start(spark, sources={"n": ticks}, workers=1) as query,
        pytest.raises(GraphError, match=none),
    ):
        query.rescale(2)
    with place.start(spark) as query:
        with pytest.raises(GraphError, match=r"has slots for 4"):
            query.rescale(5)
        with pytest.raises(GraphError, match="workers"):
            query.rescale(0)
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
        with pytest.raises(JetonError, match="has ended"):
            query.rescale(1)
    place.check()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_random_changes_and_kills(spark: SparkSession, place: Place, seed: int) -> None:
    random = Random(seed)
    with place.start(spark, workers=2) as query:
        query.await_running()
        for tables in range(2, TABLES, 2):
            place.gate.open_to(tables)
            killed = random.random() < 0.4
            change = threading.Thread(target=query.rescale, args=(random.choice((1, 2, 3, 4)),))
            change.start()
            if killed:
                # A worker of the number before may have ended, and the next not begun to read.
                with suppress(ProcessLookupError, FileNotFoundError):
                    place.kill(random.randrange(2))
            change.join(LIMIT)
            assert not change.is_alive()
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    place.check()
