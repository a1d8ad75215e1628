"""Rows of numbers by key: the state that the programs and the NEXMark queries share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton_evaluation.programs.mechanisms import Times, plain

Slots = npt.NDArray[np.int64]


class KeyedRows:
    """A row of numbers for each key, in one array that compiled loops index by slot.

    With ``timed``, there is a time before each key; ``compact`` is that of `jt.state.KeySlots`.

    >>> sums = KeyedRows("sum", "count")
    >>> slots, new = sums.find(np.array([7, 8, 7]))
    >>> np.add.at(sums.rows, slots, [[2, 1], [3, 1], [5, 1]])
    >>> again = KeyedRows("sum", "count")
    >>> again.restore(sums.snapshot(), ())
    >>> again.remove(again.keys.lookup([np.array([7])], 1))
    array([[7, 2]])
    """

    def __init__(
        self, *columns: str, dtype: Any = np.int64, timed: bool = False, compact: bool = False
    ) -> None:
        self._columns = columns
        self._timed = timed
        self.keys = jt.state.KeySlots(1, timed=timed, compact=compact)
        self.rows: npt.NDArray[Any] = np.zeros((64, len(columns)), dtype)

    def find(self, keys: Any, times: Times | None = None) -> tuple[Slots, Slots]:
        """The slot of each key, and the places of new keys; a single time is that of all keys."""
        words = None if times is None else times.view(np.uint64)
        slots, new = self.keys.find([keys], len(keys), words)
        if len(new):
            self.rows = jt.state.grown(self.rows, self.keys.slots_made)
        return slots, new

    def remove(self, slots: Slots) -> npt.NDArray[Any]:
        """Remove keys; returns their rows."""
        # Both are many times as fast as fancy indexing of short rows.
        rows = self.rows.take(slots, axis=0)
        for column in self.rows.T:
            column[slots] = 0
        self.keys.remove(slots)
        return rows

    def __len__(self) -> int:
        """The number of keys."""
        return len(self.keys)

    def snapshot(self) -> pa.Table:
        """All keys with their rows."""
        live = self.keys.live()
        if not len(live):
            return pa.table({"bin": pa.array([], pa.uint16())})
        [keys] = self.keys.values(live)
        columns = dict(zip(self._columns, self.rows[live].T.copy(), strict=True))
        if self._timed:
            columns["time"] = self.keys.times(live).view(np.int64)
        return pa.table({"bin": jt.state.bins_of([keys]), "key": keys, **columns})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Add the keys and rows of snapshots; rows of one key, of several workers, are added up."""
        if state.num_rows:
            time = "time" if self._timed else self._columns[0]
            batch = jt.Batch.from_arrow(state.select(["key", time]), time=time)
            slots, _ = self.find(batch.column("key"), plain(batch.times) if self._timed else None)
            values = [state.column(name).to_numpy() for name in self._columns]
            np.add.at(self.rows, slots, np.column_stack(values))


class DueRows(KeyedRows):
    """Rows by time and key that are emitted once their time is complete: the base of stages."""

    inclusive: bool

    def __init__(self, *columns: str, dtype: Any = np.int64) -> None:
        super().__init__(*columns, dtype=dtype, timed=True)
        self._due = jt.state.DueSlots.of(jt.IntegerTimes())
        self.parts = {"rows": self}

    def find(self, keys: Any, times: Times | None = None) -> tuple[Slots, Slots]:
        """The slots of times and keys; new ones wait for their times."""
        assert times is not None, "every row has a time"
        slots, new = super().find(keys, times)
        if len(new):
            due = times[new] if len(times) == len(keys) else np.repeat(times, len(new))
            self._due.add(due, slots[new])
        return slots, new

    def due(self, limit: int | None) -> tuple[Times, Any, npt.NDArray[Any]] | None:
        """Take out times, keys and rows that are complete, if nothing before `limit` can arrive."""
        frontier = jt.Antichain([] if limit is None else [limit])
        times, slots = self._due.due(frontier, inclusive=self.inclusive)
        if not len(slots):
            return None
        [keys] = self.keys.values(slots)
        return times, keys, self.remove(slots)

    @property
    def least(self) -> int | None:
        """The first time that is pending."""
        return next(iter(self._due.pending()), None)

    @property
    def pending(self) -> Times:
        """All pending times."""
        return np.unique(self.keys.times(self.keys.live()).view(np.int64))


class WaitingRecords:
    """Records that wait until their time is complete: the base of stages that work in order."""

    inclusive = False

    def __init__(self, key: str) -> None:
        self.waiting = jt.state.RecordQueue(jt.IntegerTimes(), [key])
        self.parts: dict[str, jt.state.Stateful] = {"waiting": self.waiting}

    def add(self, port: int, batch: jt.Batch) -> Times:
        """Let records wait for their time."""
        self.waiting.push(None, batch)
        return batch.times

    @property
    def least(self) -> int | None:
        """The first time of a record that waits."""
        return self.waiting.least

    @property
    def pending(self) -> Times:
        """The times of all records that wait."""
        return np.array(self.waiting.times, dtype=np.int64)
