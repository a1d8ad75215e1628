"""Google's cloud and Azure: the requests that create, copy and list, and their settings.

The server keeps files in memory and knows just the parts of both protocols that are used here.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from jeton.errors import StoreRefused
from jeton.storage import store_settings
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.files import Files
from jeton.storage.store_settings import StoreSettings, azure_options, gcs_options
from tests.storage.stored_rows import newest, read, write

HOST = "acct.dfs.core.windows.net"
KEY = base64.b64encode(b"k" * 32).decode()
WHEN = "Tue, 17 Nov 2026 04:00:00 GMT"


@dataclass
class Cloud:
    """The files of a server, and what it was asked."""

    endpoint: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    conditions: list[str] = field(default_factory=list)
    """What was said about files that are to be created."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    made = Cloud()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if "Content_Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            key = self.key()
            source = self.headers.get("x-ms-copy-source") or self.headers.get("x-goog-copy-source")
            azure = self.headers.get("if-none-match")
            google = self.headers.get("x-goog-if-generation-match")
            with made.lock:
                if azure == "*" or google == "0":
                    made.conditions.append("if-none-match" if azure else "generation")
                    if key in made.files:
                        self.answer(409 if azure else 412)
                        return
                if source is not None:
                    of = urllib.parse.unquote(urllib.parse.urlsplit(source).path)
                    name = of.lstrip("/").removeprefix("acct/")
                    if name not in made.files:
                        self.answer(404)
                        return
                    body = made.files[name]
                made.files[key] = body
            self.answer(200 if google or not azure else 201, b"<x/>", ETag='"1"')

        def do_GET(self) -> None:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            if "list-type" in query or "comp" in query:
                self.listing(query.get("prefix", [""])[0], azure="comp" in query)
                return
            content = made.files.get(self.key())
            if content is None:
                self.answer(404)
                return
            first, last, status = 0, len(content) - 1, 200
            found = self.headers.get("range") or self.headers.get("x-ms-range")
            if found is not None:
                start, _, end = found.removeprefix("bytes=").partition("-")
                first, last, status = int(start), min(int(end or last), last), 206
            part = content[first : last + 1]
            about = {"ETag": '"1"', "Last_Modified": WHEN}
            if status == 206:
                about["Content_Range"] = f"bytes {first}-{last}/{len(content)}"
            self.answer(status, part, Content_Length=str(len(part)), **about)

        do_HEAD = do_GET

        def do_DELETE(self) -> None:
            self.answer(404 if made.files.pop(self.key(), None) is None else 202)

        def do_POST(self) -> None:
            """Azure's batches of deletions."""
            body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
            parts = []
            for number, path in enumerate(re.findall(r"^DELETE (\S+) HTTP", body, re.MULTILINE)):
                name = urllib.parse.unquote(urllib.parse.urlsplit(path).path).strip("/")
                gone = made.files.pop(name.removeprefix("acct/"), None) is None
                status = "404 The specified blob does not exist." if gone else "202 Accepted"
                parts.append(
                    f"--b\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
                    f"HTTP/1.1 {status}\r\n\r\n\r\n"
                )
            text = "".join(parts) + "--b--\r\n"
            self.answer(202, text.encode(), Content_Type="multipart/mixed; boundary=b")

        def listing(self, prefix: str, *, azure: bool) -> None:
            bucket = self.key()
            names = [
                name.removeprefix(f"{bucket}/")
                for name in made.files
                if name.startswith(f"{bucket}/{prefix}")
            ]
            own = [name for name in names if "/" not in name.removeprefix(prefix)]
            folders = {
                f"{prefix}{name.removeprefix(prefix).split('/')[0]}/"
                for name in names
                if name not in own
            }
            if azure:
                blobs = "".join(
                    f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{WHEN}"
                    f"</Last-Modified><Content-Length>{len(made.files[f'{bucket}/{name}'])}"
                    "</Content-Length><Content-Type>b</Content-Type><Etag>1</Etag></Properties>"
                    "</Blob>"
                    for name in own
                ) + "".join(f"<BlobPrefix><Name>{each}</Name></BlobPrefix>" for each in folders)
                text = f"<EnumerationResults><Blobs>{blobs}</Blobs></EnumerationResults>"
            else:
                text = "".join(
                    f"<Contents><Key>{escape(name)}</Key><LastModified>2026-11-17T04:00:00.000Z"
                    f"</LastModified><Size>{len(made.files[f'{bucket}/{name}'])}</Size>"
                    "<ETag>1</ETag></Contents>"
                    for name in own
                ) + "".join(
                    f"<CommonPrefixes><Prefix>{each}</Prefix></CommonPrefixes>" for each in folders
                )
                text = f"<ListBucketResult>{text}</ListBucketResult>"
            self.answer(200, text.encode())

        def key(self) -> str:
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).strip("/")
            return path.removeprefix("acct/")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    made.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=["gs", "abfss"])
