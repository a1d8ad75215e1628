"""ServerSentEvents: rows for browsers and other programs, over HTTP."""

from __future__ import annotations

import asyncio
import hmac
import re
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

import pyarrow as pa

from jeton.connectors.formats import JSON, Format
from jeton.connectors.http_server import HttpServer, missing
from jeton.connectors.sinks.driver_sink import Delivery, DriverSink

BEAT: Final = 15.0
"""Seconds after which a stream without rows shows that it lives."""

_LINE_ENDS: Final = re.compile(r"\r\n|\r|\n")
"""Those of events: Python's own lines also end at other characters, which belong to the data."""


class ServerSentEvents(DriverSink):
    """Rows as a stream of events over HTTP, for ``EventSource`` in browsers: at least once.

    The driver serves ``path`` at ``host`` and ``port`` (``pip install 'jeton[http]'``). Each row is
    an event, with the row in JSON as its data. Its id is the version of the checkpoint, the number
    of the table and that of the row: the same if it comes again. The last ``keep`` events are kept
    for readers that come later, or that come back: these say the last id that they have seen, as
    ``EventSource`` does by itself. With ``token``, the address needs it, as ``?token=…``.

    >>> import urllib.request
    >>> sink = ServerSentEvents()
    >>> sink.receive(pa.table({"n": [1]}), Delivery(version=7))
    >>> with urllib.request.urlopen(sink.url) as events:
    ...     print(events.readline().decode() + events.readline().decode())
    id: 7.0.0
    data: {"n":1}
    >>> sink.close()
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        path: str = "/",
        token: str | None = None,
        keep: int = 1000,
        format: Format | None = None,
    ) -> None:
        self.path = path
        self.token = token
        self.format = JSON() if format is None else format
        self._place = host, port
        self._events: deque[tuple[int, str, str]] = deque(maxlen=keep)
        """The latest events: their numbers, ids and data."""
        self._count = 0
        self._lock = threading.Lock()
        self._server: HttpServer | None = None
        self._readers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    @property
    def url(self) -> str:
        """The address of the stream, which is served from now on."""
        with self._lock:
            if self._server is None:
                self._server = HttpServer(self._app(), *self._place)
            secret = "" if self.token is None else f"?token={self.token}"
            return f"{self._server.url}{self.path}{secret}"

    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        """Send rows to all readers."""
        assert self.url
        values = [value.decode() for value in self.format.encode(table).to_pylist()]
        version = "" if delivery.version is None else f"{delivery.version}."
        with self._lock:
            for at, value in enumerate(values):
                number = delivery.number if delivery.version is not None else self._count
                self._events.append((self._count, f"{version}{number}.{at}", value))
                self._count += 1
            readers = list(self._readers.items())
        for news, loop in readers:
            loop.call_soon_threadsafe(news.set)

    def close(self) -> None:
        """Serve no more."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _since(self, last: str | None) -> int:
        """The number of the first event that a reader has not seen."""
        with self._lock:
            for number, name, _ in reversed(self._events):
                if name == last:
                    return number + 1
            return self._events[0][0] if self._events else self._count

    def _from(self, number: int) -> list[tuple[int, str, str]]:
        with self._lock:
            return [event for event in self._events if event[0] >= number]

    async def _stream(self, last: str | None) -> AsyncIterator[str]:
        news = asyncio.Event()
        self._readers[news] = asyncio.get_running_loop()
        try:
            number = self._since(last)
            while True:
                news.clear()
                for at, name, value in self._from(number):
                    number = at + 1
                    yield (
                        f"id: {name}\n"
                        + "".join(f"data: {line}\n" for line in _LINE_ENDS.split(value))
                        + "\n"
                    )
                try:
                    await asyncio.wait_for(news.wait(), BEAT)
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            del self._readers[news]

    def _app(self) -> Any:
        try:
            from starlette.applications import Starlette
            from starlette.requests import Request
            from starlette.responses import PlainTextResponse, Response, StreamingResponse
            from starlette.routing import Route
        except ModuleNotFoundError as error:
            raise missing(error) from error

        async def stream(request: Request) -> Response:
            said = request.query_params.get("token", "").encode()
            if self.token is not None and not hmac.compare_digest(said, self.token.encode()):
                return PlainTextResponse("this needs a token", 401)
            last = request.headers.get("last-event-id")
            return StreamingResponse(self._stream(last), media_type="text/event-stream")

        return Starlette(routes=[Route(self.path, stream)])
