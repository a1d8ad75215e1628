"""Queries over DataFrames beside a plain mapInArrow: what is compared is the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from jeton_evaluation.bench import dataframes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_both_are_measured(spark: SparkSession) -> None:
    line = dataframes.measure(spark, "q3", 20_000, rounds=1, workers=2)
    assert line["rows_in"] == 1_600, "persons and auctions"
    assert line["rows_out"] > 0
    assert line["ratio"] == pytest.approx(line["plain_ms"] / line["flow_ms"], rel=0.01)


def test_a_plain_function_reads_all_rows_and_gives_back_as_many_as_the_answer(
    spark: SparkSession,
) -> None:
    seen = spark.sparkContext.accumulator(0)

    def counted(frame: pa.RecordBatch) -> pa.RecordBatch:
        seen.add(frame.num_rows)
        return frame

    def counting(batches):  # type: ignore[no-untyped-def]
        return map(counted, batches)

    numbers = spark.range(0, 30_000, 1, 3)
    others = spark.range(0, 10, 1, 2).withColumnRenamed("id", "other")
    inputs = {
        "numbers": numbers.mapInArrow(counting, numbers.schema),
        "others": others.mapInArrow(counting, others.schema),
    }
    answer = spark.createDataFrame([("a",), ("b",), ("c",)], "word string")
    plain = dataframes.plain_answer(inputs, answer, pa.table({"word": ["a", "b", "c"]}), 31)
    found = [row["word"] for row in plain.collect()]
    assert len(found) == 31
    assert set(found) == {"a", "b", "c"}
    assert seen.value == 30_010


def test_a_query_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        dataframes.main(["--query", "q99"])
    assert "there is no query q99" in capsys.readouterr().err
