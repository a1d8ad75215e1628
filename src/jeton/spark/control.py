"""Control: what the driver and the workers of a long-lived query tell each other.

A frame is the length of a JSON header, the header, and as many bytes of payload as it announces:
rows for sinks at the driver travel as Arrow streams.
"""

from __future__ import annotations

import json
import select
import socket
import threading
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from jeton.core.errors import ProtocolError

_LARGEST_HEADER: Final = 1 << 28
_LARGEST: Final = 1 << 34
"""Bytes of a payload: rows for sinks may be many. Memory is only taken for what has arrived."""


class Control:
    """One end of the connection between the driver and a worker.

    >>> driver, worker = (Control(end) for end in socket.socketpair())
    >>> worker.send("report", b"abc", rows=3)
    >>> driver.has_news(), driver.receive()
    (True, ({'kind': 'report', 'size': 3, 'rows': 3}, b'abc'))
    >>> worker.close()
    >>> driver.receive() is None
    True
    >>> driver.close()
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        self._sock = sock
        self._sending = threading.Lock()

    def send(self, kind: str, payload: bytes = b"", **header: Any) -> None:
        """Send a frame; safe from any thread."""
        text = json.dumps({"kind": kind, "size": len(payload), **header}).encode()
        with self._sending:
            self._sock.sendall(len(text).to_bytes(4, "little") + text + payload)

    def send_table(self, name: str, table: pa.Table) -> None:
        """Send rows of an output."""
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        self.send("rows", stream.getvalue().to_pybytes(), output=name)

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame, waiting for it; ``None`` if the other end has hung up."""
        size = self._exactly(4, 4)
        if size is None:
            return None
        text = self._exactly(int.from_bytes(size, "little"), _LARGEST_HEADER)
        if text is None:
            return None
        try:
            header: dict[str, Any] = json.loads(text)
            announced = int(header["size"])
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"a control frame cannot be read: {error}") from error
        payload = self._exactly(announced, _LARGEST)
        return None if payload is None else (header, payload)

    def has_news(self) -> bool:
        """Whether a frame, or a hang-up, is there to be received."""
        # Not select(), which takes no file whose number is 1,024 or more.
        news = select.poll()
        news.register(self._sock, select.POLLIN)
        return bool(news.poll(0))

    def close(self) -> None:
        """Hang up."""
        # A thread that waits for a frame here is not woken by close() alone.
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _exactly(self, size: int, most: int) -> bytes | None:
        if not 0 <= size <= most:
            raise ProtocolError(f"a control frame of {size} bytes was announced, of at most {most}")
        received = bytearray()
        while len(received) < size:
            try:
                part = self._sock.recv(min(size - len(received), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            received += part
        return bytes(received)


def read_table(payload: bytes) -> pa.Table:
    """Rows that came with a frame."""
    return pa.ipc.open_stream(payload).read_all()
