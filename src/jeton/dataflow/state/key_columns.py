"""Key columns: the words that identify a key, and the key's own values, by slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.core.errors import BatchError
from jeton.dataflow import columns as cols
from jeton.dataflow.columns import Column
from jeton.dataflow.keys import Hashes, hash_columns
from jeton.dataflow.state.slot_pool import Slots, grown


def is_exact(columns: Sequence[Column]) -> bool:
    """Whether a key is a single word without loss: one column of integers without nulls."""
    return (
        len(columns) == 1
        and isinstance(columns[0], np.ndarray)
        and columns[0].dtype.kind in "iubmM"
    )


def key_words(columns: Sequence[Column], exact: bool) -> tuple[Hashes, ...]:
    """The words that stand for each key.

    A single integer stands for itself. Other keys are known by 128 bits of two independent
    hashes, which for all that is practical no two keys share.
    """
    if not columns:
        raise BatchError("a key needs at least one column")
    if exact:
        [column] = columns
        assert isinstance(column, np.ndarray)
        if column.dtype.kind in "mM":
            return (cols.plain(column).view(np.uint64),)
        return (cols.plain(column.astype(np.int64, copy=False)).view(np.uint64),)
    return hash_columns(columns), hash_columns(columns, seed=1)


class SlotColumn:
    """A column of values by slot: an array for plain values, a pool of Arrow values otherwise."""

    __slots__ = ("_chunks", "_pool_rows", "_rows", "_values")

    def __init__(self) -> None:
        self._values: npt.NDArray[Any] | None = None
        self._chunks: list[pa.Array] = []
        self._pool_rows = 0
        self._rows = np.empty(0, dtype=np.int64)

    def put(self, slots: Slots, column: Column, size: int) -> None:
        """Set the values of some slots; ``size`` is how many slots there are."""
        if not self._chunks and isinstance(column, np.ndarray):
            if self._values is None:
                self._values = np.zeros(size, dtype=column.dtype)
            if self._values.dtype != column.dtype:
                common = np.promote_types(self._values.dtype, column.dtype)
                self._values = self._values.astype(common, copy=False)
            if size > len(self._values):
                self._values = grown(self._values, max(size, 2 * len(self._values)))
            self._values[slots] = column
            return
        if self._values is not None:
            # The first value that is not plain (a null): all of them move to the pool.
            values, self._values = self._values, None
            self._rows = np.arange(len(values), dtype=np.int64)
            self._chunks, self._pool_rows = [pa.array(values)], len(values)
        if size > len(self._rows):
            self._rows = grown(self._rows, max(size, 2 * len(self._rows)))
        self._rows[slots] = np.arange(self._pool_rows, self._pool_rows + len(slots))
        self._chunks.append(cols.to_arrow(column))
        self._pool_rows += len(slots)

    def get(self, slots: Slots) -> Column:
        """The values of some slots."""
        if self._values is not None:
            taken: npt.NDArray[Any] = self._values[slots]
            return taken
        if len(self._chunks) > 1:
            self._chunks = [cols.to_arrow(cols.join(self._chunks))]
        if not self._chunks:
            return pa.nulls(len(slots))
        return cols.from_arrow(self._chunks[0].take(pa.array(self._rows[slots])))

    def is_wasteful(self, live: int) -> bool:
        """Whether values that no slot refers to any more are the larger part."""
        return self._values is None and self._pool_rows > 2 * live + 4096

    def compact(self, live: Slots) -> None:
        """Forget all values but those of the slots in use."""
        kept = cols.to_arrow(self.get(live))
        self._rows[live] = np.arange(len(live))
        self._chunks, self._pool_rows = [kept], len(live)
