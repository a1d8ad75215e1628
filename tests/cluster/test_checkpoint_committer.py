"""The driver's side of a long-lived query's checkpoints, without the query."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pytest

import jeton as jt
from jeton.cluster.checkpoint_committer import CheckpointCommitter
from jeton.cluster.checkpoint_writer import RestorePoint
from jeton.connectors.sinks import Memory, Parquet, Sink, SinkContext
from jeton.connectors.sinks.driver_sink import RowsToDriver
from jeton.errors import SnapshotError
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.files import Files
from jeton.storage.leases import Superseded
from tests.spark.gated import LIMIT, written

PART = {"part": {"worker": 0, "states": []}, "positions": {}, "pause": 0.0, "bytes": 0}


class Driver(CheckpointCommitter):
    """The driver's side, with its one worker: rows for sinks at the driver are staged first."""

    def commit(  # type: ignore[override]
        self,
        version: int,
        reports: Mapping[int, Mapping[str, Any]],
        rows: Mapping[str, list[pa.Table]],
        staged: Mapping[str, list[Any]],
        seconds: float,
    ) -> None:
        handed = {}
        for name, tables in rows.items():
            context = SinkContext(self._query, self._attempt, worker=0, files=self._store.files)
            writer = RowsToDriver().open(context)
            for table in tables:
                writer.write(table)
            handed[name] = writer.stage(version)
        super().commit(version, reports, {**staged, **handed}, seconds)


def committer(path: Path, sinks: Mapping[str, Sink] | None = None, store: Any = None) -> Driver:
    flow = jt.Flow("f")
    flow.output("rows", flow.input("in"))
    store = store or Checkpoints(path)
    return Driver(
        flow, store, sinks or {}, lambda wait: False, every=None, keep=2, allow_removed=()
    )


def show(run: Driver, restore_point: RestorePoint, sink: Parquet, version: int) -> None:
    """Commit a version with one row: its number."""
    writer = sink.open(SinkContext(restore_point.query, restore_point.attempt, worker=0))
    writer.write(pa.table({"n": [version]}))
    run.commit(version, {0: PART}, {}, {"rows": writer.stage(version)}, 0.0)


def test_the_name_of_a_query_stays(tmp_path: Path) -> None:
    """From before the first version, so that files of an attempt that came to nothing are found."""
    sink = Parquet(tmp_path / "out")
    run = committer(tmp_path / "c", {"rows": sink})
    restore_point = run.recover()
    assert committer(tmp_path / "c").recover().query == restore_point.query
    run = committer(tmp_path / "c", {"rows": sink})
    restore_point = run.recover()
    for version in (1, 2):
        show(run, restore_point, sink, version)
    # Every version has it too.
    shutil.rmtree(tmp_path / "c" / "log")
    with pytest.raises(SnapshotError, match=r"whether .* counts is not known: the log is gone"):
        committer(tmp_path / "c", {"rows": sink}).recover()


def test_checkpoints_of_something_else_are_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path).commit(1, [], flow="f")
    with pytest.raises(SnapshotError, match="something else than a long-lived query"):
        committer(tmp_path).recover()
    assert len(list((tmp_path / "log").iterdir())) == 2, "nobody was superseded"


def test_what_is_gone_is_not_made_twice(tmp_path: Path) -> None:
    """A manifest vanishes while the query runs, whose rows a sink at the driver has got."""
    memory = Memory()
    run = committer(tmp_path, {"rows": memory})
    run.recover()
    for version in (1, 2):
        run.commit(version, {0: PART}, {"rows": [pa.table({"n": [version]})]}, {}, 0.0)
    max((tmp_path / "manifests").iterdir()).unlink()
    with pytest.raises(SnapshotError, match=r"version 2 .* the sinks of \['rows'\] have got"):
        run.recover()
    # A sink of files gives its rows back.
    sink = Parquet(tmp_path / "out")
    run = committer(tmp_path / "again", {"rows": sink})
    restore_point = run.recover()
    for version in (1, 2):
        show(run, restore_point, sink, version)
    max((tmp_path / "again" / "manifests").iterdir()).unlink()
    restore_point = run.recover()
    assert (restore_point.version, restore_point.next_version) == (1, 3)
    assert written(tmp_path / "out") == [(1,)]
    show(run, restore_point, sink, 3)
    assert written(tmp_path / "out") == [(1,), (3,)]


@pytest.mark.parametrize("kind", ["files", "driver"])
def test_if_all_manifests_are_gone_that_is_no_fresh_start(tmp_path: Path, kind: str) -> None:
    """The log knows that there were versions, and readers may have taken their rows away."""
    sink = Parquet(tmp_path / "out")
    run = committer(tmp_path / "c", {"rows": sink if kind == "files" else Memory()})
    restore_point = run.recover()
    for version in (1, 2):
        if kind == "files":
            show(run, restore_point, sink, version)
        else:
            run.commit(version, {0: PART}, {"rows": [pa.table({"n": [version]})]}, {}, 0.0)
    shutil.rmtree(tmp_path / "c" / "manifests")
    for again in (run, committer(tmp_path / "c", {"rows": sink})):
        with pytest.raises(SnapshotError, match=r"no checkpoint in .* is whole"):
            again.recover()


