"""Postgres: rows of a PostgreSQL table, one transaction for each version."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.csv

from jeton.connectors.sinks.driver_sink import Delivery, DriverSink, Retry
from jeton.connectors.sinks.sink import SinkContext
from jeton.connectors.sinks.table_files import Last, Upsert
from jeton.connectors.tables import Dialect, TableFailed, conform
from jeton.core.errors import BatchError, GraphError

POSTGRES: Final = Dialect("PostgreSQL", times_of_day=True)
VERSIONS: Final = "jeton_versions"
"""The table that has the last version of each query and output, written with the rows."""
_SHOWN: Final = ("host", "port", "dbname", "user")
_LOCK_WITHIN: Final = "30s"
_TYPES: Final = {
    pa.bool_(): "boolean",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
}
_TAKEN_BY: Final = {
    "boolean": ("bool",),
    "integer": ("int4", "int8", "numeric", "float8"),
    "bigint": ("int8", "numeric"),
    "real": ("float4", "float8"),
    "double precision": ("float8",),
    "bytea": ("bytea",),
    "date": ("date",),
    "time": ("time",),
    "timestamp": ("timestamp",),
    "timestamptz": ("timestamptz",),
    "jsonb": ("jsonb", "json"),
}
"""The types of columns that hold all values of another one; any column takes texts it can read."""


class Postgres(DriverSink):
    """Rows of a PostgreSQL table, exactly once (``pip install 'jeton[postgres]'``).

    Workers stage rows beside the checkpoint. When a version is committed, the driver copies all its
    rows into the table in one transaction, which also writes the version's number to the table
    ``versions``. A driver that does not know whether its predecessor came so far reads the number
    there, and one that was superseded is refused.

    With ``mode="upsert"``, a row replaces the one with the same ``key``: of several in a version
    the last, or the one with the greatest value of ``order_by``. Then a row with a smaller one than
    the table has does not replace it either.

    The table is created when the query starts, if the flow knows the output's columns, and with the
    first rows otherwise, with the key as primary key. One that is there must have the columns of
    the output, with types that hold their values; others get their defaults. Lists, structs and
    maps are stored as ``jsonb``, timestamps in microseconds.

    All rows pass through the driver, and appear when a checkpoint is committed. Rows that were
    committed are not withdrawn: if the checkpoint of a version that has been written is lost, the
    query refuses to go on from an earlier one. Without checkpoints, each transaction has the rows
    that a worker sent together.

    Args:
        dsn: How to connect, as libpq reads it: a URI, or ``host=… dbname=…``. What it does not say
            comes from the environment (``PGPASSWORD`` and others) and ``~/.pgpass``. It stays at
            the driver, and its password appears in no message.
        table: The table, if need be with its schema: ``"logs.visits"``.
        mode: ``"append"`` or ``"upsert"``.
        key: For ``"upsert"``, the columns that tell rows apart; the table needs a unique index on
            them.
        order_by: For ``"upsert"``, the column that tells which row is the newest.
        versions: The table of the versions, which is created if it is not there.

    >>> Postgres("postgresql://ann:secret@db.example/shop", "counts", mode="upsert", key=["word"])
    <Postgres counts at host=db.example dbname=shop user=ann>
    """

    guarantee = "exactly once"
    whole_versions = True
    retry = Retry(times=3, first_wait=0.5)

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        mode: Literal["append", "upsert"] = "append",
        key: Sequence[str] = (),
        order_by: str | None = None,
        versions: str = VERSIONS,
    ) -> None:
        self._dsn = dsn
        self._place = _shown(dsn)
        self.table = table
        self.upsert = Upsert.of(mode, key, order_by)
        self.versions = versions

    def __repr__(self) -> str:
        return f"<Postgres {self.table} at {self._place}>"

    def begin(self, output: str, schema: pa.Schema | None) -> None:
        """Connect, and create the table, or check that the output fits it."""
        with self._session("jeton") as session:
            session.create_versions()
            if schema is not None:
                session.prepare(POSTGRES.schema(schema, f"output {output!r}"), output)

    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        """Write a version in one transaction, unless it is there."""
        context, version = delivery.context, delivery.version
        what = f"output {context.output!r}"
        schema = POSTGRES.schema(table.schema, what)
        table = conform(table, schema, what)
        with self._session(_name(context, context.attempt)) as session:
            if version is not None:
                session.create_versions()
                last = session.locked(context)
                last.require(context, str(session))
                if last.version >= version:
                    return
                session.mark(context, version)
            session.prepare(schema, context.output)
            session.write(table)

    def roll_back(self, context: SinkContext, version: int) -> None:
        """Delete staged rows, stop earlier attempts, and refuse if a later version was written."""
        with self._session(_name(context, context.attempt)) as session:
            session.create_versions()
            session.end_earlier(context)
            last = session.locked(context)
            last.require(context, str(session))
            if last.version > version:
                raise TableFailed(
                    f"{session} has the rows of version {last.version} of output "
                    f"{context.output!r}, but its checkpoint cannot be read any more, and the one "
                    f"of version {version} is older: its successors would write the same rows "
                    "again. Restore the checkpoint's files; or, to accept repeated rows: UPDATE "
                    f"{self.versions} SET version = {version} WHERE query = '{context.query}'"
                )
            # From now on, earlier attempts know that they are superseded.
            session.mark(context, last.version)
        super().roll_back(context, version)

    @contextmanager
    def _session(self, name: str) -> Iterator[_Session]:
        """A transaction, which is committed if the block ends without an error."""
        psycopg = _library()
        try:
            with psycopg.connect(
                self._dsn, application_name=name, connect_timeout=30
            ) as connection:
                connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_WITHIN}'")
                yield _Session(self, connection)
        except psycopg.Error as error:
            text = " ".join(str(error).split())
            raise TableFailed(f"{self!r} did not take rows: {text}") from error


class _Session:
    """One transaction."""

    def __init__(self, sink: Postgres, connection: Any) -> None:
        self._sink = sink
        self._connection = connection
        self._sql = _library().sql
        self._target = self._named(sink.table)
        self._versions = self._named(sink.versions)

    def __str__(self) -> str:
        return f"the PostgreSQL table {self._sink.table}"

    def create_versions(self) -> None:
        """Create the table of versions, unless it is there."""
        if not self._is_there(self._versions):
            self._alone()
            self._run(
                "CREATE TABLE IF NOT EXISTS {} (query text, output text, version bigint NOT NULL, "
                "attempt bigint NOT NULL, PRIMARY KEY (query, output))",
                self._versions,
            )

    def locked(self, context: SinkContext) -> Last:
        """The last version and attempt of an output, which no other session can change now."""
        key = (context.query, context.output)
        self._run(
            "INSERT INTO {} VALUES (%s, %s, 0, 0) ON CONFLICT DO NOTHING",
            self._versions,
            values=key,
        )
        found = self._run(
            "SELECT version, attempt FROM {} WHERE query = %s AND output = %s FOR UPDATE",
            self._versions,
            values=key,
        )
        return Last(*found.fetchone())

    def mark(self, context: SinkContext, version: int) -> None:
        """Note the version and the attempt of an output."""
        self._run(
            "UPDATE {} SET version = %s, attempt = %s WHERE query = %s AND output = %s",
            self._versions,
            values=(version, context.attempt, context.query, context.output),
        )

    def end_earlier(self, context: SinkContext) -> None:
        """End sessions of earlier attempts: one that is suspended would hold its locks for ever."""
        self._run(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE "
            "usename = current_user AND datname = current_database() AND "
            "starts_with(application_name, %s) AND "
            "substring(application_name from '[0-9]+$')::bigint < %s",
            values=(_name(context, ""), context.attempt),
        )

    def prepare(self, schema: pa.Schema, output: str) -> None:
        """Create the table, or check that rows of a schema fit it."""
        upsert, wanted = self._sink.upsert, {field.name: _type(field.type) for field in schema}
        if upsert is not None:
            upsert.require(schema, f"output {output!r}", str(self))
        if not self._is_there(self._target):
            self._alone()
            self._create(wanted)
        self._check(wanted, output)
        if upsert is not None:
            columns = self._names(wanted)
            # Without a unique index on the key, it cannot be planned.
            self._run(
                "EXPLAIN INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT ({}) DO NOTHING",
                self._target,
                columns,
                columns,
                self._target,
                self._names(upsert.key),
            )

    def write(self, table: pa.Table) -> None:
        """Append rows, or replace those with the same key."""
        upsert = self._sink.upsert
        if upsert is None:
            self._copy(self._target, table)
            return
        self._require_keys(table, upsert)
        rows = self._sql.Identifier("pg_temp", "jeton_rows")
        columns = self._names(table.column_names)
        self._run(
            "CREATE TEMP TABLE jeton_rows ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA",
            columns,
            self._target,
        )
        self._run("ALTER TABLE {} ADD jeton_row bigint GENERATED ALWAYS AS IDENTITY", rows)
        self._copy(rows, table)
        key, order_by = self._names(upsert.key), upsert.order_by
        newest, only = self._sql.SQL("jeton_row DESC"), self._sql.SQL("")
        if order_by is not None:
            by = self._sql.Identifier(order_by)
            # For PostgreSQL NaN is the greatest number, which nothing would replace.
            is_float = pa.types.is_floating(table.schema.field(order_by).type)
            value = "NULLIF({}{}, 'NaN')" if is_float else "{}{}"
            mine, old, new = (
                self._sql.SQL(value).format(self._sql.SQL(side), by)
                for side in ("", "old.", "EXCLUDED.")
            )
            newest = self._sql.SQL("{} DESC NULLS LAST, jeton_row DESC").format(mine)
            only = self._sql.SQL(" WHERE {} IS NULL OR {} >= {}").format(old, new, old)
        others = [name for name in table.column_names if name not in upsert.key]
        each = [self._sql.SQL("{0} = EXCLUDED.{0}").format(self._sql.Identifier(n)) for n in others]
        change = self._sql.SQL("NOTHING")
        if others:
            change = self._sql.SQL("UPDATE SET {}{}").format(self._sql.SQL(", ").join(each), only)
        self._run(
            "INSERT INTO {} AS old ({}) SELECT DISTINCT ON ({}) {} FROM {} ORDER BY {}, {} "
            "ON CONFLICT ({}) DO {}",
            *(self._target, columns, key, columns, rows, key, newest, key, change),
        )

    # Inside

    def _require_keys(self, table: pa.Table, upsert: Upsert) -> None:
        """An error for keys with nulls, unless they are the same for the table's index."""
        nulls = [name for name in upsert.key if table.column(name).null_count]
        if not nulls:
            return
        # Through JSON, since servers before PostgreSQL 15 have no such column.
        found = self._run(
            "SELECT bool_or((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean) FROM pg_index i "
            "WHERE i.indrelid = to_regclass({}) AND i.indisunique AND (SELECT "
            "array_agg(a.attname::text ORDER BY 1) FROM pg_attribute a WHERE "
            "a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)) = {}",
            self._sql.Literal(self._target.as_string(self._connection)),
            self._sql.Literal(sorted(upsert.key)),
        )
        if not found.fetchone()[0]:
            raise BatchError(
                f"key columns {nulls} have nulls, which are never the same for the unique index of "
                f"{self}, so that each would add a row: replace them before the output, or create "
                "the index with NULLS NOT DISTINCT"
            )

    def _create(self, wanted: dict[str, str]) -> None:
        sql = self._sql
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
            for name, kind in wanted.items()
        ]
        if self._sink.upsert is not None:
            key = self._names(self._sink.upsert.key)
            columns.append(sql.SQL("PRIMARY KEY ({})").format(key))
        self._run("CREATE TABLE IF NOT EXISTS {} ({})", self._target, sql.SQL(", ").join(columns))

    def _check(self, wanted: dict[str, str], output: str) -> None:
        found = self._run(
            "SELECT a.attname, t.typname, a.atttypmod, a.attnotnull AND NOT a.atthasdef AND "
            "a.attidentity = '' AND a.attgenerated = '' FROM pg_attribute a JOIN pg_type t ON "
            "t.oid = a.atttypid WHERE a.attrelid = to_regclass({}) AND a.attnum > 0 AND NOT "
            "a.attisdropped",
            self._sql.Literal(self._target.as_string(self._connection)),
        ).fetchall()
        there = {name: (kind, mod) for name, kind, mod, _ in found}
        wrong = [f"it has no column {name!r}" for name in wanted if name not in there]
        wrong += [
            f"column {name!r} is {kind} in the output, and {there[name][0]} in the table"
            for name, kind in wanted.items()
            if name in there and not _takes(kind, *there[name])
        ]
        needed = [name for name, _, _, must in found if must and name not in wanted]
        wrong += [f"it wants values for {needed}"] if needed else []
        if wrong:
            raise BatchError(
                f"output {output!r} does not fit {self}: {'; '.join(wrong)}. Change the columns "
                "before the output, or give the sink another table"
            )

    def _copy(self, target: Any, table: pa.Table) -> None:
        columns = self._names(table.column_names)
        text = self._sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(target, columns)
        options = pyarrow.csv.WriteOptions(include_header=False)
        with self._connection.cursor() as cursor, cursor.copy(text) as copy:
            for batch in _as_texts(table).to_batches(max_chunksize=1 << 16):
                stream = io.BytesIO()
                pyarrow.csv.write_csv(batch, stream, options)
                copy.write(stream.getbuffer())

    def _is_there(self, table: Any) -> bool:
        name = self._sql.Literal(table.as_string(self._connection))
        [found] = self._run("SELECT to_regclass({}) IS NOT NULL", name).fetchone()
        return bool(found)

    def _alone(self) -> None:
        """Wait for others who create tables: even IF NOT EXISTS may fail if two do at once."""
        self._run("SELECT pg_advisory_xact_lock(hashtext('jeton'))")

    def _names(self, names: Any) -> Any:
        return self._sql.SQL(", ").join(map(self._sql.Identifier, names))

    def _named(self, table: str) -> Any:
        return self._sql.Identifier(*table.split("."))

    def _run(self, text: str, *parts: Any, values: Sequence[Any] = ()) -> Any:
        # Without values, a percent sign in the name of a column is one.
        return self._connection.execute(self._sql.SQL(text).format(*parts), values or None)


