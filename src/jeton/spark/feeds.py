"""Feeds: the inputs of a long-lived query on one worker, and the partitions read for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jeton.core.errors import GraphError
from jeton.dataflow.inputs import InputHandle
from jeton.spark.sources import Reader, Source


class Feed:
    """An input on one worker, and the partitions of its source that this worker reads.

    ``known`` tells for each partition where it was when the query stopped. There are as many as
    there were then, whatever the number of workers.

    >>> import jeton as jt
    >>> from jeton.spark.sources import Batches
    >>> from jeton.worker.process import Process
    >>> flow = jt.Flow("fed")
    >>> flow.output("out", flow.input("n"))
    >>> source = Batches(lambda partition, partitions: iter([{"time": [3]}, {"time": [4]}]))
    >>> def feed(known=None):
    ...     handle = Process(flow, None).worker.handles[flow.handle("input", "n")]
    ...     return Feed("n", handle, source, 0, 1, known)
    >>> before = feed()
    >>> before.read(), before.positions()
    (True, {'0': {'position': 1, 'ended': False, 'time': 0}})
    >>> after = feed(before.positions())
    >>> after.read(), after.read(), after.positions()
    (True, False, {'0': {'position': 2, 'ended': True, 'time': 0}})
    """

    def __init__(
        self,
        name: str,
        handle: InputHandle,
        source: Source,
        worker: int,
        workers: int,
        known: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.name = name
        self.handle = handle
        self.rows = 0
        self._readers: dict[int, Reader] = {}
        known = known or {}
        partitions = len(known) or source.partitions(workers)
        mine = range(worker, partitions, workers)
        before = {each: known[str(each)] for each in mine if str(each) in known}
        self._ended = {n: at for n, at in before.items() if at["ended"] or handle.closed}
        """What is known of partitions that are not read any more."""
        for partition in mine:
            if partition in self._ended:
                continue
            if partition in before:
                position = before[partition]["position"]
                self._readers[partition] = source.open(partition, partitions, position)
            else:
                self._readers[partition] = source.open(partition, partitions)
        if not self._readers:
            self.close()
        elif before:
            self._advance(min(at["time"] for n, at in before.items() if n in self._readers))

    @property
    def is_open(self) -> bool:
        """Whether records may still come."""
        return not self.handle.closed

    @property
    def ready_at(self) -> float | None:
        """When to ask again, if all partitions can tell."""
        times = [reader.ready_at for reader in self._readers.values() if not reader.ended]
        known = [at for at in times if at is not None]
        return min(known, default=None) if len(known) == len(times) else None

    def read(self) -> bool:
        """Ask each partition once; tells whether there was anything."""
        if self.handle.closed:
            return False
        read = False
        for reader in self._readers.values():
            records = None if reader.ended else reader.read()
            if records is not None:
                before = self.handle.sent_count
                self.handle.send(records)
                self.rows += self.handle.sent_count - before
                read = True
        open_readers = [reader for reader in self._readers.values() if not reader.ended]
        if not open_readers:
            self.close()
        elif all(reader.floor is not None for reader in open_readers):
            self._advance(min(reader.floor for reader in open_readers if reader.floor is not None))
        return read

    def positions(self) -> dict[str, dict[str, Any]]:
        """Where each partition is: what `known` will be after a restart."""
        found = {str(partition): dict(at) for partition, at in self._ended.items()}
        for partition, reader in self._readers.items():
            if reader.position is None:
                raise GraphError(
                    f"the source of input {self.name!r} cannot tell its position, so that there "
                    "can be no checkpoints: see jeton.spark.sources.Reader.position"
                )
            found[str(partition)] = {
                "position": reader.position,
                "ended": reader.ended,
                "time": self.handle.time,
            }
        return found

    def close(self) -> None:
        """No more records from here."""
        self.handle.close()

    def _advance(self, time: int) -> None:
        if self.handle.time < time:
            self.handle.advance_to(time)
