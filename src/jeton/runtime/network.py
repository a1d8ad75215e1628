"""The traffic between workers: messages on channels, and progress batches.

Both are first in, first out between two workers; nothing is promised between the two kinds. An
agent reaches the other workers through its `Peers`: a mesh of sockets, a simulated network, or
none at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from threading import Event
from typing import Protocol

from jeton.columns.batch import Batch
from jeton.core.times import Time
from jeton.progress.protocol import ProgressBatch
from jeton.runtime.quiescence import STALL, Rounds


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

    def receive_progress(self, batches: Sequence[ProgressBatch]) -> None:
        """Progress batches of one worker arrive together, in their order."""
        ...


class Peers(Network, Protocol):
    """One worker's connections to all others, as its agent uses them."""

    messages: int
    """Messages that were sent."""
    progress_batches: int
    """Progress batches that were sent."""
    progress_bytes: int
    messages_in: int
    """Messages that were received."""
    progress_in: int
    """Progress batches that were received."""
    message_bytes: int
    """Bytes of messages that were received."""

    @property
    def rounds(self) -> Rounds:
        """This worker's part in coming to rest together."""
        ...

    @property
    def backlog(self) -> int:
        """The most bytes that wait to go out to one peer."""
        ...

    @property
    def busy_peers(self) -> Collection[int]:
        """The peers that have asked that sources wait."""
        ...

    def attach(self, receiver: Receiver) -> None:
        """Set the receiver of incoming messages."""
        ...

    def poll(self, timeout: float = 0.0) -> bool:
        """Receive what has arrived and send what waits, after at most ``timeout`` seconds."""
        ...

    def wake(self) -> None:
        """Make `poll` return at once; safe from any thread."""
        ...

    def beat(self) -> None:
        """Show that this worker lives, and check that the others do."""
        ...

    def announce(self, busy: bool) -> None:
        """Tell all peers whether this worker has more than enough to do."""
        ...

    def pause(self, paused: bool) -> None:
        """Stop or go on reading data from peers."""
        ...

    def say_rest(self, number: int) -> None:
        """Tell all peers that this worker rests, in a round."""
        ...

    def begin_goodbye(self) -> None:
        """Tell all peers that nothing more will come from here."""
        ...


class Alone:
    """The peers of a single worker: none.

    >>> alone = Alone()
    >>> alone.wake()
    >>> alone.poll(60.0), alone.poll()
    (True, False)
    """

    messages = progress_batches = progress_bytes = 0
    messages_in = progress_in = message_bytes = backlog = 0
    busy_peers = ()

    def __init__(self) -> None:
        self.rounds = Rounds(0, 1, lambda payload: None)
        self._woken = Event()

    def send_message(self, to: int, location: int, time: Time, batch: Batch) -> None:
        """Refuse: there is no other worker."""
        raise AssertionError("a single worker sends nothing")

    def send_progress(self, to: int, batch: ProgressBatch) -> None:
        """Refuse: there is no other worker."""
        raise AssertionError("a single worker sends nothing")

    def attach(self, receiver: Receiver) -> None:
        """Do nothing: nothing arrives."""

    def poll(self, timeout: float = 0.0) -> bool:
        """Wait until another thread of this process wakes the worker."""
        woken = self._woken.wait(timeout) if timeout else self._woken.is_set()
        if woken:
            self._woken.clear()
        return woken

    def wake(self) -> None:
        """Make `poll` return at once."""
        self._woken.set()

    def beat(self) -> None:
        """Do nothing."""

    def announce(self, busy: bool) -> None:
        """Do nothing."""

    def pause(self, paused: bool) -> None:
        """Do nothing."""

    def say_rest(self, number: int) -> None:
        """Rest: that is rest of all."""
        self.rounds.say(number, sent=0, received=0)

    def begin_goodbye(self) -> None:
        """Do nothing."""


Packet = tuple[int, Time, Batch] | ProgressBatch | bytes
Lane = tuple[int, int, int]
"""From, to, and which channel: a location, ``PROGRESS`` or ``REST``."""

PROGRESS = -1
REST = -2


