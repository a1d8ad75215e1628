"""The mesh: direct connections between all workers of a run, each a process of its own.

Between two workers there are two links: one for data, whose reading stops while the reader has
more than enough to do, so that back-pressure reaches the sender; and one for progress, which never
waits behind data. Workers on one machine share memory (see `ring`), and wake each other by Unix
sockets; those on different ones are joined by TCP, with TLS (see `tls`) where it is asked for.

A worker that stops early sends the reason on all its progress links, or forwards the one that it
received, so that all fail with the first cause. A worker that cannot send anything any more is
noticed by its sockets, which its system closes, or by its lifeline (see `liveness`) if its machine
is gone. A worker that is busy, in an operator or in Spark, is not lost, for any length of time.
"""

from __future__ import annotations

import logging
import mmap
import selectors
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from jeton.columns.batch import Batch
from jeton.core.errors import JetonError, ProtocolError, summary
from jeton.core.times import Time
from jeton.mesh.link import Link, PeerLost
from jeton.mesh.listener import Address, Listener
from jeton.mesh.liveness import Keepalive, Lifeline, prepare
from jeton.mesh.open_files import make_room_for
from jeton.mesh.ring import SUPPORTED
from jeton.mesh.shared_link import SharedLink, accept_memory, is_accepted, offer_memory, ring_size
from jeton.mesh.tls_link import link_over
from jeton.mesh.wire import HEADER, MESSAGE, PROGRESS, Buffer, Decoder, Encoder, Kind
from jeton.progress.protocol import ProgressBatch
from jeton.runtime.network import Receiver
from jeton.runtime.quiescence import Rounds

log = logging.getLogger(__name__)

DATA, CONTROL, LIFELINE = range(3)

HEARTBEAT: Final = 2.0
SILENCE: Final = 30.0
"""Seconds without a byte from a peer, not even a heartbeat, after which the log mentions it."""
LAST_WORDS: Final = 1.0
"""Seconds to wait for the last frames of a peer whose connection broke."""
CONTROL_RING: Final = 1 << 18
"""Bytes of a ring for progress."""
SOCKETS_EVERY: Final = 16
"""Polls of shared memory after which sockets are polled too, where nothing is sent on them."""


class PeerFailed(JetonError):
    """A peer stopped because of an error, which it reported."""

    def __init__(self, peer: int, text: str) -> None:
        super().__init__(f"worker {peer} failed: {text}")
        self.peer = peer
        """The worker that failed first."""
        self.text = text
        """Its report, with its traceback."""


