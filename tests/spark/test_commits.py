"""The driver's side of a long-lived query's checkpoints, without the query."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs as arrow_fs

import jeton as jt
from jeton.spark.checkpoints import Checkpoints
from jeton.spark.claims import Superseded
from jeton.spark.commits import Commits
from jeton.spark.keeper import Ground
from jeton.spark.sinks import Memory, Parquet, Sink
from tests.spark.gated import LIMIT, written

PART = {"part": {"worker": 0, "states": []}, "positions": {}, "pause": 0.0, "bytes": 0}


def commits(path: Path, sinks: Mapping[str, Sink] | None = None, filesystem: Any = None) -> Commits:
    sinks = sinks or {}

    def deliver(name: str, table: pa.Table) -> None:
        sink = sinks[name]
        assert isinstance(sink, Memory)
        sink.receive(table)

    flow = jt.Flow("f")
    flow.output("rows", flow.input("in"))
    store = Checkpoints(path, filesystem)
    return Commits(flow, store, sinks, deliver, every=None, keep=2, allow_removed=())


def show(run: Commits, ground: Ground, sink: Parquet, version: int) -> None:
    """Commit a version with one row: its number."""
    writer = sink.open_staged(0, ground.query, ground.attempt)
    writer.write(pa.table({"n": [version]}))
    run.commit(version, {0: PART}, {}, {"rows": writer.stage(version)}, 0.0)


@pytest.mark.parametrize(
    "content",
    [b"", b'{"query": ', b'{"qtery": "3f9a"}', b'{"query": "another"}', b"\xff", b"[]", None],
)
def test_the_name_of_a_query_is_in_its_checkpoints(tmp_path: Path, content: bytes | None) -> None:
    sink = Parquet(tmp_path / "out")
    run = commits(tmp_path / "c", {"rows": sink})
    ground = run.recover()
    for version in (1, 2):
        show(run, ground, sink, version)
    named = tmp_path / "c" / "query.json"
    before = named.read_bytes()
    if content is None:
        named.unlink()
    else:
        named.write_bytes(content)
    again = commits(tmp_path / "c", {"rows": sink}).recover()
    assert (again.query, again.version) == (ground.query, 2)
    assert named.read_bytes() == before
    assert written(tmp_path / "out") == [(1,), (2,)]


def test_before_the_first_version_a_query_has_a_name_too(tmp_path: Path) -> None:
    """So that files of an attempt that came to nothing are found, also if versions have gone."""
    assert commits(tmp_path).recover().query == commits(tmp_path).recover().query
    (tmp_path / "query.json").write_bytes(b"")
    assert commits(tmp_path).recover().query


def test_checkpoints_of_something_else_are_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path).commit(1, [], flow="f")
    with pytest.raises(jt.SnapshotError, match="something else than a long-lived query"):
        commits(tmp_path).recover()
    assert not (tmp_path / "claims").exists()


@pytest.mark.parametrize("gone", ["newest", "all"])
def test_what_is_gone_is_not_made_twice(tmp_path: Path, gone: str) -> None:
    """A manifest vanishes while the query runs, whose rows a sink at the driver has got."""
    memory = Memory()
    run = commits(tmp_path, {"rows": memory})
    run.recover()
    for version in (1, 2):
        run.commit(version, {0: PART}, {"rows": [pa.table({"n": [version]})]}, {}, 0.0)
    if gone == "newest":
        max((tmp_path / "manifests").iterdir()).unlink()
    else:
        shutil.rmtree(tmp_path / "manifests")
    with pytest.raises(jt.SnapshotError, match=r"version 2 .* the sinks of \['rows'\] have got"):
        run.recover()
    # A sink of files gives its rows back.
    sink = Parquet(tmp_path / "out")
    run = commits(tmp_path / "again", {"rows": sink})
    ground = run.recover()
    for version in (1, 2):
        show(run, ground, sink, version)
    if gone == "newest":
        max((tmp_path / "again" / "manifests").iterdir()).unlink()
    else:
        shutil.rmtree(tmp_path / "again" / "manifests")
    ground = run.recover()
    for version in range((ground.version or 0) + 1, 4):
        show(run, ground, sink, version)
    assert written(tmp_path / "out") == [(1,), (2,), (3,)]


def test_strange_claims_are_left_alone(tmp_path: Path) -> None:
    run = commits(tmp_path)
    assert run.recover().attempt == 1
    for name in (".DS_Store", "9-of mine", "notes"):
        (tmp_path / "claims" / name).touch()
    run.commit(1, {0: PART}, {}, {}, 0.0)
    assert run.recover().attempt == 2
    assert len(list((tmp_path / "claims").iterdir())) == 4


class Together:
    """A file system where nobody makes a claim before all have seen that there is none."""

    def __init__(self, ready: threading.Barrier) -> None:
        self._local = arrow_fs.LocalFileSystem()
        self._ready: threading.Barrier | None = ready

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def open_output_stream(self, path: str) -> Any:
        if self._ready is not None and "/claims/" in path:
            self._ready.wait(LIMIT)
            self._ready = None
        return self._local.open_output_stream(path)


def test_whoever_starts_at_the_same_moment_is_another_attempt(tmp_path: Path) -> None:
    """Else they would give the same names to their files and manifests."""
    for number in range(20):
        place = tmp_path / str(number)
        ready = threading.Barrier(3)
        runs = [commits(place, filesystem=Together(ready)) for _ in range(3)]
        with ThreadPoolExecutor(3) as threads:
            started = [threads.submit(run.recover) for run in runs]
        attempts: dict[int, Commits] = {}
        for run, one in zip(runs, started, strict=True):
            if (error := one.exception()) is not None:
                assert isinstance(error, Superseded), error
            else:
                assert one.result().attempt not in attempts
                attempts[one.result().attempt] = run
        last = attempts.pop(max(attempts))
        for run in attempts.values():
            with pytest.raises(Superseded):
                run.commit(1, {0: PART}, {}, {}, 0.0)
        last.commit(1, {0: PART}, {}, {}, 0.0)
