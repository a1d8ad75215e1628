"""Delta: the rows of a Delta table, and of each version that follows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import unquote

import pyarrow as pa

from jeton.columns.durations import Duration
from jeton.connectors import delta
from jeton.connectors.paths import shared_folder
from jeton.connectors.sources.table_source import (
    DataFile,
    Start,
    TableSource,
    VersionedTable,
    rows_of,
)
from jeton.connectors.tables import TableFailed, plain_schema
from jeton.core.errors import GraphError
from jeton.storage.files import Files

_LIST_AFTER: Final = 60
"""Looks for the next version after which the whole log is listed."""


class Delta(TableSource):
    """The rows of a Delta table, and of each version that follows (extra ``delta``).

    Files are dealt to the partitions of the source in turn, in the order of versions. A partition
    advances by its own records, so give the input a ``lateness`` that covers how far rows of one
    file are out of order, and ``idle_after=`` if versions are rare: otherwise an input waits until
    each of its partitions has had a file.

    Versions that only rewrite files (``OPTIMIZE``) add nothing. If a version deletes or changes
    rows, the query fails, unless ``changes`` is ``"skip"``: then that version is passed over, and
    logged. It also fails if versions were cleaned up before they were read.

    Args:
        path: The table's folder: a path that the driver and all workers see, or a URI of a bucket,
            reached with the settings of the Spark session. See docs/stores.md.
        start: Where a new query begins: with the table as it is (``"earliest"``), with the next
            version (``"latest"``), or with what a version added.
        end: Whether to end at the version that there is when the query begins.
        changes: What to do with versions that delete or change rows: ``"fail"`` or ``"skip"``.
        partitions: How many partitions the source has; by default one for each worker.
        every: Seconds between looks for a new version.

    >>> import tempfile
    >>> from deltalake import write_deltalake
    >>> folder = tempfile.mkdtemp()
    >>> write_deltalake(folder, pa.table({"time": [1, 2]}))
    >>> source = Delta(folder, end=True, partitions=1)
    >>> [(name, position)] = source.partitions(2).items()
    >>> source.open(name, position).read()["time"].to_pylist()
    [1, 2]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        start: Start = "earliest",
        end: bool = False,
        changes: Literal["fail", "skip"] = "fail",
        partitions: int | None = None,
        every: float | Duration = 1.0,
    ) -> None:
        delta.library()
        super().__init__(start=start, end=end, changes=changes, partitions=partitions, every=every)
        self.files = shared_folder(path)

    def __repr__(self) -> str:
        return f"<Delta {self.files.uri(self.files.root)}>"

    def table(self) -> VersionedTable:
        """The table, opened for one reader."""
        return _DeltaVersions(self.files, self.changes, self.columns)

    def before(self, table: VersionedTable, start: int) -> int:
        """The version before the one to start with."""
        if not 0 <= start <= table.newest() + 1:
            raise GraphError(
                f"{table.name} cannot be read from version {start} on: its newest is "
                f"{table.newest()}"
            )
        return start - 1


