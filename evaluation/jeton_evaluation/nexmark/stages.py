"""Stages that several queries share: folds in order of time, and the highest of each window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton_evaluation.programs.mechanisms import Times
from jeton_evaluation.programs.window_mean import window_ends


def by_window(batch: jt.Batch, size: int) -> Iterator[tuple[int, jt.Batch]]:
    """Parts of a batch by tumbling windows, each with the window's end.

    >>> batch = jt.Batch({"n": [1, 2, 3]}, times=[3, 7, 12])
    >>> [(end, len(part)) for end, part in by_window(batch, 10)]
    [(10, 2), (20, 1)]
    """
    # Most batches lie in one window: two times show that sooner than a division for each record.
    times = batch.times
    first, last = int(times.min()) // size, int(times.max()) // size
    if first == last:
        yield (first + 1) * size, batch
    elif (times[1:] >= times[:-1]).all():
        start = 0
        while start < len(times):
            end = (int(times[start]) // size + 1) * size
            stop = int(times.searchsorted(end))
            yield end, batch.slice(start, stop)
            start = stop
    else:
        yield from batch.split_by(lambda times: window_ends(times, size))


class Fold(jt.state.Stateful, Protocol):
    """The state of each key so far."""

    def fold(self, batch: jt.Batch) -> jt.Batch:
        """Add records, which come after all others; returns the results that they lead to."""
        ...


class InOrder:
    """A stage that folds records once their time is complete: by time, then by a column.

    Records belong to the worker of their ``key``.
    """

    inclusive = False

    def __init__(self, fold: Fold, *, key: str, by: str) -> None:
        self._fold = fold
        self._waiting = jt.state.RecordQueue(jt.IntegerTimes(), [key])
        self._by = by
        self.parts: dict[str, jt.state.Stateful] = {"waiting": self._waiting, "fold": fold}

    def add(self, port: int, batch: jt.Batch) -> Times:
        """Let records wait for their time."""
        self._waiting.push(None, batch)
        return batch.times

    def take(self, limit: int | None) -> jt.Batch | None:
        """Fold the records that are complete."""
        batch = self._waiting.take(limit)
        if batch is None:
            return None
        return self._fold.fold(batch.take(np.lexsort((batch.column(self._by), batch.times))))

    @property
    def least(self) -> int | None:
        """The first time of a record that waits."""
        return self._waiting.least

    @property
    def pending(self) -> Times:
        """The times of all records that wait."""
        return np.array(self._waiting.times, dtype=np.int64)


class Highest:
    """The records with the highest value of each window; without a size, of each time.

    Those of windows have their own times in a column ``bid_ts``.

    >>> highest = Highest("price", 10)
    >>> bids = jt.Batch({"price": [5, 6, 6, 1]}, times=[1, 2, 3, 11])
    >>> highest.add(0, bids)
    array([10, 20])
    >>> highest.take(10).rows()
    [{'time': 10, 'price': 6, 'bid_ts': 2}, {'time': 10, 'price': 6, 'bid_ts': 3}]
    """

    def __init__(self, by: str, size: int | None = None) -> None:
        self._by = by
        self._size = size
        self.inclusive = size is not None
        self.parts = {"highest": self}
        # By window's end: the highest value, and the records that have it.
        self._best: dict[int, tuple[int, list[jt.Batch]]] = {}

    def add(self, port: int, batch: jt.Batch) -> Times:
        """Keep records that are not lower than those known."""
        ends = []
        size = self._size
        for end, part in batch.by_time() if size is None else by_window(batch, size):
            self._keep(end, part)
            ends.append(end)
        return np.array(ends, dtype=np.int64)

    def _keep(self, end: int, part: jt.Batch) -> None:
        values = part.column(self._by)
        highest, known = int(values.max()), self._best.get(end)
        if known is not None and highest < known[0]:
            return
        rows = part.take(np.flatnonzero(values == highest))
        if self._size is not None and "bid_ts" not in rows:
            rows = rows.with_columns({"bid_ts": rows.times})
        rows = rows.at(np.full(len(rows), end), end)
        if known is not None and highest == known[0]:
            known[1].append(rows)
        else:
            self._best[end] = (highest, [rows])

    def take(self, limit: int | None) -> jt.Batch | None:
        """The records of windows that are complete."""
        last = jt.END_OF_TIME if limit is None else limit if self.inclusive else limit - 1
        done = sorted(end for end in self._best if end <= last)
        return self._rows(map(self._best.pop, done)) if done else None

    @property
    def least(self) -> int | None:
        """The end of the first window that is open."""
        return min(self._best, default=None)

    @property
    def pending(self) -> Times:
        """The ends of the open windows."""
        return np.array(sorted(self._best), dtype=np.int64)

    def snapshot(self) -> pa.Table:
        """The records of all open windows."""
        if not self._best:
            return pa.table({"bin": pa.array([], pa.uint16())})
        rows = self._rows(self._best.values())
        table = rows.named("end").to_arrow()
        return table.add_column(0, "bin", pa.array(jt.state.bins_of([rows.times])))

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Open the windows again."""
        if state.num_rows:
            batch = jt.Batch.from_arrow(state.drop_columns(["bin"]), time="end")
            for end, rows in batch.by_time():
                self._keep(end, rows)

    @staticmethod
    def _rows(windows: Iterable[tuple[int, list[jt.Batch]]]) -> jt.Batch:
        return jt.concat([batch for _, rows in windows for batch in rows])
