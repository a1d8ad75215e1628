"""Keeping: what a worker of a long-lived query does for its checkpoints.

The flow stops for as long as it takes to come to rest and to take a snapshot in memory. Sinks and
files are slower: a thread of its own hands rows to sinks, writes state, and tells the driver when
both are safe, while the flow goes on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from jeton.cluster.control import Control
from jeton.cluster.failures import blaming
from jeton.connectors.sinks import StagedWriter
from jeton.core.errors import JetonError
from jeton.state.bins import BINS
from jeton.state.snapshot import Snapshot
from jeton.storage.checkpoints import Checkpoints, Part

MOST_WAITING: Final = 256
"""Tables that wait for slow sinks, from which on the flow waits for them."""

Positions = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""For each input and each of its partitions where its reader was, and whether it had ended."""


@dataclass(frozen=True)
class Ground:
    """What one attempt at a query stands on: it travels with the code of its tasks.

    >>> import tempfile
    >>> first = Ground(Checkpoints(tempfile.mkdtemp()), query="3f9a", attempt=1)
    >>> first.share(0, 2), first.base(0, 2)  # nothing to go on from
    (None, None)
    """

    store: Checkpoints
    query: str
    """The name by which sinks know the query, the same for all attempts."""
    attempt: int
    version: int | None = None
    """The version to go on from, if there is one yet."""
    positions: Positions = field(default_factory=dict)
    allow_removed: tuple[str, ...] = ()
    next_version: int = 1
    """The version to begin with: one that never was, even if some were given up."""

    def share(self, worker: int, workers: int) -> Snapshot | None:
        """The state that a worker goes on from."""
        if self.version is None:
            return None
        found = self.store.load(self.version)
        return found.share(worker, workers, allow_removed=self.allow_removed)

    def base(self, worker: int, workers: int) -> Part | None:
        """What that worker need not write again."""
        return None if self.version is None else self.store.load(self.version).part(worker, workers)


class Keeper:
    """One worker's thread that hands rows over and writes state, in the order it was told."""

    def __init__(
        self,
        ground: Ground,
        worker: int,
        workers: int,
        control: Control,
        writers: Mapping[str, StagedWriter],
        *,
        bins: int = BINS,
    ) -> None:
        self._ground = ground
        self._bins = bins
        self._worker = worker
        self._workers = workers
        self._control = control
        self._writers = writers
        self._base: Part | None = None
        self._acts: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="jeton-keeper", daemon=True)
        self._thread.start()

    def write(self, output: str, table: pa.Table) -> None:
        """Have rows written to the sink of an output."""

        def act() -> None:
            with blaming(output, "writing to its sink"):
                self._writers[output].write(table)

        self._acts.put(act)

    def keep(
        self,
        version: int,
        state: Mapping[str, Mapping[str, pa.Table]],
        positions: Positions,
        pause: float,
    ) -> None:
        """Have this worker's part of a version written; rows so far belong to it."""

        def act() -> None:
            ground = self._ground
            staged = {}
            for output, writer in self._writers.items():
                with blaming(output, "staging rows for its sink"):
                    staged[output] = writer.stage(version)
            base = self._base or ground.base(self._worker, self._workers)
            self._base = ground.store.write_part(
                version,
                self._worker,
                state,
                epoch=ground.attempt,
                base=base,
                bins=self._bins,
            )
            self._control.send(
                "part",
                version=version,
                part=self._base.to_json(),
                bytes=self._base.written,
                positions=positions,
                staged=staged,
                pause=pause,
            )

        self._acts.put(act)

    def check(self) -> None:
        """Raise what went wrong in the background, if anything did."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait until everything is written."""
        self._acts.put(None)
        self._thread.join()
        self.check()

    def close(self) -> None:
        """End; what is not written yet will not be."""
        if self._thread.is_alive():
            self._error = self._error or JetonError("the worker has ended")
            self._acts.put(None)

    def _run(self) -> None:
        while (act := self._acts.get()) is not None:
            # After an error the worker is bound to fail: until then, nothing must block it.
            if self._error is None:
                try:
                    act()
                except BaseException as error:
                    self._error = error
        try:
            for writer in self._writers.values():
                writer.close()
        except Exception as error:
            self._error = self._error or error
