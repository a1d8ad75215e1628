"""Long-lived queries with checkpoints go on: after a stop, a kill, or with other code."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.spark.checkpoints import Checkpoints
from jeton.spark.commits import Commits, Superseded
from jeton.spark.query import Query, QueryFailed
from jeton.spark.restarts import Restarts
from jeton.spark.sinks import Callback, Memory, Parquet
from jeton.spark.sources import Batches, Reader, Source

LIMIT = 300.0
PARTITIONS = 2
TABLES = 12
ROWS = 50


def counting(*, windows: bool = True) -> jt.Flow:
    flow = jt.Flow("counting")
    # One worker may read several partitions in turn, each of which has its own times.
    numbers = flow.input("numbers", schema={"k": int, "n": int}, lateness=8 * ROWS)
    flow.output("rolling", numbers.key_by("k").rolling().count())
    if windows:
        flow.output("windows", numbers.key_by("k").tumbling(100).sum("n"))
    return flow


def table_of(partition: int, at: int) -> pa.Table:
    """The records of a partition come in tables; each partition has keys of its own."""
    times = (at * ROWS + np.arange(ROWS)) * PARTITIONS + partition
    return pa.table({"time": times, "k": times % 14, "n": times * 3 % 11})


class Gate:
    """Lets a partition go on up to a table: the test opens it further, whoever reads then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def open_to(self, at: int) -> None:
        (self.folder / f"{at:04}").touch()

    def source(self) -> Batches:
        folder = self.folder

        def make(partition: int, partitions: int) -> Iterator[Any]:
            (folder / f"pid-{partition}").write_text(str(os.getpid()))
            for at in range(TABLES):
                while not any(int(path.name) >= at for path in folder.glob("[0-9]*")):
                    yield None
                yield table_of(partition, at)

        return Batches(make, PARTITIONS)


def expected(output: str, upto: int = TABLES) -> list[tuple[Any, ...]]:
    """What comes of it when nothing goes wrong."""
    tables = [table_of(p, at) for p in range(PARTITIONS) for at in range(upto)]
    whole = pa.concat_tables(tables).sort_by("time")
    return in_order(counting().run({"numbers": whole})[output])


