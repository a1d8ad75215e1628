"""Paths of sources and sinks: folders that the driver and all workers reach by the same name."""

from __future__ import annotations

import os

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