def test_strange_entries_are_left_alone(tmp_path: Path) -> None:
    run = committer(tmp_path)
    assert run.recover().attempt == 1
    for name in (".DS_Store", "9-of mine.json", "notes"):
        (tmp_path / "log" / name).touch()
    run.commit(1, {0: PART}, {}, {}, 0.0)
    assert run.recover().attempt == 2
    assert len(list((tmp_path / "log").iterdir())) == 3 + 3


class Gather(Files):
    """Files where nobody creates an entry before all have seen that there is none."""

    ready: threading.Barrier | None = None

    def put(self, path: PurePosixPath, data: bytes) -> None:
        if self.ready is not None:
            self.ready.wait(LIMIT)
            self.ready = None
        super().put(path, data)


def test_whoever_starts_at_the_same_moment_is_another_attempt(tmp_path: Path) -> None:
    """Else they would give the same names to their files."""
    for number in range(20):
        place = tmp_path / str(number)
        ready = threading.Barrier(3)
        runs = []
        for _ in range(3):
            files = Gather(place)
            files.ready = ready
            runs.append(committer(place, store=Checkpoints(place, files=files)))
        with ThreadPoolExecutor(3) as threads:
            started = [threads.submit(run.recover) for run in runs]
        attempts = {one.result().attempt: run for run, one in zip(runs, started, strict=True)}
        assert len(attempts) == 3
        last = attempts.pop(max(attempts))
        for run in attempts.values():
            with pytest.raises(Superseded):
                run.commit(1, {0: PART}, {}, {}, 0.0)
        last.commit(1, {0: PART}, {}, {}, 0.0)


def test_a_query_of_an_earlier_release_keeps_its_name(tmp_path: Path) -> None:
    """There it was in a file, from before the first version."""
    (tmp_path / "query.json").write_text('{"query": "3f9a"}')
    assert committer(tmp_path).recover().query == "3f9a"
    (tmp_path / "query.json").unlink()
    assert committer(tmp_path).recover().query == "3f9a"


class Failing(Parquet):
    """Does not commit for some time."""

    fails = 0

    def commit(self, context: SinkContext, version: int, staged: Sequence[Any]) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError("the folder is not there")
        super().commit(context, version, staged)


@pytest.mark.parametrize("restarts", ["in the same driver", "in a new driver"])
def test_a_sink_that_failed_to_commit_gets_its_rows_after_a_restart(
    tmp_path: Path, restarts: str
) -> None:
    """The sinks before it have their rows already, and do not get them twice."""
    sinks = {name: Failing(tmp_path / name) for name in ("first", "second", "third")}
    run = committer(tmp_path / "checkpoint", sinks)
    restore_point, rows = run.recover(), {name: list[int]() for name in sinks}
    for version in range(1, 5):
        staged = {}
        for name, sink in sinks.items():
            writer = sink.open(SinkContext(restore_point.query, restore_point.attempt, worker=0))
            writer.write(pa.table({"n": [version]}))
            staged[name] = writer.stage(version)
            rows[name].append(version)
        sinks["second"].fails = 2
        with pytest.raises(OSError, match="not there"):
            run.commit(version, {0: PART}, {}, staged, 0.0)
        seen = {name: len([*(tmp_path / name).glob("part-*")]) for name in sinks}
        assert seen == {"first": version, "second": version - 1, "third": version - 1}
        if restarts == "in a new driver":
            run = committer(tmp_path / "checkpoint", sinks)
        with pytest.raises(OSError, match="not there"):
            run.recover()
        restore_point = run.recover()
        assert restore_point.version == version
        for name in sinks:
            assert written(tmp_path / name) == [(n,) for n in rows[name]]


def test_a_commit_whose_outcome_is_unknown_is_found(tmp_path: Path) -> None:
    """The entry was created, but then there was an error: nobody else has taken over."""
    run = committer(tmp_path, store=(store := Checkpoints(tmp_path)))
    run.recover()
    put = store.files.put

    def failing(path: PurePosixPath, data: bytes) -> None:
        put(path, data)
        raise OSError("the disk does not answer")

    store.files.put = failing  # type: ignore[method-assign]
    with pytest.raises(OSError, match="does not answer"):
        run.commit(1, {0: PART}, {}, {}, 0.0)
    store.files.put = put  # type: ignore[method-assign]
    assert run.recover().version == 1
    run.commit(2, {0: PART}, {}, {}, 0.0)
    assert Checkpoints(tmp_path).versions() == [1, 2]


def test_a_run_that_starts_again_does_not_take_the_lease_from_its_successor(
    tmp_path: Path,
) -> None:
    """Also if that came between its look and its deed."""
    run = committer(tmp_path, store=(store := Checkpoints(tmp_path)))
    run.recover()
    put = store.files.put

    def overtaken(path: PurePosixPath, data: bytes) -> None:
        if "log" in path.parts:
            store.files.put = put  # type: ignore[method-assign]
            committer(tmp_path).recover()
        put(path, data)

    store.files.put = overtaken  # type: ignore[method-assign]
    with pytest.raises(Superseded):
        run.recover()
