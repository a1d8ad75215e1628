"""The acceptor: one thread that accepts connections and admits those that authenticate.

Anyone on the network can connect to a listening socket. So unauthenticated connections get neither
a thread nor much time, and their number is bounded. A flood fills the bound, and then the oldest
of them make room: a peer that knows the secret needs one round trip to authenticate, and tries
again if it was dropped before that. No error of ``accept`` ends the thread.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from jeton.core.errors import ProtocolError
from jeton.mesh.handshake import CLAIM_SIZE, CROWDED, Answer, Claim, HandshakeError
from jeton.mesh.open_files import limit_of_files
from jeton.mesh.tls import ManyPlans, Tls, TlsSocket

log = logging.getLogger(__name__)

TIMEOUT: Final = 5.0
"""Seconds that a connection has to authenticate, and to state its purpose."""
GRACE: Final = 0.25
"""Seconds that a connection has even while others wait to be accepted."""
MOST: Final = 512
"""Unauthenticated connections at one time, where the limit of open files allows that many."""
BACKLOG: Final = 4096
"""Connections that the system keeps until they are accepted; it may have a lower limit itself."""
_PAUSE: Final = 0.05
"""Seconds to wait after an error of ``accept``, so that others can close files."""
_AT_A_TIME: Final = 64
_LINES: Final = 10
"""Refusals that are logged in each `_WINDOW` of seconds."""
_WINDOW: Final = 10.0
_OF_ONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR})
"""Errors of ``accept`` that concern one connection only."""


class Host(Protocol):
    """Decides about connections; called in the acceptor's thread, where it must not block."""

    def secret_of(self, claim: Claim) -> bytes:
        """The secret that a peer has to know; raises `HandshakeError` if there is none."""

    def is_ready(self, claim: Claim) -> bool:
        """Whether an authenticated peer may come in now; raises `HandshakeError` if never."""

    def admit(self, claim: Claim, message: bytes, sock: socket.socket) -> None:
        """Take over the connection of an authenticated peer, with its first message."""


class _Guest:
    """A connection that is not let in yet."""

    def __init__(self, sock: socket.socket, where: object) -> None:
        self.sock = sock
        self.where = where or "this machine"
        self.since = time.monotonic()
        self.answer = Answer()
        self.claim: Claim | None = None
        self.reply = b""
        self.take: Callable[[Acceptor], None] = self.read_claim
        """Called with the received bytes, once there are enough of them."""
        self.received = bytearray()
        self.needed = CLAIM_SIZE

    def read_claim(self, acceptor: Acceptor) -> None:
        self.claim = self.answer.read(bytes(self.received))
        self.reply = self.answer.check(acceptor.host.secret_of(self.claim))
        acceptor.consider(self)

    def read_size(self, acceptor: Acceptor) -> None:
        size = int.from_bytes(self.received, "little")
        if not 0 < size <= acceptor.longest:
            raise HandshakeError(f"a message of {size} bytes, at most {acceptor.longest} may come")
        self.expect(size, self.read_message)

    def read_message(self, acceptor: Acceptor) -> None:
        acceptor.let_in(self, bytes(self.received))

    def expect(self, size: int, take: Callable[[Acceptor], None]) -> None:
        self.received.clear()
        self.needed, self.take = size, take


