"""Query 0: all bids, as they are.

It shows what it costs to move records in and out.
"""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs

COLUMNS: Final[Columns] = {"bids": ("auction", "bidder", "price", "channel", "url")}

SQL: Final = "SELECT ts, auction, bidder, price, channel, url FROM bids"


def query(events: Inputs) -> jt.Stream:
    """The bids themselves.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q0")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> bids = nexmark.tables(nexmark.Config(), 100, columns=COLUMNS)["bids"]
    >>> flow.run({"bids": bids})["result"].num_rows
    92
    """
    return events.bids
