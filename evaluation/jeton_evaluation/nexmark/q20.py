"""Query 20: the bids for auctions of one category, each with its auction.

A bid is emitted at its own time, or at that of its auction if that is put up later: bidders may be
`EARLY` microseconds ahead, and no more. So auctions of the category are kept indefinitely, but bids
only for that long, which is far more than the generator needs at its default rate. (Elsewhere bids
too are kept indefinitely.)
"""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.q3 import CATEGORY, EVER
from jeton_evaluation.nexmark.sources import Inputs

COLUMNS: Final[Columns] = {
    "auctions": ("id", "seller", "category", "initial_bid", "reserve", "expires", "item_name"),
    "bids": ("auction", "bidder", "price"),
}

EARLY: Final = 1_000_000

SQL: Final = f"""
SELECT greatest(b.ts, a.ts) AS ts, b.auction, b.bidder, b.price, b.ts AS bid_ts,
  a.seller, a.initial_bid, a.reserve, a.expires, a.item_name
FROM bids b JOIN auctions a ON b.auction = a.id
WHERE a.category = {CATEGORY} AND a.ts <= b.ts + {EARLY}
"""


def query(events: Inputs) -> jt.Stream:
    """The bids for auctions of the category, with what is known of those.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q20")
    >>> columns = {"auctions": ["id", "category", "seller"], "bids": ["auction", "price"]}
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=columns)))
    >>> auctions = {"ts": [3, 3], "id": [7, 8], "category": [10, 11], "seller": [1, 2]}
    >>> bids = {"ts": [1, 4, 4], "auction": [7, 7, 8], "price": [500, 600, 700]}
    >>> flow.run({"auctions": auctions, "bids": bids})["result"].to_pylist()
    [{'ts': 3, 'auction': 7, 'price': 500, 'bid_ts': 1, 'seller': 1},
     {'ts': 4, 'auction': 7, 'price': 600, 'bid_ts': 4, 'seller': 1}]
    """
    auctions = events.auctions.filter(lambda batch: batch["category"] == CATEGORY).drop("category")
    bids = events.bids.with_columns(bid_ts=lambda batch: batch.times)
    return bids.key_by("auction").interval_join(auctions.key_by("id"), -EVER, EARLY)
