"""Files: what checkpoints, sources and sinks do with the files under a path or URI."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa

from jeton.storage.arrow_store import store_on
from jeton.storage.local_store import LocalStore
from jeton.storage.store import WAITS, FileInfo, Store, StoreUnavailable
from jeton.storage.stores import absolute, place_of, store_of

log = logging.getLogger(__name__)

T = TypeVar("T")


class Files:
    """The files under a path or URI.

    >>> import tempfile
    >>> files = Files(tempfile.mkdtemp())
    >>> files.put(files.root / "notes" / "first.txt", b"here")
    >>> files.names(files.root / "notes"), files.read(files.root / "notes" / "first.txt")
    (['first.txt'], b'here')
    >>> files.put(files.root / "notes" / "first.txt", b"there")
    Traceback (most recent call last):
    FileExistsError: ...
    """

    _opened: Store | None = None
    _given = False

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:
        """``filesystem`` is one of Arrow's, if the path is not to say what it is on."""
        if filesystem is None:
            self._path = absolute(path)
            self.root = PurePosixPath(place_of(self._path))
        else:
            self._opened, self._path = store_on(filesystem, os.fspath(path))
            self.root, self._given = PurePosixPath(self._path), True

    def __repr__(self) -> str:
        return f"<Files in {self._path}>"

    def __getstate__(self) -> dict[str, Any]:
        # Each process opens the store by itself, with its own settings.
        return vars(self) | ({} if self._given else {"_opened": None})

    @property
    def _store(self) -> Store:
        # When it is first used: then a session is known, whose settings it may need.
        if self._opened is None:
            self._opened = store_of(self._path)
        return self._opened

    def uri(self, path: PurePosixPath) -> str:
        """A path as users write it, with its scheme if it is not on a disk."""
        return self._store.uri(path)

    def names(self, folder: PurePosixPath) -> list[str]:
        """The names of all files in a folder; the newest may be missing on some stores."""
        return self._store.names(folder)

    def folders(self, folder: PurePosixPath) -> list[str]:
        """The names of all folders in a folder."""
        return self._store.folders(folder)

    @property
    def is_local(self) -> bool:
        """Whether they are on a disk of this machine, or mounted like one."""
        return isinstance(self._store, LocalStore)

    def walk(self, folder: PurePosixPath) -> Iterator[PurePosixPath]:
        """All files in a folder and in the folders inside it."""
        yield from (folder / name for name in self.names(folder))
        for name in self.folders(folder):
            yield from self.walk(folder / name)

    def is_folder(self, path: PurePosixPath) -> bool:
        """Whether there is a folder."""
        return self._store.is_folder(path)

    def info(self, path: PurePosixPath) -> FileInfo | None:
        """The properties of a file at this moment; ``None`` if it does not exist."""
        return self._store.info(path)

    def exists(self, path: PurePosixPath) -> bool:
        """Whether a file is there, right now."""
        return self.info(path) is not None

    def read(self, path: PurePosixPath) -> bytes:
        """All bytes of a file."""
        return self._store.read(path)

    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        """Some bytes of a file: fewer if it is shorter."""
        return self._store.read_at(path, start, size)

    def write(self, path: PurePosixPath, buffers: Sequence[Any]) -> None:
        """Write a file, so that it survives a power cut."""
        self._store.write(path, buffers)

    @contextmanager
    def output(self, path: PurePosixPath) -> Iterator[BinaryIO]:
        """A stream whose bytes are a file once the block has ended without an error."""
        with self._store.output(path) as stream:
            yield stream

    def put(self, path: PurePosixPath, data: bytes) -> None:
        """Create a file, whole or not at all, unless it is there: see `Store.put`."""
        self._store.put(path, data)

    def move(self, path: PurePosixPath, to: PurePosixPath) -> None:
        """Have a file appear whole under another name: see `Store.move`."""
        self._store.move(path, to)

    def delete(self, path: PurePosixPath) -> None:
        """Delete a file, or at least try to."""
        try:
            self.remove(path)
        except OSError as error:
            log.info("%s could not be deleted: %s", path, error)

    def remove(self, path: PurePosixPath) -> None:
        """Delete a file, which need not be there."""
        self._store.remove(path)

    @contextmanager
    def local_copy(self, path: PurePosixPath) -> Iterator[str]:
        """The path of a file on this machine with the same bytes, until the block ends."""
        with self._store.local_copy(path) as copy:
            yield copy


