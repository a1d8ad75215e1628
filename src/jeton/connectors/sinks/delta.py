"""Delta: rows of a Delta table, one transaction for each version."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from secrets import token_hex
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jeton.connectors import delta
from jeton.connectors.delta import log
from jeton.connectors.paths import shared_folder
from jeton.connectors.sinks.sink import Sink, SinkContext, Writer, concatenated
from jeton.connectors.sinks.table_files import Last, StagedFile, TableWriter, Upsert
from jeton.connectors.tables import DELTA, TableFailed, groups, require_fit
from jeton.core.errors import BatchError, GraphError, summary

_TRIES: Final = 10
"""How often a commit is tried that others come before."""
_MEASURED: Final = 32
"""Columns with statistics, as Delta's own default is."""
_LONGEST: Final = 32
"""Characters of the longest text in statistics."""
Change: TypeAlias = Callable[[Any, Any], None]
"""A change of a table, with properties of its commit."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")


class Delta(Sink):
    """Rows of a Delta table, exactly once (``pip install 'jeton[delta]'``).

    Workers write Parquet files into the table's folder, which its log does not know yet. When a
    version is committed, the driver adds all its files in one transaction, which also has the
    version's number (an action ``txn``, Delta's own means for this). A driver that does not know
    whether its predecessor came so far reads the number there. Others may write to the table too.

    With ``mode="upsert"``, a row replaces the one with the same ``key``: of several in a version
    the last, or the one with the greatest value of ``order_by``. Then a row with a smaller one than
    the table has does not replace it either. The rows of a version pass through the driver, which
    merges them into the table.

    The table is created when the query starts, if the flow knows the output's columns, and with the
    first rows otherwise. Columns that the table has and the output has not are null; any other
    difference is an error. Timestamps are stored in microseconds, those with a zone as UTC.

    If the checkpoint of a version that has been written is lost, a transaction takes its files out
    of the table again, which is logged; if others have rewritten them meanwhile, or rows were
    merged, the query refuses to go on. Files of attempts that were given up stay until ``VACUUM``
    deletes them: its retention must be longer than the time from one checkpoint to the next.

    Args:
        path: The table's folder: a path that the driver and all workers see, or a URI of a bucket,
            reached with the settings of the Spark session. See docs/stores.md.
        mode: ``"append"`` or ``"upsert"``.
        key: For ``"upsert"``, the columns that tell rows apart.
        order_by: For ``"upsert"``, the column that tells which row is the newest.
        partition_by: The columns that a new table is partitioned by.
        configuration: Properties of a new table, such as ``delta.logRetentionDuration``.
        rows: About how many rows a file has at most.

    >>> import tempfile
    >>> from deltalake import DeltaTable
    >>> sink = Delta(tempfile.mkdtemp(), partition_by=["word"])
    >>> context = SinkContext("3f9a", worker=0)
    >>> writer = sink.open(context)
    >>> writer.write(pa.table({"word": ["a", "b"], "count": [1, 2]}))
    >>> sink.commit(context, 7, writer.stage(7))
    >>> DeltaTable(sink.path).to_pyarrow_table().num_rows
    2
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Literal["append", "upsert"] = "append",
        key: Sequence[str] = (),
        order_by: str | None = None,
        partition_by: Sequence[str] = (),
        configuration: Mapping[str, str] | None = None,
        rows: int = 1_000_000,
    ) -> None:
        delta.library()
        self.files = shared_folder(path)
        self.path = self.files.root
        self.upsert = Upsert.of(mode, key, order_by)
        self.partition_by = [partition_by] if isinstance(partition_by, str) else list(partition_by)
        self.configuration = dict(configuration or {})
        self.rows = rows

    def __repr__(self) -> str:
        return f"<Delta {self.files.uri(self.path)}>"

    def begin(self, output: str, schema: pa.Schema | None) -> None:
        """Create the table, or check that the output fits it."""
        if schema is not None:
            what = f"output {output!r}"
            wanted = DELTA.schema(schema, what)
            if self.upsert is not None:
                self.upsert.require(wanted, what, self._where)
            require_fit(wanted, delta.schema_of(self.table(wanted, what)), what, self._where)

    def open(self, context: SinkContext) -> Writer:
        """Write on this worker."""
        return _DeltaWriter(self, context, self._where)

    def commit(self, context: SinkContext, version: int, staged: Sequence[Any]) -> None:
        """Add files to the table in one transaction, unless it has had this version."""
        files = StagedFile.all_of(staged)
        if not files:
            return
        # A log that names files which are not there makes the table unreadable.
        if context.again and (missing := self._missing(files)):
            table = delta.open_table(self.files)
            if table is None or self._last(table, context).version < version:
                raise TableFailed(
                    f"files of version {version} of output {context.output!r} are not in "
                    f"{self._where} any more, which has not got their rows yet, such as "
                    f"{missing}: has VACUUM deleted them? Its retention must be longer than a "
                    "query is stopped for. Start with a new checkpoint"
                )
        if self.upsert is None:
            self._commit(context, version, _adding([_added(each) for each in files]))
        else:
            self._commit(context, version, self._merging(files, self.upsert))

    def clean(self, context: SinkContext, staged: Sequence[Any]) -> None:
        """Delete files whose rows were merged into the table."""
        for each in [] if self.upsert is None else StagedFile.all_of(staged):
            self.files.delete(self.path / each.path)

    def roll_back(self, context: SinkContext, version: int) -> None:
        """Take what later versions added out of the table, and stop earlier attempts."""
        table = delta.open_table(self.files)
        # Without checkpoints, attempts are not distinguished.
        if table is None or context.files is None:
            return
        last = self._last(table, context)
        last.require(context, self._where)
        if last.version > version:
            removed = self._withdrawn(table, context, version)
            log.warning(
                "%d files of versions %d to %d of output %r are taken out of %s: their rows will "
                "be made again",
                len(removed),
                version + 1,
                last.version,
                context.output,
                self._where,
            )
            self._commit(context, version, _adding(removed), back=True)
        elif last.attempt < context.attempt and context.attempt > 1:
            # From now on, earlier attempts know that they are superseded.
            self._commit(context, last.version, _adding([]), back=True)

    # Inside

    def _missing(self, files: Sequence[StagedFile]) -> str | None:
        """The first of some files that is not there any more."""
        paths = (each.path for each in files)
        return next((path for path in paths if not self.files.exists(self.path / path)), None)

    def _merging(self, files: Sequence[StagedFile], upsert: Upsert) -> Change:
        """Replaces rows with the same key by those in files, and adds the others."""

        def change(table: Any, properties: Any) -> None:
            rows = concatenated([self._read(each) for each in files], f"rows for {self._where}")
            _merge(table, upsert.newest(rows), upsert, properties)

        return change

    def _read(self, file: StagedFile) -> pa.Table:
        with self.files.local_copy(self.path / file.path) as copy:
            return pq.read_table(copy, partitioning=None)

    @property
    def _where(self) -> str:
        return f"the Delta table {self.files.uri(self.path)}"

    def table(self, schema: pa.Schema, what: str) -> Any:
        """The table, which is created if it is not there."""
        table = delta.open_table(self.files)
        if table is None:
            table = self._create(schema, what)
        found = table.metadata().partition_columns
        if self.partition_by and self.partition_by != found:
            raise GraphError(
                f"{self._where} is partitioned by {found}, and not by {self.partition_by}: leave "
                "partition_by= out, or give the sink another table"
            )
        for name in found if self.upsert is None else ():
            self._require_text(name, delta.schema_of(table).field(name).type)
        return table

    def _require_text(self, name: str, kind: pa.DataType) -> None:
        """An error if values of a type have no text by which Delta's log names a partition."""
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise GraphError(
                f"{self._where} cannot be partitioned by column {name!r}, which is {kind}: this "
                "sink does not write such partitions"
            )

    def _create(self, schema: pa.Schema, what: str) -> Any:
        for name in self.partition_by:
            if name not in schema.names:
                raise GraphError(
                    f"{what} has no column {name!r} to partition {self._where} by, only "
                    f"{schema.names}"
                )
            self._require_text(name, schema.field(name).type)
        library = delta.library()
        try:
            return library.DeltaTable.create(
                delta.place(self.files),
                schema,
                mode="ignore",
                partition_by=self.partition_by,
                configuration=self.configuration,
                storage_options=delta.options(self.files),
            )
        except library.exceptions.DeltaError as error:
            # Another worker may have come before.
            table = delta.open_table(self.files)
            if table is None:
                raise TableFailed(f"{self._where} cannot be created: {error}") from error
            return table

    def _last(self, table: Any, context: SinkContext) -> Last:
        """The last version and the last attempt of an output, as the table has them."""
        name = _name(context)
        version, attempt = (table.transaction_version(each) for each in (name, _attempts(name)))
        return Last(version or 0, attempt or 0)

    def _commit(
        self, context: SinkContext, version: int, change: Change, *, back: bool = False
    ) -> None:
        """Commit a version, or go back to it; again if others come before."""
        library = delta.library()
        failure: Exception | None = None
        for at in range(_TRIES):
            if at and context.wait(min(0.05 * 2**at, 2.0)):
                break
            # Each time anew: who came before may have been another attempt.
            table = delta.open_table(self.files)
            if table is None:
                raise TableFailed(
                    f"{self._where} is not there any more, and files of version {version} of "
                    f"output {context.output!r} are to be added to it"
                )
            properties = None
            # Without checkpoints, nothing is ever committed again.
            if context.files is not None:
                last = self._last(table, context)
                last.require(context, self._where)
                if not back and last.version >= version:
                    return
                name = _name(context)
                marks = {name: version, _attempts(name): context.attempt}
                properties = library.CommitProperties(
                    app_transactions=[library.Transaction(key, at) for key, at in marks.items()]
                )
            try:
                change(table, properties)
            except library.exceptions.CommitFailedError as error:
                log.info("a commit to %s is tried again: %s", self._where, summary(error))
                failure = error
            else:
                return
        raise TableFailed(
            f"version {version} of output {context.output!r} could not be committed to "
            f"{self._where} in {_TRIES} tries: {failure}"
        ) from failure

    def _withdrawn(self, table: Any, context: SinkContext, version: int) -> list[Any]:
        """The actions that take what later versions added out of the table."""
        if self.upsert is not None:
            raise self._kept(context, version, "they were merged with others")
        name = _name(context)
        added: dict[str, Any] = {}
        for at in range(table.version(), -1, -1):
            actions = delta.actions(self.files, at)
            if actions is None:
                raise self._kept(context, version, "its log does not reach back to them")
            marks = [each["txn"]["version"] for each in actions if _is_mark(each, name)]
            if marks and marks[-1] <= version:
                break
            if marks:
                adds = [each["add"] for each in actions if "add" in each]
                added |= {delta.path_of(each): each for each in adds}
        there = set(pa.table(table.get_add_actions())["path"].to_pylist())
        if not there.issuperset(added):
            raise self._kept(context, version, "others have rewritten or deleted them")
        remove, at = delta.library().transaction.RemoveAction, _now()
        return [
            remove(path, True, at, each["size"], each["partitionValues"])
            for path, each in added.items()
        ]

    def _kept(self, context: SinkContext, version: int, why: str) -> TableFailed:
        return TableFailed(
            f"{self._where} has rows of output {context.output!r} of versions after {version}, "
            f"whose checkpoints cannot be read any more, and which cannot be taken out: {why}. "
            "Restore the checkpoint's files, or start with a new checkpoint and a new table"
        )


