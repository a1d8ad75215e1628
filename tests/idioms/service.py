"""A slow service on this machine, and a client for it, with the standard library only."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread

DELAY = 0.05
"""Seconds that an answer takes: the service is slow, which is the point of it."""


class Service:
    """Answers ``GET /n`` with ten times ``n``, and knows what it was asked."""

    def __init__(self, status: Callable[[int, int], int], delay: float) -> None:
        self.asked: Counter[int] = Counter()
        """How many times each number was asked for."""
        self.most = 0
        """The most requests at a time."""
        self.gate = Event()
        """Closed, no answer leaves; but not for ever, so that a faulty flow fails and ends."""
        self.gate.set()
        self.answers: list[int] = []
        """The answers, in order."""
        self._status = status
        self._delay = delay
        self._now = 0
        self._lock = Lock()

    def answer(self, n: int) -> int:
        """The status for a request, after a while."""
        with self._lock:
            self.asked[n] += 1
            attempt = self.asked[n]
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(self._delay)
        self.gate.wait(20.0)
        with self._lock:
            self._now -= 1
            self.answers.append(n)
        return self._status(n, attempt)


@contextmanager
def serving(
    status: Callable[[int, int], int] = lambda n, attempt: 200, *, delay: float = DELAY
) -> Iterator[tuple[Service, int]]:
    """A service and its port; ``status(n, attempt)`` says how it answers."""
    service = Service(status, delay)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            n = int(self.path[1:])
            code = service.answer(n)
            body = str(10 * n if code == 200 else "out of order").encode()
            try:
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except ConnectionError:
                pass  # the caller has given up

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # closing it waits for them
        request_queue_size = 256

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield service, server.server_port
        finally:
            service.gate.set()
            server.shutdown()
            thread.join()


async def get(port: int, n: int) -> int:
    """Ask the service; `OSError` if it says that it failed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET /{n} HTTP/1.0\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status != 200:
            raise OSError(f"the service answered {status}")
        return int(body)
    finally:
        writer.close()
        await writer.wait_closed()
