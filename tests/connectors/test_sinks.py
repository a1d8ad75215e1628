"""Sinks in files: whose rows are whose, what types they have, and where they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jeton.cluster.worker_io import Committing
from jeton.connectors.published import Published
from jeton.connectors.sinks import Delivery, Memory, Parquet, Sink, SinkContext, Writer
from jeton.connectors.sources import Files
from jeton.errors import JetonError, SnapshotError
from jeton.storage.checkpoints import Checkpoint, Checkpoints
from tests.cluster.test_checkpoint_committer import PART, committer, show

Make = Callable[[Path | str], Parquet | Files]


def numbers(*values: Any) -> pa.Table:
    return pa.table({"time": [0] * len(values), "n": values})


def context(attempt: int = 1) -> SinkContext:
    return SinkContext("q", attempt, worker=0)


def opened(sink: Parquet, *, staged: bool) -> Writer | Committing:
    return sink.open(context()) if staged else Committing(sink, context(), every=None)


def finish(sink: Parquet, writers: list[Writer | Committing], *, staged: bool) -> None:
    for writer in writers:
        if isinstance(writer, Writer):
            sink.commit(context(), 1, writer.stage(1))
        writer.close()


def shown(folder: Path) -> list[Any]:
    tables = [pq.read_table(path) for path in sorted(folder.glob("part-*"))]
    rows = pa.concat_tables(tables, promote_options="permissive").to_pylist() if tables else []
    return sorted((row["n"] for row in rows), key=str)


# Whose rows are whose


@pytest.mark.parametrize("staged", [False, True])
def test_two_outputs_may_have_one_folder(tmp_path: Path, *, staged: bool) -> None:
    sinks = [Parquet(tmp_path, rows=2), Parquet(tmp_path, rows=2)]
    writers = [opened(sink, staged=staged) for sink in sinks]
    for at in range(3):
        for number, writer in enumerate(writers):
            writer.write(numbers(10 * at + number))
    finish(sinks[0], writers, staged=staged)
    assert shown(tmp_path) == [0, 1, 10, 11, 20, 21]
    assert not list(tmp_path.glob(".*"))


class Query:
    """The driver's side of a query with two outputs in one folder, and what it stages."""

    def __init__(self, path: Path, folder: str = "out", attempt: int = 1) -> None:
        self.store = Checkpoints(path / "checkpoint")
        self.folder = path / folder
        self.sinks = {name: Parquet(self.folder) for name in ("x", "y")}
        self.published = Published(self.store.files, self.sinks)
        self.published.begin("q", attempt)

    def commit(self, version: int, *, epoch: int = 1) -> Checkpoint:
        """Up to the manifest, from which on a version counts."""
        staged = {}
        for at, (name, sink) in enumerate(self.sinks.items()):
            writer = sink.open(context(epoch))
            writer.write(numbers(2 * version + at))
            staged[name] = writer.stage(version)
        return self.store.commit(version, [], flow="f", epoch=epoch, meta={"sinks": staged})

    def consume(self) -> list[Any]:
        """As a reader does that takes files away."""
        found = shown(self.folder)
        for path in self.folder.glob("part-*"):
            path.unlink()
        return found


def test_what_a_crash_kept_hidden_is_shown_for_all_outputs_before_any_is_rolled_back(
    tmp_path: Path,
) -> None:
    query = Query(tmp_path)
    made = query.commit(1)
    query.commit(2)
    assert shown(query.folder) == []
    Query(tmp_path, attempt=9).published.recover(made)
    assert shown(query.folder) == [2, 3]
    assert not list(query.folder.glob(".*"))


def test_files_that_were_shown_belong_to_their_readers(tmp_path: Path) -> None:
    query = Query(tmp_path)
    first = query.commit(1)
    query.published.show(first)
    second = query.commit(2)
    query.published.show(second)
    (tmp_path / "checkpoint" / "shown" / ".nfs0001").touch()
    assert query.consume() == [2, 3, 4, 5]
    # Also if the newest version was spoilt, or the folder is another one.
    for found in (second, first):
        Query(tmp_path, attempt=9).published.recover(found)
        Query(tmp_path, "elsewhere", 9).published.recover(found)


