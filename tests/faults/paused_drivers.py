"""Drivers that are suspended at each step while rivals start, commit, are suspended or die.

A driver here does all that one does for the checkpoints of a long-lived query, and what its worker
does: it recovers, and then stages, commits and publishes versions. Before each operation on a file
there is a step, at which it can be suspended or killed. What its rivals do then is done right
there, so that every case can be replayed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import jeton as jt
from jeton.cluster.checkpoint_committer import CheckpointCommitter
from jeton.connectors.sinks import Callback, Delivery, Parquet, Sink, SinkContext
from jeton.connectors.sinks.driver_sink import RowsToDriver
from jeton.storage.checkpoints import Checkpoints, Part
from jeton.storage.chunk_format import CorruptCheckpoint
from jeton.storage.files import Files
from jeton.storage.leases import Superseded
from jeton.storage.store import FileInfo

ROWS = 2
"""Rows of a version."""
EVENTS = {"os.link", "os.rename", "os.remove", "os.listdir"}


class Died(BaseException):
    """A driver has been killed: it does nothing any more."""


@dataclass
class Steps:
    """The steps of one driver; before one of them something happens."""

    at: int = 0
    act: Callable[[], None] = lambda: None
    count: int = 0
    dead: bool = False

    def step(self) -> None:
        if not self.dead:
            self.count += 1
            if self.count == self.at:
                self.act()
        if self.dead:
            raise Died

    def die(self) -> None:
        self.dead = True


_running: list[Steps] = []
"""The drivers that have begun; the last one is not suspended."""
_is_hooked = False


def _hook(event: str, _: Any) -> None:
    if _running and event in EVENTS:
        _running[-1].step()


@contextmanager
def _drives(steps: Steps) -> Iterator[None]:
    global _is_hooked
    if not _is_hooked:
        sys.addaudithook(_hook)
        _is_hooked = True
    _running.append(steps)
    try:
        yield
    finally:
        _running.pop()


class SteppedFiles(Files):
    """Files with a step before each operation that Python's own hooks do not see."""

    def names(self, folder: PurePosixPath) -> list[str]:
        _running[-1].step()
        return super().names(folder)

    def read(self, path: PurePosixPath) -> bytes:
        _running[-1].step()
        return super().read(path)

    def delete(self, path: PurePosixPath) -> None:
        _running[-1].step()
        super().delete(path)

    def info(self, path: PurePosixPath) -> FileInfo | None:
        _running[-1].step()
        return super().info(path)

    def write(self, path: PurePosixPath, buffers: Sequence[Any]) -> None:
        _running[-1].step()
        super().write(path, buffers)


@dataclass
class Place:
    """Where drivers meet: a checkpoint, a folder of files, and a function that they call."""

    folder: Path
    calls: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """The calls of the function, by version and number."""

    def take(self, table: pa.Table, delivery: Delivery) -> None:
        assert delivery.version is not None
        rows = table["n"].to_pylist()
        known = self.calls.setdefault((delivery.version, delivery.number), rows)
        assert known == rows, "what is delivered again is the same"

    def drive(self, versions: int, steps: Steps | None = None) -> str:
        """Start a driver, which commits some versions; tells how it ended."""
        with _drives(steps or Steps()):
            try:
                self._drive(versions)
            except Superseded:
                return "superseded"
            except Died:
                return "died"
            except CorruptCheckpoint:
                # Its version was damaged after it had chosen it: a query starts again then.
                return "damaged"
        return "done"

    def _drive(self, versions: int) -> None:
        store = Checkpoints(self.folder, files=SteppedFiles(self.folder / "checkpoint"))
        sink = Parquet(self.folder / "out")
        sinks: dict[str, Sink] = {"files": sink, "calls": Callback(self.take, delivery=True)}
        rules: dict[str, Any] = {"every": None, "keep": 2, "allow_removed": ("op",)}
        run = CheckpointCommitter(jt.Flow("f"), store, sinks, lambda wait: True, **rules)
        restore_point = run.recover()
        at = int(restore_point.positions.get("in", {}).get("0", {}).get("at", 0))
        try:
            base = restore_point.base(0, 1)
            context = SinkContext(
                restore_point.query, restore_point.attempt, worker=0, files=store.files
            )
            writer, rows = sink.open(context), RowsToDriver().open(context)
            for version in range(restore_point.next_version, restore_point.next_version + versions):
                table = pa.table({"n": range(at, at + ROWS)})
                at += ROWS
                base = self._commit(
                    run, version, at, base, table, (writer, rows), restore_point.attempt
                )
        except CorruptCheckpoint:
            raise
        except Exception as error:
            # Its worker may miss files that a successor has deleted.
            store.require_lease()
            raise AssertionError(f"a driver that holds the lease failed: {error!r}") from error

    def _commit(
        self,
        run: CheckpointCommitter,
        version: int,
        at: int,
        base: Part | None,
        table: pa.Table,
        writers: tuple[Any, Any],
        epoch: int,
    ) -> Part:
        for writer in writers:
            writer.write(table)
        staged = dict(zip(("files", "calls"), (w.stage(version) for w in writers), strict=True))
        state = pa.table({"bin": pa.array([0], pa.uint16()), "at": [at]})
        part = run._store.write_part(version, 0, {"op": {"s": state}}, epoch=epoch, base=base)
        report = {
            "part": part.to_json(),
            "positions": {"in": {"0": {"at": at}}},
            "pause": 0.0,
            "bytes": 0,
        }
        run.commit(version, {0: report}, staged, 0.0)
        return part

    def damage(self) -> None:
        """Damage the newest manifest, so that the version before it is gone on from."""
        store = Checkpoints(self.folder / "checkpoint")
        newest = store._committed()[-1]
        path = self.folder / "checkpoint" / "manifests" / newest.manifest
        path.write_bytes(path.read_bytes()[:-9])

    def take_files(self) -> None:
        """As a reader does that moves them elsewhere."""
        (self.folder / "read").mkdir(exist_ok=True)
        for path in (self.folder / "out").glob("part-*"):
            path.rename(self.folder / "read" / path.name)

    def check(self, *, calls: bool = True) -> None:
        """Whether every row up to where the newest version is has come exactly once."""
        found = Checkpoints(self.folder / "checkpoint").latest()
        assert found is not None
        at = found.meta["partitions"]["in"]["0"]["at"]
        assert found.share(0, 1).operators["op"]["s"]["at"].to_pylist() == [at]
        files = self.folder.glob("*/part-*")
        written = sorted(n for path in files for n in pq.read_table(path)["n"].to_pylist())
        assert written == list(range(at)), f"files: {_difference(written, at)}"
        if calls:
            taken = sorted(n for rows in self.calls.values() for n in rows)
            assert taken == list(range(at)), f"calls: {_difference(taken, at)}"


