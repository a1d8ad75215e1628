"""Long-lived queries with checkpoints outlive kills, passing errors, and files that are torn."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.cluster.coordinator import Coordinator
from jeton.cluster.failures import Failure
from jeton.cluster.restarts import Restarts
from jeton.connectors.sinks import Callback, Delivery, Parquet, Retry, SinkContext
from jeton.connectors.sources import Batches
from jeton.errors import JetonError, OperatorFailed, QueryFailed, SnapshotError
from jeton.spark.query import Query
from jeton.storage.checkpoints import Checkpoints
from tests.spark.gated import LIMIT, TABLES, Place, counting, expected, in_order, until, written

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


def test_a_killed_worker_goes_on_from_what_changed(spark: SparkSession, place: Place) -> None:
    """Several versions of changes, a file of which is lost; then changes of what was restored."""
    query = place.start(spark)
    for upto in (1, 2, 3, 4):
        place.read_to(query, upto)
        version = query.checkpoint(LIMIT)
    store = Checkpoints(place.checkpoint)
    stored = store.load(version)
    chains = [chain for part in stored.parts for chain in part.chains.values()]
    assert len(chains) == 4, "of two operators on two workers"
    assert max(len(chain.links) for chain in chains) >= 3
    lost = min(stored.files)
    assert not lost.startswith(f"{version:012d}")
    (place.checkpoint / "parts" / lost).unlink()
    place.read_to(query, 5)
    pid = place.kill(1)
    until(lambda: query.metrics()["checkpoints"]["restarts"] == 1, "the query to be restarted")
    until(lambda: query.status == "running" and pid.exists(), "the query to be back")
    place.gate.open_to(6)
    after = query.checkpoint(LIMIT)
    again = {chain.token for part in store.load(after).parts for chain in part.chains.values()}
    assert not again & {chain.token for chain in chains}
    assert lost not in store.load(after).files, "it has been made up for"
    place.gate.open_to(TABLES)
    assert query.await_termination(LIMIT)
    place.check()


def failing(times: int, folder: Path) -> jt.Flow:
    """A flow that fails at a record, the first few times that it comes there."""
    flow = counting()
    failed = folder / "failed"

    def judge(batch: jt.Batch) -> dict[str, Any]:
        if (batch["n"] == 10).any() and (not failed.exists() or failed.stat().st_size < times):
            with failed.open("a") as file:
                file.write("x")
            raise ValueError("ten is not allowed:\ntry nine")
        return dict(batch.columns)

    flow.output("judged", flow.input("more", schema={"n": int}).map(judge, name="judging"))
    return flow


def tens(partition: int, partitions: int) -> Iterator[Any]:
    yield {"time": [1], "n": [1]}
    yield {"time": [2], "n": [10]}


def test_an_error_that_passes_is_survived_and_one_that_stays_is_told(
    spark: SparkSession, place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.gate.open_to(TABLES)
    sources = {"numbers": place.gate.source(), "more": Batches(tens, partitions=1)}
    with place.start(spark, failing(1, tmp_path), sources=sources) as query:
        assert query.await_termination(LIMIT)
        assert query.metrics()["checkpoints"]["restarts"] == 1
    assert "ten is not allowed: try nine" in caplog.text, "in one line"
    place.check()
    other = Place(tmp_path / "other")
    other.gate.open_to(TABLES)
    sources["numbers"] = other.gate.source()
    query = other.start(spark, failing(100, tmp_path), sources=sources)
    with pytest.raises(QueryFailed, match="ten is not allowed") as caught:
        query.await_termination(LIMIT)
    assert "operator 'judging'" in str(caught.value)
    assert query.metrics()["checkpoints"]["restarts"] == 1


def test_a_sink_that_fails_for_a_while_and_a_frame_that_is_none(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both end an attempt, and the next one makes up for it: each row comes once."""
    frames = ["gossip"]
    hear = Query.hear

    def garbled(self: Query, coordinator: Coordinator, rank: int, *news: Any) -> None:
        if len(coordinator.reports) == 2 and frames:
            news = ({"kind": frames.pop(), "size": 0}, b"")
        hear(self, coordinator, rank, *news)

    monkeypatch.setattr(Query, "hear", garbled)
    moods = [False, False]
    took: dict[tuple[int | None, int], pa.Table] = {}

    def take(table: pa.Table, delivery: Delivery) -> None:
        if moods:
            moods.pop()
            raise ConnectionError("the database is down")
        took[delivery.version, delivery.number] = table

    sink = Callback(take, delivery=True, retry=Retry(times=1, first_wait=0.0))
    query = place.start(spark, sinks={"rolling": sink, "windows": Parquet(place.windows)})
    until(lambda: query.metrics()["checkpoints"]["restarts"] == 1, "a restart after the frame")
    place.gate.open_to(TABLES)
    assert query.await_termination(LIMIT)
    assert query.metrics()["checkpoints"]["restarts"] == 2
    assert in_order(pa.concat_tables(took.values())) == expected("rolling")
    assert written(place.windows) == expected("windows")


