"""Arrow's file systems as stores."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs as arrow_fs

from jeton.storage.local_store import LocalStore, refusal
from jeton.storage.store import FileInfo, Store


def store_on(fs: Any, path: str) -> tuple[Store, str]:
    """The store of a file system of Arrow's, and a path there.

    >>> inside = arrow_fs.SubTreeFileSystem("/data", arrow_fs.LocalFileSystem())
    >>> store_on(inside, "some/where")
    (<LocalStore>, '/data/some/where')
    """
    place = path
    while isinstance(fs, arrow_fs.SubTreeFileSystem):
        fs, place = fs.base_fs, os.path.join(fs.base_path, place.lstrip("/"))
    if isinstance(fs, arrow_fs.LocalFileSystem):
        return LocalStore(), os.path.abspath(place)
    return ArrowStore(fs), place


class ArrowStore(Store):
    """A file system of Arrow's that a user has made: it can be read, but not be committed to."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    def __repr__(self) -> str:
        return f"<ArrowStore on {self.fs.type_name}>"

    def uri(self, path: PurePosixPath) -> str:
        """The path itself."""
        return str(path)

    def names(self, folder: PurePosixPath) -> list[str]:
        """The names of all files in a folder."""
        return [info.base_name for info in self._inside(folder) if info.is_file]

    def folders(self, folder: PurePosixPath) -> list[str]:
        """The names of all folders in a folder."""
        return [info.base_name for info in self._inside(folder) if not info.is_file]

    def info(self, path: PurePosixPath) -> FileInfo | None:
        """The properties of a file."""
        found = self.fs.get_file_info(str(path))
        return FileInfo(found.size, found.mtime) if found.is_file else None

    def read(self, path: PurePosixPath) -> bytes:
        """All bytes of a file."""
        with self.fs.open_input_file(str(path)) as file:
            data: bytes = file.read()
            return data

    def read_at(self, path: PurePosixPath, start: int, size: int) -> pa.Buffer:
        """Some bytes of a file: fewer if it is shorter."""
        with self.fs.open_input_file(str(path)) as file:
            return pa.py_buffer(file.read_at(min(size, max(0, file.size() - start)), start))

    def write(self, path: PurePosixPath, buffers: Sequence[Any]) -> None:
        """Write a file."""
        self.fs.create_dir(str(path.parent), recursive=True)
        with self.fs.open_output_stream(str(path)) as stream:
            for buffer in buffers:
                stream.write(buffer)

    def put(self, path: PurePosixPath, data: bytes) -> None:
        """Refuse: Arrow has no operation that creates a file only if it is not there."""
        raise refusal(str(path.parent), type(self.fs).__name__)

    def move(self, path: PurePosixPath, to: PurePosixPath) -> None:
        """Rename a file."""
        try:
            self.fs.move(str(path), str(to))
        except FileNotFoundError:
            if self.info(to) is None:
                raise

    def remove(self, path: PurePosixPath) -> None:
        """Delete a file."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.delete_file(str(path))

    def _inside(self, folder: PurePosixPath) -> list[Any]:
        found: list[Any] = self.fs.get_file_info(
            arrow_fs.FileSelector(str(folder), allow_not_found=True)
        )
        return found
