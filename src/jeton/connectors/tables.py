"""Tables of other systems: the types of their columns, and whether rows fit them.

Delta, Iceberg and PostgreSQL have fewer types than Arrow. A column is stored under the one that
holds all its values; a type without such a one is an error that names the column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.core.errors import BatchError, JetonError

_WIDER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
}
_PLAIN: Final = frozenset(
    [pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()]
)


class TableFailed(JetonError):
    """A table of another system did not do what a source or a sink asked it for."""


@dataclass(frozen=True)
class Dialect:
    """The types that a system's tables have.

    >>> DELTA.stored(pa.timestamp("ns", "Europe/Berlin")), ICEBERG.stored(pa.int8())
    (TimestampType(timestamp[us, tz=UTC]), DataType(int32))
    >>> DELTA.stored(pa.duration("s")) is None
    True
    """

    name: str
    small_integers: bool = False
    """Whether there are integers of 8 and 16 bits."""
    times_of_day: bool = False

    def stored(self, kind: pa.DataType) -> pa.DataType | None:
        """The type under which values of a type are stored; nothing if there is none."""
        kind = _WIDER.get(kind, kind)
        if pa.types.is_dictionary(kind):
            return self.stored(kind.value_type)
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return pa.string()
        if pa.types.is_fixed_size_binary(kind) or _is_bytes(kind):
            return pa.binary()
        if pa.types.is_timestamp(kind):
            # Both have microseconds, and times with a zone as UTC.
            return pa.timestamp("us", None if kind.tz is None else "UTC")
        if pa.types.is_date(kind):
            return pa.date32()
        if pa.types.is_time(kind):
            return pa.time64("us") if self.times_of_day else None
        if pa.types.is_decimal(kind):
            fits = kind.precision <= 38 and 0 <= kind.scale <= kind.precision
            return pa.decimal128(kind.precision, kind.scale) if fits else None
        if kind in (pa.int8(), pa.int16()):
            return kind if self.small_integers else pa.int32()
        return kind if kind in _PLAIN else self._nested(kind)

    def _nested(self, kind: pa.DataType) -> pa.DataType | None:
        if pa.types.is_map(kind):
            keys, items = self.stored(kind.key_type), self.stored(kind.item_type)
            return None if keys is None or items is None else pa.map_(keys, items)
        if _is_list(kind):
            values = self.stored(kind.value_type)
            return None if values is None else pa.list_(pa.field("element", values))
        if pa.types.is_struct(kind):
            fields = [(field.name, self.stored(field.type)) for field in kind]
            return None if any(each is None for _, each in fields) else pa.struct(fields)
        return None

    def schema(self, schema: pa.Schema, what: str) -> pa.Schema:
        """The columns of a table for rows of a schema; those of nothing but nulls are left out.

        >>> DELTA.schema(pa.schema([("wait", pa.duration("s"))]), "output 'waits'")
        Traceback (most recent call last):
        jeton.core.errors.BatchError: column 'wait' of output 'waits' is of type duration[s], ...
        """
        fields = []
        for field in schema:
            if pa.types.is_null(field.type):
                continue
            kind = self.stored(field.type)
            if kind is None:
                raise BatchError(
                    f"column {field.name!r} of {what} is of type {field.type}, which tables of "
                    f"{self.name} do not have: cast it before the output"
                )
            fields.append(pa.field(field.name, kind))
        return pa.schema(fields)


DELTA: Final = Dialect("Delta", small_integers=True)
ICEBERG: Final = Dialect("Iceberg", times_of_day=True)


def plain_schema(schema: Any) -> pa.Schema:
    """A schema of Arrow's from another library, with one type for texts, bytes and lists."""
    made = pa.schema(schema)
    return pa.schema([pa.field(each.name, _plain(each.type), each.nullable) for each in made])


