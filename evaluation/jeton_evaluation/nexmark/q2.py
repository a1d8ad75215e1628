"""Query 2: the bids for some auctions, chosen by their numbers."""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs

COLUMNS: Final[Columns] = {"bids": ("auction", "price")}

ONE_IN: Final = 123
"""Auctions whose ids are multiples of it are chosen."""

SQL: Final = f"SELECT ts, auction, price FROM bids WHERE auction % {ONE_IN} = 0"


def query(events: Inputs) -> jt.Stream:
    """The bids for every 123rd auction.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q2")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> bids = {"ts": [1, 2], "auction": [1107, 1108], "price": [500, 700]}
    >>> flow.run({"bids": bids})["result"].to_pylist()
    [{'ts': 1, 'auction': 1107, 'price': 500}]
    """
    return events.bids.filter(lambda batch: batch["auction"] % ONE_IN == 0)
