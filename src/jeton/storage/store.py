"""Store: what checkpoints, sources and sinks need of a file system or a bucket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, Final

import pyarrow as pa

from jeton.core.errors import SnapshotError

PIECE: Final = 8 << 20
"""Bytes that are read at once, or written in one request."""
WAITS: Final = (0.1, 0.5, 2.0)
"""Seconds to wait after each failure, before it counts."""


class NoAtomicCreate(SnapshotError):
    """A store where two drivers could commit at once, which checkpoints therefore refuse."""


class StoreUnavailable(SnapshotError):
    """A store failed to answer, several times in a row.

    Nothing is known to be damaged, so no version is abandoned: the same may succeed later.
    """


class StoreRefused(SnapshotError):
    """A store cannot be used as it is configured: a missing bucket, a denied request, a clock.

    To try again does not help.
    """


@dataclass(frozen=True)
class FileInfo:
    """The size of a file in bytes, and the time of its last change if the store knows it."""

    size: int
    modified: datetime | None = None


class Store(ABC):
    """The files of a file system or of a bucket.

    A file that is not there is a `FileNotFoundError`. Other failures are an `OSError`, which may
    pass, or `StoreRefused`, which does not.
    """

    @abstractmethod
    def uri(self, path: PurePosixPath) -> str:
        """A path as users write it."""

    @abstractmethod
    def names(self, folder: PurePosixPath) -> list[str]:
        """The names of all files in a folder; none if there is no such folder.

        A listing may lag behind: nothing that must be right may depend on a file being in it.
        """

    @abstractmethod
    def folders(self, folder: PurePosixPath) -> list[str]:
        """The names of all folders in a folder."""

    def is_folder(self, path: PurePosixPath) -> bool:
        """Whether there is a folder; where folders do not exist by themselves, one with files."""
        return bool(self.names(path) or self.folders(path))

    @abstractmethod
    def info(self, path: PurePosixPath) -> FileInfo | None:
        """The properties of a file at this moment; ``None`` if it does not exist."""

    @abstractmethod
    def read(self, path: PurePosixPath) -> bytes:
        """All bytes of a file."""

    @abstractmethod
    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        """Some bytes of a file: fewer if it is shorter."""

    @abstractmethod
    def write(self, path: PurePosixPath, buffers: Sequence[Any]) -> None:
        """Write a file, so that it survives a power cut."""

    @abstractmethod
    def put(self, path: PurePosixPath, data: bytes) -> None:
        """Create a file, whole or not at all, so that it survives a power cut.

        Of all who try to create it, at any time and on any machine, one succeeds; the others get
        `FileExistsError`. `NoAtomicCreate` if the store cannot promise that. If it is not known
        whether a request was carried out, equal bytes count as one's own: so they must have
        something that no other maker has.
        """

    @abstractmethod
    def move(self, path: PurePosixPath, to: PurePosixPath) -> None:
        """Have a file appear whole under another name, in place of what is there.

        Repeated after a failure, it finishes what was begun. `FileNotFoundError` if the file is
        there under neither name.
        """

    @abstractmethod
    def remove(self, path: PurePosixPath) -> None:
        """Delete a file, which need not be there."""

    @contextmanager
    def local_copy(self, path: PurePosixPath) -> Iterator[str]:
        """The path of a file on this machine with the same bytes, until the block ends.

        Arrow reads files in threads of its own, which must not wait for Python.
        """
        info = self.info(path)
        if info is None:
            raise FileNotFoundError(f"{self.uri(path)} is not there")
        # Arrow tells compressed files by their names.
        with NamedTemporaryFile(prefix="jeton-", suffix=path.name[-100:]) as copy:
            for start in range(0, info.size, PIECE):
                copy.write(self.read_at(path, start, PIECE))
            copy.flush()
            yield copy.name

    @contextmanager
    def output(self, path: PurePosixPath) -> Iterator[BinaryIO]:
        """A stream whose bytes are a file once the block has ended without an error."""
        stream = pa.BufferOutputStream()
        yield stream
        self.write(path, [stream.getvalue()])