class Mesh:
    """One worker's links to all others."""

    def __init__(
        self,
        worker: int,
        addresses: Mapping[int, Address],
        listener: Listener,
        epoch: int,
        *,
        timeout: float = 30.0,
        keepalive: Keepalive | None = None,
        share_memory: bool = SUPPORTED,
    ) -> None:
        """``share_memory`` lets workers of one machine pass bytes in memory, if all say so."""
        self.worker = worker
        self.workers = len(addresses)
        self.messages = self.progress_batches = self.progress_bytes = 0
        self._receiver: Receiver | None = None
        self._selector = selectors.DefaultSelector()
        self._data: dict[int, Link] = {}
        self._control: dict[int, Link] = {}
        self._lifelines: list[Link | Lifeline] = []
        self._shared: list[SharedLink] = []
        self._polls = 0
        self._encoders: dict[int, Encoder] = {}
        self._decoders: dict[int, Decoder] = {}
        self._heard: dict[int, float] = {}
        self._spoke = 0.0
        self._paused = False
        self._leaving = False
        self._busy = False
        self._busy_peers: set[int] = set()
        self._silent: set[int] = set()
        self._broken: PeerLost | None = None
        self.message_bytes = 0
        """Bytes of messages that have come from peers."""
        self.messages_in = 0
        self.progress_in = 0
        self.rounds = Rounds(worker, self.workers, partial(self._send_all, Kind.REST, worker))
        """The exchange by which workers come to rest together."""
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        # Two links and a lifeline, or two links whose memory takes a file each.
        make_room_for(4 * self.workers)
        listener.open(epoch)
        deadline = time.monotonic() + timeout
        peers = [peer for peer in sorted(addresses) if peer != worker]
        try:
            for peer in peers:
                self._join(peer, addresses[peer], listener, deadline, keepalive or Keepalive())
            if share_memory:
                self._share_memory(deadline)
            for link in (*self._data.values(), *self._control.values()):
                self._selector.register(link.sock, selectors.EVENT_READ, link)
        except BaseException:
            self.close()
            raise
        # All peers have joined: nothing else may connect.
        listener.close()

    def _join(
        self, peer: int, address: Address, listener: Listener, deadline: float, keepalive: Keepalive
    ) -> None:
        def connection(purpose: int) -> socket.socket:
            sock = listener.join(self.worker, peer, address, purpose, deadline)
            return prepare(sock, keepalive)

        for purpose, links in ((DATA, self._data), (CONTROL, self._control)):
            links[peer] = link_over(connection(purpose), peer)
        if self._data[peer].sock.family != socket.AF_UNIX:
            lifeline = Lifeline(connection(LIFELINE), peer)
            self._lifelines.append(lifeline)
            self._selector.register(lifeline.sock, selectors.EVENT_READ, lifeline)
        self._encoders[peer] = Encoder()
        self._decoders[peer] = Decoder()
        self._heard[peer] = time.monotonic()

    def _share_memory(self, deadline: float) -> None:
        """Have the links to workers of this machine go through memory; the lower number makes it.

        All offers come first, then all answers, and only then are answers read, so that no worker
        waits for one that waits for it. If a peer has gone meanwhile, the first poll fails, when
        all others can be told who it was.
        """
        sizes = ((self._data, ring_size(self.workers)), (self._control, CONTROL_RING))
        local = [
            (links, peer, size)
            for links, size in sizes
            for peer, link in links.items()
            if link.sock.family == socket.AF_UNIX
        ]
        offered: list[tuple[dict[int, Link], int, mmap.mmap]] = []
        for links, peer, size in local:
            if self.worker < peer:
                made = offer_memory(links[peer].sock, size)
                if made is not None:
                    offered.append((links, peer, made))
        for links, peer, size in local:
            if self.worker > peer:
                try:
                    mapped = accept_memory(links[peer].sock, size, peer, deadline)
                except PeerLost as error:
                    self._broken = self._broken or error
                    continue
                if mapped is not None:
                    self._share(links, peer, mapped)
        for links, peer, memory in offered:
            accepted = False
            try:
                accepted = is_accepted(links[peer].sock, peer, deadline)
            except PeerLost as error:
                self._broken = self._broken or error
            if accepted:
                self._share(links, peer, memory)
            else:
                memory.close()

    def _share(self, links: dict[int, Link], peer: int, memory: mmap.mmap) -> None:
        """Have a link go through memory."""
        shared = SharedLink(links[peer].sock, peer, memory, first=self.worker < peer)
        links[peer] = shared
        self._shared.append(shared)

    def attach(self, receiver: Receiver) -> None:
        """Set the receiver of messages and progress."""
        self._receiver = receiver

    # Called by workers

    def send_message(self, to: int, location: int, time: Time, batch: Batch) -> None:
        """Send a message to another worker."""
        self.messages += 1
        self._send(self._data[to], self._encoders[to].message(location, time, batch))

    def send_progress(self, to: int, batch: ProgressBatch) -> None:
        """Send a progress batch to another worker."""
        buffers = self._encoders[to].progress(batch)
        self.progress_batches += 1
        self.progress_bytes += sum(map(len, buffers))
        self._send(self._control[to], buffers)

    # Called by the host

    @property
    def backlog(self) -> int:
        """The most bytes that wait to go out to one peer."""
        most = 0
        for link in self._data.values():
            if link.waiting > most:
                most = link.waiting
        return most

    @property
    def busy_peers(self) -> Collection[int]:
        """The peers that have asked that sources wait."""
        return self._busy_peers

    def poll(self, timeout: float = 0.0) -> bool:
        """Receive arrived frames and send waiting ones, after at most ``timeout`` seconds."""
        try:
            if self._broken is not None:
                raise self._broken
            return self._poll(timeout)
        except PeerLost as error:
            self._hear_last_words(error.peer)
            raise

    def _poll(self, timeout: float) -> bool:
        shared = self._shared
        if not shared:
            return self._poll_sockets(timeout)
        did = self._poll_memory()
        if did or not timeout:
            self._polls += 1
            if self._polls % SOCKETS_EVERY and len(shared) == 2 * len(self._data):
                return did
            return self._poll_sockets(0.0) or did
        for link in shared:
            link.before_waiting()
        # Something may have come before the peers knew that they have to wake this worker.
        did = self._poll_memory()
        did = self._poll_sockets(0.0 if did else timeout) or did
        for link in shared:
            link.after_waiting()
        return self._poll_memory() or did

    def _poll_memory(self) -> bool:
        """Receive frames from memory, and send waiting ones."""
        did = False
        for link in self._shared:
            if link.waiting:
                link.flush()
            if link.has_bytes and not self._leaves_alone(link):
                did = self._receive(link) or did
        return did

    def _poll_sockets(self, timeout: float) -> bool:
        did = False
        for key, events in self._selector.select(timeout):
            link = key.data
            if link is None:
                self._drain_wake()
                did = True
                continue
            if type(link) is Lifeline:
                self._check(link)
                continue
            if type(link) is SharedLink:
                link.listen()
                if not self._leaves_alone(link):
                    did = self._receive(link) or did
                continue
            if events & selectors.EVENT_WRITE and link.flush():
                self._update_interest(link)
            if events & selectors.EVENT_READ:
                did = self._receive(link) or did
        return did

    def beat(self) -> None:
        """Show that this worker lives, and check that the others do; call it now and then."""
        now = time.monotonic()
        if now - self._spoke > HEARTBEAT:
            self._spoke = now
            self._send_all(Kind.HEARTBEAT, self.worker)
        for peer, heard in self._heard.items():
            if now - heard <= SILENCE or self._control[peer].closing:
                self._silent.discard(peer)
            elif peer not in self._silent:
                self._silent.add(peer)
                log.warning(
                    "worker %s has said nothing for %.0f seconds: its operators, or what it reads "
                    "from or writes to, take long",
                    peer,
                    SILENCE,
                )

    def say_rest(self, number: int) -> None:
        """Report that this worker has nothing left to do, once nothing waits to be sent."""
        if not any(link.waiting for link in (*self._data.values(), *self._control.values())):
            sent = self.messages + self.progress_batches
            self.rounds.say(number, sent=sent, received=self.messages_in + self.progress_in)

    def announce(self, busy: bool) -> None:
        """Report to all peers that this worker has more than enough to do, or no longer has."""
        if busy != self._busy:
            self._busy = busy
            self._send_all(Kind.BUSY, int(busy))

    def pause(self, paused: bool) -> None:
        """Stop or resume reading data, so that back-pressure reaches the peers."""
        if paused != self._paused:
            self._paused = paused
            for link in self._data.values():
                self._update_interest(link)

    def wake(self) -> None:
        """Make `poll` return at once; safe from any thread."""
        # A full socket has woken it already; a closed one has nothing left to wake.
        with suppress(OSError):
            self._wake_out.send(b"!")

    def fail(self, error: BaseException, text: str = "") -> None:
        """Report to all peers why this worker stops: its own error, or that of another worker."""
        if isinstance(error, PeerLost):
            kind, number, text = Kind.LOST, error.peer, error.message
        elif isinstance(error, PeerFailed):
            kind, number, text = Kind.FAILED, error.peer, error.text
        else:
            kind, number = Kind.FAILED, self.worker
        reason = (text or summary(error)).encode()[:65_536]
        waiting = []
        for link in self._control.values():
            with suppress(JetonError):
                link.send([HEADER.pack(kind, number, len(reason)), reason])
                waiting.append(link)
        deadline = time.monotonic() + LAST_WORDS
        while waiting and time.monotonic() < deadline:
            still = []
            for link in waiting:
                link.before_waiting()
                with suppress(JetonError):
                    if not link.flush():
                        still.append(link)
            waiting = still
            _await(waiting, selectors.EVENT_WRITE, deadline)

    def begin_goodbye(self) -> None:
        """Announce that nothing more comes from here; from now on, arriving frames are dropped."""
        if not self._leaving:
            self._leaving = True
            self.pause(False)
            for link in (*self._data.values(), *self._control.values()):
                self._send(link, [HEADER.pack(Kind.GOODBYE, self.worker, 0)])

    def say_goodbye(self, timeout: float | None = None) -> None:
        """Leave in good order: everything is sent, and every peer has said good-bye too."""
        self.begin_goodbye()
        links = [*self._data.values(), *self._control.values()]
        deadline = None if timeout is None else time.monotonic() + timeout
        while any(link.waiting or not link.closing for link in links):
            if deadline is not None and time.monotonic() > deadline:
                late = sorted({link.peer for link in links if not link.closing})
                peer = late[0] if late else -1
                raise PeerLost(f"workers {late} did not say good-bye in time", peer)
            # A peer that has left is not watched any more, but may still wait for something.
            waiting = [link for link in links if link.waiting and link.closing]
            for link in waiting:
                link.flush()
            self.poll(0.01 if waiting else 0.5)
            self.beat()

    def close(self) -> None:
        """Close all links."""
        everything: list[Link | Lifeline] = [*self._data.values(), *self._control.values()]
        for link in everything + self._lifelines:
            link.close()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    # Inside

    def _check(self, lifeline: Lifeline) -> None:
        """A lifeline has ended: the peer has left, or its machine is gone."""
        peer = lifeline.peer
        said_goodbye = self._data[peer].closing and self._control[peer].closing
        if said_goodbye or not lifeline.check():
            self._selector.unregister(lifeline.sock)

    def _receive(self, link: Link) -> bool:
        peer = link.peer
        decoder = self._decoders[peer]
        receiver = self._receiver
        assert receiver is not None, "attach a receiver before polling"
        did = False
        self._heard[peer] = time.monotonic()
        progress: list[ProgressBatch] = []
        for kind, number, payload in link.receive():
            did = True
            if progress and kind != PROGRESS:
                receiver.receive_progress(progress)
                progress = []
            if kind == MESSAGE:
                if not self._leaving:
                    self.messages_in += 1
                    self.message_bytes += len(payload)
                    receiver.receive_message(number, *decoder.message(payload))
            elif kind == PROGRESS:
                if not self._leaving:
                    self.progress_in += 1
                    batch = decoder.progress(payload, number)
                    if batch.worker != peer:
                        raise ProtocolError(
                            f"worker {peer} sent a progress batch of worker {batch.worker}"
                        )
                    progress.append(batch)
            elif kind == Kind.LAYOUT:
                decoder.layout(number, payload)
            elif kind == Kind.GOODBYE:
                link.closing = True
                self._busy_peers.discard(peer)
            elif kind == Kind.BUSY:
                (self._busy_peers.add if number else self._busy_peers.discard)(peer)
            elif kind == Kind.REST:
                self.rounds.hear(peer, payload)
            elif kind in (Kind.FAILED, Kind.LOST):
                raise _last_words(kind, number, payload)
            elif kind != Kind.HEARTBEAT:
                raise ProtocolError(f"worker {peer} sent a frame of kind {kind}")
        if progress:
            receiver.receive_progress(progress)
        if link.closing and link.sock in self._selector.get_map():
            self._selector.unregister(link.sock)
        return did

    def _send(self, link: Link, buffers: list[Buffer]) -> None:
        """Send, or take note that the link is broken: `poll` is where that is raised."""
        if link.closing and self._leaving is False:
            # The peer has stopped: nothing that happens here matters to it any more.
            return
        try:
            link.send(buffers)
        except PeerLost as error:
            self._broken = self._broken or error
            return
        if link.waiting:
            self._update_interest(link)

    def _send_all(self, kind: Kind, number: int, payload: bytes = b"") -> None:
        # Good-bye is the last frame: peers read nothing after it.
        for link in () if self._leaving else self._control.values():
            if not link.closing:
                self._send(link, [HEADER.pack(kind, number, len(payload)), payload])

    def _hear_last_words(self, peer: int) -> None:
        """Raise the error that a peer reported before its connection broke, if it did."""
        link = self._control.get(peer)
        deadline = time.monotonic() + LAST_WORDS
        while link is not None and not link.closing and time.monotonic() < deadline:
            found: PeerFailed | PeerLost | None = None
            link.before_waiting()
            try:
                for kind, number, payload in link.receive():
                    if kind in (Kind.FAILED, Kind.LOST):
                        found = _last_words(kind, number, payload)
                        break
            except PeerLost:
                return
            if found is not None:
                raise found from None
            _await([link], selectors.EVENT_READ, deadline)

    def _leaves_alone(self, link: Link) -> bool:
        """Whether nothing is read from a link for now."""
        return self._paused and link is self._data.get(link.peer)

    def _interest(self, link: Link) -> int:
        events = 0 if self._leaves_alone(link) else selectors.EVENT_READ
        return events | (selectors.EVENT_WRITE if link.waiting else 0)

    def _update_interest(self, link: Link) -> None:
        """Register with the selector the events that the link waits for now."""
        if not link.closing and type(link) is not SharedLink:
            events = self._interest(link)
            registered = link.sock in self._selector.get_map()
            if not events:
                if registered:
                    self._selector.unregister(link.sock)
            elif registered:
                self._selector.modify(link.sock, events, link)
            else:
                self._selector.register(link.sock, events, link)

    def _drain_wake(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_in.recv(4096):
                pass


def _await(links: Sequence[Link], events: int, deadline: float) -> None:
    """Wait until one of the links may be ready, or until the deadline."""
    with selectors.DefaultSelector() as selector:
        for link in links:
            # The peer wakes this worker by a byte on the socket, whatever it waits for.
            shared = type(link) is SharedLink
            selector.register(link.sock, selectors.EVENT_READ if shared else events, link)
        for key, _ in selector.select(max(0.0, deadline - time.monotonic())) if links else ():
            if type(key.data) is SharedLink:
                key.data.listen()


def _last_words(kind: int, number: int, payload: Buffer) -> PeerFailed | PeerLost:
    text = bytes(payload).decode(errors="replace")
    return PeerLost(text, number) if kind == Kind.LOST else PeerFailed(number, text)
