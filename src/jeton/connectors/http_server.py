"""A small HTTP server in a thread of its own, for sources and sinks."""

from __future__ import annotations

import socket
import threading
from typing import Any

from jeton.core.errors import JetonError


class HttpServer:
    """An ASGI application, served until `close` is called."""

    def __init__(self, app: Any, host: str, port: int) -> None:
        try:
            import uvicorn
        except ModuleNotFoundError as error:
            raise missing(error) from error
        self._socket = socket.create_server((host, port))
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            # Streams without an end must not keep the server from ending.
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="jeton-http", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def close(self) -> None:
        """End it, and free its port."""
        self._server.should_exit = True
        self._thread.join(10.0)
        self._socket.close()


def missing(error: ModuleNotFoundError) -> JetonError:
    """The error for a package that is not there."""
    return JetonError(f"HTTP needs {error.name}, which is not installed: pip install 'jeton[http]'")
