"""Connectors on Spark: partitions that appear, sinks that write at once, and whole versions."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import DirectSink, ForeachBatch, Memory, Parquet, SinkContext, Writer
from jeton.connectors.sources import Batches, Kafka, Rate, Reader, Source
from jeton.errors import GraphError, JetonError
from jeton.spark.query import Query
from jeton_evaluation.bench.mock_kafka import MockKafka
from tests.kafka_topics import produce
from tests.spark.gated import LIMIT, until


class Lines(Source):
    """Numbers in the files of a folder, each file a partition; they may appear and grow."""

    discover_every = 0.1

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def partitions(self, workers: int) -> Mapping[str, Any]:
        return self.discover(())

    def discover(self, known: Collection[str]) -> Mapping[str, Any]:
        return {path.name: 0 for path in self.folder.iterdir() if path.name not in known}

    def open(self, partition: str, position: Any) -> Reader:
        return LinesReader(self.folder / partition, position)


class LinesReader(Reader):
    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self._next = position

    def read(self) -> Any:
        self.ready_at = time.monotonic() + 0.01
        lines = self._path.read_text().splitlines()[self._next :]
        self._next += len(lines)
        return {"n": [int(line) for line in lines]} if lines else None

    @property
    def position(self) -> int:
        return self._next


def write(folder: Path, partition: str, *numbers: int) -> None:
    with (folder / partition).open("a") as file:
        file.write("".join(f"{n}\n" for n in numbers))


def echo() -> jt.Flow:
    flow = jt.Flow("echo")
    flow.output("numbers", flow.input("numbers", schema={"n": int}).exchange("n").select("n"))
    return flow


def test_partitions_that_appear_are_read_over_restarts_and_rescaling(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    memory = Memory()

    def start(workers: int) -> Query:
        return echo().start(
            spark,
            sources={"numbers": Lines(folder)},
            sinks={"numbers": memory},
            workers=workers,
            checkpoint=tmp_path / "checkpoint",
            every=0.2,
        )

    def found() -> list[int]:
        table = memory.table()
        return [] if table is None else sorted(table["n"].to_pylist())

    # There is none yet, and the query does not end for that.
    with start(2) as query:
        query.await_running(LIMIT)
        write(folder, "a", 1, 2)
        until(lambda: found() == [1, 2], "the first partition")
        write(folder, "b", 3)
        write(folder, "a", 4)
        write(folder, "c", 5)
        until(lambda: found() == [1, 2, 3, 4, 5], "two more")
        query.rescale(1)
        write(folder, "d", 6)
        write(folder, "b", 7)
        until(lambda: found() == [1, 2, 3, 4, 5, 6, 7], "one that appeared after rescaling")
        # Each worker has some: they are dealt.
        query.rescale(3)
        write(folder, "a", 8)
        until(lambda: found() == [*range(1, 9)], "more of the first")
    write(folder, "e", 9)
    write(folder, "a", 10)
    with start(2):
        until(lambda: found() == [*range(1, 11)], "what came while it was stopped")


def test_a_driver_begins_where_the_one_began_that_died_before_its_first_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    memory = Memory()

    def start(every: float) -> Query:
        flow = jt.Flow("tail")
        flow.output("out", flow.input("numbers", schema={"time": int, "n": int}))
        return flow.start(
            spark,
            sources={"numbers": Kafka(kafka.servers, "^n", start="latest")},
            sinks={"out": memory},
            workers=1,
            checkpoint=tmp_path / "checkpoint",
            every=every,
        )

    def found() -> list[int]:
        table = memory.table()
        return [] if table is None else sorted(table["n"].to_pylist())

    with MockKafka({"numbers": 1}) as kafka:
        produce(kafka.servers, "numbers", [{"time": 1, "n": 1}])
        first = start(1000.0)
        produce(kafka.servers, "numbers", [{"time": 2, "n": 2}])
        kafka.create("new", 1)
        produce(kafka.servers, "new", [{"time": 3, "n": 3}])
        # It takes over.
        with start(0.2) as query:
            until(lambda: found() == [2, 3], "both records")
            assert query.is_active
        with suppress(JetonError):
            first.stop()


class Appended(DirectSink):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def open(self, context: SinkContext) -> Writer:
        return AppendedWriter(self.folder / context.name)


class AppendedWriter(Writer):
    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def write(self, table: pa.Table) -> None:
        self._file.writelines(f"{n}\n" for n in table["n"].to_pylist())
        self._file.flush()

    def stage(self, version: int) -> list[Any]:
        return []

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_direct_sink_has_rows_before_a_checkpoint(
    spark: SparkSession, tmp_path: Path, *, checkpoints: bool
) -> None:
    sink = Appended(tmp_path / "out")

    def found() -> list[int]:
        texts = [path.read_text() for path in sink.folder.iterdir()]
        return sorted(int(line) for text in texts for line in text.splitlines())

    def endless(partition: int, partitions: int) -> Any:
        yield {"n": [partition, partition + 10]}
        while True:
            yield None

    settings: dict[str, Any] = {"checkpoint": tmp_path / "c"} if checkpoints else {}
    with echo().start(
        spark,
        sources={"numbers": Batches(endless, 2)},
        sinks={"numbers": sink},
        every=1000.0,
        **settings,
    ):
        until(lambda: found() == [0, 1, 10, 11], "the rows")


def test_without_checkpoints_files_appear_while_the_query_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    def endless(partition: int, partitions: int) -> Any:
        yield {"n": [partition]}
        while True:
            yield None

    def found() -> list[int]:
        tables = [pq.read_table(path) for path in tmp_path.glob("part-*")]
        return sorted(n for table in tables for n in table["n"].to_pylist())

    with echo().start(
        spark,
        sources={"numbers": Batches(endless, 2)},
        sinks={"numbers": Parquet(tmp_path)},
        every=0.1,
    ):
        until(lambda: found() == [0, 1], "the rows")


def test_a_function_gets_each_version_once(spark: SparkSession, tmp_path: Path) -> None:
    taken: list[tuple[int, int | None]] = []
    failed: list[int | None] = []

    def take(table: pa.Table, version: int | None) -> None:
        if not failed:
            failed.append(version)
            raise OSError("busy")
        taken.append((table.num_rows, version))

    query = echo().start(
        spark,
        sources={"numbers": Rate(5_000, lambda numbers: {"n": numbers}, limit=5_000)},
        sinks={"numbers": ForeachBatch(take)},
        checkpoint=tmp_path,
        every=0.2,
    )
    assert query.await_termination(LIMIT)
    assert sum(rows for rows, _ in taken) == 5_000
    versions = [version for _, version in taken]
    assert versions == sorted(set(versions), key=lambda version: version or 0)
    assert failed[0] == versions[0]


def test_explain_names_sources_sinks_and_guarantees(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sinks = {"numbers": Parquet(tmp_path / "out")}
    source = Rate(1_000, lambda numbers: {"n": numbers}, limit=10)
    for checkpoint, text in ((tmp_path / "c", "exactly once"), (None, "no checkpoints")):
        query = echo().start(spark, sources={"numbers": source}, sinks=sinks, checkpoint=checkpoint)
        query.await_termination(LIMIT)
        query.explain()
        out = capsys.readouterr().out
        assert "numbers: Rate" in out
        assert "numbers: Parquet" in out
        assert text in out


def test_what_is_not_a_source_is_refused(spark: SparkSession) -> None:
    sources: Any = {"numbers": [1, 2]}
    with pytest.raises(GraphError, match=r"source of 'numbers' is \[1, 2\], which is not a source"):
        echo().start(spark, sources=sources)
