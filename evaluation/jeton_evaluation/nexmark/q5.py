"""Query 5: the hot items, those with the most bids in a sliding window.

For each window of `WINDOW` microseconds that ends at a multiple of `SLIDE` and has bids, the
auction with the most bids in it, at the window's end; if several have as many, all of them. Each
worker counts its own bids by panes as long as a slide, so only counts travel; the worker that an
auction belongs to adds up the panes of a window; and the most of these is emitted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.nexmark.stages import Highest, by_window
from jeton_evaluation.programs.mechanisms import Between, Times, add_stage, plain, plain_stream

COLUMNS: Final[Columns] = {"bids": ("auction",)}

WINDOW: Final = 10_000_000
SLIDE: Final = 2_000_000
"""A window is a whole number of slides."""

SQL: Final = f"""
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
"""

_SCHEMA: Final = pa.schema([("auction", pa.int64()), ("num", pa.int64())])


def query(events: Inputs) -> jt.Stream:
    """The auctions with the most bids of each window.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q5")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> bids = {"ts": [1, 2, 3, 2_000_001], "auction": [7, 7, 8, 8]}
    >>> flow.run({"bids": bids}, workers=2)["result"].to_pylist()[:3]
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
        stream = add_stage(
            [stream], make, pacts=[pact], mechanism="tokens", name=name, schema=_SCHEMA
        )
    return plain_stream(stream, _SCHEMA)


class Counter:
    """The number of bids on each auction.

    >>> counter = Counter()
    >>> counter.add(np.array([7, 8, 7]), np.array([1, 1, 1]))
    >>> counter.auctions, counter.nums
    (array([7, 8]), array([2, 1]))
    """

    def __init__(self) -> None:
        # Compact: ids grow indefinitely, but few auctions have bids in a window.
        self._slots = jt.state.KeySlots(1, compact=True)
        self._nums = np.zeros(64, np.int64)

    def add(self, auctions: Times, nums: Times) -> None:
        """Add numbers of bids."""
        slots, _ = self._slots.find([auctions], len(auctions))
        self._nums = jt.state.grown(self._nums, self._slots.slots_made)
        _add(self._nums, slots, nums)

    @property
    def auctions(self) -> Times:
        """The auctions that have bids."""
        [auctions] = self._slots.values(np.arange(len(self._slots)))
        return np.asarray(auctions)

    @property
    def nums(self) -> Times:
        """The number of bids on each of them."""
        return self._nums[: len(self._slots)]


class Counts(ABC):
    """Counts by auction that are emitted at some time: the base of two stages."""

    inclusive: bool

    def __init__(self) -> None:
        self._counters: dict[int, Counter] = {}
        self.parts = {"counts": self}

    @abstractmethod
    def add(self, port: int, batch: jt.Batch) -> Times:
        """Count; returns the times at which the counts are emitted."""

    def _count(self, end: int, auctions: Any, nums: Any) -> None:
        if end not in self._counters:
            self._counters[end] = Counter()
        self._counters[end].add(plain(auctions), plain(nums))

    def take(self, limit: int | None) -> jt.Batch | None:
        """The counts that are complete."""
        last = jt.END_OF_TIME if limit is None else limit if self.inclusive else limit - 1
        done = sorted(end for end in self._counters if end <= last)
        parts = [self._emitted(self._counters.pop(end), end) for end in done]
        return jt.concat(parts) if parts else None

    def _emitted(self, counter: Counter, end: int) -> jt.Batch:
        columns = {"auction": counter.auctions, "num": counter.nums}
        return jt.Batch.trusted({**columns}, np.full(len(counter.nums), end), "ts", end)

    @property
    def least(self) -> int | None:
        """The time of the first counts."""
        return min(self._counters, default=None)

    @property
    def pending(self) -> Times:
        """The times of all counts."""
        return np.array(list(self._counters), np.int64)

    def snapshot(self) -> pa.Table:
        """All counts."""
        parts = [Counts._emitted(self, counter, end) for end, counter in self._counters.items()]
        if not parts:
            return pa.table({"bin": pa.array([], pa.uint16())})
        rows = jt.concat(parts)
        bins = jt.state.bins_of([rows["auction"]])
        return rows.to_arrow().add_column(0, "bin", pa.array(bins))

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """The counts again."""
        if state.num_rows:
            rows = jt.Batch.from_arrow(state.drop_columns(["bin"]), time="ts")
            for end, part in rows.by_time():
                self._count(end, part["auction"], part["num"])


class PaneCounts(Counts):
    """The number of bids that this worker has on each auction, by panes, emitted at their ends.

    >>> counts = PaneCounts()
    >>> counts.add(0, jt.Batch({"auction": [7, 8, 7]}, times=[1, 2, 3]))
    array([2000000])
    >>> counts.take(SLIDE)["num"]
    array([2, 1])
    """

    inclusive = True

    def add(self, port: int, batch: jt.Batch) -> Times:
        """Count bids in the panes that they are in."""
        ends = []
        for end, part in by_window(batch, SLIDE):
            self._count(end, part["auction"], np.ones(len(part), np.int64))
            ends.append(end)
        return np.array(ends, np.int64)


class HotItems(Counts):
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
        ends = []
        for pane, part in batch.by_time():
            for end in range(pane, pane + WINDOW, SLIDE):
                self._count(end, part["auction"], part["num"])
                ends.append(end)
        return np.array(ends, np.int64)

    def _emitted(self, counter: Counter, end: int) -> jt.Batch:
        counts = super()._emitted(counter, end)
        return counts.filter(counter.nums == counter.nums.max())


@jt.njit(cache=True)
def _add(counts: Any, slots: Any, nums: Any) -> None:
    for i in range(len(slots)):
        counts[slots[i]] += nums[i]
