"""A driver starts, or starts again, while another one still acts, or the store has its moods."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import jeton as jt
from jeton.cluster.coordinator import Coordinator
from jeton.cluster.failures import Failure
from jeton.cluster.restarts import Restarts
from jeton.connectors.sinks import Callback
from jeton.connectors.source_plan import SourcePlan
from jeton.mesh.link import PeerLost
from jeton.spark.jobs import Jobs
from jeton.spark.long_lived import _Attempts
from jeton.spark.query import Query
from jeton.spark.wire_settings import WireSettings
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.files import Files
from jeton.storage.leases import Superseded
from tests.cluster.test_checkpoint_committer import PART, Driver, committer
from tests.spark.gated import LIMIT


class Interrupted(Files):
    """Files where something happens just before one in a folder is read for the first time."""

    def __init__(self, path: Path, folder: str, act: Callable[[], None]) -> None:
        super().__init__(path)
        self.folder, self.act = folder, act

    def read(self, path: PurePosixPath) -> bytes:
        self._look(path)
        return super().read(path)

    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        self._look(path)
        return super().read_at(path, start, size)

    def _look(self, path: PurePosixPath) -> None:
        if path.parent.name == self.folder:
            self.folder = ""
            self.act()


def test_a_driver_takes_over_from_one_that_commits_quickly(tmp_path: Path) -> None:
    """Files that it reads are cleaned up meanwhile, repeatedly: that is not damage."""
    flow = jt.Flow("f")
    flow.output("rows", flow.input("in").key_by("k").running().count())
    first = Driver(
        flow, Checkpoints(tmp_path), {}, lambda wait: False, every=None, keep=2, allow_removed=()
    )
    first.recover()
    with flow.open(workers=1) as run:

        def commit(version: int) -> None:
            run.input("in").send({"time": [version], "k": [version]})
            run.run_to_rest()
            [worker] = run.workers
            part = first._store.write_part(version, 0, worker.snapshot(), bins=worker.bins)
            first.commit(version, {0: {**PART, "part": part.to_json()}}, {}, {}, 0.0)

        def more() -> None:
            for version in range(3, 9):
                commit(version)

        for version in (1, 2):
            commit(version)
        files = Interrupted(tmp_path, "parts", more)
        store = Checkpoints(tmp_path, files=files)
        second = Driver(flow, store, {}, lambda wait: False, every=None, keep=2, allow_removed=())
        assert second.recover().version == 8
        with pytest.raises(Superseded):
            commit(9)


def test_rows_that_a_driver_before_has_delivered_meanwhile(tmp_path: Path) -> None:
    """It was superseded in the middle, and marks and deletes them after the look at marks."""
    called, go_on = threading.Event(), threading.Event()
    took: list[str] = []

    def slow(table: pa.Table) -> None:
        called.set()
        assert go_on.wait(LIMIT)
        took.append("first")

    first = committer(tmp_path, {"rows": Callback(slow)})
    first.recover()

    def commit() -> None:
        with pytest.raises(Superseded):
            first.commit(1, {0: PART}, {"rows": [pa.table({"n": [1]})]}, {}, 0.0)

    thread = threading.Thread(target=commit)
    thread.start()
    assert called.wait(LIMIT)

    def finish() -> None:
        go_on.set()
        thread.join(LIMIT)

    store = Checkpoints(tmp_path, files=Interrupted(tmp_path, "rows", finish))
    sink = Callback(lambda table: took.append("second"))
    assert committer(tmp_path, {"rows": sink}, store).recover().version == 1
    assert took == ["first"]


def test_errors_before_an_attempt_are_judged_as_those_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that does not answer for a moment ends no query that may be restarted."""
    errors = [OSError(errno.EIO, "the server is gone"), OSError(errno.ESTALE, "stale handle")]

    class Moody(Files):
        def put(self, path: PurePosixPath, data: bytes) -> None:
            if failures and path.parent.name == "log":
                raise failures.pop(0)
            super().put(path, data)

    def job(self: Any, restore_point: Any) -> tuple[Coordinator, BaseException | None]:
        jobs.append(restore_point.attempt)
        lost = Coordinator(lost=Failure.of(PeerLost("worker 1 has gone"), worker=0))
        return (lost, OSError()) if len(jobs) < 2 else (Coordinator(), None)

    monkeypatch.setattr(_Attempts, "_job", job)
    for most, again, status in (
        (9, [*errors], "ended"),
        (2, [*errors], "failed"),
        (9, errors[:1] * 2, "failed"),
    ):
        failures: list[OSError] = []
        jobs: list[int] = []
        spark: Any = SimpleNamespace(sparkContext=None)
        jobs_of = Jobs(spark, "tag")
        query = Query("q", spark, 1, {}, jobs_of, jt.Flow("q"))
        path = tmp_path / f"{most} {len({*again})}"
        query.committer = committer(path, store=Checkpoints(path, files=Moody(path)))
        restore_point = query.committer.recover()
        failures = again
        plan, limit = SourcePlan("q", {}), Restarts(most)
        attempts = _Attempts(
            query, spark, jt.Flow("f"), {}, {}, plan, None, jobs_of, limit, WireSettings(), None
        )
        attempts.run(restore_point)
        assert query.status == status
        assert len(jobs) == (2 if status == "ended" else 1)
