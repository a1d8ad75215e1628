"""A proxy as there are in front of drivers: pages are behind a path, and events are kept back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PATH = "/sparkui/cluster-7/proxy/jeton"


@contextmanager
def proxied(url: str) -> Iterator[str]:
    """The address of a page behind a proxy."""
    parts = urlsplit(url)
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(f"{PATH}/"):
                self.send_error(404)
                return
            if self.path.endswith("/events"):
                over.wait(60)
                return
            length = int(self.headers.get("content-length") or 0)
            inner = HTTPConnection(parts.netloc, timeout=60)
            headers = {"x-forwarded-host": self.headers["host"]}
            for name in ("content-type", "origin"):
                if name in self.headers:
                    headers[name] = self.headers[name]
            body = self.rfile.read(length) if length else None
            inner.request(self.command, self.path.removeprefix(PATH), body, headers)
            answer = inner.getresponse()
            found = answer.read()
            self.send_response(answer.status)
            for name in ("content-type", "location", "content-security-policy"):
                if answer.getheader(name):
                    self.send_header(name, str(answer.getheader(name)))
            self.send_header("content-length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)
            inner.close()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{PATH}{parts.path}"
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()
