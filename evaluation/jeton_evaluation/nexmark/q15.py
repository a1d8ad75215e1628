"""Query 15: how many bids a day has, by how many bidders, for how many auctions.

Each is counted for all bids and of those of each rank by price: below 10,000, from there up to a
million, and from a million on. Elsewhere every bid updates the row of its day; here a day, as long
as `statistics` has it, is one row, emitted when the day is over.
"""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.nexmark.statistics import DAY_SQL, STATISTICS_SQL, daily_statistics

COLUMNS: Final[Columns] = {"bids": ("auction", "bidder", "price")}

SQL: Final = f"SELECT {DAY_SQL}, {STATISTICS_SQL} FROM bids GROUP BY 1"


def query(events: Inputs) -> jt.Stream:
    """A row of statistics for each day.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q15")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> bids = {
    ...     "ts": [1, 2, 3],
    ...     "auction": [7, 7, 8],
    ...     "bidder": [3, 4, 3],
    ...     "price": [500, 500, 9**9],
    ... }
    >>> [day] = flow.run({"bids": bids})["result"].to_pylist()
    >>> day["ts"], day["total_bids"], day["total_bidders"], day["total_auctions"]
    (2000000, 3, 2, 2)
    >>> day["rank1_bids"], day["rank1_bidders"], day["rank1_auctions"]
    (2, 2, 1)
    """
    return daily_statistics(events.bids)
