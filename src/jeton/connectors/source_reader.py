"""Source readers: the inputs of a long-lived query on one worker, and the partitions they read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from jeton.connectors.sources import Reader, Source
from jeton.core.errors import GraphError
from jeton.dataflow.inputs import InputHandle
from jeton.dataflow.partitions import Partition


class SourceReader:
    """An input on one worker, and the partitions of its source that this worker reads.

    ``known`` has the position of each partition when the query stopped. Their number stays the
    same, with any number of workers.

    >>> import jeton as jt
    >>> from jeton.connectors.sources import Batches
    >>> from jeton.runtime.agent import Agent
    >>> flow = jt.Flow("fed")
    >>> flow.output("out", flow.input("n"))
    >>> source = Batches(lambda partition, partitions: iter([{"time": [3]}, {"time": [4]}]))
    >>> def reader(known=None):
    ...     handle = Agent(flow).worker.handles[flow.handle("input", "n")]
    ...     return SourceReader("n", handle, source, 0, 1, known)
    >>> before = reader()
    >>> before.read(), before.positions()
    (True, {'0': {'position': 1, 'ended': False, 'floor': -9223372036854775808, 'idle': False}})
    >>> after = reader(before.positions())
    >>> after.read(), after.read(), after.positions()["0"]["position"]
    (True, False, 2)

    A partition without records for as long as the input's ``idle_after`` says, by ``clock``, holds
    the input back no longer. If all partitions of this worker are idle, `follow` lets the input
    advance with those of the others.
    """

    def __init__(
        self,
        name: str,
        handle: InputHandle,
        source: Source,
        worker: int,
        workers: int,
        known: Mapping[str, Mapping[str, Any]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.handle = handle
        self._clock = clock
        self._readers: dict[int, _Open] = {}
        known = known or {}
        partitions = len(known) or source.partitions(workers)
        mine = range(worker, partitions, workers)
        before = {each: known[str(each)] for each in mine if str(each) in known}
        self._ended = {n: at for n, at in before.items() if at["ended"] or handle.closed}
        """The positions of partitions that are not read any more."""
        for number in mine:
            if number in self._ended:
                continue
            at = before.get(number, {})
            reader = source.open(number, partitions, at.get("position"))
            # Checkpoints of earlier versions have the input's own time only.
            floor = at.get("floor", at.get("time", handle.kind.minimum))
            self._readers[number] = _Open(reader, floor, idle=at.get("idle", False))
        # All are there before the first says how far it is, or the input would not wait for them.
        for number, each in self._readers.items():
            each.partition = handle.partition(number, floor=each.floor, idle=each.idle)
            each.partition.heard_at = clock()
        if not self._readers:
            self.close()

    @property
    def is_open(self) -> bool:
        """Whether records may still come."""
        return not self.handle.closed

    @property
    def ready_at(self) -> float | None:
        """When to read again, if all partitions know."""
        readers = [each for each in self._readers.values() if not self._is_held(each)]
        times = [each.reader.ready_at for each in readers if not each.reader.ended]
        known = [at for at in times if at is not None]
        return min(known, default=None) if len(known) == len(times) else None

    @property
    def state(self) -> tuple[int, bool]:
        """How far the input is on this worker, and whether all its partitions here are idle."""
        return self.handle.time, self.handle.idle

    def read(self) -> bool:
        """Ask each partition once; returns whether there was anything."""
        if self.handle.closed:
            return False
        read = False
        for each in self._readers.values():
            read = self._read_one(each) or read
        if all(each.reader.ended for each in self._readers.values()):
            self.close()
        return read

    def follow(self, time: int) -> None:
        """Advance to where other workers' partitions are, if all of this one's are idle."""
        if not self.handle.closed and self.handle.idle and self.handle.time < time:
            self.handle.advance_to(time)

    def positions(self) -> dict[str, dict[str, Any]]:
        """Where each partition is: what `known` will be after a restart."""
        found = {str(partition): dict(at) for partition, at in self._ended.items()}
        for number, each in self._readers.items():
            if each.reader.position is None:
                raise GraphError(
                    f"the source of input {self.name!r} cannot tell its position, so that there "
                    "can be no checkpoints: see jeton.connectors.sources.Reader.position"
                )
            found[str(number)] = {
                "position": each.reader.position,
                "ended": each.reader.ended,
                "floor": each.partition.floor,
                "idle": each.partition.idle,
            }
        return found

    def close(self) -> None:
        """No more records from here."""
        self.handle.close()

    def _read_one(self, each: _Open) -> bool:
        reader, partition = each.reader, each.partition
        if partition.ended:
            return False
        if self._is_held(each):
            # After a restart, the input is behind its partitions until one of them says so.
            self.handle.settle()
            return False
        records = reader.read()
        if records is not None:
            partition.send(records)
        if reader.ended:
            partition.close()
            return records is not None
        floor = None if reader.floor is None else self.handle.check(reader.floor)
        if floor is not None and partition.floor < floor:
            partition.advance_to(floor)
        if records is not None:
            partition.heard_at = self._clock()
        elif not partition.idle and self._is_idle(partition):
            partition.mark_idle()
        return records is not None

    def _is_held(self, each: _Open) -> bool:
        """Whether a partition has passed a breakpoint, and waits there for the others."""
        at = self.handle.held_from
        return at is not None and each.partition.floor >= at

    def _is_idle(self, partition: Partition) -> bool:
        """Whether a partition has had no records for as long as the input waits."""
        after = self.handle.idle_after
        return after is not None and self._clock() - partition.heard_at >= after


class _Open:
    """A partition that is read: its reader, and its end of the input."""

    partition: Partition

    def __init__(self, reader: Reader, floor: int, *, idle: bool) -> None:
        self.reader = reader
        self.floor = floor
        self.idle = idle
        """Whether it was idle when the query stopped."""
