"""A service that is slow to answer, over HTTP, in a process of its own; and a client for it.

It runs elsewhere, so it takes no time of the worker that calls it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import PIPE
from typing import TypeAlias

Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextmanager
def serving() -> Iterator[int]:
    """Answer each ``GET /n/ms`` with ``n``, ``ms`` milliseconds later; returns the port."""
    command = [sys.executable, "-m", __name__]
    # In a session of its own, which Ctrl-C does not reach: it ends with its input.
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, start_new_session=True) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        try:
            yield int(service.stdout.readline())
        finally:
            service.stdin.close()  # which it takes for the end


class Connections:
    """Connections that are kept and used again: opened by those who find none free."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[Connection] = []

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *how: object) -> None:
        for _, writer in self._free:
            writer.close()
        for _, writer in self._free:
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def get(self, n: int, ms: int) -> int:
        """The answer of the service."""
        connection = self._free.pop() if self._free else await self._connect()
        reader, writer = connection
        try:
            writer.write(b"GET /%d/%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % (n, ms))
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(head.rpartition(b":")[2]))
        except BaseException:
            writer.close()
            raise
        self._free.append(connection)
        return int(body)

    async def _connect(self) -> Connection:
        return await asyncio.open_connection("127.0.0.1", self._port)


async def _serve() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, body, ms = head.split(maxsplit=2)[1].split(b"/")
                await asyncio.sleep(int(ms) / 1e3)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    # At once: whoever still waits for an answer has gone.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve())
