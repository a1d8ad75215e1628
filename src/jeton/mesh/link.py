"""A link: one connected socket to a peer, sending and receiving whole frames without blocking."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from jeton.core.errors import JetonError, ProtocolError
from jeton.mesh.wire import HEADER, LONGEST, Buffer

Frame: TypeAlias = tuple[int, int, Buffer]
"""Kind, number, payload."""

_AHEAD: Final = 1 << 16
_SMALL: Final = 1 << 14
"""Bytes that are cheaper to copy together than to hand over one by one."""
_AT_ONCE: Final = 512
"""The most buffers that one system call takes."""
_AT_FIRST: Final = 1 << 26
"""The most bytes that are reserved because a header announces them, before they have arrived."""
AT_A_TIME: Final = 1 << 20
"""Bytes after which `receive` returns, so that other links are read too."""


class PeerLost(JetonError):
    """A peer's process is gone: its socket closed without a good-bye."""

    def __init__(self, message: str, peer: int = -1) -> None:
        super().__init__(message)
        self.peer = peer
        """The number of the worker that is gone."""


def _reserve(size: int) -> memoryview:
    """Room for bytes; unlike a `bytearray` it takes memory only as it is filled."""
    return np.empty(size, np.uint8).data


def machine_lost(peer: int, error: OSError) -> PeerLost:
    """The error for a peer whose system does not answer any more."""
    return PeerLost(f"the machine of worker {peer} does not answer: {error}", peer)


class Link:
    """One socket, and the bytes that wait to be sent on it."""

    def __init__(self, sock: socket.socket, peer: int) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.peer = peer
        self.waiting = 0
        """Bytes that wait to go out."""
        self.closing = False
        """Whether the peer has said good-bye."""
        self._out: deque[memoryview] = deque()
        self._ahead = bytearray(_AHEAD)
        self._view = memoryview(self._ahead)
        self._filled = 0
        self._payload: memoryview | None = None
        self._have = self._length = 0
        self._header: tuple[int, int] = (0, 0)
        self.bytes_in = 0
        self.bytes_out = 0

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send as much as possible now, and keep the rest for `flush`; buffers are of bytes."""
        if not self._out:
            # Mostly all of it goes at once, and nothing needs to be kept.
            size = sum(map(len, buffers))
            sent = self._put(buffers)
            if sent == size:
                return
        else:
            sent = 0
        for buffer in buffers:
            if sent >= len(buffer):
                sent -= len(buffer)
            else:
                self._out.append(memoryview(buffer)[sent:])
                self.waiting += len(buffer) - sent
                sent = 0

    def flush(self) -> bool:
        """Send the bytes that wait; returns whether all are sent."""
        out = self._out
        while out:
            sent = self._put([out[i] for i in range(min(len(out), _AT_ONCE))])
            if not sent:
                return False
            self.waiting -= sent
            while sent:
                first = out[0]
                if sent >= first.nbytes:
                    sent -= first.nbytes
                    out.popleft()
                else:
                    out[0] = first[sent:]
                    sent = 0
        return True

    def _put(self, buffers: Sequence[Buffer]) -> int:
        """How many bytes of the buffers, which are not empty, could be sent now."""
        size = sum(map(len, buffers))
        try:
            if size <= _SMALL:
                sent = self.sock.send(b"".join(buffers))
            else:
                sent = self.sock.sendmsg(buffers[:_AT_ONCE])
        except BlockingIOError:
            return 0
        except OSError as error:
            if not self.closing:
                raise self._lost(error) from error
            # A peer that has said good-bye has no use for what is left.
            return size
        self.bytes_out += sent
        return sent

    def before_waiting(self) -> None:
        """The worker is about to check this link, and to wait at its socket after that."""

    def receive(self) -> list[Frame]:
        """The frames that have arrived, up to a bound."""
        frames: list[Frame] = []
        enough = self.bytes_in + AT_A_TIME
        try:
            while self.bytes_in < enough:
                if self._payload is not None and not self._finish_payload(frames):
                    break
                size = self._read(self._view[self._filled :])
                if size <= 0:
                    break
                self._filled += size
                drained = self._filled < _AHEAD
                is_whole = self._parse(frames)
                if drained and is_whole:
                    break
        except PeerLost:
            # Its earlier messages come first; the next call will find it gone again.
            if not frames:
                raise
        return frames

    def _parse(self, frames: list[Frame]) -> bool:
        """Take whole frames out of the bytes read ahead, and begin a payload that is longer.

        Returns whether there is none of these.
        """
        at = 0
        is_whole = True
        view, filled = self._view, self._filled
        while filled - at >= HEADER.size:
            kind, number, length = HEADER.unpack_from(view, at)
            start = at + HEADER.size
            at = start + length
            if at <= filled:
                self._require_allowed(kind, length)
                frames.append((kind, number, bytearray(view[start:at])))
                continue
            self._begin_payload(kind, number, length)[: filled - start] = view[start:filled]
            self._have = filled - start
            at, is_whole = filled, False
        left = filled - at
        if left:
            self._ahead[:left] = self._ahead[at:filled]
        self._filled = left
        return is_whole

    def _begin_payload(self, kind: int, number: int, length: int) -> memoryview:
        """Room for a payload that has not arrived as a whole."""
        self._require_allowed(kind, length)
        self._header, self._have, self._length = (kind, number), 0, length
        self._payload = payload = _reserve(min(length, _AT_FIRST))
        return payload

    def _require_allowed(self, kind: int, length: int) -> None:
        """Refuse a frame whose payload is longer than those of its kind may be."""
        longest = LONGEST.get(kind, 0)
        if length > longest:
            raise ProtocolError(
                f"worker {self.peer} announced a frame of kind {kind} with {length} bytes: "
                f"at most {longest} are allowed"
            )

    def _finish_payload(self, frames: list[Frame]) -> bool:
        """Read on in a payload; whether it is there as a whole now, and so its frame."""
        payload = self._payload
        assert payload is not None
        while self._have < self._length:
            if self._have == len(payload):
                # The bytes that have arrived vouch for four times as many.
                grown = _reserve(min(self._length, 4 * self._have))
                grown[: self._have] = payload
                payload = self._payload = grown
            size = self._read(payload[self._have :])
            if size <= 0:
                return False
            self._have += size
        frames.append((*self._header, payload))
        self._payload = None
        return True

    def _read(self, into: memoryview) -> int:
        """Bytes read, 0 if there are none now, -1 if the peer has left in good order."""
        try:
            size = self.sock.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            if self.closing:
                return -1
            raise self._lost(error) from error
        if size == 0:
            if self.closing:
                return -1
            raise self._lost(None)
        self.bytes_in += size
        return size

    def _lost(self, error: OSError | None) -> PeerLost:
        if isinstance(error, TimeoutError):
            return machine_lost(self.peer, error)
        why = f": {error}" if error else " without a good-bye"
        return PeerLost(f"the connection to worker {self.peer} broke{why}", self.peer)

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
