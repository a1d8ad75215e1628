"""Query 9: the winning bid of each auction.

When an auction expires, the auction with its best valid bid (see `closing`): one of at least the
reserve, from the auction's start up to its expiry, with the highest price; of several, the
earliest, and of those the one of the bidder with the least id. Auctions without such a bid are not
emitted. Rows bear the time of the expiry; ``start`` is when the auction was put up, ``bid_ts`` when
the bid was made.
"""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.closing import closed_auctions
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs

_KEPT: Final = ("item_name", "description", "initial_bid", "reserve", "seller", "category")

COLUMNS: Final[Columns] = {
    "auctions": ("id", "expires", *_KEPT),
    "bids": ("auction", "bidder", "price"),
}

SQL: Final = f"""
SELECT expires AS ts, id, {", ".join(_KEPT)}, start, price, bidder, bid_ts
FROM (
  SELECT a.*, a.ts AS start, b.price, b.bidder, b.ts AS bid_ts,
    row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts, b.bidder) AS place
  FROM auctions a JOIN bids b ON a.id = b.auction
  WHERE b.ts >= a.ts AND b.ts < a.expires AND b.price >= a.reserve
)
WHERE place = 1
"""


def query(events: Inputs) -> jt.Stream:
    """Each auction that has a winner, with the bid that won.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q9")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> auctions = nexmark.tables(nexmark.Config(), 5, columns=COLUMNS)["auctions"].slice(0, 1)
    >>> id, reserve = auctions["id"][0].as_py(), auctions["reserve"][0].as_py()
    >>> bids = {"ts": [101, 102, 103], "auction": [id] * 3, "bidder": [1, 2, 3]}
    >>> bids["price"] = [reserve - 1, reserve, reserve]
    >>> result = flow.run({"auctions": auctions, "bids": bids})["result"]
    >>> result.select(["start", "bid_ts", "bidder"]).to_pylist()
    [{'start': 100, 'bid_ts': 102, 'bidder': 2}]
    """
    closed = closed_auctions(events, auction=[*_KEPT, "start"], bid=["bidder", "bid_ts"])
    assert isinstance(closed, jt.Stream), "with tokens, there are no marks"
    return closed
