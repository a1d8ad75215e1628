"""Query 11: how many bids each bidder makes while active.

Bids of a bidder that follow each other by less than `GAP` are one session. It is emitted at the
time of its last bid plus `GAP`, with the time of its first bid and the number of bids. At the
default rate of 10,000 events a second a bidder is active for five seconds, with some two bids a
second: hence a gap of half a second (elsewhere it is ten).
"""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs

COLUMNS: Final[Columns] = {"bids": ("bidder",)}

GAP: Final = 500_000

SQL: Final = f"""
SELECT max(ts) + {GAP} AS ts, bidder, min(ts) AS start, count(*) AS count
FROM (
  SELECT ts, bidder,
    count_if(ts - before >= {GAP}) OVER (PARTITION BY bidder ORDER BY ts) AS session
  FROM (SELECT ts, bidder, lag(ts) OVER (PARTITION BY bidder ORDER BY ts) AS before FROM bids)
)
GROUP BY bidder, session
"""


def query(events: Inputs) -> jt.Stream:
    """The sessions of each bidder, with the number of bids.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q11")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> bids = {"ts": [0, 499_999, 999_999], "bidder": [3, 3, 3]}
    >>> flow.run({"bids": bids})["result"].to_pylist()  # doctest: +NORMALIZE_WHITESPACE
    [{'ts': 999999, 'bidder': 3, 'start': 0, 'count': 2},
     {'ts': 1499999, 'bidder': 3, 'start': 999999, 'count': 1}]
    """
    return events.bids.key_by("bidder").session_window(GAP).count()