def _library() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
        import psycopg.sql
    except ImportError as error:
        raise GraphError(
            "PostgreSQL needs the package psycopg: pip install 'jeton[postgres]'"
        ) from error
    return psycopg


def _shown(dsn: str) -> str:
    """The parts of a DSN that are not secret."""
    psycopg = _library()
    try:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        # Its text has parts of the DSN.
        raise GraphError(
            "the DSN of PostgreSQL cannot be read (it is not shown, as it may have a password): "
            "write postgresql://user@host:port/database, or host=… dbname=… user=…"
        ) from None
    return " ".join(f"{name}={parts[name]}" for name in _SHOWN if name in parts) or "the default"


def _name(context: SinkContext, attempt: int | str) -> str:
    """The name of a session of an attempt, as the server's administrator sees it."""
    both = f"{context.query}/{context.output}".encode()
    return f"jeton-{hashlib.blake2b(both, digest_size=8).hexdigest()}-{attempt}"


def _type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    return "jsonb" if pa.types.is_nested(kind) else _TYPES[kind]


def _takes(wanted: str, kind: str, modifier: int) -> bool:
    """Whether a column of a table holds all values of a type."""
    if wanted == "text":
        return True
    if not wanted.startswith("numeric"):
        return kind in _TAKEN_BY[wanted]
    if kind != "numeric" or modifier < 0:
        return kind == "numeric"
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    digits, places = map(int, wanted[8:-1].split(", "))
    return places <= scale and digits - places <= precision - scale


def _as_texts(table: pa.Table) -> pa.Table:
    """The same rows, where bytes and nested values are texts that PostgreSQL reads."""
    for at, field in enumerate(table.schema):
        values: list[str | None] | None = None
        if pa.types.is_float32(field.type):
            # The shortest text of 0.1 is another number in a column of double precision.
            table = table.set_column(at, field.name, table.column(at).cast(pa.float64()))
        if pa.types.is_binary(field.type):
            found = table.column(at).to_pylist()
            values = [None if each is None else f"\\x{each.hex()}" for each in found]
        elif pa.types.is_nested(field.type):
            found = table.column(at).to_pylist(maps_as_pydicts="strict")
            values = [None if each is None else _json(each, field.name) for each in found]
        if values is not None:
            table = table.set_column(at, field.name, pa.array(values, pa.string()))
    return table


def _json(value: Any, column: str) -> str:
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BatchError(
            f"column {column!r} has a value that JSON cannot hold: {error}. Replace it before the "
            "output"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
