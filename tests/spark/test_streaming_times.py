"""Structured Streaming: which times are complete after a micro-batch, and what comes late."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from tests.spark.micro_batches import ARROW, LIMIT, Sink, Source, readings, run


def test_an_idle_worker_holds_nobody_back(source: Source, tmp_path: Path) -> None:
    """A single row each time: only one of the workers ever sees it."""
    flow = jt.Flow("idle")
    flow.output("windows", readings(flow, 5).key_by("k").tumbling(10).count())
    for ts in (1, 12, 23, 34):
        source.add({"ts": [ts], "k": [ts], "who": ["x"], "v": [0]})
    sink = Sink()
    run(flow, source, sink, tmp_path / "checkpoint", workers=4)
    assert [dict(row)["ts"] for row in sink.rows("windows")] == [10, 20]
    # Each as soon as the greatest time less the lateness has passed its end.
    assert {batch: len(found) for batch, found in sink.batches["windows"].items()} == {
        0: 0,
        1: 0,
        2: 1,
        3: 1,
    }


def test_lateness_does_not_depend_on_the_order_within_a_micro_batch(
    source: Source, tmp_path: Path
) -> None:
    flow = jt.Flow("order")
    r = readings(flow, 10)
    flow.output("sums", r.key_by().tumbling(10).sum("v"))
    flow.output("late", r.late)
    blank: dict[str, Any] = {"k": [0] * 4, "who": [""] * 4}
    source.add({"ts": [90, 1, 50, 2], "v": [1, 2, 4, 8], **blank})
    source.add({"ts": [95, 79, 80, 85], "v": [1, 2, 4, 8], **blank})
    sink = Sink()
    run(flow, source, sink, tmp_path / "checkpoint", workers=1)
    # Before the second one, 90 - 10 is complete: 79 is late, 80 is not.
    assert [dict(row)["ts"] for row in sink.rows("late")] == [79]
    assert [(dict(row)["ts"], dict(row)["sum"]) for row in sink.rows("sums")] == [(10, 10), (60, 4)]


def test_a_watermark_of_the_frame_says_how_late_rows_can_be(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(spark, tmp_path / "in", "at timestamp, k long")
    for second in (1, 12, 30):
        times = pa.array([second * 1_000_000], pa.timestamp("us", "UTC"))
        source.add({"at": times, "k": [second]})
    flow = jt.Flow("watermark")
    r = flow.input("r", time="at", schema={"k": int})
    flow.output("counts", r.key_by("k").tumbling("10s").count())
    with caplog.at_level(logging.WARNING, "jeton.spark.streaming"):
        flow.on_spark({"r": source.frame()}, workers=1)
        assert "wait until times are complete" in caplog.text
        caplog.clear()
        frames: Any = flow.on_spark(
            {"r": source.frame().withWatermark("at", "5 seconds")}, workers=1
        )
        assert not caplog.text
    sink = Sink()
    query = frames.write_stream(
        {"counts": sink.writer("counts")},
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(LIMIT)
    assert [dict(row)["k"] for row in sink.rows("counts")] == [1, 12]


def test_two_inputs(spark: SparkSession, tmp_path: Path) -> None:
    left, right = Source(spark, tmp_path / "l"), Source(spark, tmp_path / "r")
    flow = jt.Flow("two")
    a = flow.input("a", time="ts", schema=ARROW, lateness=0)
    b = flow.input("b", time="ts", schema=ARROW, lateness=0)
    both = a.key_by("k").interval_join(b.key_by("k"), -5, 5)
    flow.output("pairs", both.select("k"))
    flow.output("closed", a.concat(b).key_by().tumbling(10).count())
    for ts in (1, 11, 31):
        left.add({"ts": [ts], "k": [ts], "who": ["l"], "v": [0]})
    for ts in (3, 14):
        right.add({"ts": [ts], "k": [ts - 2 if ts < 10 else ts - 3], "who": ["r"], "v": [0]})
    sink = Sink()
    frames: Any = flow.on_spark({"a": left.frame(), "b": right.frame()}, workers=2)
    query = frames.write_stream(
        {name: sink.writer(name) for name in flow.outputs},
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(LIMIT)
    assert [dict(row)["k"] for row in sink.rows("pairs")] == [1, 11]
    # The second input, which is at 14, holds the window from 10 to 20 open.
    assert [dict(row)["ts"] for row in sink.rows("closed")] == [10]
