"""The local store: disks of this machine, and shared file systems that it has mounted."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import PurePosixPath
from secrets import token_hex
from typing import Any, BinaryIO, Final

import pyarrow as pa

from jeton.storage.store import FileInfo, NoAtomicCreate, Store, StoreRefused

UNREADY: Final = ".unready"
"""How the name of a file ends that is not in its place yet."""
_NO_LINKS: Final = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV)


class LocalStore(Store):
    """Files that this machine's operating system knows by their paths.

    >>> import tempfile
    >>> store, path = LocalStore(), PurePosixPath(tempfile.mkdtemp()) / "a" / "first.txt"
    >>> store.put(path, b"here")
    >>> store.move(path, path.with_name("second.txt"))
    >>> store.names(path.parent), store.info(path)
    (['second.txt'], None)
    """

    def __repr__(self) -> str:
        return "<LocalStore>"

    def uri(self, path: PurePosixPath) -> str:
        """The path itself."""
        return str(path)

    def names(self, folder: PurePosixPath) -> list[str]:
        """The names of all files in a folder, in one step."""
        try:
            with os.scandir(folder) as found:
                return [entry.name for entry in found if entry.is_file()]
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise _not_a_folder(folder) from None

    def folders(self, folder: PurePosixPath) -> list[str]:
        """The names of all folders in a folder."""
        try:
            with os.scandir(folder) as found:
                return [entry.name for entry in found if entry.is_dir()]
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise _not_a_folder(folder) from None

    def is_folder(self, path: PurePosixPath) -> bool:
        """Whether there is a folder, which may be empty."""
        return os.path.isdir(path)

    def info(self, path: PurePosixPath) -> FileInfo | None:
        """The properties of a file."""
        if not os.path.isfile(path):
            return None
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return FileInfo(found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def read(self, path: PurePosixPath) -> bytes:
        """All bytes of a file."""
        with open(path, "rb") as file:
            return file.read()

    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        """Some bytes of a file: fewer if it is shorter."""
        with pa.OSFile(os.fspath(path)) as file:
            # To read beyond the end is an error.
            return pa.py_buffer(file.read_at(min(size, max(0, file.size() - start)), start))

    @contextmanager
    def local_copy(self, path: PurePosixPath) -> Iterator[str]:
        """The file itself."""
        yield str(path)

    def write(self, path: PurePosixPath, buffers: Sequence[Any]) -> None:
        """Write a file, so that it survives a power cut."""
        with self.output(path) as stream:
            for buffer in buffers:
                stream.write(buffer)

    @contextmanager
    def output(self, path: PurePosixPath) -> Iterator[BinaryIO]:
        """A stream into a file, which survives a power cut once the block has ended."""
        _make_folders(path.parent)
        with open(path, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        make_durable(path.parent)

    def put(self, path: PurePosixPath, data: bytes) -> None:
        """Create a file under another name, and then a hard link to it, which only one can."""
        unready = path.with_name(f"{path.name}.{token_hex(4)}{UNREADY}")
        self.write(unready, [data])
        try:
            link(unready, path)
        finally:
            self.remove(unready)
        make_durable(path.parent)

    def move(self, path: PurePosixPath, to: PurePosixPath) -> None:
        """Rename a file."""
        try:
            os.replace(path, to)
        except FileNotFoundError:
            if not os.path.isfile(to):
                raise
        make_durable(to.parent)

    def remove(self, path: PurePosixPath) -> None:
        """Delete a file."""
        with suppress(FileNotFoundError):
            os.unlink(path)


def link(unready: PurePosixPath, path: PurePosixPath) -> None:
    """Give a file its name, unless there is one of that name: then `FileExistsError`."""
    try:
        os.link(unready, path)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise refusal(str(path.parent), f"its file system ({error.strerror})") from error
        if not os.path.exists(unready):
            # A later run has gone far beyond it, and removes unfinished files.
            text = "others have created it, and more"
            raise FileExistsError(errno.EEXIST, text, str(path)) from error
        # Over NFS, a call that was repeated fails although it did what it should.
        if os.stat(unready).st_nlink < 2:
            raise


def refusal(where: str, what: str) -> NoAtomicCreate:
    """The error for a store that cannot create a file only if it is not there."""
    return NoAtomicCreate(
        f"no checkpoints can be committed in {where}: {what} cannot create a file only if "
        "there is none of that name, so that a driver which was superseded could commit too. "
        "Use an object store (s3:, gs:, abfs:), HDFS, a path on a disk, or one on a shared file "
        "system with hard links (such as NFS) that the driver and all workers mount"
    )


def make_durable(path: str | os.PathLike[str]) -> None:
    """Have a file, or the names in a folder, written to this machine's disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _make_folders(folder: PurePosixPath) -> None:
    new = [each for each in (folder, *folder.parents) if not os.path.exists(each)]
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise _not_a_folder(folder) from None
    for each in new:
        make_durable(each.parent)


def _not_a_folder(folder: PurePosixPath) -> StoreRefused:
    """The error for a path on which a file is where a folder should be."""
    file = next((each for each in (folder, *folder.parents) if os.path.isfile(each)), folder)
    return StoreRefused(f"{file} is a file, not a folder: give the path of a folder, or a new one")
