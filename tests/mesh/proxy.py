"""A man in the middle: passes connections on, records their bytes, and may change records."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

Change = Callable[["Proxy", int, bytes], Iterable[bytes]]
"""Gets a TLS record that goes to the listening end, the number of its connection, and answers
with what goes on instead."""

HEADER = 5
APPLICATION_DATA = 23


def unchanged(proxy: Proxy, connection: int, record: bytes) -> Iterable[bytes]:
    """Pass it on."""
    return [record]


class Proxy:
    """Listens in front of a port."""

    def __init__(self, port: int, change: Change | None = None) -> None:
        self.recorded = bytearray()
        """Everything that came by, in both directions."""
        self.done = threading.Event()
        """Whether something has been changed."""
        self.seen: list[tuple[int, bytes]] = []
        """Records that a change has set aside, with their connections."""
        self._behind = port
        self._change = change
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        connections = 0
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._behind))
                self._sockets += [client, server]
                for source, target, number in (
                    (client, server, connections),
                    (server, client, None),
                ):
                    threading.Thread(
                        target=self._pass_on, args=(source, target, number), daemon=True
                    ).start()
                connections += 1

    def _pass_on(self, source: socket.socket, target: socket.socket, number: int | None) -> None:
        rest = b""
        with suppress(OSError):
            while data := source.recv(65_536):
                with self._lock:
                    self.recorded += data
                    if self._change is None or number is None:
                        out = data
                    else:
                        records, rest = records_of(rest + data)
                        out = b"".join(
                            part for each in records for part in self._change(self, number, each)
                        )
                target.sendall(out)
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all connections."""
        self._server.close()
        for sock in self._sockets:
            sock.close()


def records_of(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole TLS records at the beginning of bytes, and the rest."""
    found, at = [], 0
    while len(data) - at >= HEADER:
        size = HEADER + int.from_bytes(data[at + 3 : at + HEADER], "big")
        if len(data) - at < size:
            break
        found.append(data[at : at + size])
        at += size
    return found, data[at:]


def is_data(record: bytes) -> bool:
    """Whether a record is one of many rows."""
    return record[0] == APPLICATION_DATA and len(record) > 4000
