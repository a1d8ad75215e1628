"""Query 1: all bids with their prices in euros.

A price is multiplied by a fixed rate, as floating-point numbers are; all else stays.
"""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs

COLUMNS: Final[Columns] = {"bids": ("auction", "bidder", "price", "channel", "url")}

EUROS: Final = 0.908
"""The exchange rate of the dollar."""

SQL: Final = f"SELECT ts, auction, bidder, {EUROS}D * price AS price, channel, url FROM bids"


def query(events: Inputs) -> jt.Stream:
    """The bids, each with its price in euros.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q1")
    >>> columns = {"bids": ["price"]}
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=columns)))
    >>> flow.run({"bids": {"ts": [1], "price": [500]}})["result"].to_pylist()
    [{'ts': 1, 'price': 454.0}]
    """
    return events.bids.with_columns(price=lambda batch: batch["price"] * EUROS)
