"""The doorway: where a worker's peers come in, and how they find it."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jeton.worker.handshake import HandshakeError, answer
from jeton.worker.link import PeerLost

log = logging.getLogger(__name__)


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
        self._tcp = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        self._listeners = [self._tcp]
        self._folder = tempfile.TemporaryDirectory(prefix="jeton-", ignore_cleanup_errors=True)
        path = str(Path(self._folder.name) / "worker")
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            unix.bind(path)
            self._listeners.append(unix)
        except OSError as error:
            # Some systems' folders for temporary files have names that are too long for it.
            log.info("no Unix socket at %s, TCP it is: %s", path, error)
            unix.close()
            path = ""
        self.address = Address(machine_id(), path, host, self._tcp.getsockname()[1])
        self._arrived: dict[tuple[int, int], socket.socket] = {}
        self._changed = threading.Condition()
        self._closed = False
        self.refused = 0
        """How many connections were turned away."""
        for listener in self._listeners:
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
                raise PeerLost(f"worker {worker} did not connect in time", worker)
            return self._arrived.pop(key)

    def hide(self) -> None:
        """Everyone is here: leave nothing in the file system, however this process may end."""
        self._folder.cleanup()

    def close(self) -> None:
        """Stop listening, and hang up on whoever was let in but not asked for."""
        with self._changed:
            self._closed = True
            unasked, self._arrived = self._arrived, {}
            self._changed.notify_all()
        for sock in unasked.values():
            sock.close()
        for listener in self._listeners:
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
            self._changed.wait_for(lambda: self._epoch is not None or self._closed, timeout=30.0)
            epoch = self._epoch
        try:
            if epoch is None:
                raise HandshakeError("it came before this worker knew who its peers are")
            worker, purpose = answer(sock, self._secret, epoch)
        except (HandshakeError, OSError) as error:
            sock.close()
            if not self._closed:
                with self._changed:
                    self.refused += 1
                log.warning("refused a connection from %s: %s", where or "this machine", error)
            return
        with self._changed:
            before = sock if self._closed else self._arrived.pop((worker, purpose), None)
            if before is not None:
                before.close()
            if before is not sock:
                self._arrived[worker, purpose] = sock
            self._changed.notify_all()


def connect(address: Address) -> socket.socket:
    """Connect to a worker: by the file system if it is on this machine, else by TCP."""
    if address.path and address.machine == machine_id() and os.path.exists(address.path):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(address.path)
        except OSError as error:
            sock.close()
            log.info("no way through %s, trying TCP: %s", address.path, error)
        else:
            return sock
    return socket.create_connection((address.host, address.port), timeout=10.0)


def attend(sock: socket.socket) -> None:
    """Have the system send at once, and notice when the machine at the other end is gone."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # In seconds, but for the last one; not every system has them all.
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 5),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def machine_id() -> str:
    """Something that differs between machines, and between starts of one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
