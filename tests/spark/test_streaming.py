"""Structured Streaming: the same rows as in one process, by any workers, into any sink."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

import jeton as jt
from jeton.core.errors import GraphError
from jeton.spark.streaming import parquet_writer
from jeton.storage.checkpoints import Checkpoints
from tests.spark.micro_batches import (
    ARROW,
    LIMIT,
    SCHEMA,
    Sink,
    Source,
    as_rows,
    in_one_process,
    readings,
    rows,
    run,
    summing,
)

THE_END = 100_000
"""A time so far ahead that everything before it is complete."""


def every_family() -> jt.Flow:
    """An output for each family of operators, and one for what came late."""
    flow = jt.Flow("families")
    r = readings(flow)
    by_key, by_who = r.key_by("k"), r.key_by("who")
    flow.output("cheap", r.filter(lambda batch: batch["v"] % 3 == 0))
    flow.output("counts", by_who.running().count().select("who", "count"))
    flow.output("means", by_key.tumbling(40).mean("v"))
    flow.output("sliding", by_who.sliding(80, every=40).sum("v"))
    flow.output("sessions", by_key.session_window(5).count())
    flow.output("best", by_key.tumbling(50).top_k(2, by="v").select("k", "v"))
    flow.output("distinct", by_who.distinct())
    flow.output("late", r.late)
    return flow


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
    assert sink.rows("late") == [(("k", 1), ("late_at", 139), ("ts", 3), ("v", 0), ("who", "late"))]
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


def test_where_spark_plans_each_stage_anew(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    """As Spark 4.3 does by default, but for local sessions."""
    adaptive = "spark.sql.adaptive.streaming.stateless.enabled"
    before = spark.conf.get(adaptive, "false") or "false"
    for batch in range(3):
        source.add(rows(batch))
    sink = Sink()
    spark.conf.set(adaptive, "true")
    try:
        run(summing(), source, sink, tmp_path / "checkpoint", workers=2)
    finally:
        spark.conf.set(adaptive, before)
    expected = in_one_process(summing(), source.tables)
    assert {name: sink.rows(name) for name in expected} == expected


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
    means = frames.metrics()["operators"][1]
    assert means["invocations"] >= 3, "in each micro-batch"
    # Levels are those after the last micro-batch, not the sum of all.
    assert means["tokens"] <= 2
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
        seen: jt.state.KeyedValues[int] = jt.state.KeyedValues()
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


# What is refused


def test_what_does_not_make_sense_is_refused(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    flow = jt.Flow("refused")
    a = flow.input("r", time="ts", schema=ARROW)
    b = flow.input("still", time="ts", schema=ARROW)
    flow.output("out", a.concat(b))
    still = spark.createDataFrame([(1, 1, "a", 1)], SCHEMA)
    with pytest.raises(GraphError, match=r"\['still'\] are not streaming DataFrames"):
        flow.on_spark({"r": source.frame(), "still": still})
    frames: Any = summing().on_spark({"r": source.frame()}, workers=1)
    with pytest.raises(GraphError, match=r"'sums', 'counts'.*'sum'"):
        frames.write_stream({"sum": print}, checkpoint=str(tmp_path))
    with pytest.raises(GraphError, match="write_stream runs the flow once"):
        frames.cache()
    with pytest.raises(GraphError, match="a worker of each partition"):
        summing().on_spark({"r": source.frame()}, repartition=False, workers=2)
    with pytest.raises(GraphError, match="at least one version"):
        summing().on_spark({"r": source.frame()}, keep=0)
    with pytest.raises(AnalysisException, match=r"(?i)complete"):
        frames["sums"].writeStream.outputMode("complete").format("noop").start()
    frames = summing().on_spark({"r": source.frame()}, workers=1, shuffle=False)
    with pytest.raises(GraphError, match="shuffle=True"):
        frames.write_stream({"sums": print}, checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"allow_removed": "sum"}, r"a list of names: \['sum'\]"),
        ({"schemas": {"nope": pa.schema([])}}, r"names \['nope'\], but the outputs"),
        ({"progress": True}, r"query\.lastProgress"),
    ],
)
def test_options_that_cannot_be_meant(source: Source, options: dict[str, Any], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        summing().on_spark({"r": source.frame()}, **options)


@pytest.mark.parametrize("name", [".", "..", "x" * 300])
def test_names_without_a_folder(source: Source, name: str) -> None:
    flow = jt.Flow(name)
    flow.output("out", readings(flow))
    with pytest.raises(GraphError, match="no folder for its state"):
        flow.on_spark({"r": source.frame()})


def test_an_aggregation_before_the_flow_is_not_fed_whole_each_time(
    source: Source, tmp_path: Path
) -> None:
    source.add(rows(0, count=20))
    flow = jt.Flow("fed whole")
    r = flow.input("r", time="n", schema={"k": int})
    flow.output("out", r.key_by("k").running().count())
    table = source.frame().groupBy("k").count().withColumnRenamed("count", "n")
    writer = flow.on_spark({"r": table}, workers=1)["out"].writeStream.format("noop")
    query = writer.outputMode("complete").trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="the whole table again"):
        query.awaitTermination(LIMIT)


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
