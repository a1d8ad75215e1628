"""The highest bid of each window, by any mechanism: the paper's evaluation of NEXMark query 7.

The query itself, in the library's own operators, is in `jeton_evaluation.nexmark.queries.windows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton_evaluation.programs.mechanisms import (
    Mechanism,
    Times,
    add_stage,
    marked_for,
    plain_stream,
)
from jeton_evaluation.programs.window_mean import window_ends

_BIDS: Final = ("auction", "bidder", "price")
_HIGHEST: Final = pa.schema([(name, pa.int64()) for name in (*_BIDS, "bid_ts")])


def highest_bids(bids: jt.Stream, size: int, mechanism: Mechanism) -> jt.Stream:
    """The bids with the highest price of each window, at its end: of each worker, then of all.

    >>> flow = jt.Flow("highest")
    >>> flow.output("highest", highest_bids(flow.input("bids"), 10, "watermarks-x"))
    >>> bids = {"time": [1, 2], "auction": [7, 8], "bidder": [4, 5], "price": [20, 50]}
    >>> flow.run({"bids": bids}, workers=2)["highest"].to_pylist()
    [{'time': 10, 'auction': 8, 'bidder': 5, 'price': 50, 'bid_ts': 2}]
    """
    stream = marked_for(bids.select(*_BIDS), mechanism)
    for name, length, pact in (
        ("highest here", size, None),
        ("highest", None, jt.Exchange(lambda batch: batch.times)),
    ):
        stream = add_stage(
            [stream],
            lambda length=length: Highest("price", length),  # type: ignore[misc]
            pacts=[pact],
            mechanism=mechanism,
            name=name,
            schema=_HIGHEST,
        )
    return plain_stream(stream, _HIGHEST)


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
        parts = batch.by_time() if self._size is None else by_window(batch, self._size)
        return np.array([self._keep(end, part) for end, part in parts], dtype=np.int64)

    def _keep(self, end: int, part: jt.Batch) -> int:
        values = part.column(self._by)
        highest, known = int(values.max()), self._best.get(end)
        if known is not None and highest < known[0]:
            return end
        rows = part.take(np.flatnonzero(values == highest))
        if self._size is not None and "bid_ts" not in rows:
            rows = rows.with_columns({"bid_ts": rows.times})
        rows = rows.at(np.full(len(rows), end), end)
        if known is not None and highest == known[0]:
            known[1].append(rows)
        else:
            self._best[end] = (highest, [rows])
        return end

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
