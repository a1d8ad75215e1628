"""Breakpoints of streams: a micro-batch waits at a time, and rows are those without breakpoints."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import jeton as jt
from jeton.errors import GraphError, TimeError
from tests.spark.micro_batches import LIMIT, Source, as_rows, in_one_process, readings, rows

BATCHES = 4


def flow_of() -> jt.Flow:
    flow = jt.Flow("paused stream")
    r = readings(flow)
    flow.output("all", r)
    flow.output("sums", r.named("windows").key_by("k").tumbling(40).sum("v"))
    flow.output("delayed", r.filter(lambda batch: batch["v"] % 7 == 0).delay(90))
    flow.output("late", r.late)
    return flow


class Stream:
    """A stream of files whose rows are collected by micro-batch."""

    def __init__(self, source: Source, folder: Path, workers: int = 2) -> None:
        self.seen: dict[str, Counter[Any]] = {name: Counter() for name in flow_of().outputs}
        self.batches: set[int] = set()
        self.frames = flow_of().on_spark({"r": source.frame()}, workers=workers)
        self.folder = folder

    def start(self) -> StreamingQuery:
        writers = {name: self.taker(name) for name in self.seen}
        return self.frames.write_stream(writers, checkpoint=self.folder)

    def taker(self, name: str) -> Any:
        def take(frame: Any, batch: int) -> None:
            self.seen[name].update(as_rows(name, frame.collect()))
            self.batches.add(batch)

        return take


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_rows_are_those_of_a_stream_without_breakpoints(
    source: Source, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    for batch in range(BATCHES):
        source.add(rows(batch))
    stream = Stream(source, tmp_path / "checkpoint")
    frames = stream.frames
    first = random.randrange(60, 90)
    assert frames.pause_at(first) == first
    query = stream.start()
    rests = 0
    try:
        while frames.paused_at is not None:
            frames.await_paused(LIMIT)
            rests += 1
            at = frames.paused_at
            assert query.exception() is None
            assert not any(dict(row)["ts"] >= at for row in stream.seen["all"])
            held = frames.in_flight()
            assert (held["time"] >= at).all()
            assert len(held)
            assert (frames.state("windows")["tokens"] >= 0).all()
            assert "a breakpoint holds 'r'" in str(frames.why("sums", at=at))
            if rests == 1:
                with pytest.raises(GraphError, match="paused already"):
                    frames.pause_at(at + 50)
                with pytest.raises(TimeError, match="cannot go back"):
                    frames.step(until=at - 1)
                assert frames.step() > at
            elif rests < 4:
                frames.step(until=at + random.randrange(1, 60))
            else:
                frames.resume()
        query.processAllAvailable()
    finally:
        query.stop()
    assert rests == 4
    assert stream.batches == set(range(BATCHES))
    expected = in_one_process(flow_of(), source.tables)
    for name, found in stream.seen.items():
        assert found == Counter(expected[name]), name


def test_what_a_stream_refuses(source: Source, tmp_path: Path) -> None:
    source.add(rows(0))
    stream = Stream(source, tmp_path / "checkpoint")
    frames = stream.frames
    with pytest.raises(GraphError, match="not paused: pause_at"):
        frames.resume()
    with pytest.raises(TimeError, match="the times of this flow are integers"):
        frames.pause_at(datetime(2024, 1, 1))
    assert "no micro-batch is under way" in str(frames.why("sums"))
    query = stream.start()
    try:
        query.processAllAvailable()
        with pytest.raises(TimeError, match=r"cannot pause at 20: its micro-batches have passed"):
            frames.pause_at(20)
        at = frames.pause_at()
        assert at == max(source.tables[0]["ts"].to_pylist()) + 1
        with pytest.raises(TimeoutError, match=f"nothing rests at {at} yet"):
            frames.await_paused(0.1)
        with pytest.raises(GraphError, match=f"no micro-batch rests at {at} yet"):
            frames.state("windows")
        # A query that is stopped there does the micro-batch again, with the same rows.
        source.add(rows(1))
        frames.await_paused(LIMIT)
        query.stop()
        assert stream.batches == {0}
        again = Stream(source, tmp_path / "checkpoint", workers=3)
        query = again.start()
        query.processAllAvailable()
        assert again.batches == {1}
    finally:
        query.stop()
    expected = in_one_process(flow_of(), source.tables)
    for name in expected:
        assert stream.seen[name] + again.seen[name] == Counter(expected[name]), name


def test_a_batch_cannot_be_paused(spark: SparkSession) -> None:
    flow = jt.Flow("batch")
    flow.output("out", flow.input("n", time="id", schema={}))
    frames = flow.on_spark({"n": spark.range(3)}, workers=1)
    with pytest.raises(GraphError, match="a batch cannot be paused"):
        frames.pause_at(5)
    with pytest.raises(GraphError, match="a batch cannot be asked why"):
        frames.why()


def test_an_operator_that_is_busy_in_a_micro_batch_is_named(source: Source, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def slow(batch: jt.Batch) -> jt.Batch:
        while len(batch) > 10 and not gate.exists():  # a few rows show the columns
            time.sleep(0.01)
        return batch

    flow = jt.Flow("busy stream")
    flow.output("out", readings(flow).map(slow, name="slow"))
    frames = flow.on_spark({"r": source.frame()}, workers=2)
    source.add(rows(0))
    seen: list[int] = []
    taken = {"out": lambda frame, batch: seen.append(frame.count())}
    query = frames.write_stream(taken, checkpoint=tmp_path / "checkpoint")
    try:
        deadline = time.monotonic() + LIMIT
        while "runs 'slow'" not in (why := frames.why("out")).holders[0].text:
            assert time.monotonic() < deadline, str(why)
        assert why.holders[0].what == "busy"
        assert "time.sleep(0.01)" in why.holders[0].text
        gate.touch()
        query.processAllAvailable()
    finally:
        gate.touch()
        query.stop()
    assert seen == [len(rows(0)["v"])]
