"""Auctions that close: windows whose ends the data itself gives, for queries 4, 6 and 9.

An auction closes when it expires, and the best valid bid on it wins: one of at least the reserve,
not before the auction's start, and before its expiry; of several with the highest price, the first.
Auctions without such a bid close in silence. There may be millions of them open, each with an
expiry of its own: with tokens, one is held, for the least of them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.errors import BatchError
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.programs.mechanisms import (
    Between,
    Mechanism,
    Times,
    add_stage,
    marked_for,
    plain,
)

ID, START, EXPIRES, RESERVE, PRICE, BID_TIME, OTHERS = range(7)
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
    """The auctions that have a winner, when they expire: ``id``, ``price`` and what is asked for.

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


class BestBids:
    """Open auctions by id, each with the highest valid bid on it.

    A bid is valid from the auction's start up to its expiry, at the reserve or above. Of equal
    prices the earlier bid is better, then the one with lesser values in ``others``, the integer
    columns of the bid that are kept besides.

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
        self._auctions = jt.state.KeySlots(1, compact=True)
        self._rows = np.zeros((64, OTHERS + len(others)), np.int64)

    def open(self, auctions: jt.Batch) -> None:
        """Accept bids on auctions from now on."""
        rows = np.full((len(auctions), self._rows.shape[1]), -1, np.int64)
        rows[:, ID] = auctions["id"]
        rows[:, START] = auctions.times
        rows[:, EXPIRES] = auctions["expires"]
        rows[:, RESERVE] = auctions["reserve"]
        self._put(rows)

    def offer(self, bids: jt.Batch) -> npt.NDArray[np.intp]:
        """Keep the bids that are the best; returns those for auctions that are not open."""
        others = np.empty((len(self._others), len(bids)), np.int64)
        for row, name in zip(others, self._others, strict=True):
            row[:] = bids[name]
        unknown = np.empty(len(bids), np.intp)
        slots = self._auctions.lookup([bids["auction"]], len(bids))
        times, prices = plain(bids.times), plain(bids["price"])
        return unknown[: _offer(self._rows, slots, times, prices, others, unknown)]

    def close(self, ids: Times) -> Times:
        """Take out the rows of open auctions."""
        slots = self._auctions.lookup([ids], len(ids))
        rows: Times = self._rows[slots]
        self._auctions.remove(slots)
        return rows

    def _put(self, rows: Times) -> None:
        slots, new = self._auctions.find([rows[:, ID].copy()], len(rows))
        if len(new) < len(rows):
            twice = np.setdiff1d(np.arange(len(rows)), new)[0]
            raise BatchError(f"auction {rows[twice, ID]} is put up while it is open already")
        self._rows = jt.state.grown(self._rows, self._auctions.slots_made)
        self._rows[slots] = rows

    def snapshot(self) -> pa.Table:
        """All open auctions."""
        rows = self._rows[self._auctions.live()]
        columns = {str(n): np.ascontiguousarray(rows[:, n]) for n in range(rows.shape[1])}
        return pa.table({"bin": jt.state.bins_of([columns["0"]]), **columns})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Open them again."""
        values = [state.column(name).to_numpy() for name in state.column_names if name != "bin"]
        self._put(np.column_stack(values))


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
