"""Webhook: records that others POST."""

from __future__ import annotations

import copy
import hmac
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa

from jeton.connectors.formats import JSON, with_times
from jeton.connectors.http_server import HttpServer, missing
from jeton.connectors.sources.source import Reader, Source
from jeton.core.errors import GraphError

_AT_ONCE: Final = 4 << 20
_LINE: Final = b"%d %s\n"


class Webhook(Source):
    """Records that others POST as JSON: an object, a list of them, or a line for each.

    One worker serves ``path`` at ``host`` and ``port`` (``pip install 'jeton[http]'``). Before it
    answers, it writes the records to a file in ``folder``, which all workers see: so a record whose
    sender got the answer 200 is not lost, and is read again after a failure. Records that cannot be
    read as what the input declares are refused with the reason, and the answer 422. Files that the
    query has passed may be deleted while it does not run.

    Args:
        port: The port.
        folder: The folder for records.
        host: The address to listen at: by default only this machine can connect.
        path: The path that is served.
        token: If given, requests need the header ``Authorization: Bearer <token>``.
        received: A column for the time of arrival, in nanoseconds since 1970, if wanted.
        most: Bytes of a request at most.

    >>> import tempfile, urllib.request
    >>> reader = Webhook(0, tempfile.mkdtemp()).open("requests", None)
    >>> with urllib.request.urlopen(reader.url, data=b'[{"n": 1}, {"n": 2}]') as answer:
    ...     answer.status
    200
    >>> reader.read()["n"].to_pylist()
    [1, 2]
    >>> reader.close()
    """

    endless = True

    def __init__(
        self,
        port: int,
        folder: str | os.PathLike[str],
        *,
        host: str = "127.0.0.1",
        path: str = "/",
        token: str | None = None,
        received: str | None = None,
        most: int = 16 << 20,
    ) -> None:
        if not path.startswith("/"):
            raise GraphError(f"the path of a webhook begins with a slash, unlike {path!r}")
        self.port = port
        if "://" in os.fspath(folder):
            raise GraphError(
                f"a webhook appends to files, which {os.fspath(folder)!r} does not allow: give it "
                "the path of a folder that all workers see"
            )
        # Workers have another folder to work in.
        self.folder = Path(folder).absolute()
        self.host = host
        self.path = path
        self.token = token
        self.received = received
        self.most = most
        self.format = JSON()
        self.time: str | None = None
        """The time column of the input, if it declares its columns."""

    def partitions(self, workers: int) -> Mapping[str, Any]:
        """One."""
        return {"requests": {}}

    def open(self, partition: str, position: Any | None) -> _WebhookReader:
        """Listen."""
        return _WebhookReader(self, position or {})

    def typed(self, schema: pa.Schema, time: str) -> Webhook:
        """The source with the types that an input declares."""
        made = copy.copy(self)
        values = pa.schema([field for field in schema if field.name != self.received])
        made.format = self.format.typed(values, only=time == self.received or time in values.names)
        made.time = time
        return made


class _WebhookReader(Reader):
    """The server of a webhook, and the reader of its files."""

    def __init__(self, source: Webhook, position: Mapping[str, int]) -> None:
        self._source = source
        source.folder.mkdir(parents=True, exist_ok=True)
        self._read = dict(position)
        """The bytes of each file that were read."""
        self._spool = _Spool(source.folder)
        self._server = HttpServer(_app(source, self._spool), source.host, source.port)
        self.url = f"{self._server.url}{source.path}"

    def read(self) -> Any | None:
        # Also those of servers before, which may still be answering somewhere.
        paths = sorted(self._source.folder.glob("*.records"))
        self._read = {path.name: self._read.get(path.name, 0) for path in paths}
        for path in paths:
            lines = _whole_lines(path, self._read[path.name])
            if lines:
                self._read[path.name] += len(lines)
                return self._decoded(lines)
        return None

    @property
    def position(self) -> dict[str, int]:
        return dict(self._read)

    def close(self) -> None:
        self._server.close()
        self._spool.close()

    def _decoded(self, data: bytes) -> pa.Table:
        times, values = zip(*(line.split(b" ", 1) for line in data.splitlines()), strict=True)
        table = self._source.format.decode(pa.array(values, pa.binary()))
        if self._source.received is not None:
            arrived = pa.array([int(each) for each in times], pa.int64())
            table = table.append_column(self._source.received, arrived)
        return table


def _whole_lines(path: Path, start: int) -> bytes:
    """Some lines of a file, or nothing if none is complete."""
    size = _AT_ONCE
    with path.open("rb") as file:
        while True:
            file.seek(start)
            data = file.read(size)
            end = data.rfind(b"\n") + 1
            if end or len(data) < size:
                return data[:end]
            # One line is longer than that.
            size *= 2


class _Spool:
    """The file of one server, to which it appends what it has received."""

    def __init__(self, folder: Path) -> None:
        # In the order in which they began; no two servers share one.
        name = f"{time.time_ns():020}-{token_hex(4)}.records"
        self._file = (folder / name).open("ab", buffering=0)
        self._lock = threading.Lock()

    def append(self, values: list[bytes]) -> None:
        with self._lock:
            now = time.time_ns()
            self._file.write(b"".join(_LINE % (now, value) for value in values))
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _app(source: Webhook, spool: _Spool) -> Any:
    try:
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.requests import Request
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ModuleNotFoundError as error:
        raise missing(error) from error

    def refuse(status: int, reason: str) -> Response:
        return JSONResponse({"error": reason}, status)

    async def take(request: Request) -> Response:
        said = request.headers.get("authorization", "").encode()
        if source.token is not None and not hmac.compare_digest(
            said, f"Bearer {source.token}".encode()
        ):
            return refuse(401, "this needs a token")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > source.most:
                return refuse(413, f"a request has at most {source.most} bytes")
        try:
            values = _values(body)
            table = source.format.decode(pa.array(values, pa.binary())) if values else None
        except Exception as error:
            return refuse(422, f"{type(error).__name__}: {error}")
        if table is not None and (timeless := with_times(table, source.time)[1]):
            return refuse(422, f"record {timeless[0].at} cannot be taken: {timeless[0].reason}")
        if values:
            await run_in_threadpool(spool.append, values)
        return JSONResponse({"records": len(values)})

    return Starlette(routes=[Route(source.path, take, methods=["POST"])])


def _values(body: bytes) -> list[bytes]:
    """The records of a request, each on one line."""
    try:
        found = json.loads(body)
    except json.JSONDecodeError:
        found = [json.loads(line) for line in body.splitlines() if line.strip()]
    rows = found if isinstance(found, list) else [found]
    return [json.dumps(row, separators=(",", ":"), ensure_ascii=True).encode() for row in rows]
