"""The server of live pages: one in a process, in a thread of its own, at a loopback address.

Each page has a secret in its address; there is nothing to see without one. Requests that name
another host are refused, so that a name that was made to point here gives nothing away. Acts are
POST requests of the page itself. All addresses in a page are relative, so that it works behind any
path of a proxy.
"""

from __future__ import annotations

import asyncio
import atexit
import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Final

from jeton.core.errors import JetonError
from jeton.inspector.actions import Inspected, act, reasons
from jeton.inspector.prometheus import exposition
from jeton.inspector.running import publish
from jeton.inspector.view import View

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import (
        HTMLResponse,
        JSONResponse,
        PlainTextResponse,
        Response,
        StreamingResponse,
    )
    from starlette.routing import Route
except ModuleNotFoundError as error:
    raise JetonError(
        f"the live page needs {error.name}, which is not installed: pip install 'jeton[inspect]'"
    ) from error

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow

LOOPBACK: Final = "127.0.0.1"
HOSTS: Final = "JETON_INSPECT_HOSTS"
"""The environment variable with further names of hosts that requests may have, as a proxy's do."""
MOST_BODY: Final = 1 << 16
"""Bytes of a request at most."""
POLL: Final = 0.1
"""Seconds between looks for a new snapshot."""
BEAT: Final = 15.0
"""Seconds after which a stream without news shows that it lives."""
ENDED_KEPT: Final = 16
"""Pages of what has ended that are still served."""


class Page:
    """The live page of one run or query."""

    def __init__(
        self, server: PageServer, flow: Flow, target: Inspected, visited: Callable[[], None]
    ) -> None:
        self.secret = secrets.token_urlsafe(18)
        self.target = target
        self.view = View(flow)
        self.graph = self.view.graph()
        self.closed = False
        self.url = f"{server.address}/{self.secret}/"
        """The address of the page, its secret included."""
        self._server = server
        self._text = ""
        self._number = -1
        self._visited: Callable[[], None] | None = visited
        monitor = target.monitor
        self.view.take(monitor.seen or monitor.look())
        monitor.watch(self.view.take)
        self._file = publish(monitor.name, self.url)
        atexit.register(self._withdraw)
        monitor.add_listener(self)

    def visit(self) -> None:
        """Someone looks at the page."""
        visited, self._visited = self._visited, None
        if visited is not None:
            visited()

    def onQueryTerminated(self, event: Any) -> None:
        """Withdraw the page from other terminals' lists: the run that it shows has ended."""
        self._withdraw()

    def snapshot(self) -> str:
        """The latest snapshot as JSON; it is made once for all who look."""
        if self._number != self.view.number:
            self._number = self.view.number
            latest = {**self.view.latest, "reasons": reasons(self.target)}
            self._text = json.dumps(latest, default=str)
        return self._text

    def close(self) -> None:
        """Serve it no longer; twice is harmless."""
        if self.closed:
            return
        self.closed = True
        self._withdraw()
        self.target.monitor.unwatch(self.view.take)
        self.target.monitor.remove_listener(self)
        self._server.pages.remove(self)

    def _withdraw(self) -> None:
        self._file.unlink(missing_ok=True)
        atexit.unregister(self._withdraw)


