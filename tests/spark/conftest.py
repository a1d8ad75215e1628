"""Fixtures of tests on Spark: frames, a stream of files, a folder for a query."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.flows import AUCTIONS, BIDS
from tests.spark.gated import Place
from tests.spark.micro_batches import Source


@pytest.fixture(scope="module")
def views(spark: SparkSession) -> dict[str, DataFrame]:
    frames = {"bids": spark.createDataFrame(BIDS), "auctions": spark.createDataFrame(AUCTIONS)}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    return frames


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "in")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
