"""Iceberg: the rows of an Iceberg table, and of each snapshot that follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from jeton.columns.durations import Duration
from jeton.connectors import iceberg
from jeton.connectors.iceberg import CatalogTable, log
from jeton.connectors.sources.table_source import DataFile, Start, TableSource, VersionedTable
from jeton.connectors.tables import TableFailed, plain_schema
from jeton.core.errors import GraphError


class Iceberg(TableSource):
    """The rows of an Iceberg table, and of each snapshot that follows (extra ``iceberg``).

    It is read as `Delta` is: files are dealt to the partitions of the source in turn, in the order
    of snapshots. Snapshots that only rewrite files add nothing. If one deletes or changes rows, the
    query fails, unless ``changes`` is ``"skip"``: then that snapshot is passed over, and logged. It
    also fails if snapshots expired before they were read, or if the table was rolled back.

    Args:
        table: The table's name, with its namespace. Its format version must be 2 or later.
        catalog: The properties of a catalog, as `pyiceberg` names them, or the name of one in its
            configuration. A catalog in a database (``"type": "sql"``) also has a ``"name"``: only
            its tables of that name are seen. Settings of S3 that are not given come from the Spark
            session.
        start: Where a new query begins: with the table as it is (``"earliest"``), with the next
            snapshot (``"latest"``), or with what the snapshot of an id added.
        end: Whether to end at the snapshot that there is when the query begins.
        changes: What to do with snapshots that delete or change rows: ``"fail"`` or ``"skip"``.
        partitions: How many partitions the source has; by default one for each worker.
        every: Seconds between looks for a new snapshot.

    >>> Iceberg("logs.visits", {"type": "rest", "uri": "http://catalog", "token": "secret"})
    <Iceberg logs.visits>
    """

    def __init__(
        self,
        table: str,
        catalog: str | Mapping[str, str],
        *,
        start: Start = "earliest",
        end: bool = False,
        changes: Literal["fail", "skip"] = "fail",
        partitions: int | None = None,
        every: float | Duration = 1.0,
    ) -> None:
        iceberg.library()
        super().__init__(start=start, end=end, changes=changes, partitions=partitions, every=every)
        self.name = table
        self.catalog = catalog

    def __repr__(self) -> str:
        return f"<Iceberg {self.name}>"

    def table(self) -> VersionedTable:
        """The table, opened for one reader."""
        return _Snapshots(CatalogTable(self.name, self.catalog), self.changes, self.columns)

    def before(self, table: VersionedTable, start: int) -> int:
        """The version before the snapshot to start with."""
        assert isinstance(table, _Snapshots)
        return table.before(start)


class _Snapshots(VersionedTable):
    """The snapshots of a table's main branch, which have its sequence numbers as versions."""

    def __init__(self, place: CatalogTable, changes: str, columns: Sequence[str] | None) -> None:
        self.name = str(place)
        self._place = place
        self._changes = changes
        self._columns = columns
        table = place.load()
        if table is None:
            raise GraphError(f"there is no Iceberg table {place.name}: create it first")
        if table.format_version < 2:
            raise GraphError(
                f"{self.name} has format version 1, whose snapshots have no numbers: upgrade it "
                "to version 2"
            )
        self._table = table

    def close(self) -> None:
        self._place.close()

    def schema(self) -> pa.Schema:
        return plain_schema(self._projected().as_arrow())

    def names(self) -> list[str]:
        return [field.name for field in self._table.schema().fields]

    def newest(self) -> int:
        current = self._table.current_snapshot()
        return 0 if current is None else int(current.sequence_number)

    def before(self, snapshot_id: int) -> int:
        """The version before that of a snapshot."""
        for snapshot in self._history():
            if snapshot.snapshot_id == snapshot_id:
                return int(snapshot.sequence_number) - 1
        known = [each.snapshot_id for each in self._history()]
        raise GraphError(f"{self.name} has no snapshot {snapshot_id}: those of now are {known}")

    def contents(self, version: int) -> Sequence[DataFile]:
        if version == 0:
            return []
        snapshot = self._snapshot(version)
        tasks = self._table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
        by_path = {task.file.file_path: task for task in tasks}
        # In the order in which they were written, so that times are not further apart than then.
        numbers = {
            entry.data_file.file_path: entry.sequence_number or 0
            for manifest in snapshot.manifests(self._table.io)
            for entry in manifest.fetch_manifest_entry(self._table.io)
        }
        paths = sorted(by_path, key=lambda path: (numbers[path], path))
        return [DataFile(path, detail=by_path[path]) for path in paths]

    def after(self, version: int) -> int | None:
        self._table.refresh()
        found = None
        for snapshot in self._history():
            number = int(snapshot.sequence_number)
            if number < version:
                raise TableFailed(
                    f"{self.name} was rolled back to a snapshot before one that has been read: its "
                    "rows cannot be taken back. Start with a new checkpoint"
                )
            if number == version:
                return found
            found = number
        # The oldest snapshot that there is may follow others that have expired.
        if found not in (None, version + 1):
            raise self._gone(version + 1)
        return found

    def added(self, version: int) -> Sequence[DataFile]:
        snapshot = self._snapshot(version)
        kind = "append" if snapshot.summary is None else snapshot.summary.operation.value
        if kind == "replace":
            return []
        if kind != "append":
            if self._changes == "fail":
                raise TableFailed(
                    f"snapshot {snapshot.snapshot_id} of {self.name} deletes or changes rows "
                    f"({kind}), which a query cannot take back: to pass over such snapshots, give "
                    "the source changes='skip'"
                )
            log.warning(
                "snapshot %d of %s is skipped: it changes rows", snapshot.snapshot_id, self.name
            )
            return []
        task, io = iceberg.library().table.FileScanTask, self._table.io
        return [
            DataFile(entry.data_file.file_path, detail=task(entry.data_file))
            for manifest in snapshot.manifests(io)
            if manifest.added_snapshot_id == snapshot.snapshot_id
            for entry in manifest.fetch_manifest_entry(io)
            if entry.snapshot_id == snapshot.snapshot_id and entry.status.name == "ADDED"
        ]

    def batches(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        schema = self._projected()
        wanted = plain_schema(schema.as_arrow())
        scan = ArrowScan(self._table.metadata, self._table.io, schema, AlwaysTrue())
        try:
            for batch in scan.to_record_batches([file.detail]):
                yield batch.cast(wanted)
        except FileNotFoundError as error:
            raise TableFailed(
                f"{self.name} has no file {file.path} any more, which was not read yet: were its "
                "snapshots expired?"
            ) from error

    def _projected(self) -> Any:
        schema = self._table.schema()
        if self._columns is None:
            return schema
        return schema.select(*[name for name in self._columns if name in schema.column_names])

    def _history(self) -> Iterator[Any]:
        """The snapshots of the main branch that there are, the newest first."""
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)

    def _snapshot(self, version: int) -> Any:
        for snapshot in self._history():
            if snapshot.sequence_number == version:
                return snapshot
        raise self._gone(version)

    def _gone(self, version: int) -> TableFailed:
        return TableFailed(
            f"snapshot number {version} of {self.name} was not read yet, and has expired. Start "
            "with a new checkpoint"
        )