class _DeltaWriter(TableWriter):
    def __init__(self, sink: Delta, context: SinkContext, where: str) -> None:
        super().__init__(DELTA, context, where, sink.rows)
        self._sink = sink
        self._columns: list[str] = []
        """Those that the table is partitioned by."""
        self._name = f"part-{context.query}-{context.attempt}-{context.worker or 0:04}"
        self._name += f"-{token_hex(4)}"
        self._number = 0

    def prepare(self, schema: pa.Schema) -> pa.Schema:
        if self._sink.upsert is not None:
            self._sink.upsert.require(schema, self._what, self._where)
        table = self._sink.table(schema, self._what)
        # Rows that are merged get to their partitions then.
        self._columns = table.metadata().partition_columns if self._sink.upsert is None else []
        return delta.schema_of(table)

    def put(self, table: pa.Table) -> list[StagedFile]:
        made, files = [], self._sink.files
        missing = [name for name in self._columns if name not in table.column_names]
        if missing:
            raise BatchError(f"{self._what} has no columns {missing} to partition {self._where} by")
        for first, rows in groups(table, [table.column(name) for name in self._columns]):
            values = {name: self._value(table, name, first) for name in self._columns}
            folders = [f"{_folder(name)}={_folder(text)}" for name, text in values.items()]
            path = "/".join([*folders, f"{self._name}-{self._number:05}.parquet"])
            self._number += 1
            rows = rows.drop_columns(self._columns)
            with files.output(self._sink.path / path) as stream:
                pq.write_table(rows, stream)
            info = files.info(self._sink.path / path)
            assert info is not None
            made.append(StagedFile(path, info.size, _now(), values, _statistics(rows)))
        return made

    def delete(self, path: str) -> None:
        self._sink.files.delete(self._sink.path / path)

    def _value(self, table: pa.Table, name: str, row: int) -> str | None:
        """The value of a partition column, as Delta's log has it."""
        value = table.column(name)[row].as_py()
        if value == "":
            raise BatchError(
                f"column {name!r} of {self._what} has an empty text, which Delta cannot tell from "
                "null in a column that a table is partitioned by: replace it before the output"
            )
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, datetime):
            return value.replace(tzinfo=None).isoformat(" ", "microseconds")
        return str(value)