def require_fit(rows: pa.Schema, table: pa.Schema, what: str, where: str) -> None:
    """An error unless rows of a schema can go to a table without loss.

    >>> table = pa.schema([("n", pa.int32()), ("text", pa.string())])
    >>> require_fit(pa.schema([("n", pa.int16())]), table, "output 'a'", "table t")
    >>> require_fit(pa.schema([("n", pa.int64())]), table, "output 'a'", "table t")
    Traceback (most recent call last):
    jeton.core.errors.BatchError: output 'a' does not fit table t: column 'n' is int64, and int32...
    """
    wrong = []
    for field in rows:
        if field.name not in table.names:
            wrong.append(f"column {field.name!r} is not in the table, which has {table.names}")
        elif not _fits(field.type, table.field(field.name).type):
            wanted = table.field(field.name).type
            wrong.append(f"column {field.name!r} is {field.type}, and {wanted} in the table")
    missing = [each.name for each in table if not each.nullable and each.name not in rows.names]
    if missing:
        wrong.append(f"the table wants values for {missing}")
    if wrong:
        raise BatchError(
            f"{what} does not fit {where}: {'; '.join(wrong)}. Change the columns before the "
            "output, or give the sink another table"
        )


def conform(table: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """Rows with the columns and types of a schema, of those that they have and that it has.

    >>> conform(pa.table({"n": pa.array([1], pa.int8())}), pa.schema([("n", pa.int64())]), "rows")
    pyarrow.Table
    n: int64
    ----
    n: [[1]]
    """
    columns: dict[str, Any] = {}
    for field in schema:
        if field.name in table.column_names:
            column = table.column(field.name)
            try:
                columns[field.name] = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise BatchError(
                    f"column {field.name!r} of {what} is {column.type}, and has values that "
                    f"{field.type} cannot hold: {error}. Round or cast it before the output"
                ) from error
            if not field.nullable and column.null_count:
                raise BatchError(
                    f"column {field.name!r} of {what} has {column.null_count} nulls, which the "
                    "table does not allow there: replace them before the output"
                )
    return pa.table(columns, pa.schema([each for each in schema if each.name in columns]))


def groups(table: pa.Table, keys: Sequence[Any]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each combination of keys, with the number of the first of them.

    ``keys`` are arrays of the table's length.

    >>> table = pa.table({"k": ["a", "b", "a"], "n": [1, 2, 3]})
    >>> [(first, rows["n"].to_pylist()) for first, rows in groups(table, [table["k"]])]
    [(0, [1, 3]), (1, [2])]
    """
    if not keys:
        yield 0, table
        return
    codes: npt.NDArray[np.int64] = np.zeros(table.num_rows, np.int64)
    for key in keys:
        array = key.combine_chunks() if isinstance(key, pa.ChunkedArray) else key
        encoded = pc.dictionary_encode(array, null_encoding="encode")
        own = encoded.indices.to_numpy(zero_copy_only=False)
        _, codes = np.unique(codes * max(len(encoded.dictionary), 1) + own, return_inverse=True)
    _, first, counts = np.unique(codes, return_index=True, return_counts=True)
    ordered = table.take(pa.array(np.argsort(codes, kind="stable")))
    at = 0
    for start, count in zip(first.tolist(), counts.tolist(), strict=True):
        yield start, ordered.slice(at, count)
        at += count


def settings_shown(settings: Mapping[str, Any]) -> str:
    """The names of settings, without their values, of which some are secrets.

    >>> settings_shown({"uri": "http://a", "token": "secret"})
    'token, uri'
    """
    return ", ".join(sorted(settings)) or "none"


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_one(kind) for is_one in lists)


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type as `Dialect.stored` has it, if that knows it."""
    return Dialect("", small_integers=True, times_of_day=True).stored(kind) or kind


def _fits(rows: pa.DataType, table: pa.DataType) -> bool:
    """Whether a column of a table holds all values of a type."""
    rows = _plain(rows)
    if pa.types.is_null(rows) or rows == table:
        return True
    if pa.types.is_signed_integer(rows) and pa.types.is_signed_integer(table):
        return bool(rows.bit_width <= table.bit_width)
    if pa.types.is_floating(rows) and pa.types.is_floating(table):
        return bool(rows.bit_width <= table.bit_width)
    if pa.types.is_decimal(rows) and pa.types.is_decimal(table):
        whole = table.precision - table.scale
        return bool(rows.scale <= table.scale and rows.precision - rows.scale <= whole)
    if pa.types.is_map(rows) and pa.types.is_map(table):
        keys = _fits(rows.key_type, table.key_type)
        return keys and _fits(rows.item_type, table.item_type)
    if _is_list(rows) and _is_list(table):
        return _fits(rows.value_type, table.value_type)
    if pa.types.is_struct(rows) and pa.types.is_struct(table):
        names = [field.name for field in table]
        same = [field.name for field in rows] == names
        return same and all(_fits(rows.field(n).type, table.field(n).type) for n in names)
    return False