@dataclass(slots=True)
class SimulatedNetwork:
    """Lanes between workers in one process, delivered as the host decides."""

    wake: Callable[[], None] = lambda: None
    """Called when another thread wakes a worker."""
    ports: list[SimulatedPort] = field(default_factory=list)
    lanes: dict[Lane, deque[Packet]] = field(default_factory=dict)
    progress_batches: int = 0
    progress_changes: int = 0
    named_changes: int = 0
    """Of these, the changes on workers that are named."""
    messages: int = 0

    def port(self, worker: int) -> SimulatedPort:
        """One worker's way in; to be made in the order of the workers' numbers."""
        made = SimulatedPort(self, worker)
        self.ports.append(made)
        return made

    def put(self, lane: Lane, packet: Packet) -> None:
        """Put a packet on its lane."""
        queue = self.lanes.get(lane)
        if queue is None:
            queue = self.lanes[lane] = deque()
        queue.append(packet)

    def deliver_all(self) -> bool:
        """Deliver everything that is under way; returns whether there was anything."""
        lanes, self.lanes = self.lanes, {}
        for lane, queue in lanes.items():
            self._deliver(lane, queue)
        return bool(lanes)

    def deliver_some(self, random: Random) -> None:
        """Deliver a few packets of one lane, both chosen at random."""
        lane = random.choice(list(self.lanes))
        queue = self.lanes[lane]
        self._deliver(lane, [queue.popleft() for _ in range(random.randint(1, len(queue)))])
        if not queue:
            del self.lanes[lane]

    def _deliver(self, lane: Lane, packets: Iterable[Packet]) -> None:
        """Deliver packets of one lane; progress batches arrive together."""
        port = self.ports[lane[1]]
        batches: list[ProgressBatch] = []
        for packet in packets:
            if isinstance(packet, bytes):
                port.rounds.hear(lane[0], packet)
                continue
            assert port.receiver is not None, "attach a receiver before anything is delivered"
            if isinstance(packet, ProgressBatch):
                batches.append(packet)
            else:
                port.messages_in += 1
                port.receiver.receive_message(*packet)
        if batches:
            assert port.receiver is not None
            port.progress_in += len(batches)
            port.receiver.receive_progress(batches)

    def __bool__(self) -> bool:
        """Whether anything is under way."""
        return bool(self.lanes)


@dataclass(slots=True, eq=False)
class SimulatedPort:
    """One worker's way into the simulated network: the `Peers` of its agent."""

    network: SimulatedNetwork
    worker: int
    receiver: Receiver | None = None
    messages: int = 0
    progress_batches: int = 0
    messages_in: int = 0
    progress_in: int = 0
    progress_bytes: int = 0
    message_bytes: int = 0
    backlog: int = 0
    busy_peers: Collection[int] = ()
    _rounds: Rounds | None = None

    @property
    def rounds(self) -> Rounds:
        """This worker's part in coming to rest together."""
        # Made when needed: it has something for each worker, of which there may be thousands.
        if self._rounds is None:
            self._rounds = Rounds(self.worker, len(self.network.ports), self._tell_all)
        return self._rounds

    def attach(self, receiver: Receiver) -> None:
        """Set the receiver of what is delivered."""
        self.receiver = receiver

    def send_message(self, to: int, location: int, time: Time, batch: Batch) -> None:
        """Put a message on its lane."""
        self.messages += 1
        self.network.messages += 1
        self.network.put((self.worker, to, location), (location, time, batch))

    def send_progress(self, to: int, batch: ProgressBatch) -> None:
        """Put a progress batch on its lane."""
        self.progress_batches += 1
        self.network.progress_batches += 1
        self.network.progress_changes += len(batch.changes) + len(batch.yours)
        if batch.named:
            self.network.progress_changes += len(batch.named)
            self.network.named_changes += len(batch.named)
        self.network.put((self.worker, to, PROGRESS), batch)

    def poll(self, timeout: float = 0.0) -> bool:
        """Do nothing: the host delivers."""
        return False

    def wake(self) -> None:
        """Tell the host that another thread has woken a worker."""
        self.network.wake()

    def beat(self) -> None:
        """Do nothing."""

    def announce(self, busy: bool) -> None:
        """Do nothing."""

    def pause(self, paused: bool) -> None:
        """Do nothing."""

    def say_rest(self, number: int) -> None:
        """Tell all peers that this worker rests, in a round; a stall is for the host to see."""
        if number == STALL:
            return
        sent, received = self.messages + self.progress_batches, self.messages_in + self.progress_in
        self.rounds.say(number, sent=sent, received=received)

    def begin_goodbye(self) -> None:
        """Do nothing."""

    def _tell_all(self, payload: bytes) -> None:
        for to in range(len(self.network.ports)):
            if to != self.worker:
                self.network.put((self.worker, to, REST), payload)
