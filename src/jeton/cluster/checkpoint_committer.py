"""The checkpoint committer: commits the checkpoints of a long-lived query and publishes its rows.

Once every worker has written its part of a version and staged its rows, the driver commits the
version and makes the rows visible. If it fails in between, the next attempt finds a version whose
rows are visible, or makes them so, and removes every trace of later versions. A driver may be
suspended at any step while another one takes over: its later actions are refused or have no effect.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from jeton.cluster.checkpoint_writer import RestorePoint
from jeton.connectors.published import Published
from jeton.connectors.sinks import DriverSink, Sink
from jeton.connectors.source_plan import stored_partitions
from jeton.connectors.waiting import Waiting
from jeton.core.errors import SnapshotError
from jeton.storage.checkpoints import Checkpoint, Checkpoints, Part
from jeton.storage.chunk_format import CorruptCheckpoint
from jeton.storage.files import Files

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow

log = logging.getLogger(__name__)


class CheckpointCommitter:
    """Commits the checkpoints of all attempts at one query, and finds the one to restore.

    >>> import tempfile, jeton as jt
    >>> committer = CheckpointCommitter(
    ...     jt.Flow("none"),
    ...     Checkpoints(tempfile.mkdtemp()),
    ...     {},
    ...     lambda seconds: False,
    ...     every=None,
    ...     keep=2,
    ...     allow_removed=(),
    ... )
    >>> part = {"part": {"worker": 0, "states": []}, "positions": {}, "pause": 0.002, "bytes": 0}
    >>> committer.recover().version, committer.commit(1, {0: part}, {}, seconds=0.1)
    (None, None)
    >>> restore_point = committer.recover()  # another attempt
    >>> restore_point.attempt, restore_point.version, committer.metrics()["pause_ms"]
    (2, 1, 2.0)
    """

    def __init__(
        self,
        flow: Flow,
        store: Checkpoints,
        sinks: Mapping[str, Sink],
        wait: Callable[[float], bool],
        *,
        every: float | None,
        keep: int,
        allow_removed: Collection[str],
    ) -> None:
        """``wait`` waits for some seconds, unless the query is in a hurry to end."""
        self._flow = flow
        self._store = store
        self._at_driver = [name for name, sink in sinks.items() if isinstance(sink, DriverSink)]
        self._at_workers = [name for name in sinks if name not in self._at_driver]
        # With marks of their own: if a sink at the driver fails, published files may be gone.
        self._published = Published(store.files, {n: sinks[n] for n in self._at_workers}, wait=wait)
        self._delivered = Published(
            store.files, {n: sinks[n] for n in self._at_driver}, at_driver=True, wait=wait
        )
        self.every = every
        """Seconds from one checkpoint to the next, if they are taken regularly."""
        self._keep = keep
        self._allow_removed = tuple(allow_removed)
        self._query = ""
        self._attempt = 0
        self._metrics: dict[str, Any] = {"taken": 0, "missed": 0}
        self.version: int | None = None
        """The newest version that was committed, or that the present attempt goes on from."""
        self.committed_at = time.monotonic()
        """When that was, or when the query began."""

    def metrics(self) -> dict[str, Any]:
        """The cost of the latest checkpoint, and the longest pause of all."""
        return {"version": self.version, **self._metrics}

    def recover(self) -> RestorePoint:
        """Find the newest intact version before an attempt, and undo what goes beyond it."""
        # Another run may have taken over, which made the previous attempt fail.
        self._store.require_lease()
        committed = self._store.committed()
        try:
            # State that does not fit is an error before another run is superseded.
            found = self._find()
        except CorruptCheckpoint:
            if self._store.committed() == committed:
                raise
            # The holder of the lease went on and cleaned up; it cannot once the lease is taken.
            found = None
        state = self._store.take_lease(query=self._name(found))
        if self._store.committed() != committed:
            # The previous holder committed one more version in the meantime.
            found = self._find()
        version = 0 if found is None else found.version
        if max([self.version or 0, *(known.version for known in state.versions)]) > version:
            self._fall_back(version)
        assert state.query is not None
        self._query, self._attempt = state.query, state.attempt
        if found is not None:
            self._published.require_none_owed(found, self._at_driver)
            self._delivered.require_none_owed(found, self._at_workers)
        try:
            for sinks in (self._published, self._delivered):
                sinks.begin(self._query, self._attempt)
                sinks.recover(found)
        except Exception:
            self._store.require_lease()
            raise
        self.version = None if found is None else version
        return RestorePoint(
            self._store,
            self._query,
            self._attempt,
            self.version,
            {} if found is None else stored_partitions(found.meta),
            self._allow_removed,
            next_version=max(state.newest, 0) + 1,
        )

    def began(self) -> dict[str, dict[str, Any]]:
        """Where a driver began to read that has not committed any version, if there was one."""
        try:
            found = json.loads(self._store.files.read(self._beginning))
            return dict(found["partitions"]) if found["query"] == self._query else {}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return {}

    def begin(self, partitions: Mapping[str, Mapping[str, Any]]) -> None:
        """Note where the query begins to read, until a version says where it is."""
        if self.version is None:
            text = json.dumps({"query": self._query, "partitions": partitions})
            self._store.files.write(self._beginning, [text.encode()])

    @property
    def _beginning(self) -> PurePosixPath:
        return self._store.files.root / "beginning.json"

    def commit(
        self,
        version: int,
        reports: Mapping[int, Mapping[str, Any]],
        staged: Mapping[str, list[Any]],
        seconds: float,
    ) -> None:
        """Commit a version, of which every worker has written its part; `Superseded` if too late.

        Then its rows are made visible, and handed to sinks at the driver. If that fails, `recover`
        does it.
        """
        positions: dict[str, dict[str, Any]] = {}
        for part in reports.values():
            for name, partitions in part["positions"].items():
                positions.setdefault(name, {}).update(partitions)
        meta = {
            "query": self._query,
            "partitions": positions,
            "sinks": staged,
            "at_driver": self._at_driver,
        }
        parts = [Part.from_json(part["part"]) for part in reports.values()]
        made = self._store.commit(
            version, parts, flow=self._flow.name, epoch=self._attempt, meta=meta
        )
        self.version, self.committed_at = version, time.monotonic()
        try:
            self._show(made)
        except BaseException:
            # A successor has done it, and has cleared away what this one would need.
            self._store.require_lease()
            raise
        pause = round(max(part["pause"] for part in reports.values()) * 1e3, 3)
        self._metrics |= {
            "taken": self._metrics["taken"] + 1,
            "pause_ms": pause,
            "longest_pause_ms": max(pause, self._metrics.get("longest_pause_ms", 0.0)),
            "seconds": round(seconds, 4),
            "bytes": sum(part["bytes"] for part in reports.values()),
        }
        self._store.clean(self._keep)

    @property
    def waiting(self) -> list[Waiting]:
        """The rows of committed versions that sinks at the driver have not taken."""
        return self._delivered.waiting

    def missed(self, version: int, why: str) -> None:
        """Workers could not take a version; the next one will do."""
        self._metrics["missed"] += 1
        log.warning("checkpoint %d of flow %r was not taken: %s", version, self._flow.name, why)

    # Inside

    def _show(self, made: Checkpoint) -> None:
        """Make the rows of a version visible that was committed just now."""
        for sinks in (self._published, self._delivered):
            sinks.show(made, again=False)
        for sinks in (self._published, self._delivered):
            sinks.clean(made)

    def _name(self, found: Checkpoint | None) -> str:
        """The name by which sinks know the query: made up once, and kept with its checkpoints."""
        known = None if found is None else found.meta["query"]
        return known or self._store.query() or _name_in_file(self._store.files)

    def _fall_back(self, version: int) -> None:
        """Restore a version that is not the newest, since that is damaged or gone."""
        at_driver = self._at_driver
        if at_driver and self.version is not None and self.version > version:
            raise SnapshotError(
                f"version {self.version} in {self._store.root} cannot be read any more, but the "
                f"sinks of {at_driver} have got its rows already, and cannot give them back"
            )
        # They must not be used again: from now on they are not part of the history.
        self._store.give_up(above=version)
        log.warning(
            "flow %r goes on from %s; rows of later ones are made again",
            self._flow.name,
            f"checkpoint {version}" if version else "the beginning",
        )

    def _find(self) -> Checkpoint | None:
        """The newest version that is whole, which the flow must fit."""
        found = self._store.latest()
        if found is not None:
            if "query" not in found.meta:
                raise SnapshotError(
                    f"{self._store.root} has checkpoints of something else than a long-lived query"
                )
            found.check(self._flow, allow_removed=self._allow_removed)
        return found


def _name_in_file(files: Files) -> str:
    """A name that is new, or the one that releases without a log wrote before the first version."""
    try:
        return str(json.loads(files.read(files.root / "query.json"))["query"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return os.urandom(6).hex()
