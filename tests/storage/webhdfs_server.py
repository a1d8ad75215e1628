"""A name node on loopback that speaks WebHDFS: files in memory, and a rename in one step."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

_PREFIX: Final = "/webhdfs/v1"
_SECOND: Final = "&datanode=true"
"""Clients send and read bytes in a second request, to the address that the first one names."""


class Refused(Exception):
    """An exception of Java's for the client."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


def _missing(path: PurePosixPath) -> Refused:
    return Refused(404, "java.io.FileNotFoundException", f"{path} does not exist")


class NameNode:
    """The files of a cluster: each call is one step, as in HDFS."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[PurePosixPath, tuple[bytes, float]] = {}
        self._folders: set[PurePosixPath] = {PurePosixPath("/")}
        self.renames = 0
        """How many files were renamed on condition that the name was free."""
        self.refused = 0
        """How many times it was not."""

    def status(self, path: PurePosixPath, name: str = "") -> dict[str, Any]:
        """What the protocol says about a file or a folder."""
        with self._lock:
            return self._status(path, name)

    def listed(self, path: PurePosixPath) -> list[dict[str, Any]]:
        """The files and folders in a folder."""
        with self._lock:
            if path in self._files:
                return [self._status(path, "")]
            if path not in self._folders:
                raise _missing(path)
            found = [each for each in (*self._files, *self._folders) if each.parent == path]
            return [self._status(each, each.name) for each in sorted(found) if each != path]

    def read(self, path: PurePosixPath) -> bytes:
        """All bytes of a file."""
        with self._lock:
            if path not in self._files:
                raise _missing(path)
            return self._files[path][0]

    def create(self, path: PurePosixPath, data: bytes, *, overwrite: bool) -> None:
        """Create a file with the folders above it."""
        with self._lock:
            if path in self._folders or (path in self._files and not overwrite):
                self._refuse(path)
            self._make_folders(path.parent)
            self._files[path] = data, time.time()

    def make_folders(self, path: PurePosixPath) -> None:
        """Create a folder with those above it."""
        with self._lock:
            self._make_folders(path)

    def rename(self, path: PurePosixPath, to: PurePosixPath, *, overwrite: bool) -> None:
        """Rename a file; if its new name is taken, that is an error unless ``overwrite`` is set."""
        with self._lock:
            if path not in self._files:
                raise _missing(path)
            if to in self._folders or (to in self._files and not overwrite):
                self.refused += 1
                self._refuse(to)
            self._make_folders(to.parent)
            self._files[to] = self._files.pop(path)
            self.renames += not overwrite

    def delete(self, path: PurePosixPath) -> bool:
        """Delete a file."""
        with self._lock:
            return self._files.pop(path, None) is not None

    def _refuse(self, path: PurePosixPath) -> None:
        kind = "org.apache.hadoop.fs.FileAlreadyExistsException"
        raise Refused(403, kind, f"{path} is there already")

    def _make_folders(self, path: PurePosixPath) -> None:
        for each in (path, *path.parents):
            if each in self._files:
                kind = "org.apache.hadoop.fs.ParentNotDirectoryException"
                raise Refused(403, kind, f"{each} is a file")
            self._folders.add(each)

    def _status(self, path: PurePosixPath, name: str) -> dict[str, Any]:
        if path not in self._folders and path not in self._files:
            raise _missing(path)
        is_file = path in self._files
        data, changed = self._files[path] if is_file else (b"", 0.0)
        return {
            "pathSuffix": name,
            "type": "FILE" if is_file else "DIRECTORY",
            "length": len(data),
            "modificationTime": int(changed * 1e3),
            "accessTime": 0,
            "blockSize": 1 << 27,
            "replication": int(is_file),
            "owner": "test",
            "group": "test",
            "permission": "755",
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    node: NameNode

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            # The client was killed.
            self.close_connection = True

    def answer(self) -> None:
        """Carry a request out, and answer it."""
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b"".join(iter(self._chunk, b""))
        try:
            status, body = self._carry_out(data)
        except Refused as refused:
            kind = refused.kind
            told = {"exception": kind.rpartition(".")[2], "javaClassName": kind}
            told["message"] = str(refused)
            status, body = refused.status, json.dumps({"RemoteException": told}).encode()
        self.send_response(status)
        if status == 307:
            again = quote(self.path.encode("latin-1"), safe="/%?&=")
            self.send_header("Location", f"http://{self.headers['Host']}{again}{_SECOND}")
        # Without the type of the content: to parse it, Hadoop 3.5 needs a class of Jersey's that
        # the jars of Spark do not have.
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_DELETE = do_POST = answer

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline(), 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def _carry_out(self, data: bytes) -> tuple[int, bytes]:
        # Hadoop sends UTF-8, for which Python has characters of one byte.
        parts = urlsplit(self.path.encode("latin-1").decode())
        asked = dict(parse_qsl(parts.query))
        path = PurePosixPath(unquote(parts.path).removeprefix(_PREFIX) or "/")
        node, done = self.node, {"boolean": True}
        match asked["op"].upper():
            case "GETFILESTATUS" | "GETFILELINKSTATUS":
                return 200, json.dumps({"FileStatus": node.status(path)}).encode()
            case "LISTSTATUS":
                found = {"FileStatuses": {"FileStatus": node.listed(path)}}
                return 200, json.dumps(found).encode()
            case "OPEN":
                start = int(asked.get("offset", 0))
                end = start + int(asked["length"]) if "length" in asked else None
                read = node.read(path)[start:end]
                return (200, read) if "datanode" in asked else (307, b"")
            case "CREATE":
                if "datanode" not in asked:
                    return 307, b""
                node.create(path, data, overwrite=asked.get("overwrite") == "true")
                return 201, b""
            case "RENAME":
                overwrite = asked.get("renameoptions") == "OVERWRITE"
                node.rename(path, PurePosixPath(asked["destination"]), overwrite=overwrite)
                return 200, b"" if "renameoptions" in asked else json.dumps(done).encode()
            case "DELETE":
                return 200, json.dumps({"boolean": node.delete(path)}).encode()
            case "MKDIRS":
                node.make_folders(path)
                return 200, json.dumps(done).encode()
            case "GETHOMEDIRECTORY":
                return 200, json.dumps({"Path": "/user/test"}).encode()
            case other:
                kind = "java.lang.UnsupportedOperationException"
                raise Refused(400, kind, f"{other} is not supported")

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


@contextmanager
def webhdfs_server() -> Iterator[tuple[str, NameNode]]:
    """An empty cluster: its address, ``webhdfs://host:port``, and its files."""
    node = NameNode()
    handler = type("Handler", (_Handler,), {"node": node})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"webhdfs://127.0.0.1:{server.server_address[1]}", node
        finally:
            server.shutdown()
            thread.join()
