"""Query 18: the last bid of each bidder for each auction.

Of the bids of a bidder for an auction on one day (as long as `statistics` has it) the latest one,
emitted when the day is over, with its own time as ``bid_ts``. Of several at the same time the one
with the least price counts. (Elsewhere each bid replaces the one before it, and nothing is ever
over.)
"""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.nexmark.statistics import DAY, DAY_SQL

COLUMNS: Final[Columns] = {"bids": ("auction", "bidder", "price")}

SQL: Final = f"""
SELECT {DAY_SQL}, auction, bidder, price, ts AS bid_ts
FROM (
  SELECT *, row_number() OVER (
    PARTITION BY ts DIV {DAY}, auction, bidder ORDER BY ts DESC, price
  ) AS place
  FROM bids
)
WHERE place = 1
"""


def query(events: Inputs) -> jt.Stream:
    """The last bid of each bidder, auction and day.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q18")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> bids = {
    ...     "ts": [1, 3, 2],
    ...     "auction": [7, 7, 7],
    ...     "bidder": [3, 3, 3],
    ...     "price": [500, 400, 600],
    ... }
    >>> flow.run({"bids": bids})["result"].to_pylist()
    [{'ts': 2000000, 'auction': 7, 'bidder': 3, 'price': 400, 'bid_ts': 3}]
    """
    bids = events.bids.with_columns(bid_ts=lambda batch: batch.times)
    last = bids.key_by("auction", "bidder").tumbling(DAY).top_k(1, by="bid_ts")
    return last.drop("event_time", "rank")
