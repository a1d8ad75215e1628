"""Iceberg: what its source and its sink share: a table in a catalog."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from jeton.connectors.tables import TableFailed, plain_schema, settings_shown
from jeton.core.errors import GraphError
from jeton.storage.store_settings import StoreSettings, current, s3_options
from jeton.storage.stores import split

log = logging.getLogger("jeton.iceberg")

_S3: Final = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "token": "s3.session-token",
}


def library() -> Any:
    """The package `pyiceberg`, with the modules that are used here."""
    try:
        import pyiceberg.catalog
        import pyiceberg.exceptions
        import pyiceberg.io.pyarrow
        import pyiceberg.table
    except ImportError as error:
        raise GraphError(
            "Iceberg tables need the package pyiceberg: pip install 'jeton[iceberg]'"
        ) from error
    return pyiceberg


class CatalogTable:
    """A table by its name in a catalog; each process connects to the catalog by itself.

    Its representation shows no properties, since some are secrets.

    >>> CatalogTable("logs.visits", {"type": "rest", "uri": "http://a", "token": "secret"})
    <CatalogTable logs.visits: token, type, uri>
    """

    _opened: Any = None

    def __init__(self, name: str, catalog: str | Mapping[str, str]) -> None:
        self.name = name
        self._catalog = catalog if isinstance(catalog, str) else dict(catalog)

    def __repr__(self) -> str:
        known = self._catalog
        shown = known if isinstance(known, str) else settings_shown(known)
        return f"<CatalogTable {self.name}: {shown}>"

    def __str__(self) -> str:
        return f"the Iceberg table {self.name}"

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_opened": None}

    def load(self) -> Any | None:
        """The table as it is now; nothing if there is none."""
        errors = library().exceptions
        try:
            return self._connected().load_table(self.name)
        except (errors.NoSuchTableError, errors.NoSuchNamespaceError):
            return None

    def create(self, schema: pa.Schema) -> Any:
        """The table, which is created if it is not there."""
        catalog, exceptions = self._connected(), library().exceptions
        namespace = self.name.rpartition(".")[0]
        if not namespace:
            raise GraphError(
                f"the Iceberg table {self.name!r} has no namespace: write db.{self.name}"
            )
        catalog.create_namespace_if_not_exists(namespace)
        try:
            return catalog.create_table_if_not_exists(self.name, schema)
        except exceptions.CommitFailedException as error:
            # Another worker may have come before.
            table = self.load()
            if table is None:
                raise TableFailed(f"{self} cannot be created: {error}") from error
            return table

    def close(self) -> None:
        """Close the connection to the catalog; it is opened again when it is needed."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _connected(self) -> Any:
        if self._opened is None:
            load = library().catalog.load_catalog
            known = self._catalog
            if isinstance(known, str):
                self._opened = load(known)
            else:
                # A catalog in a database has a name there too, and shows only tables under it.
                more = {key: value for key, value in known.items() if key != "name"}
                name = known.get("name", "jeton")
                self._opened = load(name, **(_s3_properties(known, current()) | more))
        return self._opened


def schema_of(table: Any) -> pa.Schema:
    """The columns of a table."""
    return plain_schema(table.schema().as_arrow())


def _s3_properties(catalog: Mapping[str, str], settings: StoreSettings) -> dict[str, str]:
    """The endpoint and the credentials of S3 that Spark's Hadoop configuration has, if it has some.

    >>> _s3_properties({"warehouse": "s3://bucket/tables"}, StoreSettings())
    {}
    """
    if not any(key.startswith("fs.s3a.") for key in settings.values):
        return {}
    scheme, bucket, _ = split(catalog.get("warehouse", ""))
    found = s3_options(settings, bucket if scheme in ("s3", "s3a") else "")
    provider = found.pop("credential_provider", None)
    if provider is not None:
        found |= provider()
    if found.get("virtual_hosted_style_request"):
        # This library puts the name of the bucket before the host by itself.
        found["endpoint"] = str(found["endpoint"]).replace(f"//{bucket}.", "//", 1)
    named = {_S3[key]: str(found[key]) for key in _S3 if found.get(key) is not None}
    return named | {
        "s3.force-virtual-addressing": str(bool(found.get("virtual_hosted_style_request"))).lower()
    }
