"""Key columns: which keys are words of their own, and the values of keys by slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns.column import Column
from jeton.columns.keys import Hashes, is_bytes, same_values
from jeton.core.errors import BatchError
from jeton.state.slot_bytes import SlotBytes, encoded
from jeton.state.slot_pool import Slots, grown
from jeton.state.sorted_runs import merge_from

_INTEGERS: Final = np.dtype(np.int64)
_WORDS: Final = np.dtype(np.uint64)


def is_exact(columns: Sequence[Column]) -> bool:
    """Whether a key is a single word without loss: one column of integers without nulls."""
    return (
        len(columns) == 1
        and isinstance(columns[0], np.ndarray)
        and columns[0].dtype.kind in "iubmM"
    )


def exact_words(column: Column) -> Hashes:
    """The words that keys of a single integer are themselves."""
    assert isinstance(column, np.ndarray)
    if column.dtype is _INTEGERS:
        return cols.plain(column).view(_WORDS)
    if column.dtype.kind in "mM":
        return cols.plain(column).view(np.uint64)
    return cols.plain(column.astype(np.int64, copy=False)).view(np.uint64)


class SlotColumn:
    """A column of values by slot: an array of plain values, bytes, or a pool of Arrow values."""

    __slots__ = ("_bytes", "_chunks", "_dictionary", "_has_plain", "_pool_rows", "_rows", "_values")

    def __init__(self) -> None:
        self._values: npt.NDArray[Any] | None = None
        self._has_plain = False
        """Whether there are values in the array: no values say nothing about the type."""
        self._bytes: SlotBytes | None = None
        self._chunks: list[pa.Array] = []
        self._dictionary: pa.DataType | None = None
        """The type of values that come with a dictionary, if those in the pool do."""
        self._pool_rows = 0
        self._rows = np.empty(0, dtype=np.int64)

    def put(
        self,
        slots: Slots,
        column: Column,
        size: int,
        *,
        rows: npt.NDArray[Any] | None = None,
        kind: pa.DataType | None = None,
        categories: pa.Array | None = None,
    ) -> None:
        """Set the values of some slots to those at some rows (all of them) of a column.

        ``size`` is how many slots there are, ``kind`` the type as which values come out again,
        ``categories`` the dictionary of one whose order counts.
        """
        if isinstance(column, np.ndarray):
            if not self._chunks and self._bytes is None:
                self._put_plain(slots, column if rows is None else column[rows], size)
                return
        elif self._takes_bytes(column.type):
            if self._bytes is None:
                self._bytes = SlotBytes(kind or column.type, len(self._rows))
                self._chunks, self._pool_rows = [], 0
            self._bytes.put(slots, column, size, rows=rows, kind=kind, categories=categories)
            return
        if self._bytes is not None:
            given = cols.to_arrow(column).type
            raise BatchError(
                f"a column is of type {given}, but it was text or binary before: cast it to one "
                "type, or give the input a schema=…"
            )
        if self._values is not None:
            # The first value that is not plain (a null): all of them move to the pool.
            values, self._values = self._values, None
            self._rows = np.arange(len(values), dtype=np.int64)
            self._chunks, self._pool_rows = [pa.array(values)], len(values)
        if size > len(self._rows):
            self._rows = grown(self._rows, max(size, 2 * len(self._rows)))
        self._rows[slots] = np.arange(self._pool_rows, self._pool_rows + len(slots))
        self._learn_dictionary(kind)
        self._add_chunk(cols.to_arrow(column if rows is None else cols.take(column, rows)))

    def _learn_dictionary(self, kind: pa.DataType | None) -> None:
        has = kind is not None and pa.types.is_dictionary(kind)
        if not self._pool_rows:
            self._dictionary = kind if has else None
        elif kind != self._dictionary:
            self._dictionary = None

    def learn(self, column: npt.NDArray[Any]) -> None:
        """Have the type of plain values that are kept elsewhere, as if these had been put."""
        self._put_plain(np.zeros(min(len(column), 1), np.int64), column[:1], 1)

    def of_words(self, words: Hashes) -> Column:
        """Integers of the type that was learnt, which `exact_words` has made words of.

        They may share their memory.
        """
        assert self._values is not None
        kind = self._values.dtype
        numbers: npt.NDArray[Any] = words.view(np.int64)
        return numbers.view(kind) if kind.kind in "mM" else numbers.astype(kind, copy=False)

    def _put_plain(self, slots: Slots, column: npt.NDArray[Any], size: int) -> None:
        if self._values is None or (len(column) and not self._has_plain):
            self._values = np.zeros(size, dtype=column.dtype)
        if len(column) and self._values.dtype != column.dtype:
            column = self._in_one_type(self._values, column)
        if size > len(self._values):
            self._values = grown(self._values, max(size, 2 * len(self._values)))
        self._values[slots] = column
        self._has_plain |= len(column) > 0

    def _in_one_type(self, values: npt.NDArray[Any], column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A column in the type that the array has from now on, in which each value stays itself."""
        kinds = {values.dtype.kind, column.dtype.kind}
        if (kinds <= {"i", "u"} or kinds == {"f"}) and np.can_cast(column.dtype, values.dtype):
            return column
        both = cols.join([values[:1], column])
        assert isinstance(both, np.ndarray)
        if both.dtype != values.dtype:
            wider = cols.join([values, both[:1]])
            assert isinstance(wider, np.ndarray)
            self._values = wider[:-1].copy()  # Arrow owns the memory of the joined ones
        return both[1:]

    def _takes_bytes(self, kind: pa.DataType) -> bool:
        """Whether values of a type are kept as bytes here."""
        if self._bytes is not None:
            return is_bytes(kind) or pa.types.is_null(kind)
        # Nulls without a type, which may have come before, fit everything.
        untyped = all(pa.types.is_null(chunk.type) for chunk in self._chunks)
        return is_bytes(kind) and untyped and self._values is None

    def _add_chunk(self, chunk: pa.Array) -> None:
        """Keep few chunks, none of which is copied too often."""
        self._pool_rows += len(chunk)
        chunks = [old for old in self._chunks if len(old)] if len(chunk) else self._chunks
        chunks = [*chunks, chunk]
        start = merge_from(list(map(len, chunks)))
        if start is not None:
            chunks[start:] = [cols.to_arrow(cols.join(chunks[start:]))]
        self._chunks = chunks

    @property
    def plain(self) -> npt.NDArray[Any] | None:
        """The values by slot, if they are in an array."""
        return self._values

    def matches(self, slots: Slots, column: Column) -> npt.NDArray[np.bool_]:
        """Whether the values of some slots are those of a column, row by row."""
        if self._bytes is not None and not isinstance(column, np.ndarray):
            return self._bytes.matches(slots, column)
        return same_values(self.get(slots), column)

    def get(self, slots: Slots) -> Column:
        """The values of some slots."""
        if self._values is not None:
            taken: npt.NDArray[Any] = self._values.take(slots)
            return taken
        if self._bytes is not None:
            return self._bytes.get(slots)
        if not self._chunks:
            return pa.nulls(len(slots))
        if len({chunk.type for chunk in self._chunks}) > 1:
            self._chunks = [cols.to_arrow(cols.join(self._chunks))]
        rows = pa.array(self._rows[slots])
        if len(self._chunks) == 1:
            taken = self._chunks[0].take(rows)
        else:
            taken = cols.to_arrow(cols.as_column(pa.chunked_array(self._chunks).take(rows)))
        return (
            cols.from_arrow(taken) if self._dictionary is None else encoded(taken, self._dictionary)
        )

    def is_wasteful(self, live: int) -> bool:
        """Whether values that no slot refers to any more are the larger part."""
        rows = self._pool_rows if self._bytes is None else self._bytes.rows
        return self._values is None and rows > 2 * live + 4096

    def compact(self, live: Slots) -> None:
        """Forget all values but those of the slots in use."""
        if self._bytes is not None:
            self._bytes.compact(live)
            return
        dictionary, self._dictionary = self._dictionary, None
        kept = cols.to_arrow(self.get(live))
        self._dictionary = dictionary
        self._rows[live] = np.arange(len(live))
        self._chunks, self._pool_rows = [kept], len(live)