def _name(context: SinkContext) -> str:
    return f"jeton-{context.query}-{context.output}"


def _attempts(name: str) -> str:
    return f"{name}-attempt"


def _is_mark(action: Mapping[str, Any], name: str) -> bool:
    return "txn" in action and action["txn"]["appId"] == name


def _folder(value: str | None) -> str:
    """A folder for files of a value, for people: only the log says which value they have."""
    return "__HIVE_DEFAULT_PARTITION__" if value is None else _UNSAFE.sub("_", value)[:64]


def _adding(changes: list[Any]) -> Change:
    """Adds files, or takes some out."""

    def change(table: Any, properties: Any) -> None:
        columns = table.metadata().partition_columns
        table.create_write_transaction(
            changes, "append", table.schema(), columns, commit_properties=properties
        )

    return change


def _merge(table: Any, rows: pa.Table, upsert: Upsert, properties: Any) -> None:
    def column(side: str, name: str) -> str:
        return f"{side}.{_quoted(name)}"

    both = [(column("old", name), column("new", name)) for name in upsert.key]
    same = " AND ".join(f"({old} IS NOT DISTINCT FROM {new})" for old, new in both)
    values = {_quoted(name): column("new", name) for name in rows.column_names}
    newer = None
    if upsert.order_by is not None:
        old, new = (column(side, upsert.order_by) for side in ("old", "new"))
        newer = f"{old} IS NULL OR {new} >= {old}"
        if pa.types.is_floating(rows.schema.field(upsert.order_by).type):
            # For Delta NaN is the greatest number, which nothing would replace.
            newer = f"{old} IS NULL OR isnan({old}) OR ({new} >= {old} AND NOT isnan({new}))"
    merge = table.merge(rows, same, "new", "old", commit_properties=properties)
    merge = merge.when_matched_update(values, newer)
    merge.when_not_matched_insert(values).execute()


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _now() -> int:
    return time.time_ns() // 1_000_000


def _added(file: StagedFile) -> Any:
    return delta.library().transaction.AddAction(
        path=file.path,
        size=file.size,
        partition_values=dict(file.partition),
        modification_time=file.written_at,
        data_change=True,
        stats=json.dumps(file.stats),
    )


def _statistics(table: pa.Table) -> dict[str, Any]:
    """The statistics of a file by which readers skip it."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in table.column_names[:_MEASURED]:
        column = table.column(name)
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        if pa.types.is_binary(column.type) or pa.types.is_boolean(column.type):
            continue
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            continue
        both = pc.min_max(column)
        first, last = (_bound(both[end].as_py(), last=end == "max") for end in ("min", "max"))
        if first is not None and last is not None:
            least[name], most[name] = first, last
    return {"numRecords": table.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _bound(value: Any, *, last: bool) -> Any | None:
    """A value as statistics have it, or a bound of it; nothing if there is none."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else None
    if isinstance(value, datetime):
        # Statistics have milliseconds.
        over = value.microsecond % 1000
        value -= timedelta(microseconds=over)
        if last and over:
            if value.replace(tzinfo=None) > datetime.max - timedelta(milliseconds=1):
                return None
            value += timedelta(milliseconds=1)
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return text if value.tzinfo is None else f"{text}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
