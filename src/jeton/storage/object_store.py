"""Object stores: buckets on S3, Google's cloud and Azure, through `obstore`.

A file is created only if it is not there by a conditional request, which the store itself decides.
If it is not known whether a request was carried out (a time-out, an error of the server), it is
sent again, and a file that has the same bytes by then counts as created. To rename is to copy,
which the store does in one step for a file, and to delete.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any, Final

import pyarrow as pa

from jeton.storage import store_settings
from jeton.storage.store import PIECE, WAITS, FileInfo, Store, StoreRefused
from jeton.storage.store_settings import (
    Options,
    StoreSettings,
    azure_options,
    gcs_options,
    s3_options,
)

log = logging.getLogger(__name__)

SCHEMES: Final = ("s3", "s3a", "gs", "abfs", "abfss")
_RETRY: Final = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}
_ONCE: Final = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
_TIMEOUTS: Final = {"timeout": timedelta(minutes=5), "connect_timeout": timedelta(seconds=5)}
_QUICK: Final = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=5)}

_HINTS: Final = (
    (
        r"NoSuchBucket|ContainerNotFound|specified bucket does not exist",
        "there is no such bucket: create it, or mend its name or the endpoint",
    ),
    (
        r"RequestTimeTooSkewed|RequestExpired|request timestamp",
        "the clock of this machine differs too much from that of the store: set it (NTP)",
    ),
    (
        r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken|AuthenticationFailed",
        "the store does not accept the credentials: mend fs.s3a.access.key and fs.s3a.secret.key "
        "(or what belongs to your store) in Spark's Hadoop configuration, or those of the "
        "environment",
    ),
    (
        r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint",
        "the bucket is in another region: set fs.s3a.endpoint.region, or AWS_REGION",
    ),
    (
        r"status code: 40[13]",
        "the credentials do not allow it: reading, writing, listing and deleting under this path "
        "must be allowed",
    ),
)
"""Patterns of answers that do not change, and the remedy for each."""
_ASKED_MACHINE: Final = "http://169.254."
_NO_CREDENTIALS: Final = (
    "there are no credentials, and this machine has no identity that could be asked for some: set "
    "fs.s3a.access.key and fs.s3a.secret.key (or what belongs to your store) in Spark's Hadoop "
    "configuration, or those of the environment"
)


class ObjectStore(Store):
    """A bucket. Its paths begin with the name of the bucket.

    It travels without credentials: each process has its own `store_settings`.
    """

    def __init__(self, scheme: str, authority: str) -> None:
        self.scheme = scheme
        self.authority = authority
        """The bucket; on Azure, the container, ``@`` and the account's host."""
        self._clients: _Clients | None = None
        self._known: tuple[int, StoreSettings] | None = None
        """The process and the settings for which they were opened."""

    def __repr__(self) -> str:
        return f"<ObjectStore {self.scheme}://{self.authority}>"

    def __getstate__(self) -> tuple[str, str]:
        return self.scheme, self.authority

    def __setstate__(self, state: tuple[str, str]) -> None:
        ObjectStore.__init__(self, *state)

    @property
    def bucket(self) -> str:
        """The name of the bucket or container."""
        return self.authority.partition("@")[0]

    def uri(self, path: PurePosixPath) -> str:
        """A path with its scheme and bucket."""
        return f"{self.scheme}://{self.authority}/{self._key(path)}"

    def names(self, folder: PurePosixPath) -> list[str]:
        """The names of all files in a folder."""
        # Some tools create files whose names end in a slash, so that folders seem to be there.
        names = (meta["path"].rpartition("/")[2] for meta in self._listed(folder)["objects"])
        return [name for name in names if name]

    def folders(self, folder: PurePosixPath) -> list[str]:
        """The names of all folders in a folder."""
        found = self._listed(folder)["common_prefixes"]
        return [prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in found]

    def info(self, path: PurePosixPath) -> FileInfo | None:
        """The properties of a file."""
        try:
            with self._clear("look at", path):
                found = self._client.patient.head(self._key(path))
        except FileNotFoundError:
            return None
        return FileInfo(found["size"], found["last_modified"])

    def read(self, path: PurePosixPath) -> bytes:
        """All bytes of a file."""
        with self._clear("read", path):
            return bytes(self._client.patient.get(self._key(path)).bytes())

    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        """Some bytes of a file: fewer if it is shorter."""
        if size <= 0:
            return pa.py_buffer(b"")
        key = self._key(path)
        with self._clear("read", path):
            try:
                data = self._client.patient.get_range(key, start=start, length=size)
            except FileNotFoundError:
                raise
            except Exception:
                # To read beyond the end is an error of some stores.
                left = self._client.patient.head(key)["size"] - start
                if left >= size:
                    raise
                if left <= 0:
                    return pa.py_buffer(b"")
                data = self._client.patient.get_range(key, start=start, length=left)
            return pa.py_buffer(data)

    def write(self, path: PurePosixPath, buffers: Sequence[Any]) -> None:
        """Write a file: in one request, or in pieces that become a file at once."""
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        with self._clear("write", path):
            if size <= PIECE:
                whole = b"".join(map(bytes, buffers))
                self._client.patient.put(self._key(path), whole, use_multipart=False)
            else:
                self._client.patient.put(
                    self._key(path), _pieces(buffers), use_multipart=True, chunk_size=PIECE
                )

    def put(self, path: PurePosixPath, data: bytes) -> None:
        """Create a file by a conditional request."""
        uncertain = False
        for wait in (*WAITS, None):
            try:
                with self._clear("create", path):
                    self._client.single.put(
                        self._key(path), data, mode="create", use_multipart=False
                    )
                return
            except FileExistsError:
                try:
                    there = self.read(path)
                except FileNotFoundError:
                    # Of two requests at once, a store may refuse both; or it has been deleted.
                    if wait is None:
                        raise FileExistsError(f"{self.uri(path)} was created and deleted") from None
                else:
                    if uncertain and there == data:
                        return
                    raise
            except OSError as error:
                if wait is None:
                    raise
                uncertain = True
                log.warning("%s is created again in %g s: %s", self.uri(path), wait, error)
            time.sleep(wait)

    def move(self, path: PurePosixPath, to: PurePosixPath) -> None:
        """Copy a file, which the store does in one step, and delete it."""
        try:
            with self._clear("copy", path):
                self._client.patient.copy(self._key(path), self._key(to))
        except FileNotFoundError:
            if self.info(to) is None:
                raise
        else:
            self.remove(path)

    def remove(self, path: PurePosixPath) -> None:
        """Delete a file."""
        try:
            with self._clear("delete", path):
                self._client.patient.delete(self._key(path))
        except FileNotFoundError:
            pass

    # Inside

    @property
    def _client(self) -> _Clients:
        settings = store_settings.current()
        # A forked process must not use the connections of the one that it came from.
        if self._clients is None or self._known != (os.getpid(), settings):
            known = (os.getpid(), self.scheme, self.authority, *_circumstances(settings))
            with _lock:
                self._clients = _opened.get(known) or _Clients(self.scheme, self.authority)
                _opened[known] = self._clients
            self._known = os.getpid(), settings
        return self._clients

    def _key(self, path: PurePosixPath) -> str:
        return str(path).lstrip("/").removeprefix(self.bucket).lstrip("/")

    def _listed(self, folder: PurePosixPath) -> Any:
        key = self._key(folder)
        with self._clear("list", folder):
            return self._client.patient.list_with_delimiter(f"{key}/" if key else None)

    @contextmanager
    def _clear(self, act: str, path: PurePosixPath) -> Iterator[None]:
        """Errors of the store as those of files, with what to do."""
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            yield
        except AlreadyExistsError as error:
            raise FileExistsError(f"{self.uri(path)} is there already") from error
        except (BaseError, FileNotFoundError) as error:
            text = _first_line(str(error))
            # Not in the path, which may say anything.
            answer = text.rpartition("Server returned")[2]
            remedy = next((said for pattern, said in _HINTS if re.search(pattern, answer)), None)
            if _ASKED_MACHINE in text:
                remedy = _NO_CREDENTIALS
            if remedy is not None:
                raise StoreRefused(
                    f"{self.uri(path)}: the store refused to {act} it: {remedy}. It answered: "
                    f"{text}"
                ) from None
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(f"{self.uri(path)} is not there") from None
            raise OSError(
                f"{self.uri(path)}: the store failed to {act} it: {text}. If it never answers, "
                "mend its endpoint (fs.s3a.endpoint, AWS_ENDPOINT_URL), or the network"
            ) from None


