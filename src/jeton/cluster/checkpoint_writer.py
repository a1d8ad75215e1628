"""The checkpoint writer: a worker's part of each version of the state, and rows for its sinks.

The flow stops for as long as it takes to come to rest and to take a snapshot in memory. Sinks and
files are slower: a thread of its own hands rows to sinks, writes state, and reports to the driver
when both are safe, while the flow goes on. A micro-batch has to wait for that anyway, and has no
such thread.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from jeton.cluster.failures import blaming
from jeton.connectors.sinks import Writer
from jeton.core.errors import JetonError
from jeton.runtime.agent import Agent
from jeton.runtime.attachments import Positions
from jeton.runtime.commands import Checkpoint, Connection
from jeton.state.bins import Placement
from jeton.state.changes import Cut
from jeton.state.snapshot import Snapshot
from jeton.storage.checkpoints import Checkpoints, Part

MOST_WAITING: Final = 256
"""Tables that wait for slow sinks, from which on the flow waits for them."""


@dataclass(frozen=True)
class RestorePoint:
    """The checkpoint that an attempt at a query starts from; it travels with the code of its tasks.

    >>> import tempfile
    >>> first = RestorePoint(Checkpoints(tempfile.mkdtemp()), query="3f9a", attempt=1)
    >>> first.share(0, 2), first.base(0, 2)  # nothing to restore
    (None, None)
    """

    store: Checkpoints
    query: str
    """The name by which sinks know the query, the same for all attempts."""
    attempt: int
    version: int | None = None
    """The version to restore, if there is one yet."""
    positions: Positions = field(default_factory=dict)
    allow_removed: tuple[str, ...] = ()
    next_version: int = 1
    """The number of the next version: higher than any other, committed or abandoned."""

    def share(self, worker: int, workers: int) -> Snapshot | None:
        """The state that a worker starts with."""
        if self.version is None:
            return None
        found = self.store.load(self.version)
        return found.share(worker, workers, allow_removed=self.allow_removed)

    def placed_on(self, workers: int, bins: int) -> Placement:
        """The owners of bins at the start; without a version, there are ``bins`` of them."""
        if self.version is None:
            return Placement.even(workers, bins)
        return self.store.load(self.version).placed_on(workers)

    def base(self, worker: int, workers: int) -> Part | None:
        """That worker's part of the version, whose files its next part can refer to."""
        return None if self.version is None else self.store.load(self.version).part(worker, workers)


class CheckpointWriter:
    """Hands a worker's rows over and writes its state, in the order of the calls.

    >>> import socket, tempfile, jeton as jt
    >>> from jeton.cluster.control import Control
    >>> driver, here = (Control(end) for end in socket.socketpair())
    >>> store = Checkpoints(tempfile.mkdtemp())
    >>> agent = Agent(jt.Flow("f"))
    >>> writer = CheckpointWriter(store, agent, here, epoch=1, background=False)
    >>> writer.keep(Checkpoint(version=7, number=2), {}, {}, pause=0.001)
    >>> report, _ = driver.receive()
    >>> report["kind"], report["number"], report["part"]["worker"]
    ('part', 2, 0)
    >>> writer.finish()
    >>> for end in (driver, here):
    ...     end.close()
    """

    is_full = False
    waits_for = ""

    def __init__(
        self,
        store: Checkpoints,
        agent: Agent,
        driver: Connection,
        writers: Mapping[str, Writer] | None = None,
        *,
        epoch: int,
        base: Part | None = None,
        background: bool = True,
    ) -> None:
        self.base = base
        """This worker's part of the newest version: what need not be written again."""
        self.tokens: dict[tuple[str, str], str] = {} if base is None else base.tokens
        """The states of containers that the last part has, or will have when it is written."""
        self._store = store
        self._agent = agent
        self._worker = agent.worker.index
        self._bins = agent.worker.bins
        self._driver = driver
        self._writers = writers or {}
        self._epoch = epoch
        self.uncommitted: Counter[str] = Counter()
        """For outputs how many rows were written since the last version."""
        self._acts: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._run, name="jeton-writer", daemon=True)
            self._thread.start()

    @classmethod
    def of(
        cls,
        restore_point: RestorePoint,
        agent: Agent,
        driver: Connection,
        writers: Mapping[str, Writer],
        *,
        background: bool = True,
    ) -> CheckpointWriter:
        """The writer of a worker that starts from a restore point."""
        base = restore_point.base(agent.worker.index, agent.worker.workers)
        epoch = restore_point.attempt
        return cls(
            restore_point.store,
            agent,
            driver,
            writers,
            epoch=epoch,
            base=base,
            background=background,
        )

    def write(self, output: str, table: pa.Table) -> None:
        """Have rows written to the sink of an output."""
        self.uncommitted[output] += table.num_rows

        def act() -> None:
            with blaming(output, "writing to its sink"):
                self._writers[output].write(table)

        self._do(act)

    def keep(
        self,
        command: Checkpoint,
        state: Mapping[str, Mapping[str, Cut | pa.Table]],
        positions: Positions,
        pause: float,
    ) -> None:
        """Have this worker's part of a version written; rows so far belong to it."""
        version = command.version
        self.uncommitted.clear()
        placement = self._agent.worker.placement
        said = self._worker == 0 and not placement.is_even
        owners = placement.owners.tolist() if said else ()
        for operator, kept in state.items():
            for name, cut in kept.items():
                if isinstance(cut, Cut):
                    self.tokens[operator, name] = cut.token

        def act() -> None:
            staged = {}
            for output, writer in self._writers.items():
                with blaming(output, "staging rows for its sink"):
                    staged[output] = writer.stage(version)
            part = self.base = self._store.write_part(
                version,
                self._worker,
                state,
                epoch=self._epoch,
                base=self.base,
                bins=self._bins,
                owners=owners,
            )
            for key, chain in part.chains.items():
                if chain.is_broken:
                    # The next cut has all rows then.
                    self.tokens.pop(key, None)
            self._driver.send(
                "part",
                number=command.number,
                version=version,
                part=part.to_json(),
                bytes=part.written,
                positions=positions,
                staged=staged,
                pause=pause,
            )

        self._do(act)

    def poll(self) -> None:
        """Do nothing: rows are committed with checkpoints."""

    def taken(self, output: str, size: int) -> None:
        """Do nothing: rows wait in files for sinks at the driver."""

    def check(self) -> None:
        """Raise what went wrong in the background, if anything did."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait until everything is written."""
        if self._thread is None:
            self._close_writers()
        else:
            self._acts.put(None)
            self._thread.join()
        self.check()

    def close(self) -> None:
        """End; what is not written yet will not be."""
        if self._thread is not None and self._thread.is_alive():
            self._error = self._error or JetonError("the worker has ended")
            self._acts.put(None)

    def _do(self, act: Callable[[], None]) -> None:
        if self._thread is None:
            act()
        else:
            self._acts.put(act)

    def _run(self) -> None:
        while (act := self._acts.get()) is not None:
            # After an error the worker is bound to fail: until then, nothing must block it.
            if self._error is None:
                try:
                    act()
                except BaseException as error:
                    self._error = error
            # It has rows or state, which need not stay until the next one comes.
            del act
        self._close_writers()

    def _close_writers(self) -> None:
        try:
            for writer in self._writers.values():
                writer.close()
        except Exception as error:
            self._error = self._error or error
