"""Structured Streaming: the same rows as in one process, whatever happens between micro-batches."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import jeton as jt
from jeton.core.errors import GraphError, SnapshotError
from jeton.spark.checkpoints import Checkpoints
from jeton.spark.streaming import go_back, parquet_writer

SCHEMA = "ts long, k long, who string, v long"
ARROW = {"k": int, "who": str, "v": int}
LATENESS = 60
LIMIT = 600
THE_END = 100_000
"""A time so far ahead that everything before it is complete."""


def rows(batch: int, count: int = 300) -> dict[str, Any]:
    """The rows of a micro-batch: their times overlap with those of its neighbours."""
    random = np.random.default_rng(batch)
    return {
        "ts": random.integers(batch * 50, batch * 50 + 100, count),
        "k": random.integers(0, 12, count),
        "who": [None if n % 11 == 0 else f"who {n}" for n in random.integers(0, 40, count)],
        "v": random.permutation(count) + batch * 1000,
    }


class Source:
    """A folder of files, one of which is read in each micro-batch."""

    def __init__(self, spark: SparkSession, path: Path, schema: str = SCHEMA) -> None:
        self.spark = spark
        self.path = path
        self.schema = schema
        self.tables: list[pa.Table] = []
        path.mkdir(parents=True)

    def add(self, data: dict[str, Any]) -> None:
        table = pa.table(data)
        hidden = self.path.parent / "hidden"
        pq.write_table(table, hidden)
        hidden.rename(self.path / f"{len(self.tables):04d}.parquet")
        # Spark reads the oldest file first, and looks at whole seconds.
        os.utime(self.path / f"{len(self.tables):04d}.parquet", (0, 1000 + 10 * len(self.tables)))
        self.tables.append(table)

    def frame(self, files: int = 1) -> DataFrame:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", files)
        return reader.parquet(str(self.path))


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "in")


def readings(flow: jt.Flow, lateness: int | None = LATENESS) -> Any:
    return flow.input("r", time="ts", schema=ARROW, lateness=lateness)


def every_family() -> jt.Flow:
    """An output for each family of operators, and one for what came late."""
    flow = jt.Flow("families")
    r = readings(flow)
    by_key, by_who = r.key_by("k"), r.key_by("who")
    flow.output("cheap", r.filter(lambda batch: batch["v"] % 3 == 0))
    flow.output("counts", by_who.rolling().count().select("who", "count"))
    flow.output("means", by_key.tumbling(40).mean("v"))
    flow.output("sliding", by_who.sliding(80, every=40).sum("v"))
    flow.output("sessions", by_key.session(5).count())
    flow.output("best", by_key.tumbling(50).top_k(2, by="v").select("k", "v"))
    flow.output("distinct", by_who.distinct())
    flow.output("late", r.late)
    return flow


def in_one_process(flow: jt.Flow, tables: Sequence[pa.Table]) -> dict[str, list[tuple[Any, ...]]]:
    """What comes out if batches are fed one after the other, advancing after each."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    late = flow.lateness["r"]
    with flow.open() as run:
        handle = run.input("r")
        handle.lateness = None
        for table in tables:
            handle.send(table)
            floor = max(table["ts"].to_pylist()) - late if late is not None else handle.time
            handle.advance_to(max(handle.time, floor))
            run.run_to_rest()
        for name, table in run.results().items():
            found[name] = as_rows(name, table.to_pylist())
    return found


