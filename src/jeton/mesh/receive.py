"""Receiving an exact number of bytes from a socket."""

from __future__ import annotations

import socket
import time
from typing import Final

_PIECE: Final = 1 << 20
"""Bytes to ask for at once: a peer that announces much must also send it."""


def receive_exactly(sock: socket.socket, size: int, deadline: float | None = None) -> bytes:
    """The next ``size`` bytes; fewer only if the other end has hung up.

    With a ``deadline`` of the monotonic clock, `TimeoutError` if they have not come by then.

    >>> here, there = socket.socketpair()
    >>> there.sendall(b"abc")
    >>> there.close()
    >>> receive_exactly(here, 2), receive_exactly(here, 2)
    (b'ab', b'c')
    >>> here.close()
    """
    received = bytearray()
    while len(received) < size:
        if deadline is not None:
            sock.settimeout(max(deadline - time.monotonic(), 1e-3))
        part = sock.recv(min(size - len(received), _PIECE))
        if not part:
            break
        received += part
    return bytes(received)
