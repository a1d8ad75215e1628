"""Queries of auctions that close: windows whose ends the data itself gives.

An auction closes when it expires, and the best valid bid on it wins: one of at least the reserve,
not before the auction's start, and before its expiry; of several with the highest price, the first,
then the one with the lesser values of its other columns. Auctions without such a bid close in
silence. There may be millions of them open, each with an expiry of its own: with tokens, one is
held, for the least of them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.errors import BatchError
from jeton_evaluation.nexmark.queries import query
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.programs.keyed_rows import KeyedRows, WaitingRecords
from jeton_evaluation.programs.mechanisms import (
    Between,
    Mechanism,
    Times,
    add_stage,
    marked_for,
    plain,
    plain_stream,
)

LAST: Final = 10
"""The auctions of a seller that query 6 looks back on."""
_KEPT: Final = ("item_name", "description", "initial_bid", "reserve", "seller", "category")
_OWN_END: Final = "a window whose end is a column of the data"
_AVERAGES: Final = pa.schema([("category", pa.int64()), ("average", pa.float64())])
_LAST_PRICES: Final = pa.schema(
    [("auction", pa.int64()), ("seller", pa.int64()), ("average", pa.float64())]
)


def _closed_sql(column: str) -> str:
    return f"""
    SELECT a.expires AS ts, a.id, a.{column}, max(b.price) AS price
    FROM auctions a JOIN bids b ON a.id = b.auction
    WHERE b.ts >= a.ts AND b.ts < a.expires AND b.price >= a.reserve
    GROUP BY a.expires, a.id, a.{column}"""


@query.add(
    {"auctions": ("id", "category", "reserve", "expires"), "bids": ("auction", "price")},
    f"""
    WITH closed AS ({_closed_sql("category")}),
    together AS (
      SELECT ts, category, sum(price) AS price, count(*) AS count
      FROM closed GROUP BY ts, category
    )
    SELECT ts, category, sum(price) OVER so_far / sum(count) OVER so_far AS average
    FROM together WINDOW so_far AS (PARTITION BY category ORDER BY ts)
    """,
    no_stream=f"{_OWN_END}, and an average of all rows so far",
)
def q4(events: Inputs, mechanism: Mechanism = "tokens") -> jt.Stream:
    """The average closing price of a category.

    The price of an auction that closes is that of its best bid. Whenever auctions of a category
    close, the average price of all of them that have closed until then: one row for each such time
    and category, at that time.

    >>> auctions = {"id": [1, 2], "category": [10, 10], "reserve": [5, 5], "expires": [20, 30]}
    >>> bids = {"ts": [11, 12, 13], "auction": [1, 1, 2], "price": [6, 8, 9]}
    >>> query.rows_of("q4", 2, auctions={"ts": [1, 2], **auctions}, bids=bids)
    [{'ts': 20, 'category': 10, 'average': 8.0}, {'ts': 30, 'category': 10, 'average': 8.5}]
    """
    averages = add_stage(
        [closed_auctions(events, mechanism, auction=["category"])],
        Averages,
        pacts=[jt.Exchange("category")],
        mechanism=mechanism,
        name="averages",
        schema=_AVERAGES,
    )
    return plain_stream(averages, _AVERAGES)


@query.add(
    {"auctions": ("id", "seller", "reserve", "expires"), "bids": ("auction", "price")},
    f"""
    WITH closed AS ({_closed_sql("seller")})
    SELECT ts, id AS auction, seller, avg(price) OVER (
      PARTITION BY seller ORDER BY ts, id ROWS BETWEEN {LAST - 1} PRECEDING AND CURRENT ROW
    ) AS average
    FROM closed
    """,
    no_stream=f"{_OWN_END}, and an average of the last ten rows",
)
def q6(events: Inputs) -> jt.Stream:
    """The average selling price of each seller, over the last ten auctions.

    For each auction that closes, at that time, the average price of this and of the seller's
    auctions that closed before, the last `LAST` at most in all. Of those that close at the same
    time, the one with the lesser id is first.

    >>> auctions = {"id": [1, 2], "seller": [3, 3], "reserve": [5, 5], "expires": [20, 30]}
    >>> bids = {"ts": [11, 12, 13], "auction": [1, 1, 2], "price": [6, 8, 9]}
    >>> query.rows_of("q6", 2, auctions={"ts": [1, 2], **auctions}, bids=bids)
    [{'ts': 20, 'auction': 1, 'seller': 3, 'average': 8.0},
     {'ts': 30, 'auction': 2, 'seller': 3, 'average': 8.5}]
    """
    averages = add_stage(
        [closed_auctions(events, auction=["seller"])],
        LastPrices,
        pacts=[jt.Exchange("seller")],
        mechanism="tokens",
        name="last prices",
        schema=_LAST_PRICES,
    )
    return plain_stream(averages, _LAST_PRICES)


@query.add(
    {"auctions": ("id", "expires", *_KEPT), "bids": ("auction", "bidder", "price")},
    f"""
    SELECT expires AS ts, id, {", ".join(_KEPT)}, start, price, bidder, bid_ts
    FROM (
      SELECT a.*, a.ts AS start, b.price, b.bidder, b.ts AS bid_ts,
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts, b.bidder) AS place
      FROM auctions a JOIN bids b ON a.id = b.auction
      WHERE b.ts >= a.ts AND b.ts < a.expires AND b.price >= a.reserve
    )
    WHERE place = 1
    """,
    no_stream=_OWN_END,
)
def q9(events: Inputs) -> jt.Stream:
    """The winning bid of each auction.

    When an auction expires, the auction with its best bid. Rows bear the time of the expiry;
    ``start`` is when the auction was put up, ``bid_ts`` when the bid was made.

    >>> auctions = {name: [5] for name in _KEPT} | {"ts": [1], "id": [7], "expires": [20]}
    >>> auctions |= {"item_name": ["cup"], "description": [""]}
    >>> bids = {"ts": [2, 3, 4], "auction": [7] * 3, "bidder": [1, 2, 3], "price": [4, 5, 5]}
    >>> [row] = query.rows_of("q9", auctions=auctions, bids=bids)
    >>> row["start"], row["item_name"], row["price"], row["bid_ts"], row["bidder"]
    (1, 'cup', 5, 3, 2)
    """
    return plain_stream(
        closed_auctions(events, auction=[*_KEPT, "start"], bid=["bidder", "bid_ts"])
    )


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


class LastPrices(WaitingRecords):
    """A stage with the last prices of each seller, in rings.

    >>> prices = LastPrices()
    >>> closed = {"id": [1, 2, 3], "seller": [7, 7, 8], "price": [2, 3, 9]}
    >>> prices.add(0, jt.Batch(closed, times=[5, 5, 8]))
    array([5, 5, 8])
    >>> prices.take(None)["average"].tolist()
    [2.0, 2.5, 9.0]
    """

    def __init__(self) -> None:
        super().__init__("seller")
        # The number of all prices so far, the sum of those in the ring, and the ring.
        self._rings = KeyedRows("count", "sum", *(f"price {n}" for n in range(LAST)))
        self.parts["rings"] = self._rings

    def take(self, limit: int | None) -> jt.Batch | None:
        """Add the auctions that are complete, by time and id; returns a row for each."""
        batch = self.waiting.take(limit)
        if batch is None:
            return None
        batch = batch.take(np.lexsort((batch.column("id"), batch.times)))
        slots, _ = self._rings.find(batch.column("seller"))
        averages = np.empty(len(slots))
        _turn(self._rings.rows, slots, plain(batch.column("price")), averages)
        columns = {
            "auction": batch.column("id"),
            "seller": batch.column("seller"),
            "average": averages,
        }
        return jt.Batch.trusted(columns, batch.times, batch.time_name)


@jt.njit(cache=True)
def _turn(rings: Any, slots: Any, prices: Any, averages: Any) -> None:
    """Put each price in the place of the oldest one."""
    size = rings.shape[1] - 2
    for i in range(len(slots)):
        ring = rings[slots[i]]
        place = 2 + ring[0] % size
        ring[0] += 1
        ring[1] += prices[i] - ring[place]
        ring[place] = prices[i]
        averages[i] = ring[1] / min(ring[0], size)


START, EXPIRES, RESERVE, PRICE, BID_TIME, OTHERS = range(6)
"""The columns of `BestBids`; there is no bid yet if the price is -1."""

BID_TS: Final = "bid_ts"
"""The name of the time of the best bid, in the results."""
START_TS: Final = "start"
"""The name of the time at which an auction was put up."""
_NOTHING: Final = np.empty(0, np.int64)


def closed_auctions(
    events: Inputs,
    mechanism: Mechanism = "tokens",
    *,
    auction: Sequence[str] = (),
    bid: Sequence[str] = (),
) -> Between:
    """The auctions that have a winner, when they expire: ``id``, ``price`` and more columns.

    ``auction`` names columns of auctions, such as ``"category"``, or ``"start"`` for when they
    were put up. ``bid`` names columns of whole numbers of the winning bid, such as ``"bidder"``,
    or ``"bid_ts"`` for when that was made.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("winners")
    >>> columns = {"auctions": ["id", "reserve", "expires"], "bids": ["auction", "price", "bidder"]}
    >>> events = nexmark.add_inputs(flow, columns=columns)
    >>> flow.output("winners", closed_auctions(events, bid=["bidder"]))
    >>> auctions = {"ts": [10], "id": [7], "reserve": [50], "expires": [20]}
    >>> bids = {"ts": [11, 19], "auction": [7, 7], "price": [60, 70], "bidder": [1, 2]}
    >>> flow.run({"auctions": auctions, "bids": bids}, workers=2)["winners"].to_pylist()
    [{'ts': 20, 'id': 7, 'price': 70, 'bidder': 2}]
    """
    others = [name for name in bid if name != BID_TS]
    known = events.auctions.schema
    assert known is not None, "the inputs of NEXMark have schemas"
    types = {START_TS: pa.int64(), **{field.name: field.type for field in known}}
    schema = pa.schema(
        [
            ("id", pa.int64()),
            *((name, types[name]) for name in auction),
            ("price", pa.int64()),
            *((name, pa.int64()) for name in bid),
        ]
    )
    return add_stage(
        [
            marked_for(events.auctions, mechanism),
            marked_for(events.bids.select("auction", "price", *others), mechanism),
        ],
        lambda: OpenAuctions(auction, bid),
        pacts=[jt.Exchange("id"), jt.Exchange("auction")],
        mechanism=mechanism,
        name="closing",
        schema=schema,
    )


class OpenAuctions:
    """Auctions that wait for their expiry, with the best bids on them."""

    inclusive = True

    def __init__(self, auction: Sequence[str], bid: Sequence[str]) -> None:
        self._auction = tuple(auction)
        self._bid = tuple(bid)
        self._others = tuple(name for name in bid if name != BID_TS)
        self._best = BestBids(self._others)
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
        columns = {
            name: auctions.times if name == START_TS else auctions.column(name)
            for name in ("id", *self._auction)
        }
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
        best = self._best.close(np.asarray(closed["id"]))
        won = np.flatnonzero(best[:, PRICE] >= 0)
        if len(won) == 0:
            return None
        places = {BID_TS: BID_TIME}
        places |= {name: OTHERS + number for number, name in enumerate(self._others)}
        best = best.take(won, axis=0)
        winners: dict[str, npt.NDArray[Any]] = {"price": best[:, PRICE]}
        winners |= {name: best[:, places[name]] for name in self._bid}
        return closed.take(won).with_columns(
            {name: np.ascontiguousarray(column) for name, column in winners.items()}
        )

    @property
    def least(self) -> int | None:
        """The least expiry."""
        return self._closing.least

    @property
    def pending(self) -> Times:
        """All expiries."""
        return np.array(self._closing.times, dtype=np.int64)


class BestBids(KeyedRows):
    """Open auctions by id, each with the highest valid bid on it.

    ``others`` are integer columns of the bid that are kept with its price and time.

    >>> best = BestBids(others=["bidder"])
    >>> auctions = {"id": [7], "expires": [20], "reserve": [50]}
    >>> best.open(jt.Batch(auctions, times=[10]))
    >>> bids = {"auction": [7, 7, 7, 8], "price": [60, 70, 90, 90], "bidder": [1, 2, 3, 4]}
    >>> best.offer(jt.Batch(bids, times=[11, 19, 20, 20]))  # the bids for others
    array([3])
    >>> best.close(np.array([7]))[:, [PRICE, BID_TIME, OTHERS]]
    array([[70, 19, 2]])
    """

    def __init__(self, others: Sequence[str] = ()) -> None:
        self._others = tuple(others)
        # Compact: ids grow indefinitely, but few auctions are open at a time.
        super().__init__("start", "expires", "reserve", "price", BID_TS, *others, compact=True)

    def open(self, auctions: jt.Batch) -> None:
        """Accept bids on auctions from now on."""
        slots, new = self.find(auctions["id"])
        if len(new) < len(slots):
            twice = np.setdiff1d(np.arange(len(slots)), new)[0]
            raise BatchError(f"auction {auctions['id'][twice]} is put up while it is open already")
        no_bid = [-1] * (self.rows.shape[1] - PRICE)
        row = (auctions.times, auctions["expires"], auctions["reserve"], *no_bid)
        for column, values in zip(self.rows.T, row, strict=True):
            column[slots] = values

    def offer(self, bids: jt.Batch) -> npt.NDArray[np.intp]:
        """Keep the bids that are the best; returns those for auctions that are not open."""
        others = np.empty((len(self._others), len(bids)), np.int64)
        for row, name in zip(others, self._others, strict=True):
            row[:] = bids[name]
        unknown = np.empty(len(bids), np.intp)
        slots = self.keys.lookup([bids["auction"]], len(bids))
        times, prices = plain(bids.times), plain(bids["price"])
        return unknown[: _offer(self.rows, slots, times, prices, others, unknown)]

    def close(self, ids: Times) -> Times:
        """Take out the rows of open auctions."""
        slots = self.keys.lookup([ids], len(ids))
        rows: Times = self.rows.take(slots, axis=0)
        # Not cleared: `open` writes whole rows.
        self.keys.remove(slots)
        return rows


@jt.njit(cache=True)
def _offer(rows: Any, slots: Any, times: Any, prices: Any, others: Any, unknown: Any) -> int:
    """Keep the best bids; writes which are for unknown auctions, and returns their number."""
    count = 0
    for i in range(len(slots)):
        slot = slots[i]
        if slot < 0:
            unknown[count] = i
            count += 1
            continue
        price, time = prices[i], times[i]
        if price < rows[slot, PRICE] or price < rows[slot, RESERVE]:
            continue
        if time < rows[slot, START] or time >= rows[slot, EXPIRES]:
            continue
        better = price > rows[slot, PRICE]
        if not better:
            better = time < rows[slot, BID_TIME]
            equal = time == rows[slot, BID_TIME]
            for n in range(len(others)):
                better |= equal and others[n, i] < rows[slot, OTHERS + n]
                equal &= others[n, i] == rows[slot, OTHERS + n]
        if better:
            rows[slot, PRICE] = price
            rows[slot, BID_TIME] = time
            for n in range(len(others)):
                rows[slot, OTHERS + n] = others[n, i]
    return count
