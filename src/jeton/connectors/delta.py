"""Delta: what its source and its sink share: tables by path, and the actions of their log."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from jeton.connectors.tables import TableFailed, plain_schema
from jeton.core.errors import GraphError
from jeton.storage.files import Files
from jeton.storage.object_store import SCHEMES
from jeton.storage.store_settings import azure_options, current, gcs_options, s3_options
from jeton.storage.stores import split

log = logging.getLogger("jeton.delta")

MAPPING: Final = "delta.columnMapping.mode"
"""The property of tables whose files have other names for columns."""
_COMMIT: Final = re.compile(r"(\d{20})\.json")


def library() -> Any:
    """The package `deltalake`."""
    try:
        import deltalake
    except ImportError as error:
        raise GraphError(
            "Delta tables need the package deltalake: pip install 'jeton[delta]'"
        ) from error
    return deltalake


def place(files: Files) -> str:
    """Where a table is, as `deltalake` writes it."""
    return str(files.root) if files.is_local else files.uri(files.root)


def open_table(files: Files, version: int | None = None) -> Any | None:
    """A table as it is now, or was at a version; nothing if there is none."""
    delta = library()
    try:
        return delta.DeltaTable(place(files), version=version, storage_options=options(files))
    except delta.exceptions.TableNotFoundError:
        return None
    except delta.exceptions.DeltaError as error:
        at = "" if version is None else f" at version {version}"
        raise TableFailed(f"the Delta table {place(files)} cannot be read{at}: {error}") from error


def options(files: Files) -> dict[str, str]:
    """The endpoint and the credentials of a table's store, from Spark's Hadoop configuration.

    >>> options(Files("/data/table"))
    {}
    """
    if files.is_local:
        return {}
    scheme, authority, _ = split(files.uri(files.root))
    if scheme not in SCHEMES:
        raise GraphError(
            f"a Delta table cannot be at {files.uri(files.root)}: its library reaches file:, "
            f"{', '.join(f'{each}:' for each in SCHEMES)}"
        )
    made: dict[str, Any]
    if scheme in ("s3", "s3a"):
        made = s3_options(current(), authority)
        provider = made.pop("credential_provider", None)
        keys = {} if provider is None else provider()
        made |= {key: value for key, value in keys.items() if value is not None}
    elif scheme == "gs":
        made = gcs_options(current(), authority)
    else:
        made = azure_options(current(), authority.rpartition("@")[2])
    if any(str(value).startswith("http://") for value in made.values()):
        made["allow_http"] = True
    return {key: _text(value) for key, value in made.items()}


def schema_of(table: Any) -> pa.Schema:
    """The columns of a table."""
    return plain_schema(table.schema().to_arrow())


def actions(files: Files, version: int) -> list[Mapping[str, Any]] | None:
    """The actions of one version of a table, from its log; nothing if it is not there."""
    try:
        data = files.read(files.root / "_delta_log" / f"{version:020}.json")
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def logged_versions(files: Files) -> list[int]:
    """The versions whose actions are in the log of a table, in order."""
    found = map(_COMMIT.fullmatch, files.names(files.root / "_delta_log"))
    return sorted(int(match[1]) for match in found if match is not None)


def path_of(action: Mapping[str, Any]) -> str:
    """The path of a file in an action of the log: there it is quoted like a URL's."""
    return unquote(action["path"])


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