class _DeltaVersions(VersionedTable):
    def __init__(self, files: Files, changes: str, columns: Sequence[str] | None) -> None:
        self.name = f"the Delta table {files.uri(files.root)}"
        self._files = files
        self._changes = changes
        self._columns = columns
        self._misses = 0
        table = delta.open_table(files)
        if table is None:
            raise GraphError(f"there is no Delta table at {files.uri(files.root)}: create it first")
        self._newest: int = table.version()
        self._schema = delta.schema_of(table)
        self._require_plain(table.metadata().configuration)

    def schema(self) -> pa.Schema:
        wanted = self._columns
        return pa.schema([f for f in self._schema if wanted is None or f.name in wanted])

    def names(self) -> list[str]:
        return list(self._schema.names)

    def newest(self) -> int:
        return self._newest

    def contents(self, version: int) -> Sequence[DataFile]:
        table = delta.open_table(self._files, version)
        if table is None:
            raise self._gone(version)
        features = table.protocol().reader_features or []
        if "deletionVectors" in features and any(len(each) for each in table.deletion_vectors()):
            raise self._no_vectors(version)
        columns = table.metadata().partition_columns
        schema = delta.schema_of(table)
        # In the order in which they were written, so that times are not further apart than then.
        rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        rows.sort(key=lambda row: (row["modification_time"], row["path"]))
        return [
            DataFile(
                unquote(row["path"]),
                {n: _value(row[f"partition.{n}"], schema.field(n).type) for n in columns},
            )
            for row in rows
        ]

    def after(self, version: int) -> int | None:
        found = version + 1
        if found <= self._newest or self._files.exists(_log(self._files, found)):
            return found
        # A version that is missing may be to come, or may have been cleaned up: to list the log is
        # too expensive for each look.
        self._misses += 1
        if self._misses % _LIST_AFTER == 1 and any(
            each > found for each in delta.logged_versions(self._files)
        ):
            self._newest = found
            return found
        return None

    def added(self, version: int) -> Sequence[DataFile]:
        actions = delta.actions(self._files, version)
        if actions is None:
            raise self._gone(version)
        for each in actions:
            if "metaData" in each:
                self._require_plain(each["metaData"].get("configuration") or {})
                text = each["metaData"]["schemaString"]
                schema = delta.library().Schema.from_json(text)
                self._schema = plain_schema(schema.to_arrow())
        if any(_changes(each, "remove") for each in actions):
            if self._changes == "fail":
                raise TableFailed(
                    f"version {version} of {self.name} deletes or changes rows, which a query "
                    "cannot take back: to pass over such versions, give the source changes='skip'"
                )
            delta.log.warning("version %d of %s is skipped: it changes rows", version, self.name)
            return []
        adds = [each["add"] for each in actions if _changes(each, "add")]
        if any(each.get("deletionVector") for each in adds):
            raise self._no_vectors(version)
        return [DataFile(delta.path_of(each), self._partition(each)) for each in adds]

    def batches(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        path = self._files.root / file.path
        if not self._files.exists(path):
            raise TableFailed(
                f"{self.name} has no file {file.path} any more, which was not read yet: has VACUUM "
                "deleted it? Its retention must be longer than a query may be behind"
            )
        with self._files.local_copy(path) as copy:
            yield from rows_of(copy, file.partition, self._schema, self._columns)

    def _partition(self, add: Mapping[str, Any]) -> dict[str, Any]:
        values = add.get("partitionValues") or {}
        known = [name for name in values if name in self._schema.names]
        return {name: _value(values[name], self._schema.field(name).type) for name in known}

    def _require_plain(self, configuration: Mapping[str, str | None]) -> None:
        if (configuration.get(delta.MAPPING) or "none") != "none":
            raise TableFailed(
                f"{self.name} has names for columns that differ from those in its files "
                f"({delta.MAPPING}), which this source does not know: read it with Spark"
            )

    def _gone(self, version: int) -> TableFailed:
        return TableFailed(
            f"version {version} of {self.name} was not read yet, and its log has it no more: it "
            "was cleaned up (delta.logRetentionDuration). Start with a new checkpoint"
        )

    def _no_vectors(self, version: int) -> TableFailed:
        return TableFailed(
            f"version {version} of {self.name} has files of which some rows are deleted (deletion "
            "vectors), which this source does not read: REORG TABLE … APPLY (PURGE) rewrites them"
        )


def _log(files: Files, version: int) -> Any:
    return files.root / "_delta_log" / f"{version:020}.json"


def _changes(action: Mapping[str, Any], kind: str) -> bool:
    """Whether an action adds or removes rows, and not only rewrites them."""
    return kind in action and action[kind].get("dataChange", True)


def _value(value: Any, kind: pa.DataType) -> Any:
    """The value of a partition column, which the log has as text."""
    if value is None or value == "":
        return None
    if pa.types.is_binary(kind):
        # Writers differ in how they make texts of bytes.
        raise TableFailed(
            "a Delta table that is partitioned by a column of bytes cannot be read: write another "
            "one, partitioned by a text"
        )
    if not isinstance(value, str) or pa.types.is_string(kind):
        return value
    if pa.types.is_timestamp(kind):
        naive = pa.array([value.rstrip("Z")]).cast(pa.timestamp("us"))
        return naive.cast(kind)[0].as_py() if kind.tz is None else naive.view(kind)[0].as_py()
    return pa.array([value]).cast(kind)[0].as_py()
