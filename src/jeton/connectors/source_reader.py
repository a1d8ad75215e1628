"""Source readers: the inputs of a long-lived query on one worker, and the partitions they read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from jeton.connectors.sources import Reader, Source
from jeton.core.errors import GraphError
from jeton.dataflow.inputs import InputHandle
from jeton.dataflow.partitions import Partition
from jeton.runtime.read_ahead import ReadAhead

_ROW: Final = 64
"""Bytes of a row, where nothing is known of it."""

Partitions: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Partitions of a source by their names: where to read each, and what is known of it."""


class SourceReader:
    """An input on one worker, and the partitions of its source that this worker reads.

    ``partitions`` has their names. Each has the ``position`` to start at, and after a restart what
    else was known of it when the query stopped: see `positions`.

    >>> import jeton as jt
    >>> from jeton.connectors.sources import Batches
    >>> from jeton.runtime.agent import Agent
    >>> flow = jt.Flow("fed")
    >>> flow.output("out", flow.input("n"))
    >>> source = Batches(lambda partition, partitions: iter([{"time": [3]}, {"time": [4]}]))
    >>> def reader(partitions):
    ...     handle = Agent(flow).worker.handles[flow.handle("input", "n")]
    ...     return SourceReader("n", handle, source, partitions)
    >>> before = reader({"0/1": {"position": None}})
    >>> before.read(), before.positions()
    (True, {'0/1': {'position': 1, 'ended': False, 'floor': -9223372036854775808, 'idle': False}})
    >>> after = reader(before.positions())
    >>> after.read(), after.read(), after.positions()["0/1"]["position"]
    (True, False, 2)

    A partition without records for as long as the input's ``idle_after`` says, by ``clock``, holds
    the input back no longer. If all partitions of this worker are idle, or it has none yet,
    `follow` lets the input advance with those of the others.
    """

    def __init__(
        self,
        name: str,
        handle: InputHandle,
        source: Source,
        partitions: Partitions,
        clock: Callable[[], float] = time.monotonic,
        ahead: Callable[[], ReadAhead] | None = None,
    ) -> None:
        """``ahead`` makes the measure of how far a partition is ahead, if it waits for others."""
        self.name = name
        self.handle = handle
        self._source = source
        self._grows = source.discover_every is not None
        self._clock = clock
        self._ahead = ahead
        self._readers: dict[str, _Open] = {}
        self._ended: dict[str, Mapping[str, Any]] = {}
        """The positions of partitions that are not read any more."""
        self.add(partitions)
        if not self._readers and not self._grows:
            self.close()

    def add(self, partitions: Partitions) -> None:
        """Read these partitions too, from now on; those that it knows already are left alone."""
        opened: dict[str, _Open] = {}
        for name, at in partitions.items():
            if name in self._readers or name in self._ended:
                continue
            if at.get("ended", False) or self.handle.closed:
                self._ended[name] = at
                continue
            reader = self._source.open(name, at["position"])
            # Checkpoints of earlier versions have the input's own time only.
            floor = at.get("floor", at.get("time", self.handle.kind.minimum))
            ahead = None if self._ahead is None else self._ahead()
            opened[name] = _Open(reader, floor, ahead, idle=at.get("idle", False))
        # All are there before the first says how far it is, or the input would not wait for them.
        for name, each in opened.items():
            each.partition = self.handle.partition(name, floor=each.floor, idle=each.idle)
            each.partition.heard_at = self._clock()
        self._readers |= opened

    @property
    def is_open(self) -> bool:
        """Whether records may still come."""
        return not self.handle.closed

    @property
    def ready_at(self) -> float | None:
        """When to read again, if all partitions know."""
        readers = [
            each
            for each in self._readers.values()
            if not self._is_held(each) and not each.reader.ended
        ]
        times = [each.until if each.is_ahead else each.reader.ready_at for each in readers]
        known = [at for at in times if at is not None]
        return min(known, default=None) if len(known) == len(times) else None

    @property
    def rejected(self) -> int:
        """Records that could not be read, and have been put elsewhere."""
        return sum(each.reader.rejected for each in self._readers.values())

    @property
    def state(self) -> tuple[int, bool]:
        """How far the input is on this worker, and whether all its partitions here are idle."""
        return self.handle.time, self._is_idle

    def read(self) -> bool:
        """Ask each partition once; returns whether there was anything."""
        if self.handle.closed:
            return False
        read = False
        for each in self._readers.values():
            read = self._read_one(each) or read
        if not self._grows and all(each.reader.ended for each in self._readers.values()):
            self.close()
        return read

    def follow(self, time: int) -> None:
        """Advance to where other workers' partitions are, if all of this one's are idle."""
        if not self.handle.closed and self._is_idle and self.handle.time < time:
            self.handle.advance_to(time)

    def positions(self) -> dict[str, dict[str, Any]]:
        """Where each partition is: what a restart has to know."""
        found = {name: dict(at) for name, at in self._ended.items()}
        for name, each in self._readers.items():
            if each.reader.position is None:
                raise GraphError(
                    f"the source of input {self.name!r} cannot tell its position, so that there "
                    "can be no checkpoints: see jeton.connectors.sources.Reader.position"
                )
            found[name] = {
                "position": each.reader.position,
                "ended": each.reader.ended,
                "floor": each.partition.floor,
                "idle": each.partition.idle,
            }
        return found

    def close(self) -> None:
        """No more records from here."""
        self.handle.close()

    def release(self) -> None:
        """Close all readers: positions have been taken."""
        for each in self._readers.values():
            if not each.partition.ended:
                each.reader.close()

    @property
    def _is_idle(self) -> bool:
        """Whether the input waits for no partition here."""
        return self.handle.idle or not self._readers

    def _read_one(self, each: _Open) -> bool:
        reader, partition = each.reader, each.partition
        if partition.ended:
            return False
        if self._is_held(each):
            # After a restart, the input is behind its partitions until one of them says so.
            self.handle.settle()
            return False
        if each.is_ahead:
            partition.heard_at = self._clock()
            return False
        records = reader.read()
        if records is not None:
            self._send(each, records)
        if reader.ended:
            partition.close()
            reader.close()
            return records is not None
        floor = None if reader.floor is None else self.handle.check(reader.floor)
        if floor is not None and partition.floor < floor:
            partition.advance_to(floor)
        if records is not None:
            partition.heard_at = self._clock()
        elif not partition.idle and self._is_silent(partition):
            partition.mark_idle()
        return records is not None

    def _send(self, each: _Open, records: Any) -> None:
        """Send records of a partition, and note how many bytes of them wait for times to pass."""
        handle, partition = self.handle, each.partition
        sent, late = handle.sent_count, handle.late_count
        partition.send(records)
        if each.ahead is not None:
            rows = handle.sent_count - sent
            in_time = rows - (handle.late_count - late)
            if in_time:
                each.ahead.took(partition.floor, _size_of(records, rows) * in_time // rows)

    def _is_held(self, each: _Open) -> bool:
        """Whether a partition has passed a breakpoint, and waits there for the others."""
        at = self.handle.held_from
        return at is not None and each.partition.floor >= at

    def _is_silent(self, partition: Partition) -> bool:
        """Whether a partition has had no records for as long as the input waits."""
        after = self.handle.idle_after
        return after is not None and self._clock() - partition.heard_at >= after


class _Open:
    """A partition that is read: its reader, and its end of the input."""

    partition: Partition

    def __init__(self, reader: Reader, floor: int, ahead: ReadAhead | None, *, idle: bool) -> None:
        self.reader = reader
        self.floor = floor
        self.ahead = ahead
        self.idle = idle
        """Whether it was idle when the query stopped."""

    @property
    def is_ahead(self) -> bool:
        """Whether it has read enough beyond the slowest one of all workers."""
        return self.ahead is not None and self.ahead.is_enough()

    @property
    def until(self) -> float | None:
        """When it is read again in any case, if it is ahead."""
        return None if self.ahead is None else self.ahead.until


def _size_of(records: Any, rows: int) -> int:
    """The bytes of records, about: not all that sources return know them.

    >>> _size_of({"time": [1, 2]}, 2)
    128
    """
    size = getattr(records, "nbytes", None)
    return size if isinstance(size, int) else _ROW * rows
