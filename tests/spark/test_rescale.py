"""Long-lived queries go on with another number of workers, and no row is lost or doubled."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sources import Rate
from jeton.errors import GraphError, JetonError
from jeton.inspector.events import summarise
from jeton.inspector.prometheus import exposition
from jeton.runtime.monitor import Observation
from tests.spark.gated import LIMIT, PARTITIONS, ROWS, TABLES, Place, until


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


def test_counts_and_the_event_log_go_on_and_it_is_up_meanwhile(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    with place.start(spark) as query:
        query.log_events(tmp_path / "log")
        query.monitor.every = 0.05
        seen: list[tuple[str, float, int]] = []

        def note(now: Observation) -> None:
            up = [line for line in exposition("q", now).splitlines() if line.startswith("jeton_up")]
            seen.append((now.status, float(up[0].rpartition(" ")[2]), now.total("rows_in")))

        query.monitor.watch(note)
        until(lambda: "seconds" in (query.metrics()["operators"] or [{}])[0], "measures")
        place.read_to(query, 4)
        for workers in (3, 1):
            query.rescale(workers, timeout=LIMIT)
        query.monitor.look()
        read = seen[-1][2]
        assert query.metrics()["rows_in"] < read, "of the present workers"
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    query.monitor.join()
    counts = [rows for _, _, rows in seen]
    assert counts == sorted(counts)
    assert counts[-1] == PARTITIONS * TABLES * ROWS
    assert "rescaling" in {status for status, _, _ in seen}
    assert {up for status, up, _ in seen if status != "ended"} == {1.0}
    operators = {each["operator"]: each for each in summarise(tmp_path / "log")}
    assert operators["numbers"]["records_out"] == counts[-1]
    place.check()
