"""State on local disk: tables in files without a name, which are mapped into memory to be read.

A file has no name in its directory from the moment that it exists (POSIX), so that the disk space
is free again once nobody reads it any more, also after a worker was killed. Nothing in such files
is ever needed for recovery.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.core.errors import BudgetExceeded
from jeton.state.changes import Cut, Delta
from jeton.state.snapshot import Movable, bin_numbers, joined, rows_where

OVERHEAD: Final = 4
"""So many bytes in memory, about, for each byte of a row's table: indexes, and room to grow."""

Mask = npt.NDArray[np.bool_]


@runtime_checkable
class Spillable(Movable, Protocol):
    """A `Movable` container whose bins can wait on disk."""

    def memory_bytes(self) -> int:
        """About how many bytes of memory its state takes; asked often, so it must be cheap."""
        ...

    def due(self, state: pa.Table) -> int | None:
        """The least time for which the rows that `take_bins` gave need a token, if any does."""
        ...


@runtime_checkable
class Compactable(Protocol):
    """A container that takes less memory for few of many keys, if it is told to in time."""

    def stay_compact(self) -> None:
        """Take no more memory than the keys need that are there: said before there are any."""
        ...


def scratch_directory() -> str:
    """Where files go: the first of Spark's local directories, or where temporary files are."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()


def on_disk(table: pa.Table) -> pa.Table:
    """The same table, whose columns are in a mapped file.

    >>> on_disk(pa.table({"n": [1, 2]})).to_pylist()
    [{'n': 1}, {'n': 2}]
    """
    if not table.num_rows:
        return table
    return pa.ipc.open_stream(written(lambda stream: _write(table, stream))).read_all()


def written(write: Callable[[Any], None]) -> pa.Buffer:
    """The bytes that a function writes to a stream, in a mapped file.

    >>> written(lambda stream: stream.write(b"abc")).to_pybytes()
    b'abc'
    """
    directory = scratch_directory()
    try:
        with tempfile.TemporaryFile(prefix="jeton-", dir=directory) as file:
            write(file)
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BudgetExceeded(
            f"state beyond the memory budget cannot be written to {directory}: "
            f"{error.strerror or error}. Make room there, name another directory "
            "(SPARK_LOCAL_DIRS or spark.local.dir on Spark, otherwise TMPDIR), or raise "
            "memory_budget="
        ) from error
    return pa.py_buffer(mapped)


def _write(table: pa.Table, stream: Any) -> None:
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)


class SpilledTable:
    """The state of some bins of one container, on disk.

    >>> table = SpilledTable(pa.table({"bin": pa.array([3, 4, 260], pa.uint16()), "n": [1, 2, 3]}))
    >>> chosen = np.zeros(256, dtype=bool)
    >>> chosen[4] = True
    >>> table.take_bins(chosen)["n"].to_pylist(), table.read()["n"].to_pylist()
    ([2, 3], [1])
    """

    __slots__ = ("_gone", "_table")

    def __init__(self, table: pa.Table) -> None:
        self._table = on_disk(table)
        self._gone: Mask | None = None
        """The bins among those of its rows that have been taken out."""

    def read(self) -> pa.Table:
        """The rows, which are still on disk unless bins were taken out."""
        if self._gone is None:
            return self._table
        return rows_where(self._table, ~self._gone[bin_numbers(self._table, len(self._gone))])

    def take_bins(self, chosen: Mask) -> pa.Table:
        """Take out the rows of some bins."""
        rows = self.read()
        self._gone = chosen if self._gone is None else self._gone | chosen
        return rows_where(rows, chosen[bin_numbers(rows, len(chosen))])

    @property
    def nbytes(self) -> int:
        """The size on disk."""
        return int(self._table.nbytes)

    def __len__(self) -> int:
        return int(self._table.num_rows)


def beside(state: pa.Table, spilled: Sequence[pa.Table]) -> pa.Table:
    """All rows of a container: those in memory, and those on disk, which stay there."""
    tables = [table for table in spilled if table.num_rows]
    if not tables:
        return state
    if state.num_rows:
        tables.insert(0, state)
    whole = joined([table.replace_schema_metadata(None) for table in tables])
    return whole.replace_schema_metadata(state.schema.metadata)


class SpilledCut(Cut):
    """All rows of a container of which some are on disk, as they are now.

    Files never change, so that they need no more than a reference.
    """

    is_large = True

    def __init__(self, token: str, inner: Cut | pa.Table, spilled: Sequence[pa.Table]) -> None:
        rows = inner.rows if isinstance(inner, Cut) else inner.num_rows
        super().__init__(
            token,
            None,
            rows + sum(table.num_rows for table in spilled),
            inner.nbytes + sum(table.nbytes for table in spilled),
        )
        self._inner = inner
        self._spilled = spilled

    def abandon(self) -> None:
        """Take it back."""
        if isinstance(self._inner, Cut):
            self._inner.abandon()

    def _read(self) -> Delta:
        inner = self._inner.read().rows if isinstance(self._inner, Cut) else self._inner
        return Delta(beside(inner, self._spilled))