class _Clients:
    """The connections of one process to a bucket."""

    def __init__(self, scheme: str, authority: str) -> None:
        make, options = _maker(scheme, authority)
        http = any(str(value).startswith("http://") for value in options.values())
        self.patient = make(options, _RETRY, _TIMEOUTS | {"allow_http": http})
        self.single = make(options, _ONCE, _QUICK | {"allow_http": http})
        """Sends each request once: who creates a file must know which answer is the first."""


_lock = threading.Lock()
_opened: dict[tuple[Any, ...], _Clients] = {}
"""The connections that this process has: a store may be made anew for each micro-batch."""


def _circumstances(settings: StoreSettings) -> Iterator[tuple[str, str]]:
    """All that options may be made of."""
    yield from sorted(settings.values.items())
    names = ("AWS_", "AZURE_", "GOOGLE_")
    yield from sorted(pair for pair in os.environ.items() if pair[0].startswith(names))


def _maker(scheme: str, authority: str) -> tuple[Callable[[Options, Any, Any], Any], Options]:
    """The constructor of a client, and what it needs to know."""
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise StoreRefused(
            f"{scheme}://{authority} needs the package obstore, which is not installed here: "
            'pip install "jeton[stores]", on the driver and on the workers'
        ) from error
    settings, bucket = store_settings.current(), authority.partition("@")[0]
    kind: Any
    if scheme in ("s3", "s3a"):
        kind, options = S3Store, s3_options(settings, bucket)
        # One by one, which every store with S3's protocol knows.
        options["disable_bulk_delete"] = True
    elif scheme == "gs":
        kind, options = GCSStore, gcs_options(settings, bucket)
    else:
        kind, options = AzureStore, azure_options(settings, authority.partition("@")[2])

    def make(options: Options, retry: Any, client: Any) -> Any:
        return kind(bucket, **options, retry_config=retry, client_options=client)

    return make, options


def _pieces(buffers: Sequence[Any]) -> Iterator[memoryview]:
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        for at in range(0, len(view), PIECE):
            yield view[at : at + PIECE]


def _first_line(text: str) -> str:
    """An answer without what follows it for debugging, and without parameters of addresses."""
    return re.sub(r"\?\S+", "", text.partition("\n\nDebug source")[0].replace("\n", " "))[:600]
