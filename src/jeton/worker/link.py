"""A link: one connected socket to a peer, sending and receiving whole frames without blocking."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from jeton.core.errors import JetonError, ProtocolError
from jeton.worker.wire import HEADER, Buffer

_AHEAD: Final = 1 << 16
_AT_ONCE: Final = 512
"""The most buffers that one system call takes."""
LARGEST_FRAME: Final = 1 << 34
_AT_A_TIME: Final = 1 << 20
"""Bytes from which on `receive` lets others have their turn."""


class PeerLost(JetonError):
    """A peer's process is gone: its socket closed without a good-bye."""

    def __init__(self, message: str, peer: int = -1) -> None:
        super().__init__(message)
        self.peer = peer
        """The number of the worker that is gone."""


class Link:
    """One socket, and what waits to go out on it."""

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
        self._filled = 0
        self._payload: bytearray | None = None
        self._have = 0
        self._header: tuple[int, int] = (0, 0)
        self.bytes_in = 0
        self.bytes_out = 0

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Send now as much as goes, and keep the rest for `flush`."""
        for buffer in buffers:
            view = memoryview(buffer)
            if view.nbytes:
                self._out.append(view if view.format == "B" else view.cast("B"))
                self.waiting += view.nbytes
        self.flush()

    def flush(self) -> bool:
        """Send what waits; tells whether all is gone."""
        out = self._out
        while out:
            try:
                sent = self.sock.sendmsg([out[i] for i in range(min(len(out), _AT_ONCE))])
            except BlockingIOError:
                return False
            except OSError as error:
                if not self.closing:
                    raise self._lost(error) from error
                # A peer that has said good-bye has no use for what is left.
                out.clear()
                self.waiting = 0
                return True
            self.waiting -= sent
            self.bytes_out += sent
            while sent:
                first = out[0]
                if sent >= first.nbytes:
                    sent -= first.nbytes
                    out.popleft()
                else:
                    out[0] = first[sent:]
                    sent = 0
        return True

    def receive(self) -> Iterator[tuple[int, int, Buffer]]:
        """The frames that have arrived, up to a bound: kind, number, payload."""
        enough = self.bytes_in + _AT_A_TIME
        while self.bytes_in < enough:
            if self._payload is not None:
                if not self._fill_payload():
                    return
                payload, self._payload = self._payload, None
                yield (*self._header, payload)
                continue
            size = self._read(memoryview(self._ahead)[self._filled :])
            if size <= 0:
                return
            self._filled += size
            yield from self._parse()

    def _parse(self) -> Iterator[tuple[int, int, Buffer]]:
        """Take whole frames out of what was read ahead; begin a payload that is longer."""
        at = 0
        ahead = memoryview(self._ahead)
        while self._filled - at >= HEADER.size:
            kind, number, length = HEADER.unpack_from(ahead, at)
            if length > LARGEST_FRAME:
                raise ProtocolError(f"worker {self.peer} announced a frame of {length} bytes")
            start = at + HEADER.size
            here = min(length, self._filled - start)
            payload = bytearray(length)
            payload[:here] = ahead[start : start + here]
            at = start + here
            if here < length:
                self._header, self._payload, self._have = (kind, number), payload, here
                break
            yield kind, number, payload
        left = self._filled - at
        self._ahead[:left] = self._ahead[at : self._filled]
        self._filled = left

    def _fill_payload(self) -> bool:
        payload = self._payload
        assert payload is not None
        while self._have < len(payload):
            size = self._read(memoryview(payload)[self._have :])
            if size <= 0:
                return False
            self._have += size
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
        why = f": {error}" if error else " without a good-bye"
        return PeerLost(f"the connection to worker {self.peer} broke{why}", self.peer)

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
