"""Query 12: how many bids each bidder makes in a window.

Elsewhere these are windows of processing time: of the clock on the wall while the query runs. Its
answer is then another one each time. Here they are tumbling windows of the bids' own times, emitted
at their ends, so that there is one right answer. `WINDOW` is a second: 10,000 events at the default
rate.
"""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs

COLUMNS: Final[Columns] = {"bids": ("bidder",)}

WINDOW: Final = 1_000_000

SQL: Final = f"""
SELECT (ts DIV {WINDOW} + 1) * {WINDOW} AS ts, bidder, count(*) AS count
FROM bids
GROUP BY 1, 2
"""


def query(events: Inputs) -> jt.Stream:
    """The number of bids of each bidder and window.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q12")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> bids = {"ts": [1, 2, 1_000_000], "bidder": [3, 3, 3]}
    >>> flow.run({"bids": bids})["result"].to_pylist()
    [{'ts': 1000000, 'bidder': 3, 'count': 2}, {'ts': 2000000, 'bidder': 3, 'count': 1}]
    """
    return events.bids.key_by("bidder").tumbling(WINDOW).count()
