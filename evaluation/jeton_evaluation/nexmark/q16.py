"""Query 16: the statistics of a day, for each channel.

As query 15, but with a row for each channel that has bids on that day. (Elsewhere a row also has
the minute of its last update, which a row emitted when the day is over does not need.)
"""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.nexmark.statistics import DAY_SQL, STATISTICS_SQL, daily_statistics

COLUMNS: Final[Columns] = {"bids": ("auction", "bidder", "price", "channel")}

SQL: Final = f"SELECT {DAY_SQL}, channel, {STATISTICS_SQL} FROM bids GROUP BY 1, 2"


def query(events: Inputs) -> jt.Stream:
    """A row of statistics for each channel and day.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q16")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> bids = {
    ...     "ts": [1, 2, 3],
    ...     "auction": [7, 7, 8],
    ...     "bidder": [3, 4, 3],
    ...     "price": [500, 500, 500],
    ... }
    >>> bids["channel"] = ["Apple", "Google", "Apple"]
    >>> result = flow.run({"bids": bids})["result"]
    >>> result.select(["channel", "total_bidders", "rank1_auctions"]).to_pylist()
    [{'channel': 'Apple', 'total_bidders': 1, 'rank1_auctions': 2},
     {'channel': 'Google', 'total_bidders': 1, 'rank1_auctions': 1}]
    """
    return daily_statistics(events.bids, "channel")