def as_rows(name: str, found: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows to be compared, in any order."""
    # Which of a key's records counts as the first, the second … depends on their order.
    hidden = {"ts"} if name in ("counts", "distinct") else set()
    rows = (row.asDict() if hasattr(row, "asDict") else row for row in found)
    kept = ((pair for pair in row.items() if pair[0] not in hidden) for row in rows)
    return sorted((tuple(sorted(pairs)) for pairs in kept), key=repr)


class Sink:
    """Keeps the rows of each micro-batch; one that is run again takes the place of the first."""

    def __init__(self) -> None:
        self.batches: dict[str, dict[int, list[Any]]] = {}
        self.again = 0

    def writer(self, name: str) -> Any:
        def write(frame: DataFrame, batch: int) -> None:
            mine = self.batches.setdefault(name, {})
            found = frame.collect()
            if batch in mine:
                self.again += 1
                assert as_rows(name, found) == as_rows(name, mine[batch]), f"batch {batch} differs"
            mine[batch] = found

        return write

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return as_rows(name, [row for rows in self.batches.get(name, {}).values() for row in rows])


def run(
    flow: jt.Flow, source: Source, sink: Sink, checkpoint: Path, *, files: int = 1, **options: Any
) -> None:
    """Let a query take all that is there, and end."""
    frames: Any = flow.on_spark({"r": source.frame(files)}, **options)
    query = frames.write_stream(
        {name: sink.writer(name) for name in flow.outputs},
        checkpoint=str(checkpoint),
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(LIMIT), "it hangs"


def test_all_operators_with_2_then_3_then_1_workers(source: Source, tmp_path: Path) -> None:
    """Micro-batches over three starts, each with another number of workers, one checkpoint."""
    sink = Sink()
    for batch, workers in enumerate((2, 3, 1)):
        source.add(rows(batch))
        if batch == 2:
            source.add({"ts": [3, THE_END], "k": [1, 2], "who": ["late", "end"], "v": [0, 1]})
        run(every_family(), source, sink, tmp_path / "checkpoint", workers=workers)
    expected = in_one_process(every_family(), source.tables)
    for name in expected:
        assert sink.rows(name) == expected[name], name
    assert sink.rows("late") == [
        (("event_time", 3), ("k", 1), ("ts", 139), ("v", 0), ("who", "late"))
    ]
    assert all(len(expected[name]) > 10 for name in expected if name != "late")


def test_partitions_as_they_are(source: Source, tmp_path: Path) -> None:
    """A worker for each partition of a micro-batch: two, two, and one at the end."""
    for batch in range(5):
        source.add(rows(batch))
    sink = Sink()
    run(summing(), source, sink, tmp_path / "checkpoint", files=2, repartition=False)
    together = [pa.concat_tables(source.tables[at : at + 2]) for at in (0, 2, 4)]
    expected = in_one_process(summing(), together)
    assert {name: sink.rows(name) for name in expected} == expected
    store = Checkpoints(tmp_path / "checkpoint/jeton/summing")
    assert [store.load(version).workers for version in range(3)] == [2, 2, 1]


def test_plain_sinks_and_metrics(spark: SparkSession, source: Source, tmp_path: Path) -> None:
    for batch in range(3):
        source.add(rows(batch, count=50))
    flow = jt.Flow("plain sinks")
    flow.output("means", readings(flow).key_by("k").tumbling(40).mean("v"))
    frames = flow.on_spark({"r": source.frame()}, workers=2)
    assert frames["means"].isStreaming
    expected = in_one_process(flow, source.tables)["means"]
    writer = frames["means"].writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "a"))
    assert writer.start(str(tmp_path / "out")).awaitTermination(LIMIT)
    assert as_rows("means", spark.read.parquet(str(tmp_path / "out")).collect()) == expected
    assert frames.metrics()["runs"] == 3
    assert frames.metrics()["rows_in"] == 150
    assert frames.metrics()["rows_out"] == len(expected)
    # Another sink of the same frame is a query with state of its own, here somewhere else.
    frames = flow.on_spark({"r": source.frame()}, workers=1, checkpoint=str(tmp_path / "state"))
    writer = frames["means"].writeStream.format("memory").trigger(availableNow=True)
    assert writer.queryName("means_in_memory").start().awaitTermination(LIMIT)
    assert as_rows("means", spark.table("means_in_memory").collect()) == expected
    [folder] = (tmp_path / "state").iterdir()
    assert Checkpoints(folder / "plain_sinks").versions() == [0, 1, 2]


def test_workers_stay_between_micro_batches(source: Source, tmp_path: Path) -> None:
    """They are built once, although ranks and partitions change hands."""

    def watched(token: Any, info: Any) -> Any:
        token.drop()
        (tmp_path / f"built-{info.worker}-{os.urandom(4).hex()}").touch()
        seen: jt.KeyedValues[int] = jt.KeyedValues()
        info.keep(seen)

        def step(input: Any, output: Any) -> None:
            for ref, batch in input:
                for row in batch.rows():
                    seen[row["k"]] = seen.get(row["k"], 0) + 1
                    output.session(ref).give(k=row["k"], n=seen[row["k"]])

        return step

    flow = jt.Flow("watched")
    out = readings(flow, None).unary(
        watched, pact=jt.Exchange("k"), schema={"k": int, "n": int}, name="watched"
    )
    flow.output("out", out)
    for batch in range(5):
        source.add(rows(batch, count=40))
    sink = Sink()
    # As many as this session can have Python processes, so that Spark chooses the same ones.
    run(flow, source, sink, tmp_path / "checkpoint", workers=4)
    # Else all are built for each of the five; all anew once, if Spark has replaced a process.
    assert len(list(tmp_path.glob("built-*"))) in (4, 8)
    counted = Counter(dict(row)["k"] for row in sink.rows("out"))
    assert counted == Counter(k for table in source.tables for k in table["k"].to_pylist())
    assert {
        k: max(dict(r)["n"] for r in sink.rows("out") if dict(r)["k"] == k) for k in counted
    } == (dict(counted))


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
    assert [dict(row)["event_time"] for row in sink.rows("late")] == [79]
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
    flow.output("counts", r.key_by("k").tumbling(10_000_000).count())
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


# Replays, damage, changed code


@pytest.fixture
def two_done(source: Source, tmp_path: Path) -> Sink:
    """Two micro-batches are done, and a third is there to come."""
    source.add(rows(0, count=60))
    source.add(rows(1, count=60))
    sink = Sink()
    run(summing(), source, sink, tmp_path / "checkpoint", workers=2)
    source.add(rows(2, count=60))
    return sink


def summing() -> jt.Flow:
    flow = jt.Flow("summing")
    r = readings(flow)
    flow.output("sums", r.key_by("k").tumbling(40).sum("v"))
    flow.output("counts", r.key_by("who").rolling().count().select("who", "count"))
    return flow


def test_a_micro_batch_that_is_run_again_gives_the_same(
    source: Source, tmp_path: Path, two_done: Sink
) -> None:
    """As after a driver that died before it could say that the micro-batch was done."""
    (tmp_path / "checkpoint/commits/1").unlink()
    (tmp_path / "checkpoint/commits/.1.crc").unlink()
    run(summing(), source, two_done, tmp_path / "checkpoint", workers=3)
    assert two_done.again == 2
    expected = in_one_process(summing(), source.tables)
    assert {name: two_done.rows(name) for name in expected} == expected


@pytest.mark.parametrize("how", ["flipped", "truncated"])
def test_damaged_state_is_noticed_and_the_query_goes_back(
    source: Source, tmp_path: Path, two_done: Sink, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = tmp_path / "checkpoint"
    path = sorted((checkpoint / "jeton/summing/parts").iterdir())[-1]
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 1
    else:
        del data[-len(data) // 3 :]
    path.write_bytes(data)
    if how == "flipped":
        # A sink of Spark's own: the error says what to do.
        frame = summing().on_spark({"r": source.frame()}, workers=2)["sums"]
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        with pytest.raises(StreamingQueryException, match=r"(?s)is damaged.*go_back"):
            query.awaitTermination(LIMIT)
    with caplog.at_level(logging.WARNING, "jeton.spark"):
        run(summing(), source, two_done, checkpoint, workers=2)
    assert "checkpoint 1 in" in caplog.text
    assert "micro-batch 1 again" in caplog.text
    assert two_done.again == 2
    expected = in_one_process(summing(), source.tables)
    assert {name: two_done.rows(name) for name in expected} == expected


def test_going_back_too_far_is_refused(two_done: Sink, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    assert go_back(str(checkpoint)) is None
    for path in (checkpoint / "jeton/summing/manifests").iterdir():
        path.write_bytes(b"{}")
    with pytest.raises(SnapshotError, match="whole"):
        go_back(str(checkpoint))
    assert go_back(str(tmp_path / "nothing")) is None


def test_state_that_is_gone_is_an_error_and_no_fresh_start(
    source: Source, tmp_path: Path, two_done: Sink
) -> None:
    for path in (tmp_path / "checkpoint/jeton/summing/manifests").iterdir():
        path.unlink()
    frame = summing().on_spark({"r": source.frame()}, workers=2)["sums"]
    writer = frame.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match="needs the state after the one before"):
        query.awaitTermination(LIMIT)


def test_changed_code(source: Source, tmp_path: Path, two_done: Sink) -> None:
    flow = jt.Flow("summing")
    r = readings(flow)
    flow.output("counts", r.key_by("who").rolling().count().select("who", "count"))
    flow.output("new", r.key_by("k").rolling().max("v"))
    sink = Sink()
    with pytest.raises(StreamingQueryException, match=r"allow_removed=\['sum'\]"):
        run(flow, source, sink, tmp_path / "checkpoint", workers=2)
    run(flow, source, sink, tmp_path / "checkpoint", workers=2, allow_removed=["sum"])
    expected = in_one_process(summing(), source.tables)["counts"]
    before = two_done.rows("counts")
    assert Counter(sink.rows("counts")) == Counter(expected) - Counter(before)
    assert len(sink.rows("new")) == 60


# What is refused


def test_what_does_not_make_sense_is_refused(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    flow = jt.Flow("refused")
    a = flow.input("r", time="ts", schema=ARROW)
    b = flow.input("still", time="ts", schema=ARROW)
    flow.output("out", a.concat(b))
    still = spark.createDataFrame([(1, 1, "a", 1)], SCHEMA)
    with pytest.raises(GraphError, match=r"\['still'\] are no streaming DataFrames"):
        flow.on_spark({"r": source.frame(), "still": still})
    frames: Any = summing().on_spark({"r": source.frame()}, workers=1)
    with pytest.raises(GraphError, match=r"'sums', 'counts'.*'sum'"):
        frames.write_stream({"sum": print}, checkpoint=str(tmp_path))
    with pytest.raises(GraphError, match="a worker of each partition"):
        summing().on_spark({"r": source.frame()}, repartition=False, workers=2)
    with pytest.raises(GraphError, match="at least one version"):
        summing().on_spark({"r": source.frame()}, keep=0)
    with pytest.raises(AnalysisException, match=r"(?i)complete"):
        frames["sums"].writeStream.outputMode("complete").format("noop").start()


def test_flows_in_a_row_need_names_of_their_own(source: Source, tmp_path: Path) -> None:
    def doubling(name: str) -> jt.Flow:
        flow = jt.Flow(name)
        doubled = readings(flow, None).with_columns(v=lambda batch: batch["v"] * 2)
        flow.output("doubled", doubled)
        return flow

    source.add({"ts": [1], "k": [1], "who": ["a"], "v": [5]})

    def twice(first: str, second: str) -> list[Any]:
        once = doubling(first).on_spark({"r": source.frame()}, workers=1)["doubled"]
        both = doubling(second).on_spark({"r": once}, workers=1)["doubled"]
        seen: list[Any] = []
        writer = both.writeStream.foreachBatch(lambda rows, _: seen.extend(rows.collect()))
        writer = writer.option("checkpointLocation", str(tmp_path / f"{first}-{second}"))
        assert writer.trigger(availableNow=True).start().awaitTermination(LIMIT)
        return seen

    assert [row.v for row in twice("one", "other")] == [20]
    with pytest.raises(StreamingQueryException, match="two flows of one query are called 'same'"):
        twice("same", "same")


def test_parquet_writer(spark: SparkSession, source: Source, tmp_path: Path) -> None:
    source.add(rows(0, count=30))
    source.add(rows(1, count=30))
    frames: Any = summing().on_spark({"r": source.frame()}, workers=2)
    query = frames.write_stream(
        {"counts": parquet_writer(str(tmp_path / "counts"))},
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"availableNow": True},
        name="parquet writer",
    )
    assert query.name == "parquet writer"
    assert query.awaitTermination(LIMIT)
    found = spark.read.parquet(str(tmp_path / "counts"))
    assert found.groupBy("batch").count().orderBy("batch").collect() == [(0, 30), (1, 30)]
    parquet_writer(str(tmp_path / "counts"))(found.where("batch = 1").drop("batch").limit(0), 1)
    assert spark.read.parquet(str(tmp_path / "counts")).count() == 30
