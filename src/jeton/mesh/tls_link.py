"""Links over TLS: whole frames like on any link, encrypted on their way out."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, cast

from jeton.mesh.link import Frame, Link, PeerLost
from jeton.mesh.tls import TlsSocket, refusal
from jeton.mesh.wire import Buffer

_READ: Final = 1 << 17
"""Bytes to read from the socket at once."""
_ENCRYPTED: Final = 1 << 17
"""Bytes to encrypt at once: OpenSSL grows its memory for them step by step."""
_JOINED: Final = 1 << 20
"""Bytes up to which the buffers of a frame are joined, so that small ones share records."""


class TlsLink(Link):
    """A link whose socket carries TLS records; `waiting` and the counts are of encrypted bytes.

    Everything that is read from the socket is decrypted before `receive` returns, since a selector
    knows nothing of bytes that wait here.
    """

    def __init__(self, sock: TlsSocket, peer: int) -> None:
        plain, self._tls, self._arrived, self._leaving = sock.hand_over()
        super().__init__(plain, peer)
        self._from_memory = False
        self._fault: PeerLost | None = None

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Encrypt and send as much as possible now, and keep the rest for `flush`."""
        if self._fault is not None:
            # TLS encrypts nothing more either.
            raise self._fault
        if sum(map(len, buffers)) <= _JOINED:
            buffers = [b"".join(buffers)]
        out: list[Buffer] = []
        for buffer in buffers:
            view = memoryview(buffer)
            for at in range(0, len(view), _ENCRYPTED):
                self._tls.write(view[at : at + _ENCRYPTED])
                out.append(self._leaving.read())
        super().send(out)

    def receive(self) -> list[Frame]:
        """The frames that have arrived, up to a bound."""
        frames = super().receive()
        if self._arrived.pending or self._tls.pending():
            self._from_memory = True
            try:
                frames += super().receive()
            except PeerLost:
                # It comes again: the socket is shut down.
                if not frames:
                    raise
            finally:
                self._from_memory = False
        return frames

    def _read(self, into: memoryview) -> int:
        if self._fault is not None:
            raise self._fault
        while True:
            have = 0
            try:
                while have < len(into):
                    # With a buffer it returns how many bytes it has put there, and not bytes.
                    have += cast(Any, self._tls).read(len(into) - have, into[have:])
                return have
            except ssl.SSLWantReadError:
                if have or self._from_memory:
                    return have
            except ssl.SSLError as error:
                fault = self._changed(error)
                if have:
                    return have
                raise fault from error
            if (size := self._read_socket()) <= 0:
                return size

    def _read_socket(self) -> int:
        """Encrypted bytes read, 0 if there are none now, -1 if the peer has left in good order."""
        try:
            received = self.sock.recv(_READ)
        except BlockingIOError:
            return 0
        except OSError as error:
            if self.closing:
                return -1
            raise self._lost(error) from error
        if not received:
            if self.closing:
                return -1
            raise self._lost(None)
        self.bytes_in += len(received)
        self._arrived.write(received)
        return len(received)

    def _changed(self, error: ssl.SSLError) -> PeerLost:
        """The error for bytes that TLS refuses; none that come later mean anything."""
        why = refusal(error, established=True)
        self._fault = PeerLost(f"the connection to worker {self.peer} broke: {why}", self.peer)
        # A selector reports it from now on, until the error has been raised.
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        return self._fault


def link_over(sock: socket.socket, peer: int) -> Link:
    """The link for a connection, with TLS or without."""
    return TlsLink(sock, peer) if isinstance(sock, TlsSocket) else Link(sock, peer)
