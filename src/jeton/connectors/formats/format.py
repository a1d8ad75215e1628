"""Format: bytes to records and back, a batch at a time; and the records that cannot be read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jeton.core.errors import BatchError, JetonError


class FormatFailed(JetonError):
    """A format cannot read any value now, such as one that does not find its schemas."""


class Format(ABC):
    """A way to write records as bytes.

    >>> class Numbers(Format):
    ...     def decode(self, values):
    ...         return pa.table({"n": [int(value) for value in values.to_pylist()]})
    ...
    ...     def encode(self, table):
    ...         return pa.array([str(n).encode() for n in table["n"].to_pylist()], pa.binary())
    >>> table, rejected = sift(Numbers(), pa.array([b"1", b"two", b"3"]))
    >>> table["n"].to_pylist(), [(each.at, each.reason) for each in rejected]
    ([1, 3], [(1, "ValueError: invalid literal for int() with base 10: b'two'")])
    """

    @abstractmethod
    def decode(self, values: pa.Array) -> pa.Table:
        """A row for each value; an exception if one of them cannot be read.

        `FormatFailed` says that it is not because of the values.
        """

    @abstractmethod
    def encode(self, table: pa.Table) -> pa.Array:
        """The bytes of each row."""

    def typed(self, schema: pa.Schema, *, only: bool = True) -> Format:
        """The format for an input that declares some columns, and uses ``only`` those."""
        return self


class Raw(Format):
    """Bytes as they are, in one column.

    >>> Raw("line").decode(pa.array([b"a", b"b"])).to_pydict()
    {'line': [b'a', b'b']}
    """

    def __init__(self, column: str = "value") -> None:
        self.column = column

    def decode(self, values: pa.Array) -> pa.Table:
        """The column of all values."""
        return pa.table({self.column: values})

    def encode(self, table: pa.Table) -> pa.Array:
        """The values of the column, bytes or text."""
        if self.column not in table.column_names:
            raise BatchError(
                f"there is no column {self.column!r} to be written as it is, only "
                f"{table.column_names}: name another, Raw(column), or select it before the output"
            )
        column = table.column(self.column).combine_chunks()
        return column.cast(pa.binary())


class Rejected(NamedTuple):
    """A value that cannot be read."""

    at: int
    """Which value of the batch it is."""
    reason: str


def sift(form: Format, values: pa.Array) -> tuple[pa.Table | None, list[Rejected]]:
    """The rows of all values that can be read, in their order, and the values that cannot.

    A batch without bad values is decoded at once. Otherwise it is halved until they are found.
    """
    try:
        table = form.decode(values)
    except FormatFailed:
        raise
    except Exception as error:
        if len(values) == 1:
            return None, [Rejected(0, _reason(error))]
    else:
        if table.num_rows != len(values):
            raise JetonError(
                f"{type(form).__name__} made {table.num_rows} rows of {len(values)} values: a "
                "format makes one of each"
            )
        return table, []
    half = len(values) // 2
    tables, rejected = [], []
    for start, part in ((0, values[:half]), (half, values[half:])):
        table, bad = sift(form, part)
        if table is not None:
            tables.append(table)
        rejected += [Rejected(start + each.at, each.reason) for each in bad]
    if not tables:
        return None, rejected
    try:
        return pa.concat_tables(tables, promote_options="permissive"), rejected
    except pa.ArrowException as error:
        raise JetonError(
            f"values have types that do not go together: {error}: declare the columns of the "
            "input, flow.input(…, schema=…)"
        ) from error


def with_times(table: pa.Table, time: str | None) -> tuple[pa.Table, list[Rejected]]:
    """The rows that have a value in the time column, and the others, which no input can take.

    >>> table, rejected = with_times(pa.table({"ts": [1, None]}), "ts")
    >>> table["ts"].to_pylist(), rejected
    ([1], [Rejected(at=1, reason="it has no 'ts', which is the time of the input")])
    """
    if time is None or time not in table.column_names:
        return table, []
    missing = pc.is_null(table.column(time))
    if not pc.any(missing).as_py():
        return table, []
    reason = f"it has no {time!r}, which is the time of the input"
    rejected = [Rejected(at, reason) for at in pc.indices_nonzero(missing).to_pylist()]
    return table.filter(pc.invert(missing)), rejected


def _reason(error: Exception) -> str:
    """One line of an error."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500]
