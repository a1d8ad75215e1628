"""A server with S3's protocol on loopback, and a proxy in front of it that makes trouble."""

from __future__ import annotations

import http.client
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer

from jeton.storage.store_settings import StoreSettings

BUCKET = "bucket"


@contextmanager
def s3_server(*buckets: str) -> Iterator[str]:
    """A server with some empty buckets; yields its address."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    try:
        urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")).close()
        for bucket in buckets or (BUCKET,):
            urlopen(Request(f"{endpoint}/{bucket}", method="PUT")).close()
        yield endpoint
    finally:
        server.stop()


def settings_of(endpoint: str) -> StoreSettings:
    """What a session says about the server."""
    return StoreSettings(
        {
            "fs.s3a.endpoint": endpoint,
            "fs.s3a.access.key": "AKIDTEST",
            "fs.s3a.secret.key": "hush-hush",
            "fs.s3a.path.style.access": "true",
        }
    )


@dataclass(frozen=True)
class Asked:
    """A request as the proxy sees it."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def is_create(self) -> bool:
        """Whether a file is to be created only if it is not there."""
        return self.method == "PUT" and self.headers.get("if-none-match") == "*"

    @property
    def is_listing(self) -> bool:
        """Whether the files of a folder are asked for."""
        return self.method == "GET" and "list-type=2" in self.path


Answer = tuple[int, bytes]
Trouble = Callable[[Asked, Callable[[], Answer]], Answer | None]
"""Given a request and a way to carry it out, an answer in place of the server's, or none."""


@dataclass
class Proxy:
    """A proxy whose trouble can be changed at any time."""

    endpoint: str = ""
    trouble: Trouble | None = None
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def proxied(endpoint: str) -> Iterator[Proxy]:
    """A proxy in front of a server."""
    proxy = Proxy()
    target = endpoint.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {key.lower(): value for key, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers)
            proxy.asked.append(asked)
            done: list[tuple[int, list[tuple[str, str]], bytes]] = []

            def carry_out() -> Answer:
                connection = http.client.HTTPConnection(target, timeout=60)
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                response = connection.getresponse()
                done.append((response.status, response.getheaders(), response.read()))
                connection.close()
                return done[-1][0], done[-1][2]

            answer = None if proxy.trouble is None else proxy.trouble(asked, carry_out)
            if answer is None:
                if not done:
                    carry_out()
                status, known, content = done[-1]
            else:
                (status, content), known = answer, []
            if status == 0:
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(status)
            drop = {"content-length", "connection", "transfer-encoding", "server", "date"}
            length = str(len(content))
            for key, value in known:
                if key.lower() not in drop:
                    self.send_header(key, value)
                elif key.lower() == "content-length" and self.command == "HEAD":
                    length = value
            self.send_header("content-length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    proxy.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def error(code: str, status: int) -> Answer:
    """An answer that refuses a request, as S3 writes it."""
    return status, f"<Error><Code>{code}</Code><Message>as planned</Message></Error>".encode()


HUNG_UP: Answer = (0, b"")
"""The connection ends without an answer."""


def unsteady(random: Random, part: float) -> Trouble:
    """Some requests are late, or fail before or after they were carried out."""
    lock = threading.Lock()

    def trouble(asked: Asked, carry_out: Callable[[], Answer]) -> Answer | None:
        with lock:
            which, late = random.random(), random.uniform(0.0, 0.02)
        time.sleep(late)
        if which < part / 3:
            return error("InternalError", 500)
        if which < part * 2 / 3:
            carry_out()
            return error("SlowDown", 503)
        if which < part:
            carry_out()
            return HUNG_UP
        return None

    return trouble
