"""Control: the connection between the driver and a worker.

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
from jeton.mesh.receive import receive_exactly
from jeton.mesh.tls import TlsSocket

_LARGEST: Final = 1 << 34
"""Bytes in a payload: rows for sinks may be many. Memory is taken only for what has arrived."""
_LARGEST_HEADER: Final = 1 << 28
"""Bytes in a header: a part of a version has a few for each container and chunk of state."""


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
        if len(text) > _LARGEST_HEADER or len(payload) > _LARGEST:
            raise ProtocolError(
                f"a frame of kind {kind!r} with {len(text)} bytes of header and {len(payload)} of "
                "payload is too large to be sent"
            )
        with self._sending:
            self._sock.sendall(len(text).to_bytes(4, "little") + text + payload)

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame, waiting for it; ``None`` if the other end has hung up.

        `ProtocolError` if it is not a frame; then the beginning of the next one is not known.
        """
        prefix = self._exactly(4)
        if prefix is None:
            return None
        length = int.from_bytes(prefix, "little")
        if length > _LARGEST_HEADER:
            raise ProtocolError(f"a control frame with a header of {length} bytes was announced")
        text = self._exactly(length)
        if text is None:
            return None
        try:
            header = json.loads(text)
        except ValueError as error:
            raise ProtocolError(f"the header of a control frame is not JSON: {error}") from error
        if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
            raise ProtocolError(f"the header of a control frame names no kind: {text[:80]!r}")
        size = header.get("size")
        if not isinstance(size, int) or not 0 <= size <= _LARGEST:
            raise ProtocolError(
                f"a control frame of kind {header['kind']!r} announces {size!r} bytes of payload"
            )
        payload = self._exactly(size) if size else b""
        return None if payload is None else (header, payload)

    def has_news(self, timeout: float = 0.0) -> bool:
        """Whether a frame, or a hang-up, is there to be received, or comes in time."""
        if isinstance(self._sock, TlsSocket) and self._sock.buffered:
            return True
        # Not select(), which takes no file whose number is 1,024 or more.
        news = select.poll()
        news.register(self._sock, select.POLLIN)
        return bool(news.poll(timeout * 1000))

    def close(self) -> None:
        """Hang up."""
        # A thread that waits for a frame here is not woken by close() alone.
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _exactly(self, size: int) -> bytes | None:
        try:
            received = receive_exactly(self._sock, size)
        except OSError:
            return None
        return received if len(received) == size else None


def written_table(table: pa.Table) -> bytes:
    """Rows as the payload of a frame.

    >>> read_table(written_table(pa.table({"n": [1, 2]}))).num_rows
    2
    """
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    data: bytes = stream.getvalue().to_pybytes()
    return data


def read_table(payload: bytes) -> pa.Table:
    """Rows that came with a frame; `ProtocolError` if they are none."""
    try:
        return pa.ipc.open_stream(payload).read_all()
    except pa.ArrowException as error:
        raise ProtocolError(
            f"{len(payload)} bytes that came as rows are not an Arrow stream: {error}"
        ) from error
