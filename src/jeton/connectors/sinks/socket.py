"""Socket: lines over TCP."""

from __future__ import annotations

import socket
from typing import Any

import pyarrow as pa

from jeton.connectors.formats import JSON, Format
from jeton.connectors.sinks.sink import DirectSink, SinkContext, Writer


class Socket(DirectSink):
    r"""A line for each row, sent over TCP: at least once.

    Each worker connects to ``host`` and ``port``, and sends its rows as they come, in JSON or
    another ``format`` whose values have no line breaks. After a failure, rows since the last
    checkpoint are sent again.

    >>> server = socket.create_server(("127.0.0.1", 0))
    >>> writer = Socket("127.0.0.1", server.getsockname()[1]).open(SinkContext("q", worker=0))
    >>> writer.write(pa.table({"n": [1, 2]}))
    >>> writer.close()
    >>> connection, _ = server.accept()
    >>> with server, connection, connection.makefile() as lines:
    ...     lines.read()
    '{"n":1}\n{"n":2}\n'
    """

    def __init__(
        self, host: str, port: int, *, format: Format | None = None, timeout: float = 30.0
    ) -> None:
        self.host = host
        self.port = port
        self.format = JSON() if format is None else format
        self.timeout = timeout
        """Seconds to connect, and to wait for a reader that is slow."""

    def open(self, context: SinkContext) -> Writer:
        """Connect from this worker."""
        return _SocketWriter(self)


class _SocketWriter(Writer):
    def __init__(self, sink: Socket) -> None:
        self._sink = sink
        self._socket = socket.create_connection((sink.host, sink.port), sink.timeout)

    def write(self, table: pa.Table) -> None:
        lines = self._sink.format.encode(table).to_pylist()
        self._socket.sendall(b"".join(line + b"\n" for line in lines))

    def stage(self, version: int) -> list[Any]:
        return []

    def close(self) -> None:
        self._socket.close()
