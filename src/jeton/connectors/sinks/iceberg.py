"""Iceberg: rows of an Iceberg table, one snapshot for each version."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jeton.connectors import iceberg
from jeton.connectors.iceberg import CatalogTable, log
from jeton.connectors.sinks.sink import Sink, SinkContext, Writer
from jeton.connectors.sinks.table_files import Last, StagedFile, TableWriter
from jeton.connectors.tables import ICEBERG, TableFailed, groups, require_fit
from jeton.core.errors import GraphError, summary

_TRIES: Final = 10
"""How often a commit is tried that others come before."""
_SPANS: Final = ("year", "month", "day", "hour")


class Iceberg(Sink):
    """Rows of an Iceberg table, exactly once (``pip install 'jeton[iceberg]'``).

    Workers write Parquet files where the table has its data, which no snapshot knows yet. When a
    version is committed, the driver adds all its files in one snapshot, and sets a property of the
    table to the version's number, in the same commit. A driver that does not know whether its
    predecessor came so far reads the number there. Others may write to the table too.

    The table is created, without partitions, when the query starts, if the flow knows the output's
    columns, and with the first rows otherwise. Create it yourself to partition it, by values or by
    year, month, day or hour. Columns that the table has and the output has not are null; any other
    difference is an error. Timestamps are stored in microseconds, those with a zone as UTC.

    Rows that were committed are not withdrawn: if the checkpoint of a version that has been written
    is lost, the query refuses to go on from an earlier one. Files of attempts that were given up
    stay until orphan files are removed.

    Args:
        table: The table's name, with its namespace.
        catalog: The properties of a catalog, as `pyiceberg` names them, or the name of one in its
            configuration. Settings of S3 that are not given come from the Spark session.
        rows: About how many rows a file has at most.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> catalog = {"type": "sql", "uri": f"sqlite:///{folder}/db", "warehouse": f"file://{folder}"}
    >>> sink = Iceberg("logs.words", catalog)
    >>> context = SinkContext("3f9a", worker=0)
    >>> writer = sink.open(context)
    >>> writer.write(pa.table({"word": ["a", "b"], "count": [1, 2]}))
    >>> sink.commit(context, 7, writer.stage(7))
    >>> sink.table.load().scan().to_arrow().num_rows
    2
    """

    def __init__(
        self, table: str, catalog: str | Mapping[str, str], *, rows: int = 1_000_000
    ) -> None:
        iceberg.library()
        self.table = CatalogTable(table, catalog)
        self.rows = rows

    def __repr__(self) -> str:
        return f"<Iceberg {self.table.name}>"

    def begin(self, output: str, schema: pa.Schema | None) -> None:
        """Create the table, or check that the output fits it."""
        if schema is not None:
            what = f"output {output!r}"
            wanted = ICEBERG.schema(schema, what)
            table = self.table.create(wanted)
            require_fit(wanted, iceberg.schema_of(table), what, str(self.table))
            _partition_keys(table, wanted.empty_table(), str(self.table))

    def open(self, context: SinkContext) -> Writer:
        """Write on this worker."""
        return _IcebergWriter(self.table, context, self.rows)

    def commit(self, context: SinkContext, version: int, staged: Sequence[Any]) -> None:
        """Add files to the table in one snapshot, unless it has had this version."""
        paths = [each.path for each in StagedFile.all_of(staged)]
        if paths:
            self._commit(context, version, paths)

    def roll_back(self, context: SinkContext, version: int) -> None:
        """Stop earlier attempts, and refuse if a later version was written."""
        table = self.table.load()
        # Without checkpoints, attempts are not distinguished.
        if table is None or context.files is None:
            return
        last = _last(table, context)
        last.require(context, str(self.table))
        if last.version > version:
            raise TableFailed(
                f"{self.table} has the rows of version {last.version} of output "
                f"{context.output!r}, but its checkpoint cannot be read any more, and the one of "
                f"version {version} is older: its successors would write the same rows again. "
                "Restore the checkpoint's files; or, to accept repeated rows, remove the property "
                f"{_name(context)} of the table"
            )
        if last.attempt < context.attempt and context.attempt > 1:
            # From now on, earlier attempts know that they are superseded.
            self._commit(context, last.version, [])

    def _commit(self, context: SinkContext, version: int, paths: list[str]) -> None:
        """Commit a version, or only the attempt; again if others come before."""
        library = iceberg.library()
        failure: Exception | None = None
        for at in range(_TRIES):
            if at and context.wait(min(0.05 * 2**at, 2.0)):
                break
            # Each time anew: who came before may have been another attempt.
            table = self.table.load()
            if table is None:
                raise TableFailed(
                    f"{self.table} is not there any more, and files of version {version} of "
                    f"output {context.output!r} are to be added to it"
                )
            # The library must not try again by itself: this table is only in memory.
            table.metadata.properties[library.table.TableProperties.COMMIT_NUM_RETRIES] = "0"
            transaction = table.transaction()
            # Without checkpoints, nothing is ever committed again.
            if context.files is not None:
                last = _last(table, context)
                last.require(context, str(self.table))
                if paths and last.version >= version:
                    return
                mark = json.dumps({"version": version, "attempt": context.attempt})
                transaction.set_properties({_name(context): mark})
            try:
                if paths:
                    notes = {"jeton-query": context.query, "jeton-version": str(version)}
                    transaction.add_files(paths, notes, check_duplicate_files=False)
                else:
                    # A snapshot without files: a commit that began before it cannot succeed.
                    notes = {"jeton-query": context.query, "jeton-attempt": str(context.attempt)}
                    with transaction.update_snapshot(notes).fast_append():
                        pass
                transaction.commit_transaction()
            except library.exceptions.CommitFailedException as error:
                log.info("a commit to %s is tried again: %s", self.table, summary(error))
                failure = error
            else:
                return
        raise TableFailed(
            f"version {version} of output {context.output!r} could not be committed to "
            f"{self.table} in {_TRIES} tries: {failure}"
        ) from failure


class _IcebergWriter(TableWriter):
    def __init__(self, table: CatalogTable, context: SinkContext, rows: int) -> None:
        super().__init__(ICEBERG, context, str(table), rows)
        self._table = table
        self._loaded: Any = None
        self._name = f"{context.query}-{context.attempt}-{context.worker or 0:04}-{token_hex(4)}"
        self._number = 0

    def prepare(self, schema: pa.Schema) -> pa.Schema:
        self._loaded = self._table.load()
        if self._loaded is None:
            self._loaded = self._table.create(schema)
        return iceberg.schema_of(self._loaded)

    def put(self, table: pa.Table) -> list[StagedFile]:
        made = []
        for _, rows in groups(table, _partition_keys(self._loaded, table, self._where)):
            name = f"part-{self._name}-{self._number:05}.parquet"
            self._number += 1
            path = self._loaded.location_provider().new_data_location(name)
            output = self._loaded.io.new_output(path)
            with output.create() as stream:
                pq.write_table(rows, stream)
            made.append(StagedFile(path, len(output), time.time_ns() // 1_000_000))
        return made

    def delete(self, path: str) -> None:
        try:
            self._loaded.io.delete(path)
        except OSError as error:
            log.info("%s could not be deleted: %s", path, error)

    def close(self) -> None:
        super().close()
        self._table.close()


def _partition_keys(table: Any, rows: pa.Table, where: str) -> list[Any]:
    """Columns that are equal where rows belong to the same partition."""
    keys = []
    for field in table.spec().fields:
        name = table.schema().find_column_name(field.source_id)
        transform = str(field.transform)
        if transform not in ("identity", *_SPANS) or name not in rows.column_names:
            raise GraphError(
                f"{where} is partitioned by {transform} of {name!r}, which this sink does not "
                f"write: it knows values and {', '.join(_SPANS)} of columns that the output has"
            )
        column = rows.column(name)
        keys.append(pc.floor_temporal(column, unit=transform) if transform in _SPANS else column)
    return keys


def _name(context: SinkContext) -> str:
    return f"jeton.{context.query}.{context.output}"


def _last(table: Any, context: SinkContext) -> Last:
    found = table.properties.get(_name(context))
    return Last() if found is None else Last(**json.loads(found))
