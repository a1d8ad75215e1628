"""join_static: records beside the rows of a table that have their key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import column as cols
from jeton.columns.batch import Batch, missing
from jeton.columns.column import Column
from jeton.columns.schema import sample, schema_of
from jeton.columns.tables import as_table
from jeton.columns.time_arithmetic import MOST, Integers
from jeton.columns.time_units import INTEGER
from jeton.core.errors import BatchError, GraphError
from jeton.dataflow.operators.joined import split_known
from jeton.dataflow.operators.stateless import stateless
from jeton.state.join_side import expand
from jeton.state.key_ids import require_comparable, without_nulls
from jeton.state.key_slots import KeySlots

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

StaticHow: TypeAlias = Literal["inner", "left"]
"""Whether records without a row are left out, or come with nulls."""

MOST_BYTES: Final = 1 << 27
"""The size up to which a table travels with the code of a flow."""

MOST_ROWS: Final = 2_000_000
"""The number of rows of a Spark DataFrame up to which it is collected at the driver."""


def add_join_static(
    keyed: KeyedStream,
    table: Any,
    *,
    on: str | Sequence[str] | None,
    how: StaticHow,
    suffix: str,
) -> Stream:
    """Add the operator of `KeyedStream.join_static`."""
    stream = keyed.stream
    if not keyed.key:
        raise GraphError("join_static needs key columns: key_by() names some")
    if how not in get_args(StaticHow):
        raise GraphError(f"how={how!r} is not known: there are {get_args(StaticHow)}").located(
            operator="join_static"
        )
    stream.require_columns(*keyed.key, operator="join_static")
    names = keyed.key if on is None else (on,) if isinstance(on, str) else tuple(on)
    rows = StaticTable(_collected(table), keyed.key, names, outer=how == "left", suffix=suffix)
    schema = stream.schema
    if schema is not None:
        try:
            rows.require_keys(schema)
            schema = schema_of(rows.beside(sample(schema, stream.time_name, stream.kind, INTEGER)))
        except BatchError as error:
            raise GraphError(error.message).located(operator="join_static") from error
    return stateless(stream, rows.join, "join_static", schema=schema)


class _Index(NamedTuple):
    """The rows of a table by the slots of their keys: ``counts[slot]`` from ``starts[slot]`` on."""

    keys: KeySlots
    starts: Integers
    counts: Integers
    values: Batch
    fitting: set[tuple[object, ...]]
    """The types of streams' keys that may equal those of the table."""


