"""The mesh: direct connections between all workers of a run, each a process of its own.

Between two workers there are two links: one for data, whose reading stops while the reader has
more than enough to do, so that back-pressure reaches the sender; and one for progress, which never
waits behind data. Unix sockets join workers on one machine, TCP those on different ones.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jeton.core.errors import JetonError, ProtocolError
from jeton.core.times import Time
from jeton.dataflow.batch import Batch
from jeton.progress.protocol import ProgressBatch
from jeton.worker.handshake import HandshakeError, answer, greet
from jeton.worker.link import Link, PeerLost
from jeton.worker.network import Receiver
from jeton.worker.wire import HEADER, Decoder, Encoder, Kind

log = logging.getLogger(__name__)

DATA: Final = 0
CONTROL: Final = 1

HEARTBEAT: Final = 2.0
SILENCE: Final = 30.0
"""A peer that says nothing for so long, not even a heartbeat, counts as lost."""


class PeerFailed(JetonError):
    """A peer stopped because of an error of its own, which it tells."""


@dataclass(frozen=True)
class Address:
    """Where a worker can be reached: by path from the same machine, by host and port from any."""

    machine: str
    path: str
    host: str
    port: int


class Doorway:
    """A worker's listening sockets; strangers are refused and logged for as long as it stands."""

    def __init__(self, secret: bytes, host: str = "127.0.0.1") -> None:
        self._secret = secret
        self._epoch: int | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="jeton-")
        path = str(Path(self._folder.name) / "worker")
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._unix.bind(path)
        self._tcp = socket.create_server((host, 0))
        self.address = Address(machine_id(), path, host, self._tcp.getsockname()[1])
        self._arrived: dict[tuple[int, int], socket.socket] = {}
        self._changed = threading.Condition()
        self._closed = False
        self.refused = 0
        for listener in (self._unix, self._tcp):
            listener.listen()
            threading.Thread(target=self._listen, args=(listener,), daemon=True).start()

    def open(self, epoch: int) -> None:
        """Let workers of this epoch in; whoever came before waits until then."""
        with self._changed:
            self._epoch = epoch
            self._changed.notify_all()

    def await_peer(self, worker: int, purpose: int, deadline: float) -> socket.socket:
        """The connection that a worker makes for a purpose."""
        with self._changed:
            key = (worker, purpose)
            left = deadline - time.monotonic()
            if not self._changed.wait_for(lambda: key in self._arrived, timeout=max(left, 0)):
                raise PeerLost(f"worker {worker} did not connect in time")
            return self._arrived.pop(key)

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        for listener in (self._unix, self._tcp):
            # A thread that waits in accept() is not woken by close() alone.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._folder.cleanup()

    def _listen(self, listener: socket.socket) -> None:
        while not self._closed:
            try:
                sock, where = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._admit, args=(sock, where), daemon=True).start()

    def _admit(self, sock: socket.socket, where: object) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._epoch is not None, timeout=30.0)
        try:
            worker, purpose = answer(sock, self._secret, self._epoch or 0)
        except (HandshakeError, OSError) as error:
            self.refused += 1
            log.warning("refused a connection from %s: %s", where or "this machine", error)
            sock.close()
            return
        with self._changed:
            self._arrived[worker, purpose] = sock
            self._changed.notify_all()