def in_order(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def written(folder: Path) -> list[tuple[Any, ...]]:
    return in_order(pa.concat_tables(map(pq.read_table, sorted(folder.glob("part-*")))))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


class Place:
    """Where a query's gate, checkpoint and output are."""

    def __init__(self, path: Path) -> None:
        self.gate = Gate(path / "gate")
        self.checkpoint = path / "checkpoint"
        self.rolling, self.windows = path / "rolling", path / "windows"

    def start(self, spark: SparkSession, flow: jt.Flow | None = None, **options: Any) -> Query:
        known: dict[str, Any] = {
            "sources": {"numbers": self.gate.source()},
            "sinks": {"rolling": Parquet(self.rolling), "windows": Parquet(self.windows)},
            "workers": 2,
            "checkpoint": self.checkpoint,
            "every": None,
        }
        return (flow or counting()).start(spark, **{**known, **options})

    def read_to(self, query: Query, tables: int, before: int = 0) -> None:
        """Let sources go on, and wait until that is read, since the attempt began there."""
        self.gate.open_to(tables - 1)
        wanted = (tables - before) * ROWS * PARTITIONS
        until(lambda: query.metrics().get("rows_in", 0) >= wanted, f"{wanted} rows")

    def kill(self, partition: int) -> Path:
        """Kill the worker that reads a partition; returns the file that the next one will make."""
        path = self.gate.folder / f"pid-{partition}"
        pid = int(path.read_text())
        path.unlink()
        os.kill(pid, signal.SIGKILL)
        return path

    def check(self) -> None:
        assert written(self.rolling) == expected("rolling")
        assert written(self.windows) == expected("windows")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# Going on


def test_rows_appear_with_the_checkpoint_that_covers_them(
    spark: SparkSession, place: Place
) -> None:
    came: list[pa.Table] = []
    memory = Memory()
    sinks = {"rolling": memory, "windows": Callback(came.append)}
    with place.start(spark, sinks=sinks) as query:
        place.read_to(query, 3)
        until(lambda: query.metrics()["rows_out"] >= 3 * ROWS, "rows")
        assert memory.table() is None
        assert not came
        assert query.checkpoint(LIMIT) == 1
        table = memory.table()
        assert table is not None
        assert in_order(table) == expected("rolling", 3)
        place.read_to(query, 4)
        assert query.checkpoint(LIMIT) == 2
        told = query.metrics()["checkpoints"]
        assert (told["version"], told["taken"], told["missed"], told["restarts"]) == (2, 2, 0, 0)
        assert 0 < told["pause_ms"] <= told["longest_pause_ms"]
        assert told["bytes"] > 0
        print(f"a pause of {told['pause_ms']:.1f} ms")
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    table = memory.table()
    assert table is not None
    assert in_order(table) == expected("rolling")
    assert in_order(pa.concat_tables(came)) == expected("windows")


@pytest.mark.parametrize("workers", [(2, 3, 1), (1, 2, 2)])
def test_it_goes_on_with_any_number_of_workers(
    spark: SparkSession, place: Place, workers: Sequence[int]
) -> None:
    for at, count in enumerate(workers):
        with place.start(spark, workers=count) as query:
            if at < 2:
                place.read_to(query, 4 * (at + 1), before=4 * at)
                query.stop()
            else:
                place.gate.open_to(TABLES)
                assert query.await_termination(LIMIT)
    place.check()
    # Once more: there is nothing left to do, and nothing is done twice.
    with place.start(spark, workers=3) as query:
        assert query.await_termination(LIMIT)
    place.check()


def test_after_draining_it_is_at_its_end(spark: SparkSession, place: Place) -> None:
    with place.start(spark) as query:
        place.read_to(query, 5)
        query.stop(drain=True)
    assert written(place.windows) == expected("windows", 5)
    with place.start(spark) as query:
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    assert written(place.windows) == expected("windows", 5)


def test_a_query_is_known_by_its_checkpoint(spark: SparkSession, place: Place) -> None:
    """A second run takes over; the first cannot commit any more, and says why."""
    first = place.start(spark, name="first")
    place.read_to(first, 3)
    first.checkpoint(LIMIT)
    place.read_to(first, 4)
    second = place.start(spark, name="second")
    with pytest.raises(QueryFailed, match="another run has taken over the checkpoint"):
        first.checkpoint(LIMIT)
    assert first.status == "failed"
    assert first.metrics()["checkpoints"]["restarts"] == 0
    place.gate.open_to(TABLES)
    assert second.await_termination(LIMIT)
    place.check()


def test_whoever_was_superseded_does_not_take_over_again(tmp_path: Path) -> None:
    def commits() -> Commits:
        store = Checkpoints(tmp_path)
        known: dict[str, Any] = {"every": None, "keep": 2, "allow_removed": ()}
        return Commits(counting(), store, {}, lambda name, table: None, **known)

    first, second = commits(), commits()
    assert first.recover().attempt == 1
    assert first.recover().attempt == 2, "after a failure"
    assert second.recover().attempt == 3
    with pytest.raises(Superseded):
        first.recover()
    with pytest.raises(Superseded):
        first.commit(1, {}, {}, {}, 0.0)
    assert commits().recover().attempt == 4, "whoever is started anew does"


# Kills and errors


def test_a_killed_worker_is_made_up_for(spark: SparkSession, place: Place) -> None:
    query = place.start(spark)
    place.read_to(query, 3)
    query.checkpoint(LIMIT)
    place.read_to(query, 5)
    pid = place.kill(1)
    killed = time.monotonic()
    # Its status may be `restarting` too shortly to be seen.
    until(lambda: query.metrics()["checkpoints"]["restarts"] == 1, "the query to be restarted")
    until(lambda: query.status == "running" and pid.exists(), "the query to be back")
    back = time.monotonic() - killed
    place.gate.open_to(TABLES)
    assert query.await_termination(LIMIT)
    assert query.metrics()["checkpoints"]["restarts"] == 1
    place.check()
    print(f"back {back:.1f} s after a worker was killed")


def failing(times: int, folder: Path) -> jt.Flow:
    """A flow that fails at a record, the first few times that it comes there."""
    flow = counting()
    failed = folder / "failed"

    def judge(batch: jt.Batch) -> dict[str, Any]:
        if (batch["n"] == 10).any() and (not failed.exists() or failed.stat().st_size < times):
            with failed.open("a") as file:
                file.write("x")
            raise ValueError("ten is not allowed")
        return dict(batch.columns)

    flow.output("judged", flow.input("more", schema={"n": int}).map(judge, name="judging"))
    return flow


def tens(partition: int, partitions: int) -> Iterator[Any]:
    yield {"time": [1], "n": [1]}
    yield {"time": [2], "n": [10]}


def test_an_error_that_passes_is_survived_and_one_that_stays_is_told(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    place.gate.open_to(TABLES)
    sources = {"numbers": place.gate.source(), "more": Batches(tens, partitions=1)}
    with place.start(spark, failing(1, tmp_path), sources=sources) as query:
        assert query.await_termination(LIMIT)
        assert query.metrics()["checkpoints"]["restarts"] == 1
    place.check()
    other = Place(tmp_path / "other")
    other.gate.open_to(TABLES)
    sources["numbers"] = other.gate.source()
    query = other.start(spark, failing(100, tmp_path), sources=sources)
    with pytest.raises(QueryFailed, match="ten is not allowed") as caught:
        query.await_termination(LIMIT)
    assert "operator 'judging'" in str(caught.value)
    assert query.metrics()["checkpoints"]["restarts"] == 1


def test_restarts_are_bounded() -> None:
    restarts = Restarts(most=3)
    assert [restarts.wait(None, 4) for _ in range(4)] == [0.1, 0.2, 0.4, None]
    assert restarts.wait(None, 5) == 0.1, "a new version: it got somewhere"
    # The same error again and again, although there is always a new version in between.
    restarts = Restarts(most=3)
    text = "Traceback:\n  in judge\nValueError: ten (operator 'judging', worker {}, time 2)"
    assert [restarts.wait(text.format(at), at) for at in range(3)] == [0.1, 0.1, None]
    assert Restarts(0).wait(None, 1) is None


# Files that are torn or half way


def spoil(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 4
    path.write_bytes(data[: len(data) // 2] if how == "truncated" else data)


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("parts", "flipped"),
        ("manifests", "truncated"),
        pytest.param("parts", "truncated", marks=pytest.mark.long),
        pytest.param("manifests", "flipped", marks=pytest.mark.long),
    ],
)
def test_a_spoilt_checkpoint_is_passed_over(
    spark: SparkSession, place: Place, caplog: pytest.LogCaptureFixture, how: str, what: str
) -> None:
    query = place.start(spark, restarts=0)
    for upto in (3, 5, 7):
        place.read_to(query, upto)
        version = query.checkpoint(LIMIT)
    place.read_to(query, 8)
    place.kill(0)
    with pytest.raises(QueryFailed):
        query.await_termination(LIMIT)
    assert written(place.rolling) == expected("rolling", 7)
    spoil(max((place.checkpoint / what).iterdir()), how)
    with caplog.at_level(logging.WARNING):
        query = place.start(spark)
    assert f"checkpoint {version} in {place.checkpoint} cannot be used" in caplog.text
    assert f"goes on from checkpoint {version - 1}" in caplog.text
    # What later versions had shown is not there any more, until it is made again.
    assert written(place.rolling) == expected("rolling", 5)
    assert Checkpoints(place.checkpoint).versions()[-1] == version - 1
    place.gate.open_to(TABLES)
    assert query.await_termination(LIMIT)
    place.check()


def test_renames_that_were_not_done_are_done(spark: SparkSession, place: Place) -> None:
    """As if the driver died after the manifest was written, and before or while files appeared."""
    query = place.start(spark)
    place.read_to(query, 5)
    query.stop()
    shown = sorted(place.rolling.glob("part-*"))
    assert len(shown) == 2
    shown[1].rename(place.rolling / f".{shown[1].name}")
    # And what an attempt left that came to nothing; a stranger's files are left alone.
    stray = place.rolling / f".{shown[0].name.replace('-00000001-', '-00000002-')}"
    stray.write_bytes(b"not even Parquet")
    strange = place.rolling / ".part-of-something-else.parquet"
    strange.touch()
    query = place.start(spark)
    assert written(place.rolling) == expected("rolling", 5)
    assert not stray.exists()
    assert strange.exists()
    place.gate.open_to(TABLES)
    assert query.await_termination(LIMIT)
    place.check()


def test_a_file_that_is_gone_is_missed(spark: SparkSession, place: Place) -> None:
    with place.start(spark) as query:
        place.read_to(query, 2)
    next(place.rolling.glob("part-*")).unlink()
    with pytest.raises(jt.JetonError, match=r"belongs to version 1 .* is gone"):
        place.start(spark)


def test_if_nothing_is_whole_that_is_an_error(spark: SparkSession, place: Place) -> None:
    with place.start(spark) as query:
        place.read_to(query, 2)
    for path in (place.checkpoint / "manifests").iterdir():
        spoil(path, "flipped")
    with pytest.raises(jt.SnapshotError, match=r"no checkpoint in .* is whole"):
        place.start(spark)


def test_staged_files_cannot_be_seen_before_the_commit(tmp_path: Path) -> None:
    sink = Parquet(tmp_path, rows=10)
    writer = sink.open_staged(0, "q", 1)
    for at in range(5):
        writer.write(pa.table({"n": np.arange(at * 6, at * 6 + 6)}))
    staged = writer.stage(7)
    assert len(staged) == 3
    writer.write(pa.table({"n": np.arange(100)}))
    writer.close()
    assert not list(tmp_path.glob("part-*"))
    sink.commit("q", 7, staged)
    sink.commit("q", 7, staged)
    assert written(tmp_path) == [(n,) for n in range(30)]
    sink.roll_back("q", 7)
    assert not list(tmp_path.glob(".*"))
    assert written(tmp_path) == [(n,) for n in range(30)]
    sink.roll_back("another", 0)
    assert written(tmp_path) == [(n,) for n in range(30)]
    sink.roll_back("q", 6)
    assert not list(tmp_path.iterdir())


# Other code


def test_operators_may_be_added_and_removed_on_request(spark: SparkSession, place: Place) -> None:
    sinks = {"rolling": Parquet(place.rolling)}
    with place.start(spark, counting(windows=False), sinks=sinks) as query:
        place.read_to(query, 4)
    with pytest.raises(jt.SnapshotError, match=r"say allow_removed=\['numbers', 'count'\]"):
        place.start(spark, jt.Flow("nothing"), sources={}, sinks={})
    # Windows are new: they know nothing of what was before.
    shutil.copytree(place.checkpoint, place.windows / "checkpoint")
    with place.start(spark) as query:
        place.read_to(query, 8, before=4)
    with pytest.raises(jt.SnapshotError, match=r"say allow_removed=\['sum'\]"):
        place.start(spark, counting(windows=False), sinks=sinks)
    place.gate.open_to(TABLES)
    query = place.start(spark, counting(windows=False), sinks=sinks, allow_removed=["sum"])
    assert query.await_termination(LIMIT)
    assert written(place.rolling) == expected("rolling")
    sinks = {"windows": Parquet(place.windows / "new")}
    query = place.start(spark, checkpoint=place.windows / "checkpoint", sinks=sinks)
    assert query.await_termination(LIMIT)
    since = [row for row in expected("windows") if row[0] > 4 * ROWS * PARTITIONS]
    assert written(place.windows / "new") == since


def test_an_operator_that_is_another_now_is_an_error(spark: SparkSession, place: Place) -> None:
    with place.start(spark, sinks={}) as query:
        place.read_to(query, 2)
    flow = jt.Flow("counting")
    numbers = flow.input("numbers", schema={"k": int, "n": int}, lateness=8 * ROWS)
    flow.output("rolling", numbers.key_by("n").rolling().count())
    flow.output("windows", numbers.key_by("k").tumbling(100).sum("n"))
    query = place.start(spark, flow, sinks={})
    with pytest.raises(QueryFailed, match=r"SnapshotError: .* no key columns \['n'\]"):
        query.await_termination(LIMIT)


# What cannot take part


def test_what_cannot_take_checkpoints_is_refused(spark: SparkSession, place: Place) -> None:
    class Plain:
        def open(self, worker: int, run: str) -> Any: ...

    with pytest.raises(jt.GraphError, match=r"outputs \['rolling'\] .* cannot commit"):
        place.start(spark, sinks={"rolling": Plain()})
    query = counting().start(spark, sources={"numbers": place.gate.source()})
    with pytest.raises(jt.GraphError, match="start it with checkpoint="):
        query.checkpoint()
    query.stop()


class Mute(Reader):
    def read(self) -> Any:
        self.ended = True
        return {"time": [1], "k": [1], "n": [1]}


class MuteSource(Source):
    def partitions(self, workers: int) -> int:
        return workers

    def open(self, partition: int, partitions: int, position: Any = None) -> Reader:
        return Mute()


def test_a_source_without_positions_is_refused(spark: SparkSession, place: Place) -> None:
    query = place.start(spark, sources={"numbers": MuteSource()})
    with pytest.raises(QueryFailed, match="input 'numbers' cannot tell its position"):
        query.await_termination(LIMIT)


def test_a_state_that_cannot_be_had_now_is_had_later(
    spark: SparkSession, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    class Moody:
        def __init__(self, worker: int) -> None:
            self.moods = 2 * worker

        def snapshot(self) -> pa.Table:
            self.moods -= 1
            if self.moods >= 0:
                raise jt.SnapshotError("not now")
            return pa.table({"bin": pa.array([0], pa.uint16())})

        def restore(self, state: pa.Table, tokens: Any) -> None:
            pass

    def moody(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()
        info.keep(Moody(info.worker))
        return lambda input, output: [output.session(ref).give(batch) for ref, batch in input]

    flow = counting()
    flow.output("moody", flow.input("more").unary(moody, name="moody"))
    more = Batches(lambda partition, partitions: iter([{"time": [1]}]))
    sources = {"numbers": place.gate.source(), "more": more}
    with place.start(spark, flow, sources=sources) as query:
        place.read_to(query, 4)
        assert query.checkpoint(LIMIT) == 3
        assert query.metrics()["checkpoints"]["missed"] >= 2
        assert "checkpoint 2 of flow 'counting' was not taken: not now" in caplog.text
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    # What was staged for versions that were missed came with the next one.
    place.check()
