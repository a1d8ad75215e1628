"""Query 17: how many bids each auction gets in a day, and their prices.

A row for each auction and day with bids, emitted when the day is over: how many there are, of all
prices and of each rank, and the least, greatest, mean and sum of their prices. Days and ranks are
those of `statistics`. (Elsewhere every bid updates the row of its auction and day.)
"""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.nexmark.statistics import BIDS_SQL, DAY, DAY_SQL, bids_by_rank, ranked

COLUMNS: Final[Columns] = {"bids": ("auction", "price")}

SQL: Final = f"""
SELECT {DAY_SQL}, auction, {BIDS_SQL}, min(price) AS min_price, max(price) AS max_price,
  sum(price) / count(*) AS avg_price, sum(price) AS sum_price
FROM bids
GROUP BY 1, 2
"""


def query(events: Inputs) -> jt.Stream:
    """A row of statistics for each auction and day.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q17")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> bids = {"ts": [1, 2, 3], "auction": [7, 7, 7], "price": [500, 600, 20_000]}
    >>> result = flow.run({"bids": bids})["result"]
    >>> result.select(["total_bids", "rank1_bids", "max_price", "sum_price"]).to_pylist()
    [{'total_bids': 3, 'rank1_bids': 2, 'max_price': 20000, 'sum_price': 21100}]
    """
    by_auction = ranked(events.bids).key_by("auction").tumbling(DAY)
    return by_auction.aggregate(
        **bids_by_rank(),
        min_price=jt.agg.min("price"),
        max_price=jt.agg.max("price"),
        avg_price=jt.agg.mean("price"),
        sum_price=jt.agg.sum("price"),
    )
