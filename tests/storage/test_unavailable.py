"""A file system that fails to answer is not damage: no version is given up for it."""

from __future__ import annotations

import errno
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pytest

from jeton.cluster.failures import Failure
from jeton.cluster.restarts import Restarts
from jeton.connectors.sinks import Callback, SinkContext
from jeton.errors import SnapshotError, StoreUnavailable
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.files import Files
from jeton.storage.store import WAITS
from tests.cluster.test_checkpoint_committer import PART, committer
from tests.storage.stored_rows import newest, read, write


class Unsteady(Files):
    """Files of which some calls to read fail."""

    fails: range = range(0)
    calls = 0

    def answer(self) -> None:
        self.calls += 1
        if self.calls in self.fails:
            raise OSError(errno.EIO, "the disk does not answer")

    def names(self, folder: PurePosixPath) -> list[str]:
        self.answer()
        return super().names(folder)

    def read(self, path: PurePosixPath) -> bytes:
        self.answer()
        return super().read(path)

    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        self.answer()
        return super().read_at(path, start, size)


def unsteady(path: Path, first: int, times: int) -> tuple[Checkpoints, list[float]]:
    """A store whose file system fails some times in a row, and the waits that it takes."""
    files, waits = Unsteady(path), list[float]()
    files.fails = range(first, first + times)
    return Checkpoints(path, files=files, wait=waits.append), waits


def two_versions(path: Path) -> None:
    run = committer(path)
    run.recover()
    for version in (1, 2):
        run.commit(version, {0: PART}, {}, {}, 0.0)


def calls_to_recover(path: Path) -> int:
    files = Unsteady(path)
    committer(path, store=Checkpoints(path, files=files)).recover()
    return files.calls


@pytest.mark.parametrize("times", [1, len(WAITS)])
def test_a_read_that_fails_is_repeated(tmp_path: Path, times: int) -> None:
    two_versions(tmp_path)
    for first in range(1, calls_to_recover(tmp_path) + 1):
        store, waits = unsteady(tmp_path, first, times)
        assert committer(tmp_path, store=store).recover().version == 2, first
        assert waits == list(WAITS[:times])


def test_a_start_that_cannot_read_gives_nothing_up(tmp_path: Path) -> None:
    two_versions(tmp_path)
    for first in range(1, calls_to_recover(tmp_path) + 1):
        store, waits = unsteady(tmp_path, first, 1000)
        with pytest.raises(StoreUnavailable, match=r"4 times in a row.*does not answer.*given up"):
            committer(tmp_path, store=store).recover()
        assert waits[: len(WAITS)] == list(WAITS)
        assert Checkpoints(tmp_path).versions() == [1, 2]
        assert committer(tmp_path).recover().version == 2


def test_a_copy_that_can_be_read_will_do(tmp_path: Path) -> None:
    """As with damage: a bin that has stayed the same is in two files."""
    store, parts = Checkpoints(tmp_path), None
    for version in (1, 2, 3):
        parts = write(store, version, {1: "same"}, bases=[*parts] if parts else None)
    hidden = Hidden(tmp_path)
    for part in (tmp_path / "parts").iterdir():
        hidden.name = part.name
        found = newest(Checkpoints(tmp_path, files=hidden, wait=lambda seconds: None))
        assert (found.version, read(found)) == (3, {1: "same"})
    hidden.name = ".arrow"
    with pytest.raises(StoreUnavailable, match="does not answer"):
        Checkpoints(tmp_path, files=hidden, wait=lambda seconds: None).latest()


class Hidden(Files):
    """Files some of which cannot be read."""

    name = ""

    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        if path.name.endswith(self.name):
            raise OSError(errno.EIO, "the disk does not answer")
        return super().read_at(path, start, size)


def test_a_run_is_not_superseded_by_an_entry_that_cannot_be_read(tmp_path: Path) -> None:
    store, _ = unsteady(tmp_path, 0, 0)
    store.commit(1, [], flow="f")
    Checkpoints(tmp_path).take_lease()
    files: Any = Unsteady(tmp_path)
    store.files._files = files  # type: ignore[attr-defined]
    files.fails = range(1, 1000)
    with pytest.raises(StoreUnavailable):
        store.require_lease()


def test_rows_for_a_sink_are_given_up_only_if_damaged(tmp_path: Path) -> None:
    def deliver(files: Files) -> None:
        sink = Callback(lambda table: None)
        sink.commit(SinkContext("q", files=files), 1, ["a.arrow"])

    rows = Checkpoints(tmp_path, wait=lambda seconds: None)
    with pytest.raises(SnapshotError, match=r"are damaged.*empty file"):
        deliver(rows.files)
    (tmp_path / "rows").mkdir()
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, pa.schema({"n": pa.int64()})) as writer:
        writer.write_table(pa.table({"n": [1, 2]}))
    whole = stream.getvalue().to_pybytes()
    for cut in (10, len(whole) // 2, len(whole) - 12):
        (tmp_path / "rows" / "a.arrow").write_bytes(whole[:cut])
        with pytest.raises(SnapshotError, match=r"are damaged.*empty file"):
            deliver(rows.files)
    store, _ = unsteady(tmp_path, 1, 1000)
    with pytest.raises(StoreUnavailable) as caught:
        deliver(store.files)
    assert "empty file" not in str(caught.value)


def test_a_query_is_started_again_though_the_same_read_fails_twice() -> None:
    failure = Failure.of(StoreUnavailable("not now"))
    assert Failure.from_json(failure.to_json()).transient
    restarts = Restarts(most=3)
    assert [restarts.wait(failure, 1) for _ in range(4)] == [0.1, 0.2, 0.4, None]
