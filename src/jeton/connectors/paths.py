"""Paths of sources and sinks: folders that the driver and all workers reach by the same name."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

from jeton.storage.files import Files


def shared_folder(path: str | os.PathLike[str]) -> Files:
    """The files in a folder, given as a path or as a URI.

    To be asked where the source or the sink is made: workers have another folder to work in, and so
    may the driver later.

    >>> shared_folder("file:///data/out")
    <Files in /data/out>
    >>> shared_folder("s3://bucket/out")
    <Files in s3://bucket/out>
    """
    return Files(path)


def data_files(files: Files) -> list[PurePosixPath]:
    """All files in a folder and its folders that have data, by name, as Spark tells them.

    >>> import tempfile
    >>> files = shared_folder(tempfile.mkdtemp())
    >>> for name in ("_SUCCESS", ".part-1", "part-1", "_day=3/part-1", "_temporary/part-1"):
    ...     files.put(files.root / name, b"")
    >>> [str(path.relative_to(files.root)) for path in data_files(files)]
    ['_day=3/part-1', 'part-1']
    """
    root = files.root
    found = files.walk(root)
    return sorted(p for p in found if not any(map(_is_hidden, p.relative_to(root).parts)))


def _is_hidden(name: str) -> bool:
    # A folder may stand for the value of a column whose name begins with an underscore.
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
