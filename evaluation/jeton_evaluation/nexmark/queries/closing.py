"""Queries of auctions that close: windows whose ends the data itself gives.

An auction closes when it expires, and the best valid bid on it wins: one of at least the reserve,
not before the auction's start, and before its expiry; of several with the highest price, the first,
then the one with the lesser values of its other columns. Auctions without such a bid close in
silence. There may be millions of them open, each with an expiry of its own: with tokens, one is
held, for the least of them all.
"""

from __future__ import annotations

from typing import Any, Final

import jeton as jt
from jeton_evaluation.nexmark.queries import query
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.programs.closing import average_closing_price

LAST: Final = 10
"""The auctions of a seller that query 6 looks back on."""
_KEPT: Final = ("item_name", "description", "initial_bid", "reserve", "seller", "category")
VALID: Final = jt.col("price") >= jt.col("reserve")
"""Whether a bid on an auction counts."""
_OWN_END: Final = "a window whose end is a column of the data"


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
    by_mechanism=lambda events, mechanism: average_closing_price(
        events.auctions, events.bids, mechanism
    ),
)
def q4(events: Inputs) -> jt.Stream:
    """The average closing price of a category.

    The price of an auction that closes is that of its best bid. Whenever auctions of a category
    close, the average price of all of them that have closed until then: one row for each such time
    and category, at that time.

    >>> auctions = {"id": [1, 2], "category": [10, 10], "reserve": [5, 5], "expires": [20, 30]}
    >>> bids = {"ts": [11, 12, 13], "auction": [1, 1, 2], "price": [6, 8, 9]}
    >>> query.rows_of("q4", 2, auctions={"ts": [1, 2], **auctions}, bids=bids)
    [{'ts': 20, 'category': 10, 'average': 8.0}, {'ts': 30, 'category': 10, 'average': 8.5}]
    """
    auctions, bids = events.auctions.key_by("id"), events.bids.key_by("auction")
    closed = auctions.group_join(bids, until="expires", where=VALID).max("price", name="price")
    together = closed.key_by("category").each_time()
    sums = together.aggregate(price=jt.agg.sum("price"), count=jt.agg.count())
    so_far = sums.key_by("category").running(ordered=True)
    totals = so_far.aggregate(prices=jt.agg.sum("price"), counts=jt.agg.sum("count"))

    def average(batch: jt.Batch) -> dict[str, Any]:
        return {"category": batch["category"], "average": batch["prices"] / batch["counts"]}

    return totals.map(average)


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
    auctions, bids = events.auctions.key_by("id"), events.bids.key_by("auction")
    closed = auctions.group_join(bids, until="expires", where=VALID).max("price", name="price")
    prices = closed.select("id", "seller", "price").rename({"id": "auction"})
    last = prices.key_by("seller").rolling(rows=LAST).mean("price", name="average")
    return last.drop("price")


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
    auctions = events.auctions.with_columns(start=lambda batch: batch.times).key_by("id")
    bids = events.bids.key_by("auction")
    won = auctions.group_join(bids, until="expires", where=VALID).top("price")
    return won.rename({"event_time": "bid_ts"}).select(
        "id", *_KEPT, "start", "price", "bidder", "bid_ts"
    )
