"""Socket: lines over TCP."""

from __future__ import annotations

import copy
import logging
import socket
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from jeton.connectors.formats import JSON, Format, Rejected, sift, with_times
from jeton.connectors.sources.source import Reader, Source
from jeton.core.errors import JetonError

log = logging.getLogger(__name__)

_AT_ONCE: Final = 1 << 20


class Socket(Source):
    r"""Lines that a server sends over TCP, a record in each: to try things out, as with ``nc -lk``.

    One worker connects to ``host`` and ``port``, and reads until the server closes the connection.
    Lines are JSON objects, or of another ``format``. One that cannot be read is an error, or is
    logged and counted with ``skip_bad``. What was sent cannot be read again, so that there is no
    position, and a query with such a source takes no checkpoints.

    >>> import socket
    >>> server = socket.create_server(("127.0.0.1", 0))
    >>> reader = Socket("127.0.0.1", server.getsockname()[1]).open("lines", None)
    >>> connection, _ = server.accept()
    >>> connection.sendall(b'{"time": 1, "n": 1}\n{"time": 2, "n": 2}\n')
    >>> while (records := reader.read()) is None:
    ...     pass
    >>> records["n"].to_pylist()[0]
    1
    >>> for each in (reader, connection, server):
    ...     each.close()
    """

    endless = True

    def __init__(
        self,
        host: str,
        port: int,
        *,
        format: Format | None = None,
        skip_bad: bool = False,
        timeout: float = 30.0,
    ) -> None:
        self.host = host
        self.port = port
        self.format = JSON() if format is None else format
        self.skip_bad = skip_bad
        self.timeout = timeout
        """Seconds to connect."""
        self.time: str | None = None
        """The time column of the input, if it declares its columns."""

    def partitions(self, workers: int) -> Mapping[str, Any]:
        """One."""
        return {"lines": None}

    def open(self, partition: str, position: Any | None) -> Reader:
        """Connect."""
        return _SocketReader(self)

    def typed(self, schema: pa.Schema, time: str) -> Socket:
        """The source with the types that an input declares."""
        made = copy.copy(self)
        made.format = self.format.typed(schema, only=time in schema.names)
        made.time = time
        return made


class _SocketReader(Reader):
    def __init__(self, source: Socket) -> None:
        self._source = source
        self._socket = socket.create_connection((source.host, source.port), source.timeout)
        self._socket.setblocking(False)
        self._rest = b""
        self._lines = 0

    def read(self) -> Any | None:
        try:
            data = self._socket.recv(_AT_ONCE)
        except BlockingIOError:
            return None
        if not data:
            self.ended = True
            # A last line without an end.
            data = b"\n" if self._rest else b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        first, self._lines = self._lines, self._lines + len(lines)
        numbered = [(first + at, line) for at, line in enumerate(lines, 1) if line.strip()]
        if not numbered:
            return None
        values = pa.array([line for _, line in numbered], pa.binary())
        table, bad = sift(self._source.format, values)
        if table is not None:
            read = sorted(set(range(len(values))).difference(each.at for each in bad))
            table, timeless = with_times(table, self._source.time)
            bad += [Rejected(read[each.at], each.reason) for each in timeless]
        for each in sorted(bad):
            number, line = numbered[each.at]
            text = (
                f"line {number} from {self._source.host}:{self._source.port} cannot be read: "
                f"{each.reason}: {line[:200]!r}"
            )
            if not self._source.skip_bad:
                raise JetonError(f"{text}. To go on without such lines, give the source skip_bad=")
            log.warning("%s", text)
        self.rejected += len(bad)
        return table

    def close(self) -> None:
        self._socket.close()
