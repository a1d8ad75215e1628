"""Queries over windows of bids: tumbling, sliding and sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton_evaluation.nexmark.queries import query
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.programs.keyed_rows import DueRows
from jeton_evaluation.programs.mechanisms import (
    Between,
    Mechanism,
    Times,
    add_stage,
    marked_for,
    plain,
    plain_stream,
)
from jeton_evaluation.programs.window_mean import window_ends

WINDOW: Final = 10_000_000
"""The windows of queries 5 and 7, in microseconds."""
SLIDE: Final = 2_000_000
"""A window of query 5 is a whole number of slides."""
GAP: Final = 500_000
"""Between sessions of query 11."""
SECOND: Final = 1_000_000
"""The windows of query 12."""

_ONE: Final = np.ones(1, np.int64)
_BIDS: Final = ("auction", "bidder", "price")
_HOT: Final = pa.schema([("auction", pa.int64()), ("num", pa.int64())])
_HIGHEST: Final = pa.schema([(name, pa.int64()) for name in (*_BIDS, "bid_ts")])


@query.add(
    {"bids": ("auction",)},
    f"""
    WITH counts AS (
        SELECT ts, auction, count(*) AS num
        FROM (
            SELECT auction, explode(sequence(
                (ts DIV {SLIDE} + 1) * {SLIDE}, ts DIV {SLIDE} * {SLIDE} + {WINDOW}, {SLIDE}
            )) AS ts
            FROM bids
        )
        GROUP BY ts, auction
    )
    SELECT ts, auction, num
    FROM (SELECT *, max(num) OVER (PARTITION BY ts) AS most FROM counts) WHERE num = most
    """,
    stream_sql=f"""
    SELECT {query.END_SQL}, hot.auction, hot.num FROM (
      SELECT window, explode(filter(all, item -> item.num = most)) AS hot FROM (
        SELECT window, collect_list(struct(auction, num)) AS all, max(num) AS most FROM (
          SELECT {query.window_sql(WINDOW, SLIDE)} AS window, auction, count(*) AS num
          FROM bids GROUP BY 1, 2
        ) GROUP BY window
      )
    )""",
)
def q5(events: Inputs) -> jt.Stream:
    """The hot items, those with the most bids in a sliding window.

    For each window of `WINDOW` microseconds that ends at a multiple of `SLIDE` and has bids, the
    auction with the most bids in it, at the window's end; if several have as many, all of them.
    Each worker counts its own bids by panes as long as a slide, so only counts travel; the worker
    that an auction belongs to adds up the panes of a window; and the most of these is emitted.

    >>> query.rows_of("q5", 2, bids={"ts": [1, 2, 3, 2_000_001], "auction": [7, 7, 8, 8]})[:3]
    [{'ts': 2000000, 'auction': 7, 'num': 2},
     {'ts': 4000000, 'auction': 7, 'num': 2},
     {'ts': 4000000, 'auction': 8, 'num': 2}]
    """
    stream: Between = events.bids.select("auction")
    for name, make, pact in (
        ("counts by pane", PaneCounts, None),
        ("hot items here", HotItems, jt.Exchange("auction")),
        ("hot items", lambda: Highest("num"), jt.Exchange(lambda batch: batch.times)),
    ):
        stream = add_stage([stream], make, pacts=[pact], mechanism="tokens", name=name, schema=_HOT)
    return plain_stream(stream, _HOT)


class PaneCounts(DueRows):
    """The number of bids that this worker has on each auction, by panes, emitted at their ends.

    >>> counts = PaneCounts()
    >>> counts.add(0, jt.Batch({"auction": [7, 8, 7]}, times=[1, 2, 3]))
    array([2000000])
    >>> counts.take(SLIDE)["num"].to_list()
    [2, 1]
    """

    inclusive = True

    def __init__(self) -> None:
        super().__init__("num")

    def add(self, port: int, batch: jt.Batch) -> Times:
        """Count bids in the panes that they are in."""
        panes = [(end, part.column("auction"), _ONE) for end, part in by_window(batch, SLIDE)]
        return self._count(panes)

    def _count(self, counts: Iterable[tuple[int, Any, Any]]) -> Times:
        """Add numbers of bids by auction; a single number is that of all auctions."""
        ends = []
        for end, auctions, nums in counts:
            slots, _ = self.find(auctions, np.array([end]))
            _add(self.rows, slots, plain(nums))
            ends.append(end)
        return np.array(ends, np.int64)

    def take(self, limit: int | None) -> jt.Batch | None:
        """The counts that are complete."""
        found = self.due(limit)
        if found is None:
            return None
        ends, auctions, nums = found
        return jt.Batch.trusted({"auction": auctions, "num": nums[:, 0]}, ends, "ts", int(ends[0]))


class HotItems(PaneCounts):
    """The auctions with the most bids of each window, of those that belong to this worker.

    >>> items = HotItems()
    >>> items.add(0, jt.Batch({"auction": [7, 8], "num": [2, 1]}, times=[SLIDE, SLIDE]))
    array([ 2000000,  4000000,  6000000,  8000000, 10000000])
    >>> items.take(SLIDE + 1).rows()
    [{'ts': 2000000, 'auction': 7, 'num': 2}]
    """

    inclusive = False

    def add(self, port: int, batch: jt.Batch) -> Times:
        """Count a pane in all windows that it is in."""
        return self._count(
            (end, part.column("auction"), part.column("num"))
            for pane, part in batch.by_time()
            for end in range(pane, pane + WINDOW, SLIDE)
        )

    def take(self, limit: int | None) -> jt.Batch | None:
        """The greatest counts of each window that is complete."""
        counts = super().take(limit)
        if counts is None:
            return None
        nums, starts = counts["num"], np.flatnonzero(np.diff(counts.times, prepend=-1))
        most = np.maximum.reduceat(nums, starts)
        return counts.filter(nums == np.repeat(most, np.diff(starts, append=len(nums))))


@jt.njit(cache=True)
def _add(counts: Any, slots: Any, nums: Any) -> None:
    stride = 0 if len(nums) == 1 else 1
    for i in range(len(slots)):
        counts[slots[i], 0] += nums[i * stride]


@query.add(
    {"bids": _BIDS},
    f"""
    WITH highest AS (
        SELECT ts DIV {WINDOW} AS window, max(price) AS price FROM bids GROUP BY ts DIV {WINDOW}
    )
    SELECT (h.window + 1) * {WINDOW} AS ts, b.auction, b.bidder, b.price, b.ts AS bid_ts
    FROM bids b JOIN highest h ON b.ts DIV {WINDOW} = h.window AND b.price = h.price
    """,
    stream_sql=f"""
    SELECT {query.END_SQL}, bid.auction, bid.bidder, bid.price, bid.bid_ts FROM (
      SELECT window, explode(max_by(same, price)) AS bid FROM (
        SELECT {query.window_sql(WINDOW)} AS window, price,
          collect_list(struct(auction, bidder, price, ts AS bid_ts)) AS same
        FROM bids GROUP BY 1, 2
      ) GROUP BY window
    )""",
)
def q7(events: Inputs, mechanism: Mechanism = "tokens") -> jt.Stream:
    """The highest bid of each window.

    For each tumbling window of `WINDOW` microseconds (ten seconds), the bid with the highest price,
    at the window's end; if several bids have that price, all of them, each with its own time
    ``bid_ts``. Each worker finds the highest of its own bids first, so next to nothing travels.

    >>> bids = {"ts": [1, 2, 3], "auction": [7, 8, 9], "bidder": [4, 5, 6], "price": [20, 50, 50]}
    >>> query.rows_of("q7", 2, bids=bids)
    [{'ts': 10000000, 'auction': 8, 'bidder': 5, 'price': 50, 'bid_ts': 2},
     {'ts': 10000000, 'auction': 9, 'bidder': 6, 'price': 50, 'bid_ts': 3}]
    """
    stream = marked_for(events.bids.select(*_BIDS), mechanism)
    for name, size, pact in (
        ("highest here", WINDOW, None),
        ("highest", None, jt.Exchange(lambda batch: batch.times)),
    ):
        stream = add_stage(
            [stream],
            lambda size=size: Highest("price", size),  # type: ignore[misc]
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


@query.add(
    {"bids": ("bidder",)},
    f"""
    SELECT max(ts) + {GAP} AS ts, bidder, min(ts) AS start, count(*) AS count
    FROM (
      SELECT ts, bidder,
        count_if(ts - before >= {GAP}) OVER (PARTITION BY bidder ORDER BY ts) AS session
      FROM (SELECT ts, bidder, lag(ts) OVER (PARTITION BY bidder ORDER BY ts) AS before FROM bids)
    )
    GROUP BY bidder, session
    """,
    # A microsecond short: Spark joins events that are exactly the gap apart.
    stream_sql=f"""
    SELECT unix_micros(session.end) + 1 AS ts, bidder, start, count FROM (
      SELECT session_window({query.AT}, '{GAP - 1} microseconds') AS session, bidder,
        min(ts) AS start, count(*) AS count
      FROM bids GROUP BY 1, 2
    )""",
)
def q11(events: Inputs) -> jt.Stream:
    """How many bids each bidder makes while active.

    Bids of a bidder that follow each other by less than `GAP` are one session. It is emitted at the
    time of its last bid plus `GAP`, with the time of its first bid and the number of bids. At the
    default rate of 10,000 events a second a bidder is active for five seconds, with some two bids a
    second: hence a gap of half a second (elsewhere it is ten).

    >>> query.rows_of("q11", bids={"ts": [0, 499_999, 999_999], "bidder": [3, 3, 3]})
    [{'ts': 999999, 'bidder': 3, 'start': 0, 'count': 2},
     {'ts': 1499999, 'bidder': 3, 'start': 999999, 'count': 1}]
    """
    return events.bids.key_by("bidder").session_window(GAP).count()


@query.add(
    {"bids": ("bidder",)},
    f"""
    SELECT (ts DIV {SECOND} + 1) * {SECOND} AS ts, bidder, count(*) AS count
    FROM bids GROUP BY 1, 2
    """,
    stream_sql=f"""
    SELECT {query.END_SQL}, bidder, count FROM (
      SELECT {query.window_sql(SECOND)} AS window, bidder, count(*) AS count FROM bids GROUP BY 1, 2
    )""",
)
def q12(events: Inputs) -> jt.Stream:
    """How many bids each bidder makes in a window.

    Elsewhere these are windows of processing time: of the clock on the wall while the query runs.
    Its answer is then another one each time. Here they are tumbling windows of the bids' own times,
    emitted at their ends, so that there is one right answer. They last a second: 10,000 events at
    the default rate.

    >>> query.rows_of("q12", bids={"ts": [1, 2, 1_000_000], "bidder": [3, 3, 3]})
    [{'ts': 1000000, 'bidder': 3, 'count': 2}, {'ts': 2000000, 'bidder': 3, 'count': 1}]
    """
    return events.bids.key_by("bidder").tumbling(SECOND).count()
