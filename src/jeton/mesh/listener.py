"""The listener: where a worker's peers come in, and how they find it."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from jeton.mesh.acceptor import Acceptor
from jeton.mesh.binding import Binding
from jeton.mesh.certificates import Credentials
from jeton.mesh.handshake import Claim, HandshakeError, greet, reach
from jeton.mesh.link import PeerLost
from jeton.mesh.tls import tls_with

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """Where a worker can be reached: by path from the same machine, by host and port from any."""

    machine: str
    path: str
    host: str
    port: int


class Listener:
    """A worker's listening sockets, open until all peers have joined.

    Unauthenticated connections are refused and logged. With ``credentials``, TCP is under TLS.
    """

    def __init__(
        self,
        secret: bytes,
        host: str = "127.0.0.1",
        *,
        credentials: Credentials | None = None,
        binding: Binding | None = None,
    ) -> None:
        self._secret = secret
        self._tls = None if credentials is None else tls_with(credentials)
        self._epoch: int | None = None
        tcp = (binding or Binding()).listen(host)
        listeners = [tcp]
        self._folder = tempfile.TemporaryDirectory(prefix="jeton-", ignore_cleanup_errors=True)
        path = str(Path(self._folder.name) / "worker")
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            unix.bind(path)
            listeners.append(unix)
        except OSError as error:
            # Some systems' folders for temporary files have names that are too long for it.
            log.info("no Unix socket at %s, only TCP: %s", path, error)
            unix.close()
            path = ""
        self.address = Address(machine_id(), path, host, tcp.getsockname()[1])
        self._arrived: dict[tuple[int, int], socket.socket] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._acceptor = Acceptor(listeners, self, name="jeton-listener", tls=self._tls)

    @property
    def refused(self) -> int:
        """How many connections were turned away."""
        return self._acceptor.refused

    def open(self, epoch: int) -> None:
        """Let workers of this epoch in; those that came before have waited for it."""
        self._epoch = epoch
        self._acceptor.wake()

    def join(
        self, worker: int, peer: int, address: Address, purpose: int, deadline: float
    ) -> socket.socket:
        """A connection between two workers: the lower number connects, the higher one waits."""
        if worker > peer:
            return self._await(peer, purpose, deadline)
        try:
            return self._reach(worker, address, purpose, deadline)
        except OSError as error:
            raise PeerLost(f"worker {peer} cannot be reached: {error}", peer) from error

    def _await(self, worker: int, purpose: int, deadline: float) -> socket.socket:
        with self._changed:
            key = (worker, purpose)
            left = deadline - time.monotonic()
            if not self._changed.wait_for(lambda: key in self._arrived, timeout=max(left, 0)):
                raise PeerLost(f"worker {worker} did not connect in time", worker)
            return self._arrived.pop(key)

    def _reach(self, worker: int, address: Address, purpose: int, deadline: float) -> socket.socket:
        """An authenticated connection to a peer, which may not know the epoch yet."""
        epoch = self._epoch
        assert epoch is not None, "open the listener before joining peers"
        return reach(
            lambda _: self._connect(address),
            lambda sock, left: greet(sock, self._secret, worker, epoch, purpose, left),
            deadline,
        )

    def _connect(self, address: Address) -> socket.socket:
        sock = connect(address)
        if self._tls is None or sock.family == socket.AF_UNIX:
            return sock
        return self._tls.to_worker(sock)

    def close(self) -> None:
        """Stop listening, leave nothing in the file system, and hang up on unexpected peers."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            unexpected, self._arrived = self._arrived, {}
        for sock in unexpected.values():
            sock.close()
        self._acceptor.close()
        self._folder.cleanup()

    # Called by the acceptor

    def secret_of(self, claim: Claim) -> bytes:
        """All peers know the secret of the query."""
        return self._secret

    def is_ready(self, claim: Claim) -> bool:
        """Peers of another epoch are refused, once the own one is known."""
        if self._epoch is not None and claim.group != self._epoch:
            raise HandshakeError(
                f"worker {claim.worker} of epoch {claim.group} connected to epoch {self._epoch}"
            )
        return self._epoch is not None

    def admit(self, claim: Claim, message: bytes, sock: socket.socket) -> None:
        """A peer is here."""
        with self._changed:
            key = (claim.worker, claim.purpose)
            before = sock if self._closed else self._arrived.pop(key, None)
            if before is not None:
                before.close()
            if before is not sock:
                self._arrived[key] = sock
            self._changed.notify_all()


def connect(address: Address) -> socket.socket:
    """Connect to a worker: by the file system if it is on this machine, else by TCP."""
    if address.path and address.machine == machine_id() and os.path.exists(address.path):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(10.0)
        try:
            sock.connect(address.path)
        except OSError as error:
            sock.close()
            log.info("no way through %s, trying TCP: %s", address.path, error)
        else:
            return sock
    return socket.create_connection((address.host, address.port), timeout=10.0)


def machine_id() -> str:
    """Something that differs between machines, and between starts of one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
