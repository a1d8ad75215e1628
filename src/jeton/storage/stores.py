"""Stores by path: which store a path or URI is on, and the settings of this process for them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Final

from jeton.storage import store_settings
from jeton.storage.local_store import LocalStore
from jeton.storage.object_store import SCHEMES, ObjectStore
from jeton.storage.store import Store, StoreRefused
from jeton.storage.store_settings import StoreSettings

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://([^/]*))?(.*)", re.DOTALL)

ThroughJava = Callable[[str, str], Store]
"""Makes a store of a scheme and an authority that only Hadoop's own code can reach."""

_through_java: ThroughJava | None = None


def use(settings: StoreSettings, through_java: ThroughJava) -> None:
    """Have this process reach stores with these settings, and others through Hadoop's code.

    `jeton.spark` calls it with those of a session, at the driver and on the workers.
    """
    global _through_java
    store_settings.use(settings)
    _through_java = through_java


def split(path: str | os.PathLike[str]) -> tuple[str, str, str]:
    """The scheme, the authority and the path of a path or URI.

    >>> split("s3a://bucket/some/where"), split("abfss://box@acct.dfs.core.windows.net/in")
    (('s3a', 'bucket', 'some/where'), ('abfss', 'box@acct.dfs.core.windows.net', 'in'))
    >>> split("file:/data/out"), split("hdfs:///data")
    (('file', '', '/data/out'), ('hdfs', '', '/data'))
    """
    text = os.fspath(path)
    found = _URI.fullmatch(text)
    if found is None or "/" in found[1]:
        return "file", "", os.path.abspath(text)
    scheme, authority, rest = found[1].lower(), found[2] or "", found[3]
    if scheme == "file":
        # As Spark writes them, nothing in them is quoted.
        return "file", "", "/" + rest.lstrip("/")
    if scheme in SCHEMES:
        if not authority:
            raise StoreRefused(f"{text!r} names no bucket: write {scheme}://bucket/path")
        return scheme, authority, rest.strip("/")
    return scheme, authority, "/" + rest.strip("/")


def absolute(path: str | os.PathLike[str]) -> str:
    """A path or URI that means the same in any process and folder.

    >>> absolute("file:///data/out"), absolute("s3a://bucket/out/")
    ('/data/out', 's3a://bucket/out')
    """
    scheme, authority, place = split(path)
    if scheme == "file":
        return place
    return f"{scheme}://{authority}/{place.lstrip('/')}".rstrip("/")


def store_of(path: str | os.PathLike[str]) -> Store:
    """The store that a path or URI is on.

    >>> store_of("file:///data/out"), store_of("s3a://bucket/out")
    (<LocalStore>, <ObjectStore s3a://bucket>)
    """
    scheme, authority, place = split(path)
    if scheme == "file" or (scheme == "dbfs" and _mounted(place) is not None):
        return LocalStore()
    if scheme in SCHEMES:
        return ObjectStore(scheme, authority)
    if _through_java is None:
        raise StoreRefused(
            f"{os.fspath(path)!r} is on a store that is reached through Spark's Java, and no "
            "session of Spark is known here yet: start the flow with one, or use a path of "
            f"file:, {', '.join(f'{each}:' for each in SCHEMES)}"
        )
    return _through_java(scheme, authority)


def place_of(path: str | os.PathLike[str]) -> str:
    """The path of a path or URI on its store; in a bucket it begins with the bucket.

    >>> place_of("s3a://bucket/out"), place_of("hdfs://host:8020/out")
    ('bucket/out', '/out')
    """
    scheme, authority, place = split(path)
    if scheme in SCHEMES:
        return f"{authority.partition('@')[0]}/{place}".rstrip("/")
    return _mounted(place) or place if scheme == "dbfs" else place


def _mounted(place: str) -> str | None:
    """Where Databricks has mounted a path of ``dbfs:``, if it has."""
    if place.startswith("/Volumes/") and os.path.isdir("/Volumes"):
        return place
    return f"/dbfs{place}" if os.path.isdir("/dbfs") else None