def folder(
    request: pytest.FixtureRequest, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[str]:
    before = store_settings.current()
    if request.param == "gs":
        keys = {"gcs_base_url": cloud.endpoint, "disable_oauth": True}
        names = ("client_email", "private_key", "private_key_id")
        (tmp_path / "key.json").write_text(json.dumps(keys | dict.fromkeys(names, "")))
        google = {
            "fs.gs.storage.root.url": cloud.endpoint,
            "fs.gs.auth.service.account.json.keyfile": str(tmp_path / "key.json"),
        }
        store_settings.use(StoreSettings(google))
        yield "gs://bucket/some/where"
    else:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{cloud.endpoint}/acct")
        store_settings.use(StoreSettings({f"fs.azure.account.key.{HOST}": KEY}))
        yield f"abfss://box@{HOST}/some/where"
    store_settings.use(before)


def test_a_file_is_created_once(cloud: Cloud, folder: str) -> None:
    files = Files(folder)
    files.put(files.root / "a", b"one")
    with pytest.raises(FileExistsError):
        files.put(files.root / "a", b"two")
    assert files.read(files.root / "a") == b"one"
    assert set(cloud.conditions) == {"generation" if folder.startswith("gs") else "if-none-match"}


def test_files_move_and_are_listed(folder: str) -> None:
    files = Files(folder)
    files.write(files.root / ".a", [b"here"])
    for _ in range(2):
        files.move(files.root / ".a", files.root / "b" / "a")
    assert files.folders(files.root) == ["b"]
    assert files.names(files.root / "b") == ["a"]
    assert files.read_at(files.root / "b" / "a", 1, 2) == b"er"
    files.remove(files.root / "b" / "a")
    assert not files.exists(files.root / "b" / "a")
    assert files.uri(files.root) == folder


def test_checkpoints_are_committed(folder: str) -> None:
    write(Checkpoints(folder), 1, {1: 1, 2: 2})
    write(Checkpoints(folder), 2, {1: 5})
    assert read(newest(Checkpoints(folder))) == {1: 5}


def test_settings_of_azure() -> None:
    oauth = {
        f"fs.azure.account.oauth2.client.id.{HOST}": "me",
        "fs.azure.account.oauth2.client.secret": "hush",
        "fs.azure.account.oauth2.client.endpoint": "https://login.example.com/tenant/oauth2/token",
    }
    assert azure_options(StoreSettings(oauth), HOST) == {
        "account_name": "acct",
        "client_id": "me",
        "client_secret": "hush",
        "authority_host": "https://login.example.com",
        "tenant_id": "tenant",
    }
    token = StoreSettings({"fs.azure.sas.fixed.token": "?sv=1&sig=2"})
    assert azure_options(token, "acct.dfs.core.chinacloudapi.cn") == {
        "account_name": "acct",
        "endpoint": "https://acct.blob.core.chinacloudapi.cn",
        "sas_key": "sv=1&sig=2",
    }
    del oauth["fs.azure.account.oauth2.client.endpoint"]
    with pytest.raises(StoreRefused, match=r"client\.endpoint for acct.* must be of the form"):
        azure_options(StoreSettings(oauth), HOST)


def test_settings_of_google() -> None:
    path = {"google.cloud.auth.service.account.json.keyfile": "/keys/a.json"}
    assert gcs_options(StoreSettings(path), "b") == {"service_account": "/keys/a.json"}
    with pytest.raises(StoreRefused, match="USER_CREDENTIALS for bucket 'b', which only Java"):
        gcs_options(StoreSettings({"fs.gs.auth.type": "USER_CREDENTIALS"}), "b")