class PatientFiles(Files):
    """Files that are read again if that fails; `StoreUnavailable` if it keeps failing.

    A file that is not there is `FileNotFoundError` at once: that is damage, or news.

    >>> import tempfile
    >>> answers = [b"here", TimeoutError(110, "connection timed out")]
    >>> class Flaky(Files):
    ...     def read(self, path):
    ...         answer = answers.pop()
    ...         if isinstance(answer, OSError):
    ...             raise answer
    ...         return answer
    >>> files = PatientFiles(Flaky(tempfile.mkdtemp()), wait=lambda seconds: None)
    >>> files.read(files.root / "first.txt")
    b'here'
    """

    def __init__(self, files: Files, wait: Callable[[float], object]) -> None:
        """``wait`` waits for some seconds, and returns whether there is no more time to wait."""
        self._files = files
        self._wait = wait
        self.root = files.root

    def __repr__(self) -> str:
        return repr(self._files)

    def uri(self, path: PurePosixPath) -> str:
        """A path as users write it."""
        return self._files.uri(path)

    def names(self, folder: PurePosixPath) -> list[str]:
        """The names of all files in a folder."""
        return self._patiently(folder, lambda: self._files.names(folder))

    def folders(self, folder: PurePosixPath) -> list[str]:
        """The names of all folders in a folder."""
        return self._patiently(folder, lambda: self._files.folders(folder))

    def info(self, path: PurePosixPath) -> FileInfo | None:
        """The properties of a file."""
        return self._patiently(path, lambda: self._files.info(path))

    def exists(self, path: PurePosixPath) -> bool:
        """Whether a file is there."""
        return self._patiently(path, lambda: self._files.exists(path))

    def read(self, path: PurePosixPath) -> bytes:
        """All bytes of a file."""
        return self._patiently(path, lambda: self._files.read(path))

    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        """Some bytes of a file: fewer if it is shorter."""
        return self._patiently(path, lambda: self._files.read_at(path, start, size))

    def write(self, path: PurePosixPath, buffers: Sequence[Any]) -> None:
        """Write a file, so that it survives a power cut."""
        self._files.write(path, buffers)

    @contextmanager
    def output(self, path: PurePosixPath) -> Iterator[BinaryIO]:
        """A stream whose bytes are a file once the block has ended without an error."""
        with self._files.output(path) as stream:
            yield stream

    def put(self, path: PurePosixPath, data: bytes) -> None:
        """Create a file, whole or not at all: see `Store.put`."""
        self._files.put(path, data)

    def move(self, path: PurePosixPath, to: PurePosixPath) -> None:
        """Have a file appear whole under another name."""
        self._files.move(path, to)

    def delete(self, path: PurePosixPath) -> None:
        """Delete a file, or at least try to."""
        self._files.delete(path)

    def remove(self, path: PurePosixPath) -> None:
        """Delete a file, which need not be there."""
        self._files.remove(path)

    @contextmanager
    def local_copy(self, path: PurePosixPath) -> Iterator[str]:
        """The path of a file on this machine with the same bytes, until the block ends."""
        with self._files.local_copy(path) as copy:
            yield copy

    def _patiently(self, path: PurePosixPath, read: Callable[[], T]) -> T:
        for at in range(len(WAITS) + 1):
            try:
                return read()
            except FileNotFoundError:
                raise
            except OSError as error:
                if at == len(WAITS) or self._wait(WAITS[at]):
                    raise StoreUnavailable(
                        f"{path} could not be read {at + 1} times in a row: {error}. Nothing was "
                        "given up: start again when the file system answers. If the file is lost "
                        "for good, delete it, and it counts as damaged"
                    ) from error
                log.warning("%s is read again in %g s: %s", path, WAITS[at], error)
        raise AssertionError("the last time it returns or raises")
