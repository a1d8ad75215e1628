"""Names of columns and outputs that the host, or Spark, could take for its own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import jeton as jt
from tests.spark.micro_batches import LIMIT

NAMES = ["__worker", "__output", "__input", "worker", "Worker_", "output", "input", "_0"]
NAMES += ["a`b", "c.d"]
OUTPUTS = ["__output", "output", "_1", "o`ut", "o.ut"]


def flow_of(inputs: int) -> jt.Flow:
    flow = jt.Flow("odd names")
    schema = dict.fromkeys(NAMES, int)
    streams = [flow.input(f"in`put.{n}", time="t`s", schema=schema) for n in range(inputs)]
    for output in OUTPUTS:
        flow.output(output, streams[0].concat(*streams[1:]))
    return flow


def columns_of(value: str) -> list[str]:
    quoted = [name.replace("`", "``") for name in ["t`s", *NAMES]]
    return [f"{value} + {at} as `{name}`" for at, name in enumerate(quoted)]


def rows_of(count: int) -> list[tuple[int, ...]]:
    return [tuple(n + at for at in range(len(NAMES) + 1)) for n in range(count)]


@pytest.mark.parametrize("inputs", [1, 2])
def test_columns_and_outputs_of_any_name(spark: SparkSession, inputs: int) -> None:
    frame = spark.range(5).selectExpr(*columns_of("id"))
    flow = flow_of(inputs)
    frames = flow.on_spark(dict.fromkeys(flow.inputs, frame), workers=2)
    assert list(frames) == OUTPUTS
    for output in ("__output", "o`ut"):
        assert frames[output].columns == ["t`s", *NAMES]
        assert sorted(tuple(row) for row in frames[output].collect()) == sorted(rows_of(5) * inputs)


def test_the_same_in_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5)
    flow = flow_of(1)
    stream = source.load().selectExpr(*columns_of("value"))
    frames: Any = flow.on_spark({flow.inputs[0]: stream}, workers=2)
    found: dict[str, list[Any]] = {}

    def writer(output: str) -> Any:
        return lambda rows, batch: found.setdefault(output, rows.collect())

    query = frames.write_stream(
        {output: writer(output) for output in OUTPUTS}, checkpoint=tmp_path / "checkpoint"
    )
    while len(found) < len(OUTPUTS):
        assert query.exception() is None
    query.stop()
    assert query.awaitTermination(LIMIT)
    for rows in found.values():
        assert sorted(tuple(row) for row in rows) == rows_of(5)


def test_text_with_a_collation_is_warned_of(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    flow = jt.Flow("collated")
    words = flow.input("words", time="ts", schema={"word": str})
    flow.output("counts", words.key_by("word").tumbling(10).count())
    query = "select id as ts, if(id % 2 = 0, 'a', 'A') {} as word from range(4)"
    with caplog.at_level(logging.WARNING, "jeton.spark"):
        plain = flow.on_spark({"words": spark.sql(query.format(""))}, workers=2)["counts"]
        assert not caplog.text
        frame = spark.sql(query.format("collate UTF8_LCASE"))
        counts = flow.on_spark({"words": frame}, workers=2)["counts"]
    assert "input 'words' of flow 'collated' has text with a collation (word: UTF8_LCASE)" in (
        caplog.text
    )
    rows = sorted(tuple(row) for row in counts.collect())
    assert rows == sorted(tuple(row) for row in plain.collect()) == [(10, "A", 2), (10, "a", 2)]
