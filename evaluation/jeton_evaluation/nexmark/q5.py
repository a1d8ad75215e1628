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
_ONE: Final = np.ones(1, np.int64)
_RESTORED: Final = ("ts", "auction", "num")


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


class Counts(ABC):
    """Numbers of bids by time and auction, emitted when due: the base of two stages."""

    inclusive: bool

    def __init__(self) -> None:
        self._keys = jt.state.KeySlots(1, timed=True)
        self._nums = np.zeros(0, np.int64)
        self._due = jt.state.DueSlots.of(jt.IntegerTimes())
        self.parts = {"counts": self}

    @abstractmethod
    def add(self, port: int, batch: jt.Batch) -> Times:
        """Count; returns the times at which the counts are emitted."""

    def _count(self, ends: Times, auctions: Any, nums: Any) -> None:
        """Add numbers of bids; a single end, or number, is that of all auctions."""
        slots, new = self._keys.find([auctions], len(auctions), ends.view(np.uint64))
        if len(new):
            self._nums = jt.state.grown(self._nums, self._keys.slots_made)
            due = ends[new] if len(ends) == len(auctions) else np.repeat(ends, len(new))
            self._due.add(due, slots[new])
        _add(self._nums, slots, plain(nums))

    def take(self, limit: int | None) -> jt.Batch | None:
        """The counts that are complete."""
        frontier = jt.Antichain([] if limit is None else [limit])
        ends, slots = self._due.due(frontier, inclusive=self.inclusive)
        if not len(slots):
            return None
        [auctions] = self._keys.values(slots)
        columns = {"auction": auctions, "num": self._nums[slots]}
        self._nums[slots] = 0
        self._keys.remove(slots)
        return jt.Batch.trusted({**columns}, ends, "ts", int(ends[0]))

    @property
    def least(self) -> int | None:
        """The time of the first counts."""
        return next(iter(self._due.pending()), None)

    @property
    def pending(self) -> Times:
        """The times of all counts."""
        return np.unique(self._keys.times(self._keys.live()).view(np.int64))

    def snapshot(self) -> pa.Table:
        """All counts."""
        live = self._keys.live()
        if not len(live):
            return pa.table({"bin": pa.array([], pa.uint16())})
        [auctions] = self._keys.values(live)
        ends = self._keys.times(live).view(np.int64)
        columns = {"ts": ends, "auction": auctions, "num": self._nums[live]}
        return pa.table({"bin": jt.state.bins_of([auctions]), **columns})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """The counts again."""
        if state.num_rows:
            ends, auctions, nums = (plain(state.column(n).to_numpy()) for n in _RESTORED)
            self._count(ends, auctions, nums)


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
            self._count(np.array([end]), part["auction"], _ONE)
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
                self._count(np.array([end]), part["auction"], part["num"])
                ends.append(end)
        return np.array(ends, np.int64)

    def take(self, limit: int | None) -> jt.Batch | None:
        """The greatest counts of each window that is complete."""
        counts = super().take(limit)
        if counts is None:
            return None
        nums, starts = counts["num"], np.flatnonzero(np.diff(counts.times, prepend=-1))
        most = np.maximum.reduceat(nums, starts)
        sizes = np.diff(starts, append=len(nums))
        return counts.filter(nums == np.repeat(most, sizes))


@jt.njit(cache=True)
def _add(counts: Any, slots: Any, nums: Any) -> None:
    stride = 0 if len(nums) == 1 else 1
    for i in range(len(slots)):
        counts[slots[i]] += nums[i * stride]
