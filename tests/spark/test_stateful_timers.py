"""Timers of stateful_map on Spark: kept between micro-batches, and fired by a real clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Callback
from jeton.connectors.sources import Batches
from tests.spark.gated import LIMIT, until
from tests.spark.micro_batches import Sink, Source, in_one_process, readings, rows, run

Row = dict[str, Any]


def visits() -> jt.Flow:
    """Who has not been seen for 15, and how often before; after 100 nobody is remembered."""

    def visit(state: Row, row: Row, timers: Any) -> tuple[Row, list[Row]]:
        timers.cancel()
        timers.after(15)
        return {"visits": state["visits"] + 1, "last": row["v"]}, []

    def away(state: Row, key: Row, timers: Any) -> tuple[Row, list[Row]]:
        if not timers.pending and timers.time % 2:
            timers.after(20)
        return state, [{"visits": state["visits"], "last": state["last"]}]

    flow = jt.Flow("visits")
    stream = readings(flow)
    mapped = stream.key_by("who").stateful_map(
        visit, {"visits": 0, "last": None}, on_timer=away, ttl=100
    )
    schema = {"who": str, "visits": int, "last": int}
    flow.output("away", mapped.map_rows(lambda row: row, schema=schema))
    flow.output("greeted", greeted(stream))
    return flow


def greeted(stream: jt.Stream) -> jt.Stream:
    """Each key once, a moment after its first record; the time follows from the clock."""

    def first(state: bool, row: Row, timers: Any) -> tuple[bool, list[Row]]:
        if not state:
            timers.after_processing("1ms")
        return True, []

    def greet(state: bool, key: Row, timers: Any) -> tuple[bool, list[Row]]:
        return state, [{"n": 1}]

    mapped = stream.key_by("k").stateful_map(first, False, on_timer=greet)
    return mapped.map_rows(lambda row: row, schema={"k": int, "n": int})


def test_timers_survive_micro_batches_on_2_then_3_workers(source: Source, tmp_path: Path) -> None:
    sink = Sink()
    for batch, workers in enumerate((2, 3)):
        source.add(rows(batch, count=60))
        if batch == 1:
            source.add({"ts": [100_000], "k": [1], "who": ["end"], "v": [0]})
        run(visits(), source, sink, tmp_path / "checkpoint", workers=workers)
    expected = in_one_process(visits(), source.tables)
    assert sink.rows("away") == expected["away"]
    assert len(expected["away"]) > 50
    assert len(sink.batches["away"]) == 3
    # All but the last micro-batch leave time for them, if only in the next one.
    assert sorted(dict(row)["k"] for row in sink.rows("greeted")) == list(range(12))


def one_record(partition: int, partitions: int) -> Iterator[Any]:
    yield {"time": [5], "k": [7]}
    yield {"time": [30], "k": [8]}
    while True:
        yield None


def test_a_processing_time_timer_fires_by_the_clock_of_a_worker(spark: SparkSession) -> None:
    def seen(state: bool, row: Row, timers: Any) -> tuple[bool, list[Row]]:
        if row["k"] == 7:
            timers.after_processing("200ms")
        return True, []

    def quiet(state: bool, key: Row, timers: Any) -> tuple[bool, list[Row]]:
        return state, [{"processing": timers.processing}]

    came: list[pa.Table] = []
    flow = jt.Flow("quiet")
    numbers = flow.input("numbers", lateness=0).key_by("k")
    flow.output("quiet", numbers.stateful_map(seen, False, on_timer=quiet))
    sources = {"numbers": Batches(one_record, 1)}
    with flow.start(
        spark, sources=sources, sinks={"quiet": Callback(came.append)}, workers=1
    ) as query:
        until(lambda: bool(came), "the timer")
        query.stop()
    assert query.await_termination(LIMIT)
    assert came[0].to_pylist() == [{"time": 30, "k": 7, "processing": True}]