def _difference(rows: list[int], at: int) -> str:
    lost = set(range(at)) - set(rows)
    return f"lost {sorted(lost)}, doubled {sorted((Counter(rows) - Counter(range(at))).elements())}"


@dataclass(frozen=True)
class Case:
    """A driver is suspended before a step; its rival may be suspended or die at one of its own."""

    first: int
    rival: str = "runs"
    """Or ``dies``, or ``waits`` while a third driver runs."""
    second: int = 0
    versions: int = 2
    damaged: bool = False
    """Whether the newest version is damaged when the rival starts."""
    reads: bool = False
    """Whether a reader takes the files away that are there when the rival has run to its end."""

    def run(self, start: Place, folder: Path) -> tuple[int, int]:
        """Returns how many drivers were suspended, and how many killed, at the steps given."""
        place = Place(folder, dict(start.calls))
        shutil.copytree(start.folder, folder)
        suspended = killed = 0

        def third() -> None:
            nonlocal suspended
            suspended += 1
            assert place.drive(1) == "done"

        def rival() -> None:
            nonlocal suspended, killed
            suspended += 1
            if self.damaged:
                place.damage()
            steps = Steps(self.second)
            steps.act = {"runs": lambda: None, "dies": steps.die, "waits": third}[self.rival]
            ended = place.drive(self.versions, steps)
            killed += ended == "died"
            if self.reads:
                assert ended == "done"
                place.take_files()

        with quick():
            place.drive(2, Steps(self.first, rival))
            # Every later start works.
            for _ in range(2):
                assert place.drive(1) == "done", "nobody is in the way"
        place.check(calls=not self.damaged)
        return suspended, killed


def prepared(folder: Path) -> Place:
    """A place where a driver has committed some versions already."""
    place = Place(folder)
    with quick():
        assert place.drive(3) == "done"
    place.check()
    return place


def steps_of(start: Place, folder: Path, versions: int = 2) -> int:
    """How many steps a driver has that nothing happens to."""
    shutil.copytree(start.folder, folder)
    steps = Steps()
    with quick():
        assert Place(folder, dict(start.calls)).drive(versions, steps) == "done"
    return steps.count


@contextmanager
def quick() -> Iterator[None]:
    """Nothing here is about power cuts."""
    with mock.patch.object(os, "fsync"):
        yield


def campaign(folder: Path, seed: int, is_over: Callable[[int], bool]) -> Counter[str]:
    """Random cases, until ``is_over`` says of their number that it is enough.

    Returns how many there were, and how many drivers were suspended and killed in them; raises at
    the first row that is lost or doubled, and at the first start that fails.
    """
    random = Random(seed)
    start = prepared(folder / "start")
    steps = steps_of(start, folder / "counted")
    tally: Counter[str] = Counter()
    while not is_over(tally["cases"]):
        case = Case(
            first=random.randint(1, steps),
            rival=random.choice(["runs", "dies", "waits"]),
            second=random.randint(1, steps),
            versions=random.randint(0, 2),
            damaged=random.random() < 0.3,
        )
        place = folder / str(tally["cases"])
        try:
            suspended, killed = case.run(start, place)
        except BaseException as error:
            error.add_note(f"{case} in {place}")
            raise
        shutil.rmtree(place)
        tally += Counter(cases=1, suspended=suspended, killed=killed)
    return tally