class Mesh:
    """One worker's links to all others."""

    def __init__(
        self,
        worker: int,
        addresses: Mapping[int, Address],
        doorway: Doorway,
        secret: bytes,
        epoch: int,
        *,
        timeout: float = 30.0,
    ) -> None:
        self.worker = worker
        self.workers = len(addresses)
        self.progress_batches = 0
        self.messages = 0
        self._receiver: Receiver | None = None
        self._selector = selectors.DefaultSelector()
        self._data: dict[int, Link] = {}
        self._control: dict[int, Link] = {}
        self._encoders: dict[int, Encoder] = {}
        self._decoders: dict[int, Decoder] = {}
        self._heard: dict[int, float] = {}
        self._spoke = 0.0
        self._paused = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        doorway.open(epoch)
        deadline = time.monotonic() + timeout
        for peer in sorted(addresses):
            if peer != worker:
                self._join(peer, addresses[peer], doorway, secret, epoch, deadline)

    def _join(
        self,
        peer: int,
        address: Address,
        doorway: Doorway,
        secret: bytes,
        epoch: int,
        deadline: float,
    ) -> None:
        """The lower number connects, the higher one waits for it."""
        for purpose, links in ((DATA, self._data), (CONTROL, self._control)):
            if self.worker < peer:
                sock = _connect(address)
                greet(sock, secret, self.worker, epoch, purpose)
            else:
                sock = doorway.await_peer(peer, purpose, deadline)
            link = links[peer] = Link(sock, peer)
            self._selector.register(sock, selectors.EVENT_READ, link)
        self._encoders[peer] = Encoder()
        self._decoders[peer] = Decoder()
        self._heard[peer] = time.monotonic()

    def attach(self, receiver: Receiver) -> None:
        """Say where what arrives goes."""
        self._receiver = receiver

    # What workers call

    def send_message(self, to: int, location: int, time: Time, batch: Batch) -> None:
        """Send a message to another worker."""
        self.messages += 1
        link = self._data[to]
        link.send(self._encoders[to].message(location, time, batch))
        self._mind(link)

    def send_progress(self, to: int, batch: ProgressBatch) -> None:
        """Send a progress batch to another worker."""
        self.progress_batches += 1
        link = self._control[to]
        link.send(self._encoders[to].progress(batch))
        self._mind(link)

    # What the host calls

    @property
    def backlog(self) -> int:
        """The most bytes that wait to go out to one peer."""
        return max((link.waiting for link in self._data.values()), default=0)

    def poll(self, timeout: float = 0.0) -> bool:
        """Receive what has arrived and send what waits, after at most ``timeout`` seconds."""
        did = False
        for key, events in self._selector.select(timeout):
            link = key.data
            if link is None:
                self._drain_wake()
                did = True
                continue
            if events & selectors.EVENT_WRITE and link.flush():
                self._selector.modify(link.sock, self._interest(link), link)
            if events & selectors.EVENT_READ:
                did = self._receive(link) or did
        return did

    def beat(self) -> None:
        """Show that this worker lives, and check that the others do; call it now and then."""
        now = time.monotonic()
        if now - self._spoke > HEARTBEAT:
            self._spoke = now
            for link in self._control.values():
                if not link.closing:
                    link.send([HEADER.pack(Kind.HEARTBEAT, self.worker, 0)])
                    self._mind(link)
        for peer, heard in self._heard.items():
            if now - heard > SILENCE and not self._control[peer].closing:
                raise PeerLost(f"worker {peer} has said nothing for {SILENCE:.0f} seconds")

    def pause(self, paused: bool) -> None:
        """Stop or go on reading data, so that peers feel that this worker has enough."""
        if paused != self._paused:
            self._paused = paused
            for link in self._data.values():
                self._mind(link, always=True)

    def wake(self) -> None:
        """Make `poll` return at once; safe from any thread."""
        # A full socket has woken it already; a closed one has nothing left to wake.
        with suppress(OSError):
            self._wake_out.send(b"!")

    def fail(self, text: str) -> None:
        """Tell all peers why this worker stops."""
        told = text.encode()[:65_536]
        for link in self._control.values():
            try:
                link.send([HEADER.pack(Kind.FAILED, self.worker, len(told)), told])
            except JetonError:
                continue

    def say_goodbye(self, timeout: float = 30.0) -> None:
        """Leave in good order: everything is sent, and every peer has said good-bye too."""
        links = [*self._data.values(), *self._control.values()]
        for link in links:
            link.send([HEADER.pack(Kind.GOODBYE, self.worker, 0)])
            self._mind(link)
        deadline = time.monotonic() + timeout
        while any(link.waiting or not link.closing for link in links):
            if time.monotonic() > deadline:
                raise PeerLost("a worker did not say good-bye in time")
            for link in links:
                link.flush()
            self.poll(0.01)

    def close(self) -> None:
        """Close all links."""
        for link in [*self._data.values(), *self._control.values()]:
            link.close()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    # Inside

    def _receive(self, link: Link) -> bool:
        peer = link.peer
        decoder = self._decoders[peer]
        receiver = self._receiver
        assert receiver is not None, "attach a receiver before polling"
        did = False
        for kind, number, payload in link.receive():
            did = True
            if kind == Kind.MESSAGE:
                receiver.receive_message(number, *decoder.message(payload))
            elif kind == Kind.PROGRESS:
                receiver.receive_progress(decoder.progress(payload))
            elif kind == Kind.LAYOUT:
                decoder.layout(number, payload)
            elif kind == Kind.GOODBYE:
                link.closing = True
            elif kind == Kind.FAILED:
                raise PeerFailed(f"worker {peer} failed: {bytes(payload).decode()}")
            elif kind != Kind.HEARTBEAT:
                raise ProtocolError(f"worker {peer} sent a frame of kind {kind}")
        self._heard[peer] = time.monotonic()
        if link.closing:
            self._selector.unregister(link.sock)
        return did

    def _interest(self, link: Link) -> int:
        reading = not (self._paused and link is self._data.get(link.peer))
        events = selectors.EVENT_READ if reading else 0
        return events | (selectors.EVENT_WRITE if link.waiting else 0)

    def _mind(self, link: Link, *, always: bool = False) -> None:
        """Ask the selector about what the link waits for now."""
        if (link.waiting or always) and not link.closing:
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


def _connect(address: Address) -> socket.socket:
    if address.machine == machine_id() and os.path.exists(address.path):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(address.path)
        return sock
    sock = socket.create_connection((address.host, address.port), timeout=10.0)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def machine_id() -> str:
    """Something that differs between machines, and between starts of one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
