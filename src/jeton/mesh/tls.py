"""TLS between machines: both ends show a certificate of the query, and all bytes are encrypted.

Only TLS 1.3, only certificates that the query's own authority has signed, for both ends. What is
inside is the same as without: the handshake with the query's secret, then frames. OpenSSL works on
bytes in memory here, and sockets are read and written beside it. So nothing depends on how a
socket waits, and one thread may send while another one receives.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from jeton.core.errors import ProtocolError
from jeton.mesh.certificates import Credentials

_RECORD_HEADER: Final = 5
_AT_A_TIME: Final = 1 << 18
"""Bytes that are encrypted before they are handed to the socket."""
_CHANGED: Final = frozenset(
    {
        "DECRYPTION_FAILED_OR_BAD_RECORD_MAC",
        "BAD_RECORD_TYPE",
        "DATA_LENGTH_TOO_LONG",
        "PACKET_LENGTH_TOO_LONG",
        "RECORD_LAYER_FAILURE",
        "RECORD_TOO_SMALL",
        "UNEXPECTED_MESSAGE",
        "WRONG_VERSION_NUMBER",
    }
)
"""OpenSSL's names for bytes on an established connection that the other end did not send."""


class TlsError(ProtocolError):
    """TLS refuses the other end of a connection, or bytes that came over it."""


class Tls:
    """The TLS settings of one end: how to connect with its credentials, and how to accept.

    >>> from jeton.mesh.certificates import issue
    >>> driver, worker = (Tls(each) for each in issue(1))
    >>> here, there = socket.socketpair()
    >>> with driver.accept(here) as server, worker.to_driver(there) as client:
    ...     greeting = threading.Thread(target=client.sendall, args=(b"hello",))
    ...     greeting.start()
    ...     print(server.recv(100))
    ...     greeting.join()
    b'hello'
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.server = _context(ssl.PROTOCOL_TLS_SERVER, credentials)
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, credentials)

    def accept(self, sock: socket.socket) -> TlsSocket:
        """The listening end of a connection."""
        return TlsSocket(sock, self.server)

    def to_worker(self, sock: socket.socket) -> TlsSocket:
        """The connecting end of a connection to a worker."""
        return TlsSocket(sock, self._client, self._credentials.worker_name)

    def to_driver(self, sock: socket.socket) -> TlsSocket:
        """The connecting end of a connection to the driver."""
        return TlsSocket(sock, self._client, self._credentials.driver_name)


@lru_cache(maxsize=16)
def tls_with(credentials: Credentials) -> Tls:
    """The `Tls` of credentials, made once in a process."""
    return Tls(credentials)


class ManyPlans:
    """TLS at a server for several plans: the name that a client asks for says which one it is."""

    def __init__(self, plans: Mapping[str, Tls]) -> None:
        """``plans`` may change later; its keys are the driver's names in certificates."""
        self._plans = plans
        self._context = _bare_context(ssl.PROTOCOL_TLS_SERVER)
        self._context.sni_callback = self._choose

    def accept(self, sock: socket.socket) -> TlsSocket:
        """The listening end of a connection."""
        return TlsSocket(sock, self._context)

    def _choose(self, connection: Any, name: str | None, _: ssl.SSLContext) -> int | None:
        plan = self._plans.get(name or "")
        if plan is None:
            return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
        connection.context = plan.server
        return None


def _bare_context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        # Nothing is resumed, and nothing but what a peer sends comes on a connection.
        context.num_tickets = 0
    return context


def _context(protocol: int, credentials: Credentials) -> ssl.SSLContext:
    context = _bare_context(protocol)
    context.load_verify_locations(cadata=credentials.authority)
    with _file_with(credentials.certificate + credentials.key) as path:
        context.load_cert_chain(path)
    return context


