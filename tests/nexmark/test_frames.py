"""DataFrames, batch and streaming, and long-lived queries: the same events as the tables."""

from __future__ import annotations

import doctest
import importlib
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import jeton as jt
from jeton.connectors import sinks
from jeton_evaluation import nexmark
from jeton_evaluation.nexmark.config import KINDS
from jeton_evaluation.nexmark.stream import EventStreamReader, StreamOptions

EVENTS = 20_000
CONFIG = nexmark.Config(rate=1_000_000, seed=11, avg_bid_extra=10)


def rows(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


def test_examples_run(spark: SparkSession) -> None:
    # By its name, because the package has a function of that name.
    module = importlib.import_module("jeton_evaluation.nexmark.frames")
    result = doctest.testmod(module, extraglobs={"spark": spark})
    assert result.attempted > 0
    assert result.failed == 0, "see what was captured"


@pytest.mark.parametrize("group", [1, 100])
def test_frames_are_the_tables(spark: SparkSession, group: int) -> None:
    config = replace(CONFIG, out_of_order_group_size=group)
    tables = nexmark.tables(config, EVENTS)
    frames = nexmark.frames(spark, config, EVENTS, partitions=3, block=3000)
    assert list(frames) == list(KINDS)
    for kind in KINDS:
        assert frames[kind].rdd.getNumPartitions() == 3
        assert frames[kind].toArrow().combine_chunks().equals(tables[kind].combine_chunks())


def test_frames_have_the_columns_that_are_wanted(spark: SparkSession) -> None:
    frames = nexmark.frames(spark, CONFIG, EVENTS, columns={"bids": ["price", "auction"]})
    assert list(frames) == ["bids"]
    assert frames["bids"].columns == ["ts", "price", "auction"]
    wanted = nexmark.tables(CONFIG, EVENTS, columns={"bids": ["price", "auction"]})["bids"]
    assert rows(frames["bids"].toArrow()) == rows(wanted)
    assert nexmark.frames(spark, CONFIG, 0)["bids"].count() == 0


def run_to_end(frame: DataFrame, folder: Path) -> list[dict[str, Any]]:
    """Write what is available to files, going on where the last such query was."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def test_streams_are_the_tables_and_go_on_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns: nexmark.Columns = {"bids": CONFIG.schema("bids").names}
    for events in (EVENTS // 2 + 7, EVENTS):
        frames = nexmark.stream_frames(spark, CONFIG, events, columns=columns, most=6000, block=999)
        assert frames["bids"].isStreaming
        assert len(run_to_end(frames["bids"], tmp_path)) == 2
        written = spark.read.parquet(str(tmp_path / "rows")).toArrow()
        assert rows(written) == rows(nexmark.tables(CONFIG, events, columns=columns)["bids"])


def test_streams_of_all_kinds(spark: SparkSession) -> None:
    tables = nexmark.tables(CONFIG, 1000)
    frames = nexmark.stream_frames(spark, CONFIG, 1000)
    assert list(frames) == list(KINDS)
    for kind in KINDS:
        frame = frames[kind]
        assert frame.columns == CONFIG.schema(kind).names
        query = frame.writeStream.format("memory").queryName(f"all_{kind}").start()
        query.processAllAvailable()
        query.stop()
        assert rows(spark.table(f"all_{kind}").toArrow()) == rows(tables[kind])


def test_a_long_lived_query_answers_as_a_run_in_process(spark: SparkSession) -> None:
    config = replace(CONFIG, out_of_order_group_size=50)
    columns: nexmark.Columns = {"bids": ["auction", "price"], "persons": ["state"]}
    flow = jt.Flow("nexmark")
    inputs = nexmark.add_inputs(flow, config, columns)
    flow.output("highest", inputs.bids.key_by("auction").tumbling(1000).max("price"))
    flow.output("states", inputs.persons.key_by("state").tumbling(1000).count())
    query = flow.start(
        spark,
        sources=nexmark.sources(config, EVENTS, columns=columns, most=1000),
        sinks={"highest": sinks.Memory(), "states": sinks.Memory()},
        workers=3,
    )
    assert query.await_termination(60)
    here = flow.run(nexmark.tables(config, EVENTS, columns=columns), workers=2)
    for output in ("highest", "states"):
        assert rows(query.table(output).toArrow()) == rows(here[output])


def stream_reader(**options: Any) -> EventStreamReader:
    stream = StreamOptions(
        **{
            "config": CONFIG,
            "kind": "bids",
            "columns": ("ts", "price"),
            "events": None,
            "rate": None,
            "start": None,
            "partitions": 3,
            "most": 1000,
            "block": 100,
            **options,
        }
    )
    assert StreamOptions.from_json(stream.to_json()) == stream
    return EventStreamReader(stream)


def latest(reader: EventStreamReader, position: int) -> int:
    return reader.latestOffset({"position": position}, None)["position"]  # type: ignore[arg-type]


def test_offsets_follow_the_clock_the_end_and_the_most() -> None:
    assert stream_reader().initialOffset() == {"position": 0}
    assert latest(stream_reader(), 70) == 1070
    assert latest(stream_reader(events=1050), 70) == 1050
    assert latest(stream_reader(events=1050), 1050) == 1050
    assert latest(stream_reader(rate=1e-9), 70) == 70
    assert latest(stream_reader(rate=10, start=time.time() + 1000), 70) == 70
    assert latest(stream_reader(rate=10, start=time.time() - 20.05), 70) in range(200, 300)
    assert latest(stream_reader(rate=10, start=time.time() - 9999), 70) == 1070
    with pytest.raises(ValueError, match="needs events="):
        stream_reader().prepareForTriggerAvailableNow()


@pytest.mark.parametrize(
    "wrong", [{"rate": 0}, {"events": -1}, {"partitions": 0}, {"most": 0}, {"block": 0}]
)
def test_wrong_streams_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|cannot be"):
        stream_reader(**wrong)


def test_partitions_of_a_micro_batch_are_all_of_it() -> None:
    reader = stream_reader()
    parts = reader.partitions({"position": 10}, {"position": 1010})
    assert [part.value for part in parts] == [(10, 343), (343, 676), (676, 1010)]
    made = pa.Table.from_batches([batch for part in parts for batch in reader.read(part)])
    wanted = nexmark.Generator(CONFIG).make("bids", 10, 1010, ["price"])
    assert made.combine_chunks().equals(pa.table(wanted))
    parts = reader.partitions({"position": 10}, {"position": 10})
    assert [batch for part in parts for batch in reader.read(part)] == []