class Acceptor:
    """Accepts connections at listening sockets for a host."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        host: Host,
        *,
        name: str,
        longest: int = 0,
        tls: Tls | ManyPlans | None = None,
    ) -> None:
        """``longest`` is the limit in bytes of a peer's first message; with 0 it sends none.

        With ``tls``, only connections through the file system come without.
        """
        self.host = host
        self._tls = tls
        self.longest = longest
        self.refused = 0
        """How many connections were turned away."""
        self._listeners = listeners
        self._guests: dict[socket.socket, _Guest] = {}
        """Connections that have not authenticated, the oldest first."""
        self._trusted: dict[socket.socket, _Guest] = {}
        """Those that have, and whose first message is on its way."""
        self._early: list[_Guest] = []
        self._most = max(8, min(MOST, limit_of_files() // 4))
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        for sock in (self._wake_in, self._wake_out, *listeners):
            sock.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._accepting = False
        self._pause_until = 0.0
        self._closed = False
        self._window = -_WINDOW
        self._lines = 0
        for listener in listeners:
            # Even a full backlog of strangers is dealt with in some seconds.
            listener.listen(min(BACKLOG, 16 * self._most))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Ask the host again about peers that had to wait; safe from any thread."""
        with suppress(OSError):
            self._wake_out.send(b"!")

    def close(self) -> None:
        """Close the listening sockets, and all connections that were not let in."""
        self._closed = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # The thread

    def _run(self) -> None:
        while not self._closed:
            try:
                for key, _ in self._selector.select(self._prepare()):
                    if key.data is None:
                        self._ask_again()
                    elif isinstance(key.data, _Guest):
                        self._hear(key.data)
                    else:
                        self._accept(key.data)
            except Exception:
                log.exception("an error at a listener, which goes on")
                self._pause_until = time.monotonic() + _PAUSE
        self.refused += len(self._guests)
        for guest in [*self._guests.values(), *self._trusted.values(), *self._early]:
            guest.sock.close()
        for sock in (*self._listeners, self._wake_in, self._wake_out):
            sock.close()
        self._selector.close()

    def _prepare(self) -> float | None:
        """Drop connections whose time is over; returns the seconds until the next is due."""
        now = time.monotonic()
        due = []
        for guests in (self._guests, self._trusted):
            while guests:
                oldest = next(iter(guests.values()))
                if now - oldest.since < TIMEOUT:
                    due.append(oldest.since + TIMEOUT)
                    break
                self._refuse(oldest, "it said nothing in time")
        full = self._is_full(now)
        if full:
            due.append(next(iter(self._guests.values())).since + GRACE)
        paused = self._pause_until > now
        if paused:
            due.append(self._pause_until)
        if self._accepting == (full or paused):
            self._accepting = not self._accepting
            for listener in self._listeners:
                if self._accepting:
                    self._selector.register(listener, selectors.EVENT_READ, listener)
                else:
                    self._selector.unregister(listener)
        return max(min(due) - now, 0.0) if due else None

    def _is_full(self, now: float) -> bool:
        """Whether there are too many connections, none of which can be dropped yet."""
        if len(self._guests) < self._most:
            return False
        return now - next(iter(self._guests.values())).since < GRACE

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_A_TIME):
            if self._is_full(time.monotonic()):
                return
            if len(self._guests) >= self._most:
                oldest = next(iter(self._guests.values()))
                # It may have authenticated since.
                self._hear(oldest)
                if oldest.sock in self._guests:
                    self._drop(oldest)
            try:
                sock, where = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OF_ONE:
                    continue
                if not self._closed:
                    self._make_room(error)
                return
            sock.setblocking(False)
            if self._tls is not None and sock.family != socket.AF_UNIX:
                sock = self._tls.accept(sock)
            guest = _Guest(sock, where)
            try:
                sock.send(guest.answer.hello)
                self._selector.register(sock, selectors.EVENT_READ, guest)
            except OSError:
                sock.close()
            else:
                self._guests[sock] = guest

    def _make_room(self, error: OSError) -> None:
        """The process or the system has no files or no memory left for another connection."""
        for guest in list(self._guests.values()):
            self._drop(guest)
        self._pause_until = time.monotonic() + _PAUSE
        self._log("cannot accept connections for now: %s", error)

    def _drop(self, guest: _Guest) -> None:
        """Drop a connection that may be a peer's, which should try again."""
        with suppress(OSError):
            guest.sock.send(CROWDED)
        self._refuse(guest, "there are too many connections at once")

    def _hear(self, guest: _Guest) -> None:
        # If not, it was dropped since the selector reported it.
        while guest.sock in self._guests or guest.sock in self._trusted:
            self._hear_once(guest)
            # A selector does not know of bytes that TLS has decrypted already.
            if not (isinstance(guest.sock, TlsSocket) and guest.sock.buffered):
                return

    def _hear_once(self, guest: _Guest) -> None:
        try:
            part = guest.sock.recv(guest.needed - len(guest.received))
            if not part:
                raise HandshakeError("it hung up in the handshake")
            guest.received += part
            if len(guest.received) == guest.needed:
                guest.take(self)
        except BlockingIOError:
            return
        except (ProtocolError, OSError) as error:
            self._refuse(guest, error)
        except Exception:
            log.exception("could not let in the connection from %s", guest.where)
            self._refuse(guest, "of an error here")

    def consider(self, guest: _Guest) -> None:
        """Go on with an authenticated peer, or have it wait until the host is ready."""
        assert guest.claim is not None
        self._forget(guest)
        if not self.host.is_ready(guest.claim):
            self._early.append(guest)
            return
        guest.sock.send(guest.reply)
        if not self.longest:
            self.let_in(guest, b"")
            return
        guest.since = time.monotonic()
        guest.expect(4, guest.read_size)
        self._selector.register(guest.sock, selectors.EVENT_READ, guest)
        self._trusted[guest.sock] = guest

    def let_in(self, guest: _Guest, message: bytes) -> None:
        """Hand an authenticated connection over."""
        assert guest.claim is not None
        self._forget(guest)
        self.host.admit(guest.claim, message, guest.sock)

    def _ask_again(self) -> None:
        with suppress(BlockingIOError):
            self._wake_in.recv(4096)
        early, self._early = self._early, []
        for guest in early:
            try:
                self.consider(guest)
            except (ProtocolError, OSError) as error:
                self._refuse(guest, error)

    def _forget(self, guest: _Guest) -> None:
        for guests in (self._guests, self._trusted):
            if guests.pop(guest.sock, None) is not None:
                self._selector.unregister(guest.sock)

    def _refuse(self, guest: _Guest, why: object) -> None:
        self._forget(guest)
        self.refused += 1
        self._log("refused a connection from %s: %s", guest.where, why)
        guest.sock.close()

    def _log(self, text: str, *values: object) -> None:
        """Log a line, unless a flood makes too many of them."""
        now = time.monotonic()
        if now - self._window > _WINDOW:
            self._window, self._lines = now, 0
        self._lines += 1
        if self._lines <= _LINES:
            log.warning(text, *values)
        elif self._lines == _LINES + 1:
            log.warning("more such lines are left out for %.0f seconds", _WINDOW)