@contextmanager
def _file_with(text: str) -> Iterator[str]:
    """A file that only this user can read, while the block runs: OpenSSL takes keys from files."""
    if hasattr(os, "memfd_create") and os.path.exists("/proc/self/fd"):
        # In memory only.
        with os.fdopen(os.memfd_create("jeton"), "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile("w", prefix="jeton-") as file:
        file.write(text)
        file.flush()
        yield file.name


class TlsSocket(socket.socket):
    """A connected socket whose bytes TLS encrypts; `recv`, `send` and `sendall` are as usual.

    TLS' handshake happens on the way: the first call that needs its end waits for it, or raises
    `BlockingIOError`. What is sent before, on a socket that does not block, goes out at its end.

    No more is read from the system than belongs to the record at hand, so that a `TlsLink` can take
    the connection over.
    """

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, server: str | None = None
    ) -> None:
        """The end that connects names the ``server`` whose certificate it expects."""
        timeout = sock.gettimeout()
        super().__init__(fileno=sock.detach())
        self.settimeout(timeout)
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._arrived, self._leaving, server_side=server is None, server_hostname=server
        )
        self._lock = threading.Lock()
        """For OpenSSL, which takes one thread at a time for a connection."""
        self._reading = threading.Lock()
        """For what is decrypted: another thread may ask whether there is anything."""
        self._established = False
        self._heard = False
        """Whether the other end has sent anything inside TLS."""
        self._plain = b""
        """Decrypted bytes that nobody has asked for yet."""
        self._held = b""
        """The bytes to send when the handshake is over."""
        self._unsent = b""
        self._promised = 0
        """Bytes that `send` has encrypted and not reported yet, since not all could leave."""
        self._header = bytearray()
        self._missing = 0
        """Bytes of the record at hand that have not arrived."""

    # What a socket does

    def recv(self, size: int, _flags: int = 0, /) -> bytes:
        """Up to ``size`` bytes; none if the other end has hung up."""
        while True:
            if (found := self._decrypted(size)) is not None:
                return found
            if not self._fill():
                return b""

    def send(self, data: Any, _flags: int = 0, /) -> int:
        """How many bytes have been sent; after `BlockingIOError`, give it the same ones again."""
        if not self._established:
            if self.gettimeout() == 0.0:
                self._held += bytes(data)
                return len(data)
            self._finish_handshake()
        if not self._promised:
            part = memoryview(data)[:_AT_A_TIME]
            with self._lock:
                self._promised = self._tls.write(part) if len(part) else 0
        self._push(all_of_it=True)
        sent, self._promised = self._promised, 0
        return sent

    def sendall(self, data: Any, _flags: int = 0, /) -> None:
        """Send all bytes."""
        view = memoryview(data)
        while len(view):
            view = view[self.send(view) :]

    # What is special about it

    def is_accepted_by(self, tls: Tls) -> bool:
        """Whether this is the listening end of a connection under these certificates."""
        return self._tls.context is tls.server

    @property
    def buffered(self) -> bool:
        """Whether bytes wait to be received that the system does not know of any more."""
        with self._reading:
            if not self._plain and self._established:
                self._plain = self._read(_AT_A_TIME) or b""
            return bool(self._plain)

    def hand_over(self) -> tuple[socket.socket, ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
        """The plain socket, and TLS with the bytes that have arrived and those that leave."""
        if not self._established or self.buffered or self._unsent or self._missing:
            raise TlsError("the other end of a connection has sent more than it should have yet")
        timeout = self.gettimeout()
        sock = socket.socket(fileno=self.detach())
        sock.settimeout(timeout)
        return sock, self._tls, self._arrived, self._leaving

    # Inside

    def _decrypted(self, size: int) -> bytes | None:
        """Bytes that have arrived, if there are any."""
        with self._reading:
            if self._plain:
                found, self._plain = self._plain[:size], self._plain[size:]
                return found
            if not self._established and not self._shake():
                return None
            return self._read(size)

    def _read(self, size: int) -> bytes | None:
        try:
            with self._lock:
                found = self._tls.read(size)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLZeroReturnError:
            return b""
        except ssl.SSLError as error:
            raise self._refused(error) from error
        self._heard = True
        return found

    def _finish_handshake(self) -> None:
        while not self._shake():
            self._fill()

    def _shake(self) -> bool:
        """Go on with the handshake; whether it is over."""
        try:
            with self._lock:
                self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._push()
            return False
        except ssl.SSLError as error:
            # The other end shall know why.
            self._push()
            raise self._refused(error) from error
        self._established = True
        if self._held:
            with self._lock:
                self._tls.write(self._held)
            self._held = b""
        self._push()
        return True

    def _push(self, all_of_it: bool = False) -> None:
        """Hand encrypted bytes to the system, as many as it takes now or all of them."""
        with self._lock:
            self._unsent += self._leaving.read()
        while self._unsent:
            try:
                sent = super().send(self._unsent)
            except BlockingIOError:
                if all_of_it:
                    raise
                return
            self._unsent = self._unsent[sent:]

    def _fill(self) -> bool:
        """Read more of the record at hand; false if the other end has hung up."""
        received = super().recv(self._missing or _RECORD_HEADER - len(self._header))
        if not received:
            if self._heard:
                return False
            # As a listener does that has too many connections.
            raise ConnectionResetError("the other end hung up before TLS was established")
        if self._missing:
            self._missing -= len(received)
        else:
            self._header += received
            if len(self._header) == _RECORD_HEADER:
                self._missing = int.from_bytes(self._header[3:], "big")
                self._header.clear()
        with self._lock:
            self._arrived.write(received)
        return True

    def _refused(self, error: ssl.SSLError) -> TlsError:
        return refusal(error, established=self._established)


def refusal(error: ssl.SSLError, *, established: bool) -> TlsError:
    """An error of OpenSSL's in words."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(
            f"the certificate of the other end is not one of this query: {error.verify_message}"
        )
    if reason in ("CALLBACK_FAILED", "TLSV1_UNRECOGNIZED_NAME"):
        return TlsError("the plan whose certificates a task uses is over, or was never here")
    if "ALERT" in reason:
        said = reason.split("ALERT_", 1)[-1].replace("_", " ").lower()
        return TlsError(f"the other end refuses this one's certificate or bytes: {said}")
    if established and reason in _CHANGED:
        return TlsError(
            "bytes arrived that the other end did not send, or not in this order "
            f"({reason}): something on the way changes them"
        )
    return TlsError(f"the other end does not speak TLS as it should: {reason}")