def test_restarts_are_bounded() -> None:
    restarts = Restarts(most=3)
    assert [restarts.wait(None, 4) for _ in range(4)] == [0.1, 0.2, 0.4, None]
    assert restarts.wait(None, 5) == 0.1, "a new version: it got somewhere"
    assert restarts.wait(None, 4) == 0.2, "an older one is not new"
    assert Restarts(0).wait(None, 1) is None


def test_an_error_that_comes_once_a_week_never_ends_a_query() -> None:
    restarts = Restarts(most=3)
    assert [restarts.wait(failure(worker=at % 2), at) for at in range(500)] == [0.1] * 500
    assert restarts.wait(failure(worker=0), 499) is None, "twice without a new version"


def failure(error: type[Exception] = ValueError, *, worker: int, operator: str = "a") -> Failure:
    """A failure with a text of its own, all from this line."""
    try:
        raise error(f"{os.urandom(4).hex()} is not a price")
    except error as caught:
        return Failure.of(OperatorFailed.because(caught).located(operator=operator), worker)


def test_the_same_error_is_known_by_class_operator_and_line() -> None:
    restarts = Restarts(most=9)
    first, same = failure(worker=0), failure(worker=1)
    assert first.summary != same.summary
    assert first.place == same.place
    try:
        raise ValueError("from another line")
    except ValueError as caught:
        elsewhere = Failure.of(OperatorFailed.because(caught).located(operator="a"), 0)
    different = [failure(KeyError, worker=0), failure(worker=0, operator="b"), elsewhere]
    waits = [restarts.wait(each, 1) for each in (first, *different)]
    assert waits == [0.1, 0.2, 0.4, 0.8]
    assert restarts.wait(same, 1) is None
    # Errors of the operating system have a number.
    one, other, again = (Failure.of(OSError(number, "no")) for number in (5, 28, 5))
    assert [restarts.wait(each, 2) for each in (one, other, again)] == [0.1, 0.2, None]


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
    shutil.rmtree(place.checkpoint / "shown")
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


def test_a_file_that_is_gone_is_missed_unless_it_was_shown(
    spark: SparkSession, place: Place
) -> None:
    with place.start(spark) as query:
        place.read_to(query, 2)
    taken = written(place.rolling)
    for path in place.rolling.glob("part-*"):
        path.unlink()
    place.gate.open_to(TABLES)
    query = place.start(spark)
    assert query.await_termination(LIMIT)
    assert sorted(taken + written(place.rolling)) == expected("rolling")
    # As if the driver died before it knew that they were there.
    shutil.rmtree(place.checkpoint / "shown")
    next(place.rolling.glob("part-*")).unlink()
    with pytest.raises(JetonError, match=r"is not there, .* rows of version 2"):
        place.start(spark)


def test_if_nothing_is_whole_that_is_an_error(spark: SparkSession, place: Place) -> None:
    with place.start(spark) as query:
        place.read_to(query, 2)
    for path in (place.checkpoint / "manifests").iterdir():
        spoil(path, "flipped")
    with pytest.raises(SnapshotError, match=r"no checkpoint in .* is whole"):
        place.start(spark)


def test_staged_files_cannot_be_seen_before_the_commit(tmp_path: Path) -> None:
    sink = Parquet(tmp_path, rows=10)
    first, second = SinkContext("q", 1, worker=0), SinkContext("q", 2)
    writer = sink.open(first)
    for at in range(5):
        writer.write(pa.table({"n": np.arange(at * 6, at * 6 + 6)}))
    staged = writer.stage(7)
    assert len(staged) == 3
    writer.write(pa.table({"n": np.arange(100)}))
    writer.close()
    assert not list(tmp_path.glob("part-*"))
    sink.commit(first, 7, staged)
    sink.commit(first, 7, staged)
    assert written(tmp_path) == [(n,) for n in range(30)]
    sink.roll_back(second, 7)
    assert not list(tmp_path.glob(".*"))
    assert written(tmp_path) == [(n,) for n in range(30)]
    sink.roll_back(SinkContext("another", 2), 0)
    assert written(tmp_path) == [(n,) for n in range(30)]
    sink.roll_back(first, 6)
    assert written(tmp_path) == [(n,) for n in range(30)], "a driver that was superseded"
    sink.roll_back(second, 6)
    assert not list(tmp_path.iterdir())
