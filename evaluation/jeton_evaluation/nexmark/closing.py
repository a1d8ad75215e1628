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
from jeton.idioms.mechanisms import Mechanism
from jeton.idioms.waiting import Waiting
from jeton_evaluation.nexmark import stages
from jeton_evaluation.nexmark.best_bids import BID_TIME, OTHERS, PRICE, BestBids
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.nexmark.stages import Times

BID_TS: Final = "bid_ts"
"""The name of the time of the best bid, in what comes out."""
START: Final = "start"
"""The name of the time at which an auction was put up."""
_NOTHING: Final = np.empty(0, np.int64)


def closed_auctions(
    events: Inputs,
    mechanism: Mechanism = "tokens",
    *,
    auction: Sequence[str] = (),
    bid: Sequence[str] = (),
) -> stages.Between:
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
    types = {START: pa.int64(), **{field.name: field.type for field in known}}
    schema = pa.schema(
        [
            ("id", pa.int64()),
            *((name, types[name]) for name in auction),
            ("price", pa.int64()),
            *((name, pa.int64()) for name in bid),
        ]
    )
    return stages.add_stage(
        [
            stages.begin(events.auctions, mechanism),
            stages.begin(events.bids.select("auction", "price", *others), mechanism),
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
        self._closing = Waiting(["id"])
        # Bids whose auctions may still come. They need no right to speak: their auctions bring it.
        self._early = Waiting(["auction"])
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
            self._early.add(batch.take(unknown))
        return _NOTHING

    def _open(self, auctions: jt.Batch) -> Times:
        auctions = auctions.filter(auctions["expires"] > auctions.times)
        if len(auctions) == 0:
            return _NOTHING
        self._best.open(auctions)
        columns = {
            name: auctions.times if name == START else auctions.column(name)
            for name in ("id", *self._auction)
        }
        expires: Times = np.asarray(auctions["expires"])
        self._closing.add(jt.Batch.trusted(columns, expires, auctions.time_name))
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