def test_files_that_nobody_can_have_seen_are_missed(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.published.show(query.commit(1))
    made = query.commit(2)
    with pytest.raises(JetonError, match=r"elsewhere/part-.* is not there, .* of version 2"):
        Query(tmp_path, "elsewhere", 9).published.recover(made)
    Query(tmp_path, attempt=9).published.recover(made)
    assert shown(query.folder) == [2, 3, 4, 5]


def test_a_version_that_is_made_again_is_not_taken_for_the_one_that_was_given_up(
    tmp_path: Path,
) -> None:
    query = Query(tmp_path)
    first = query.commit(1)
    for made in (first, query.commit(2), query.commit(3)):
        query.published.show(made)
    query.published.begin("q", 9)
    query.published.recover(first)
    assert shown(query.folder) == [2, 3]
    again = query.commit(2, epoch=2)
    Query(tmp_path, attempt=9).published.recover(again)
    assert shown(query.folder) == [2, 3, 4, 5]


def test_files_are_on_the_disk_under_the_names_that_the_version_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safe: set[str] = set()
    really = os.fsync

    def fsync(number: int) -> None:
        really(number)
        if os.fstat(number).st_ino == tmp_path.stat().st_ino:
            safe.update(path.name for path in tmp_path.iterdir())

    monkeypatch.setattr(os, "fsync", fsync)
    writer = Parquet(tmp_path, rows=1).open(context())
    for at in range(3):
        writer.write(numbers(at))
    staged = writer.stage(1)
    assert len(staged) == 3
    assert safe == {path.name for path in tmp_path.iterdir()}


# Types


@pytest.mark.parametrize("staged", [False, True])
def test_a_type_may_show_later(tmp_path: Path, *, staged: bool) -> None:
    sink = Parquet(tmp_path, rows=3)
    writer = opened(sink, staged=staged)
    for value in (None, None, None, None, 1, 2.5):
        writer.write(numbers(value))
    finish(sink, [writer], staged=staged)
    tables = [pq.read_table(path) for path in sorted(tmp_path.glob("part-*"))]
    # What has no type yet would be an integer in the file, and spoil what comes later.
    assert [table.schema.names for table in tables] == [["time"], ["time", "n"]]
    assert tables[1]["n"].to_pylist() == [None, 1.0, 2.5]


def test_a_type_may_show_later_in_memory() -> None:
    memory = Memory()
    for value in (None, 1, 2.5):
        memory.receive(numbers(value), Delivery())
    table = memory.table()
    assert table is not None
    assert table["n"].to_pylist() == [None, 1.0, 2.5]
    memory.receive(numbers("one"), Delivery())
    with pytest.raises(JetonError, match=r"rows in memory .* Field n has .* schema="):
        memory.table()


def test_types_that_do_not_go_together_are_told_with_the_folder(tmp_path: Path) -> None:
    writer = Parquet(tmp_path).open(context())
    writer.write(numbers(1))
    writer.write(numbers("one"))
    with pytest.raises(JetonError, match=rf"rows for {tmp_path} have types .* Field n has"):
        writer.stage(1)


# Places


@pytest.mark.parametrize("make", [Parquet, Files])
def test_folders_are_what_they_are_where_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = make("out")
    assert str(relative.path) == str(tmp_path / "out")
    assert relative.path.is_absolute()
    assert str(make(tmp_path.as_uri()).path) == str(tmp_path)
    assert str(make(f"file:{tmp_path}").path) == str(tmp_path)
    # Those of stores are absolute, and are opened when they are used.
    assert repr(make("s3://bucket/out/").files) == "<Files in s3://bucket/out>"
    assert repr(make("hdfs:/out").files) == "<Files in hdfs:///out>"


@pytest.mark.parametrize("folder", ["shown", "delivered"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_lost_mark_is_not_missed(tmp_path: Path, folder: str, which: int) -> None:
    """Rows were shown, and have gone since: whichever file is lost, that is known."""
    sink, memory = Parquet(tmp_path / "out"), Memory()
    run = committer(tmp_path / "c", {"rows": sink, "more": memory})
    restore_point = run.recover()
    for version in (1, 2):
        writer = sink.open(SinkContext(restore_point.query, restore_point.attempt, worker=0))
        writer.write(numbers(version))
        staged = {"rows": writer.stage(version)}
        run.commit(version, {0: PART}, {"more": [numbers(version)]}, staged, 0.0)
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    marks = sorted((tmp_path / "c" / folder).iterdir())
    assert len(marks) == 2
    marks[which].unlink()
    again = Memory()
    assert committer(tmp_path / "c", {"rows": sink, "more": again}).recover().version == 2
    assert again.table() is None


# Another sink for an output


def test_an_output_may_get_a_sink_of_another_kind(tmp_path: Path) -> None:
    """Nothing is owed to the one before."""
    files, memory = Parquet(tmp_path / "out"), Memory()
    last = 0
    for kind in (files, memory, files, memory):
        run = committer(tmp_path / "c", {"rows": kind})
        restore_point = run.recover()
        for version in (last + 1, last + 2):
            if kind is files:
                show(run, restore_point, files, version)
            else:
                run.commit(version, {0: PART}, {"rows": [numbers(version)]}, {}, 0.0)
        last += 2
    assert shown(tmp_path / "out") == [1, 2, 5, 6]
    table = memory.table()
    assert table is not None
    assert table["n"].to_pylist() == [3, 4, 7, 8]


@pytest.mark.parametrize("first", ["files", "driver"])
def test_rows_that_are_owed_to_a_sink_are_not_forgotten_for_another(
    tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks: dict[str, Sink] = {"files": Parquet(tmp_path / "out"), "driver": Memory()}
    run = committer(tmp_path / "c", {"rows": sinks[first]})
    restore_point = run.recover()

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(run, "_show", die)
    if first == "files":
        with pytest.raises(Killed):
            show(run, restore_point, Parquet(tmp_path / "out"), 1)
    else:
        with pytest.raises(Killed):
            run.commit(1, {0: PART}, {"rows": [numbers(1)]}, {}, 0.0)
    [other] = set(sinks) - {first}
    # Another output must not be the reason why they are cleared away.
    for now in ({"rows": sinks[other]}, {"rows": sinks[other], "more": sinks[first]}):
        with pytest.raises(SnapshotError, match=r"version 1 .*\['rows'\], which has not got"):
            committer(tmp_path / "c", now).recover()
    committer(tmp_path / "c", {"rows": sinks[first]}).recover()
    committer(tmp_path / "c", {"rows": sinks[other]}).recover()
    memory = sinks["driver"]
    assert isinstance(memory, Memory)
    table = memory.table()
    assert shown(tmp_path / "out") == ([1] if first == "files" else [])
    assert (table is not None) == (first == "driver")
