"""Files: what checkpoints need of a file system, on any that Arrow can write."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from secrets import token_hex
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import fs as arrow_fs

from jeton.core.errors import SnapshotError

log = logging.getLogger(__name__)

T = TypeVar("T")

WAITS: Final = (0.1, 0.5, 2.0)
"""Seconds to wait after each failure to read, before it counts."""
UNREADY: Final = ".unready"
"""How the name of a file ends that is not in its place yet."""
_NO_LINKS: Final = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV)


class NoAtomicCreate(SnapshotError):
    """A store where two drivers could commit at once, which checkpoints therefore refuse."""


class StoreUnavailable(SnapshotError):
    """The file system of the checkpoints failed to read, several times in a row.

    Nothing is known to be damaged, so nothing is given up: the same may succeed later.
    """


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

    fs: Any = None
    """The file system, one of Arrow's; none for files that are kept elsewhere, as in tests."""

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:
        self.fs, root = file_system(os.fspath(path), filesystem)
        self.root = PurePosixPath(root)

    def names(self, folder: PurePosixPath) -> list[str]:
        """The names of all files in a folder."""
        if isinstance(self.fs, arrow_fs.LocalFileSystem):
            # In one step: Arrow asks for each file anew, and leaves out those that have gone since.
            try:
                with os.scandir(folder) as found:
                    return [entry.name for entry in found if entry.is_file()]
            except FileNotFoundError:
                return []
        selector = arrow_fs.FileSelector(str(folder), allow_not_found=True)
        return [info.base_name for info in self.fs.get_file_info(selector) if info.is_file]

    def read(self, path: PurePosixPath) -> bytes:
        """All bytes of a file."""
        with self.fs.open_input_file(str(path)) as file:
            data: bytes = file.read()
            return data

    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        """Some bytes of a file: fewer if it is shorter."""
        with self.fs.open_input_file(str(path)) as file:
            # To read beyond the end is an error of some file systems.
            return pa.py_buffer(file.read_at(min(size, max(0, file.size() - start)), start))

    def write(self, path: PurePosixPath, buffers: Sequence[Any]) -> None:
        """Write a file, so that it survives a power cut."""
        self._fill(path, buffers)
        self._make_durable(path.parent)

    def put(self, path: PurePosixPath, data: bytes) -> None:
        """Create a file, whole or not at all, so that it survives a power cut.

        Of all who try to create it, at any time and on any machine, one succeeds; the others get
        `FileExistsError`. `NoAtomicCreate` if the store cannot promise that.
        """
        place = self._on_disk(path)
        if place is None:
            raise self._refusal(type(self.fs).__name__)
        unready = path.with_name(f"{path.name}.{token_hex(4)}{UNREADY}")
        self._fill(unready, [data])
        made = self._on_disk(unready)
        assert made is not None
        try:
            os.link(made, place)
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise self._refusal(f"its file system ({error.strerror})") from error
            if not os.path.exists(made):
                # A later run has gone far beyond it, and removes unfinished files.
                text = "others have created it, and more"
                raise FileExistsError(errno.EEXIST, text, place) from error
            # Over NFS, a call that was repeated fails although it did what it should.
            if os.stat(made).st_nlink < 2:
                raise
        finally:
            self.delete(unready)
        self._make_durable(path.parent)

    def delete(self, path: PurePosixPath) -> None:
        """Delete a file, or at least try to."""
        try:
            self.fs.delete_file(str(path))
        except OSError as error:
            log.info("%s could not be deleted: %s", path, error)

    # Inside

    def _on_disk(self, path: PurePosixPath) -> str | None:
        """Where a file is for this machine's operating system, if it knows it."""
        fs, place = self.fs, str(path)
        while isinstance(fs, arrow_fs.SubTreeFileSystem):
            fs, place = fs.base_fs, os.path.join(fs.base_path, place.lstrip("/"))
        return place if isinstance(fs, arrow_fs.LocalFileSystem) else None

    def _refusal(self, what: str) -> NoAtomicCreate:
        return NoAtomicCreate(
            f"no checkpoints can be committed in {self.root}: {what} cannot create a file only if "
            "there is none of that name, so that a driver which was superseded could commit too. "
            "Use a path on a disk, or on a shared file system with hard links (such as NFS) that "
            "the driver and all workers mount"
        )

    def _fill(self, path: PurePosixPath, buffers: Sequence[Any]) -> None:
        around = (path.parent, *path.parent.parents)
        places = {folder: self._on_disk(folder) for folder in around}
        new = [f for f, place in places.items() if place is not None and not os.path.exists(place)]
        self.fs.create_dir(str(path.parent), recursive=True)
        for folder in new:
            self._make_durable(folder.parent)
        with self.fs.open_output_stream(str(path)) as stream:
            for buffer in buffers:
                stream.write(buffer)
        self._make_durable(path)

    def _make_durable(self, path: PurePosixPath) -> None:
        if (place := self._on_disk(path)) is not None:
            make_durable(place)


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
        self.fs, self.root = files.fs, files.root

    def names(self, folder: PurePosixPath) -> list[str]:
        """The names of all files in a folder."""
        return self._patiently(folder, lambda: self._files.names(folder))

    def read(self, path: PurePosixPath) -> bytes:
        """All bytes of a file."""
        return self._patiently(path, lambda: self._files.read(path))

    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        """Some bytes of a file: fewer if it is shorter."""
        return self._patiently(path, lambda: self._files.read_at(path, start, size))

    def write(self, path: PurePosixPath, buffers: Sequence[Any]) -> None:
        """Write a file, so that it survives a power cut."""
        self._files.write(path, buffers)

    def put(self, path: PurePosixPath, data: bytes) -> None:
        """Create a file, whole or not at all: see `Files.put`."""
        self._files.put(path, data)

    def delete(self, path: PurePosixPath) -> None:
        """Delete a file, or at least try to."""
        self._files.delete(path)

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


def make_durable(path: str | os.PathLike[str]) -> None:
    """Have a file, or the names in a folder, written to this machine's disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def file_system(path: str, given: Any = None) -> tuple[Any, str]:
    """The file system that a path or URI is on, and the path there."""
    if given is not None:
        return given, path
    scheme, colon, rest = path.partition(":")
    if scheme == "file" and colon:
        # As Spark writes them, nothing in them is quoted.
        return arrow_fs.LocalFileSystem(), "/" + rest.lstrip("/")
    if colon and "/" not in scheme:
        return arrow_fs.FileSystem.from_uri(path.replace("s3a://", "s3://", 1))  # type: ignore[no-any-return]
    return arrow_fs.LocalFileSystem(), os.path.abspath(path)
