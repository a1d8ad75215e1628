"""Joins with a table on Spark: it travels with the code, a DataFrame is collected."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.dataflow.operators import join_static
from jeton.errors import GraphError

BIDS = [(0, "a", 3), (1, "b", 4), (2, None, 5)]
EXPECTED = [(0, "a", 3, "Ann"), (1, "b", 4, None), (2, None, 5, None)]


def test_a_spark_dataframe_is_collected_at_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = spark.createDataFrame([("a", "Ann"), ("c", "Cid")], "id string, name string")
    bids = spark.createDataFrame(BIDS, "time long, bidder string, price long")
    flow = jt.Flow("named")
    keyed = flow.input("bids", schema=bids.schema).key_by("bidder")
    flow.output("named", keyed.join_static(people, on="id", how="left"))
    found = flow.on_spark({"bids": bids}, workers=2)["named"].collect()
    assert sorted(map(tuple, found)) == EXPECTED
    monkeypatch.setattr(join_static, "MOST_ROWS", 1)
    with pytest.raises(GraphError, match="more than 1 rows, which are not collected"):
        keyed.join_static(people, on="id")


def test_a_streaming_dataframe_is_not_a_table(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    with pytest.raises(GraphError, match="not a streaming DataFrame: make it an input"):
        jt.Flow("refused").input("in").key_by("value").join_static(rates)
