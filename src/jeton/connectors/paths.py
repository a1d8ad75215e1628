"""Paths of sources and sinks: folders that the driver and all workers see under the same name."""

from __future__ import annotations

import os
import re
from pathlib import Path

from jeton.core.errors import GraphError
from jeton.storage.files import file_system


def shared_folder(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder, given as a path or as a ``file:`` URL.

    To be asked where the source or the sink is made: workers have another folder to work in, and so
    may the driver later.

    >>> shared_folder("file:///data/out")
    PosixPath('/data/out')
    >>> shared_folder("out") == Path.cwd() / "out"
    True
    >>> shared_folder("s3://bucket/out")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: 's3://bucket/out' is not a folder ...
    """
    text = os.fspath(path)
    scheme = re.match(r"([^/:]+):", text)
    if scheme is not None and scheme[1] != "file":
        raise GraphError(
            f"{text!r} is not a folder that the driver and all workers see under the same path, as "
            "this source or sink needs: mount it as one, or write a source or sink of your own for "
            "it (jeton.connectors.sources.Source, jeton.connectors.sinks.StagedSink)"
        )
    return Path(file_system(text)[1])
