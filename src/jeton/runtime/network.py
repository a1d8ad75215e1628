"""What workers say to each other: messages on channels, and progress batches.

Both are first in, first out between two workers; nothing is promised between the two kinds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from jeton.columns.batch import Batch
from jeton.core.times import Time
from jeton.progress.protocol import ProgressBatch


class Network(Protocol):
    """One worker's way to all others."""

    def send_message(self, to: int, location: int, time: Time, batch: Batch) -> None:
        """Send a message to an input of an operator on another worker."""
        ...

    def send_progress(self, to: int, batch: ProgressBatch) -> None:
        """Send a progress batch to another worker."""
        ...


class Receiver(Protocol):
    """Where what was sent arrives."""

    def receive_message(self, location: int, time: Time, batch: Batch) -> None:
        """A message arrives."""
        ...

    def receive_progress(self, batch: ProgressBatch) -> None:
        """A progress batch arrives."""
        ...


Packet = tuple[int, Time, Batch] | ProgressBatch
Lane = tuple[int, int, int]
"""From, to, and which channel: a location, or ``PROGRESS``."""

PROGRESS = -1


@dataclass(slots=True)
class SimulatedNetwork:
    """Lanes between workers in one process, delivered as the host decides."""

    receivers: list[Receiver] = field(default_factory=list)
    lanes: dict[Lane, deque[Packet]] = field(default_factory=dict)
    progress_batches: int = 0
    progress_changes: int = 0
    messages: int = 0

    def port(self, worker: int) -> SimulatedPort:
        """One worker's way in."""
        return SimulatedPort(self, worker)

    def put(self, lane: Lane, packet: Packet) -> None:
        """Put a packet on its lane."""
        queue = self.lanes.get(lane)
        if queue is None:
            queue = self.lanes[lane] = deque()
        queue.append(packet)

    def deliver_all(self) -> bool:
        """Deliver everything that is under way; tells whether there was anything."""
        lanes, self.lanes = self.lanes, {}
        for lane, queue in lanes.items():
            for packet in queue:
                self._deliver(lane[1], packet)
        return bool(lanes)

    def deliver_some(self, random: Random) -> None:
        """Deliver a few packets of one lane, both chosen at random."""
        lane = random.choice(list(self.lanes))
        queue = self.lanes[lane]
        for _ in range(random.randint(1, len(queue))):
            self._deliver(lane[1], queue.popleft())
        if not queue:
            del self.lanes[lane]

    def _deliver(self, to: int, packet: Packet) -> None:
        if isinstance(packet, ProgressBatch):
            self.receivers[to].receive_progress(packet)
        else:
            self.receivers[to].receive_message(*packet)

    def __bool__(self) -> bool:
        """Whether anything is under way."""
        return bool(self.lanes)


@dataclass(slots=True)
class SimulatedPort:
    """One worker's way into the simulated network."""

    network: SimulatedNetwork
    worker: int

    def send_message(self, to: int, location: int, time: Time, batch: Batch) -> None:
        """Put a message on its lane."""
        self.network.messages += 1
        self.network.put((self.worker, to, location), (location, time, batch))

    def send_progress(self, to: int, batch: ProgressBatch) -> None:
        """Put a progress batch on its lane."""
        self.network.progress_batches += 1
        self.network.progress_changes += len(batch.changes)
        self.network.put((self.worker, to, PROGRESS), batch)
