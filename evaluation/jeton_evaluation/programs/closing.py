"""Auctions that close, by any mechanism: the paper's evaluation of NEXMark query 4.

An auction closes when it expires, and the best valid bid on it wins: one of at least the reserve,
not before the auction's start, and before its expiry. Auctions without such a bid close in silence.
There may be millions of them open, each with an expiry of its own: with tokens, one is held, for
the least of them all.

The query itself, in the library's own operators, is in `jeton_evaluation.nexmark.queries.closing`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.errors import BatchError
from jeton_evaluation.programs.keyed_rows import KeyedRows, WaitingRecords
from jeton_evaluation.programs.mechanisms import (
    Mechanism,
    Times,
    add_stage,
    marked_for,
    plain,
    plain_stream,
)

_CLOSED: Final = pa.schema([(name, pa.int64()) for name in ("id", "category", "price")])
_AVERAGES: Final = pa.schema([("category", pa.int64()), ("average", pa.float64())])
START, EXPIRES, RESERVE, PRICE = range(4)
"""The columns of `BestBids`; there is no bid yet if the price is -1."""
_NOTHING: Final = np.empty(0, np.int64)


def average_closing_price(auctions: jt.Stream, bids: jt.Stream, mechanism: Mechanism) -> jt.Stream:
    """The average price of the auctions of a category that have closed, whenever some do.

    >>> flow = jt.Flow("averages")
    >>> auctions, bids = flow.input("auctions", time="ts"), flow.input("bids", time="ts")
    >>> flow.output("averages", average_closing_price(auctions, bids, "notifications"))
    >>> auctions = {"ts": [10], "id": [7], "category": [1], "reserve": [50], "expires": [20]}
    >>> bids = {"ts": [11, 19], "auction": [7, 7], "price": [60, 70]}
    >>> flow.run({"auctions": auctions, "bids": bids}, workers=2)["averages"].to_pylist()
    [{'ts': 20, 'category': 1, 'average': 70.0}]
    """
    closed = add_stage(
        [marked_for(auctions, mechanism), marked_for(bids, mechanism)],
        OpenAuctions,
        pacts=[jt.Exchange("id"), jt.Exchange("auction")],
        mechanism=mechanism,
        name="closing",
        schema=_CLOSED,
    )
    averages = add_stage(
        [closed],
        Averages,
        pacts=[jt.Exchange("category")],
        mechanism=mechanism,
        name="averages",
        schema=_AVERAGES,
    )
    return plain_stream(averages, _AVERAGES)


class OpenAuctions:
    """Auctions that wait for their expiry, with the best bids on them."""

    inclusive = True

    def __init__(self) -> None:
        self._best = BestBids()
        self._closing = jt.state.RecordQueue(jt.IntegerTimes(), ["id"])
        # Bids whose auctions may still come. They need no right to speak: their auctions bring it.
        self._early = jt.state.RecordQueue(jt.IntegerTimes(), ["auction"])
        self._limit: float = 0
        self.parts: dict[str, jt.state.Stateful] = {
            "best": self._best,
            "closing": self._closing,
            "early": self._early,
        }

    def add(self, port: int, batch: jt.Batch) -> Times:
        """Auctions wait for their expiry, bids for their auctions if these are not there yet."""
        if port == 0:
            return self._open(batch)
        unknown = self._best.offer(batch)
        # An auction that is not known by now was put up later than such a bid, or is closed.
        unknown = unknown[batch.times[unknown] >= self._limit]
        if len(unknown):
            self._early.push(None, batch.take(unknown))
        return _NOTHING

    def _open(self, auctions: jt.Batch) -> Times:
        auctions = auctions.filter(auctions["expires"] > auctions.times)
        if len(auctions) == 0:
            return _NOTHING
        self._best.open(auctions)
        columns = {name: auctions.column(name) for name in ("id", "category")}
        expires: Times = np.asarray(auctions["expires"])
        self._closing.push(None, jt.Batch.trusted(columns, expires, auctions.time_name))
        return expires

    def take(self, limit: int | None) -> jt.Batch | None:
        """The auctions that have expired and have a winner."""
        early = self._early.take(limit)
        if early is not None:
            self._best.offer(early)
        self._limit = float("inf") if limit is None else limit
        closed = self._closing.take(limit, inclusive=True)
        if closed is None:
            return None
        prices = self._best.close(np.asarray(closed["id"]))
        won = np.flatnonzero(prices >= 0)
        if len(won) == 0:
            return None
        return closed.take(won).with_columns({"price": prices[won]})

    @property
    def least(self) -> int | None:
        """The least expiry."""
        return self._closing.least

    @property
    def pending(self) -> Times:
        """All expiries."""
        return np.array(self._closing.times, dtype=np.int64)


class BestBids(KeyedRows):
    """Open auctions by id, each with the highest price of the valid bids on it.

    >>> best = BestBids()
    >>> auctions = {"id": [7], "expires": [20], "reserve": [50]}
    >>> best.open(jt.Batch(auctions, times=[10]))
    >>> bids = {"auction": [7, 7, 7, 8], "price": [60, 70, 90, 90]}
    >>> best.offer(jt.Batch(bids, times=[11, 19, 20, 20]))  # the bids for others
    array([3])
    >>> best.close(np.array([7]))
    array([70])
    """

    def __init__(self) -> None:
        # Compact: ids grow indefinitely, but few auctions are open at a time.
        super().__init__("start", "expires", "reserve", "price", compact=True)

    def open(self, auctions: jt.Batch) -> None:
        """Accept bids on auctions from now on."""
        slots, new = self.find(auctions["id"])
        if len(new) < len(slots):
            twice = np.setdiff1d(np.arange(len(slots)), new)[0]
            raise BatchError(f"auction {auctions['id'][twice]} is put up while it is open already")
        row = (auctions.times, auctions["expires"], auctions["reserve"], -1)
        for column, values in zip(self.rows.T, row, strict=True):
            column[slots] = values

    def offer(self, bids: jt.Batch) -> npt.NDArray[np.intp]:
        """Keep the prices that are the best; returns the bids for auctions that are not open."""
        unknown = np.empty(len(bids), np.intp)
        slots = self.keys.lookup([bids["auction"]], len(bids))
        times, prices = plain(bids.times), plain(bids["price"])
        return unknown[: _offer(self.rows, slots, times, prices, unknown)]

    def close(self, ids: Times) -> Times:
        """Take out open auctions; returns their best prices."""
        slots = self.keys.lookup([ids], len(ids))
        prices: Times = self.rows[slots, PRICE]
        # Not cleared: `open` writes whole rows.
        self.keys.remove(slots)
        return prices


@jt.njit(cache=True)
def _offer(rows: Any, slots: Any, times: Any, prices: Any, unknown: Any) -> int:
    """Keep the best prices; writes which are for unknown auctions, and returns their number."""
    count = 0
    for i in range(len(slots)):
        slot = slots[i]
        if slot < 0:
            unknown[count] = i
            count += 1
        elif (
            prices[i] > rows[slot, PRICE]
            and prices[i] >= rows[slot, RESERVE]
            and rows[slot, START] <= times[i]
            and times[i] < rows[slot, EXPIRES]
        ):
            rows[slot, PRICE] = prices[i]
    return count


class Averages(WaitingRecords):
    """A stage with the sum and number of all prices of each category.

    >>> averages = Averages()
    >>> closed = {"category": [10, 10, 10], "price": [2, 3, 7]}
    >>> averages.add(0, jt.Batch(closed, times=[5, 5, 8]))
    array([5, 5, 8])
    >>> averages.take(None).rows()
    [{'time': 5, 'category': 10, 'average': 2.5}, {'time': 8, 'category': 10, 'average': 4.0}]
    """

    def __init__(self) -> None:
        super().__init__("category")
        self._sums = KeyedRows("sum", "count")
        self.parts["sums"] = self._sums

    def take(self, limit: int | None) -> jt.Batch | None:
        """Add the auctions that are complete; returns a row for each time and category."""
        batch = self.waiting.take(limit)
        if batch is None:
            return None
        batch = batch.take(np.lexsort((batch.column("category"), batch.times)))
        slots, _ = self._sums.find(batch.column("category"))
        last, averages = np.empty(len(slots), np.intp), np.empty(len(slots))
        times, prices = plain(batch.times), plain(batch.column("price"))
        count = _average(self._sums.rows, slots, times, prices, last, averages)
        changed = batch.take(last[:count]).select("category")
        return changed.with_columns({"average": averages[:count]})


@jt.njit(cache=True)
def _average(sums: Any, slots: Any, times: Any, prices: Any, last: Any, averages: Any) -> int:
    """Add prices; where a time and category end, write the place and the average so far."""
    count = 0
    for i in range(len(slots)):
        slot = slots[i]
        sums[slot, 0] += prices[i]
        sums[slot, 1] += 1
        if i + 1 == len(slots) or slots[i + 1] != slot or times[i + 1] != times[i]:
            last[count] = i
            averages[count] = sums[slot, 0] / sums[slot, 1]
            count += 1
    return count
