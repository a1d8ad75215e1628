"""Query 19: the ten highest bids for each auction.

Of the bids for an auction on one day (as long as `statistics` has it), emitted when the day is
over, with their ranks from 1 and their own times as ``bid_ts``. Of equal prices the earlier bid
comes first, then the one of the bidder with the lesser id. (Elsewhere each bid may change the ten,
and nothing is ever over.)
"""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.nexmark.statistics import DAY, DAY_SQL

COLUMNS: Final[Columns] = {"bids": ("auction", "bidder", "price")}

PLACES: Final = 10

SQL: Final = f"""
SELECT {DAY_SQL}, auction, bidder, price, ts AS bid_ts, rank
FROM (
  SELECT *, CAST(row_number() OVER (
    PARTITION BY ts DIV {DAY}, auction ORDER BY price DESC, ts, bidder
  ) AS BIGINT) AS rank
  FROM bids
)
WHERE rank <= {PLACES}
"""


def query(events: Inputs) -> jt.Stream:
    """The ten highest bids of each auction and day.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q19")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> bids = {"ts": [1, 2], "auction": [7, 7], "bidder": [3, 4], "price": [500, 600]}
    >>> flow.run({"bids": bids})["result"].to_pylist()
    [{'ts': 2000000, 'auction': 7, 'bidder': 4, 'price': 600, 'bid_ts': 2, 'rank': 1},
     {'ts': 2000000, 'auction': 7, 'bidder': 3, 'price': 500, 'bid_ts': 1, 'rank': 2}]
    """
    best = events.bids.key_by("auction").tumbling(DAY).top_k(PLACES, by="price")
    return best.rename({"event_time": "bid_ts"})