class PageServer:
    """Serves the pages of this process.

    >>> server = PageServer()
    >>> server.address.startswith("http://127.0.0.1:")
    True
    >>> server.close()
    """

    _running: ClassVar[dict[tuple[str, int], PageServer]] = {}
    """The servers of this process, by the address that was asked for."""
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, host: str = LOOPBACK, port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        name = f"[{host}]" if ":" in host else host
        self.port: int = self._socket.getsockname()[1]
        self.address = f"http://{name}:{self.port}"
        self.pages: list[Page] = []
        self._hosts = {host.lower(), "localhost"}
        if host not in (LOOPBACK, "localhost", "::1"):
            # A server at another address than loopback is reached by the machine's name.
            self._hosts |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        named = os.environ.get(HOSTS, "").split(",")
        self._hosts |= {name.strip().lower() for name in named if name.strip()}
        config = uvicorn.Config(
            self._application(),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="jeton-inspector", daemon=True)
        self._thread.start()

    @classmethod
    def at(cls, host: str = LOOPBACK, port: int = 0) -> PageServer:
        """The server of this process at an address, started if there is none."""
        with cls._lock:
            found = cls._running.get((host, port))
            if found is None:
                found = cls._running[host, port] = cls(host, port)
            return found

    @classmethod
    def close_all(cls) -> None:
        """End all servers of this process."""
        for server in list(cls._running.values()):
            server.close()

    def add(self, flow: Flow, target: Inspected, visited: Callable[[], None]) -> Page:
        """Serve a page of a run or a query."""
        ended = [page for page in self.pages if page.target.monitor.is_over]
        for page in ended[:-ENDED_KEPT]:
            page.close()
        page = Page(self, flow, target, visited)
        self.pages.append(page)
        return page

    def close(self) -> None:
        """End the server, and its pages."""
        with self._lock:
            for asked in [key for key, server in self._running.items() if server is self]:
                del self._running[asked]
        for page in list(self.pages):
            page.close()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    # Inside

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def _application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/{secret}", self._without_slash),
                Route("/{secret}/", self._page),
                Route("/{secret}/graph", self._graph),
                Route("/{secret}/events", self._events),
                Route("/{secret}/snapshot", self._snapshot),
                Route("/{secret}/metrics", self._metrics),
                Route("/{secret}/act", self._act, methods=["POST"]),
            ],
        )

    def _found(self, request: Request) -> Page | None:
        """The page that a request knows the secret of."""
        if not self._is_known(request.headers.get("host", "")):
            return None
        given = request.path_params["secret"].encode()
        found = None
        for page in list(self.pages):
            # All of them are compared, and each in constant time.
            if hmac.compare_digest(page.secret.encode(), given):
                found = page
        return found

    def _is_known(self, host: str) -> bool:
        """Whether a request may name a host; a numeric address is not a name made to point here."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        name = name.strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True

    async def _without_slash(self, request: Request) -> Response:
        if self._found(request) is None:
            return _not_found()
        # Only the browser knows the path of a proxy, and proxies change the header of a redirect.
        to = f"{request.path_params['secret']}/"
        refresh = f'<meta http-equiv="refresh" content="0; url={to}">'
        page = f"<!doctype html><title>Jeton</title>{refresh}"
        headers = {**_HEADERS, "content-security-policy": "default-src 'none'"}
        return HTMLResponse(page, headers=headers)

    async def _page(self, request: Request) -> Response:
        page = self._found(request)
        if page is None:
            return _not_found()
        page.visit()
        nonce = secrets.token_urlsafe(12)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        text = _html().replace("__NONCE__", nonce)
        return HTMLResponse(text, headers={**_HEADERS, "content-security-policy": policy})

    async def _graph(self, request: Request) -> Response:
        page = self._found(request)
        return _not_found() if page is None else JSONResponse(page.graph, headers=_HEADERS)

    async def _snapshot(self, request: Request) -> Response:
        page = self._found(request)
        if page is None:
            return _not_found()
        return Response(page.snapshot(), media_type="application/json", headers=_HEADERS)

    async def _metrics(self, request: Request) -> Response:
        page = self._found(request)
        if page is None:
            return _not_found()
        page.visit()
        monitor = page.target.monitor
        assert monitor.seen is not None, "a page begins with a look"
        text, kind = exposition(monitor.name, monitor.seen), "text/plain; version=0.0.4"
        return Response(text, media_type=kind, headers=_HEADERS)

    async def _events(self, request: Request) -> Response:
        page = self._found(request)
        if page is None:
            return _not_found()
        # Some proxies would keep events back until there are many.
        headers = {**_HEADERS, "x-accel-buffering": "no"}
        return StreamingResponse(
            self._stream(page), media_type="text/event-stream", headers=headers
        )

    async def _stream(self, page: Page) -> AsyncIterator[str]:
        yield f"event: history\ndata: {json.dumps(list(page.view.history))}\n\n"
        sent, quiet = -1, 0.0
        while not self._server.should_exit:
            if page.view.number != sent:
                sent, quiet = page.view.number, 0.0
                yield f"data: {page.snapshot()}\n\n"
            elif page.closed:
                yield "event: closed\ndata: {}\n\n"
                return
            elif quiet > BEAT:
                quiet = 0.0
                yield ": still here\n\n"
            quiet += POLL
            await asyncio.sleep(POLL)

    async def _act(self, request: Request) -> Response:
        page = self._found(request)
        if page is None:
            return _not_found()
        if not _is_own(request):
            return _refused("another site may not steer what runs here")
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _refused("acts are JSON")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_BODY:
                return _refused("the request is too long")
        try:
            asked = json.loads(body)
            name, arguments = asked["act"], asked.get("arguments", {})
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError):
            return _refused('an act is {"act": name, "arguments": {…}}')
        try:
            done = await run_in_threadpool(act, page.target, name, arguments)
        except Exception as error:
            text = (
                str(error) if isinstance(error, JetonError) else f"{type(error).__name__}: {error}"
            )
            return JSONResponse({"error": text}, status_code=409, headers=_HEADERS)
        return Response(
            json.dumps(done, default=str), media_type="application/json", headers=_HEADERS
        )


_HEADERS: Final = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}


def _is_own(request: Request) -> bool:
    """Whether a request comes from the page itself, perhaps through proxies, or from a program."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    if origin is None:
        return True
    # Scripts of other sites cannot set these headers: browsers would ask first.
    hosts = {request.headers.get("host", "")}
    for line in request.headers.getlist("x-forwarded-host"):
        hosts |= {host.strip() for host in line.split(",")}
    for line in request.headers.getlist("forwarded"):
        hosts |= set(re.findall(r'\bhost="?([^";,\s]+)', line, re.IGNORECASE))
    return origin.partition("://")[2] in hosts


def _not_found() -> Response:
    return PlainTextResponse("There is no such page.", status_code=404, headers=_HEADERS)


def _refused(why: str) -> Response:
    return JSONResponse({"error": why}, status_code=400, headers=_HEADERS)


@cache
def _html() -> str:
    return files("jeton.inspector").joinpath("page.html").read_text("utf-8")


def serve(
    flow: Flow,
    target: Inspected,
    host: str = LOOPBACK,
    port: int = 0,
    visited: Callable[[], None] = lambda: None,
) -> Page:
    """Serve a live page of a run or a query, from this process.

    ``visited`` is called once, when someone first asks for it.
    """
    target.monitor.start()
    return PageServer.at(host, port).add(flow, target, visited)
