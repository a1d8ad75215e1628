"""Flows on stores that Spark knows: S3 by its protocol, and file systems of Hadoop's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Parquet
from jeton.connectors.sources import Files as FileSource
from jeton.connectors.sources import Rate
from jeton.spark import store_access
from jeton.spark.streaming import parquet_writer, roll_back
from jeton.storage import store_settings
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.files import Files
from tests.storage.s3_server import BUCKET, s3_server, settings_of


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = store_settings.current()
    yield
    store_settings.use(before)


@pytest.fixture(params=["s3a", "viewfs"])
def root(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A folder on a store that is reached by the session's settings only."""
    if request.param == "s3a":
        with s3_server() as endpoint:
            settings = dict(settings_of(endpoint).values)
            yield from configured(spark, settings, f"s3a://{BUCKET}/root")
    else:
        # Of its own for each test: Hadoop remembers a file system for as long as its JVM lives.
        name = f"test{token_hex(4)}"
        settings = {f"fs.viewfs.mounttable.{name}.link./data": tmp_path.as_uri()}
        yield from configured(spark, settings, f"viewfs://{name}/data")


def configured(spark: SparkSession, settings: dict[str, str], root: str) -> Iterator[str]:
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield root
    finally:
        for key in settings:
            spark.conf.unset(key)


def rows_in(path: str) -> list[dict[str, Any]]:
    """The rows of all visible files."""
    files, found = Files(path), []
    for name in files.names(files.root):
        if not name.startswith("."):
            with files.local_copy(files.root / name) as copy:
                found += pq.read_table(copy).to_pylist()
    return found


def test_a_long_lived_query_reads_writes_and_resumes(spark: SparkSession, root: str) -> None:
    store_access.adopt(spark)
    arriving = Files(f"{root}/in")

    def arrive(number: int) -> None:
        table = pa.table({"time": [number] * 3, "k": [0, 1, 1]})
        with arriving.output(arriving.root / f"{number:04}.parquet") as stream:
            pq.write_table(table, stream)

    flow = jt.Flow("on a store")
    clicks = flow.input("clicks", schema={"k": int})
    flow.output("counts", clicks.key_by("k").running().count().select("k", "count"))

    def run() -> None:
        query = flow.start(
            spark,
            sources={"clicks": FileSource(f"{root}/in", end=True)},
            sinks={"counts": Parquet(f"{root}/out")},
            checkpoint=f"{root}/checkpoint",
            every=None,
        )
        assert query.await_termination(120)

    for number in range(4):
        arrive(number)
    run()
    assert Checkpoints(f"{root}/checkpoint").versions()
    seen = sorted((row["k"], row["count"]) for row in rows_in(f"{root}/out"))
    assert seen == [(0, n + 1) for n in range(4)] + [(1, n + 1) for n in range(8)]


def test_a_stopped_query_goes_on(spark: SparkSession, root: str) -> None:
    flow = jt.Flow("stopped")
    numbers = flow.input("numbers", schema={"k": int})
    flow.output("counts", numbers.key_by("k").tumbling(10_000_000).count())

    def run() -> Any:
        return flow.start(
            spark,
            sources={"numbers": Rate(5_000, lambda n: {"k": n % 10}, limit=15_000)},
            sinks={"counts": Parquet(f"{root}/out")},
            checkpoint=f"{root}/checkpoint",
            every=0.3,
        )

    query = run()
    query.await_running()
    query.checkpoint()
    query.stop()
    query = run()
    assert query.await_termination(120)
    assert sum(row["count"] for row in rows_in(f"{root}/out")) == 15_000


@pytest.mark.parametrize("root", ["viewfs"], indirect=True)
def test_structured_streaming_keeps_state_beside_its_own(spark: SparkSession, root: str) -> None:
    """Spark's own checkpoint is on that store too, which only Java can reach."""
    streaming(spark, root, f"{root}/checkpoint", None)
    assert Checkpoints(f"{root}/checkpoint/jeton/streamed").versions() == [0, 1, 2]
    assert roll_back(f"{root}/checkpoint") is None


@pytest.mark.parametrize("root", ["s3a"], indirect=True)
def test_state_of_structured_streaming_is_in_a_bucket(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """PySpark comes without Hadoop's code for S3, so Spark's own checkpoint is elsewhere."""
    streaming(spark, str(tmp_path), str(tmp_path / "checkpoint"), f"{root}/state")
    files = Files(f"{root}/state")
    (query,) = files.folders(files.root)
    assert Checkpoints(f"{root}/state/{query}/streamed").versions() == [0, 1, 2]


def streaming(spark: SparkSession, root: str, checkpoint: str, state: str | None) -> None:
    flow = jt.Flow("streamed")
    rows = flow.input("rows", time="ts", schema={"k": int}, lateness=20)
    flow.output("counts", rows.key_by("k").tumbling(50).count())
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100)
    frame = stream.load().selectExpr("value as ts", "value % 3 as k")

    def start() -> Any:
        frames: Any = flow.on_spark({"rows": frame}, workers=2, checkpoint=state)
        return frames.write_stream(
            {"counts": parquet_writer(f"{root}/counts")}, checkpoint=checkpoint
        )

    for last in (0, 2):
        query = start()
        while query.lastProgress is None or query.lastProgress.batchId < last:
            assert query.exception() is None
        query.stop()
    written = spark.read.parquet(f"{root}/counts").where("ts <= 250")
    assert written.count() == 15
    assert sum(row["count"] for row in written.collect()) == 250