class StaticTable:
    """A table whose rows are found by their keys. It travels without its index."""

    def __init__(
        self, table: pa.Table, key: Sequence[str], on: Sequence[str], *, outer: bool, suffix: str
    ) -> None:
        for name in on:
            if name not in table.column_names:
                hint = missing(name, tuple(table.column_names))
                raise GraphError(f"{hint} in the table: name its key with on=…").located(
                    operator="join_static"
                )
        if len(key) != len(on):
            raise GraphError(
                f"the keys {list(key)} and {list(on)} are of different lengths"
            ).located(operator="join_static")
        if table.nbytes > MOST_BYTES:
            raise GraphError(
                f"the table has {table.nbytes:,} bytes, and join_static takes at most "
                f"{MOST_BYTES:,}: select the columns that you need, or make it an input and use "
                "asof_join()"
            ).located(operator="join_static")
        self._table = table
        self._key, self._on = tuple(key), tuple(on)
        self._outer = outer
        self._suffix = suffix
        self._made: _Index | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def require_keys(self, schema: pa.Schema) -> None:
        """Refuse streams whose keys are never equal to those of the table."""
        for name, its in zip(self._key, self._on, strict=True):
            # The time column may be a key too: its type is known when data come.
            kind = schema.field(name).type if name in schema.names else pa.null()
            require_comparable(name, kind, its, self._table.schema.field(its).type)

    def beside(self, empty: Batch) -> Batch:
        """An empty batch beside the table's columns."""
        names = [name for name in self._table.column_names if name not in self._on]
        columns = {name: cols.as_column(self._table.column(name)[:0]) for name in names}
        return empty.beside(Batch.trusted(columns, empty.times, ""), self._suffix)

    def join(self, batch: Batch) -> Batch:
        """Records beside the rows that have their keys."""
        index = self._index
        columns = [batch.column(name) for name in self._key]
        self._require_fitting(columns, index.fitting)
        kinds = [self._table.schema.field(name).type for name in self._on]
        columns = [_of_sign(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        slots = np.full(len(batch), -1, dtype=np.int64)
        known = cols.known_rows(columns)
        if known is None:
            slots = index.keys.lookup(columns, len(batch))
        elif known.any():
            some = [without_nulls(cols.take(c, np.flatnonzero(known))) for c in columns]
            slots[known] = index.keys.lookup(some, len(some[0]))
        count = np.where(slots < 0, 0, index.counts[slots])
        rows, found = expand(index.starts[slots], count, 0, len(batch))
        lonely = np.flatnonzero(count == 0) if self._outer else rows[:0]
        if len(lonely):
            rows = np.concatenate([rows, lonely])
            found = np.concatenate([found, np.full(len(lonely), -1)])
            order = np.argsort(rows, kind="stable")
            rows, found = rows[order], found[order]
        return batch.take(rows).beside(_taken(index.values, found), self._suffix)

    def _require_fitting(self, columns: Sequence[Column], fitting: set[tuple[object, ...]]) -> None:
        """Refuse keys that never equal those of the table."""
        kinds = tuple(c.dtype if isinstance(c, np.ndarray) else c.type for c in columns)
        if kinds not in fitting:
            types = [cols.to_arrow(column[:0]).type for column in columns]
            for name, kind, its in zip(self._key, types, self._on, strict=True):
                require_comparable(name, kind, its, self._table.schema.field(its).type)
            fitting.add(kinds)

    @property
    def _index(self) -> _Index:
        """The rows by their keys, made once and only read from then on: all runs share it."""
        if self._made is None:
            columns = {name: self._table.column(name) for name in self._table.column_names}
            whole = Batch(columns, np.zeros(self._table.num_rows, dtype=np.int64), time_name="")
            rows, _ = split_known(whole, self._on)
            keys = KeySlots(len(self._on))
            slots, _ = keys.find([without_nulls(rows.column(n)) for n in self._on], len(rows))
            # One more, at which keys that are not there look.
            counts = np.bincount(slots, minlength=keys.slots_made + 1).astype(np.int64)
            starts = np.cumsum(counts) - counts
            values = rows.select(*(name for name in rows.names if name not in self._on))
            self._made = _Index(
                keys, starts, counts, values.take(np.argsort(slots, kind="stable")), set()
            )
        return self._made


def _of_sign(column: Column, kind: pa.DataType) -> Column:
    """Integers as those of a table, if only one side has a sign; others equal none, as null does.

    >>> _of_sign(np.array([7, 2**64 - 1], np.uint64), pa.int64()).to_pylist()
    [7, None]
    """
    have = pa.from_numpy_dtype(column.dtype) if isinstance(column, np.ndarray) else column.type
    if pa.types.is_uint64(have) and pa.types.is_signed_integer(kind):
        wide, fits = pa.int64(), pc.less_equal(column, pa.scalar(MOST, pa.uint64()))
    elif pa.types.is_uint64(kind) and pa.types.is_signed_integer(have):
        wide, fits = pa.uint64(), pc.greater_equal(column, 0)
    else:
        return column
    return cols.from_arrow(pc.if_else(fits, column, None).cast(wide))


def _taken(values: Batch, rows: Integers) -> Batch:
    """Some rows, and nulls for those that are -1."""
    if not len(rows) or rows.min() >= 0:
        return values.take(rows)
    at = pa.array(rows, mask=rows < 0)
    columns = {
        name: cols.from_arrow(cols.to_arrow(column).take(at))
        for name, column in values.columns.items()
    }
    return Batch.trusted(columns, np.zeros(len(rows), dtype=np.int64), "")


def _collected(table: Any) -> pa.Table:
    """A table of Arrow's; a Spark DataFrame is collected, if it is small."""
    if not hasattr(table, "isStreaming"):
        return as_table(table)
    if table.isStreaming:
        raise GraphError(
            "join_static takes tables, not a streaming DataFrame: make it an input and use join() "
            "or asof_join()"
        ).located(operator="join_static")
    rows: pa.Table = table.limit(MOST_ROWS + 1).toArrow()
    if rows.num_rows > MOST_ROWS:
        raise GraphError(
            f"the DataFrame has more than {MOST_ROWS:,} rows, which are not collected at the "
            "driver: filter it, or join in Spark before"
        ).located(operator="join_static")
    return rows
