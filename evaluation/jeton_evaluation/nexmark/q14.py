"""Query 14: bids of a middle price, with some things computed of each.

They are converted to euros; those between a million and 50 million remain, both not included. Each
is emitted with the time of day at which it was made, in words, and with how many letters "c" its
url has. A day is `DAY` long, as in `statistics`, and has 24 hours: *day* is from the 8th hour to
the 18th, *night* from the 20th to the 6th, and what lies between them is *other*. (Elsewhere the
letters are counted in a text ``extra``, which bids here have only on demand.)
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.q1 import EUROS
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.nexmark.statistics import DAY

COLUMNS: Final[Columns] = {"bids": ("auction", "bidder", "price", "url")}

LEAST: Final = 1_000_000
MOST: Final = 50_000_000
OF_HOUR: Final = pa.array(["night"] * 7 + ["other"] + ["day"] * 11 + ["other"] + ["night"] * 4)
"""The name of each of the 24 hours."""

SQL: Final = f"""
SELECT ts, auction, bidder, {EUROS}D * price AS price,
  CASE WHEN hour BETWEEN 8 AND 18 THEN 'day' WHEN hour <= 6 OR hour >= 20 THEN 'night'
    ELSE 'other' END AS time_of_day,
  CAST(length(url) - length(replace(url, 'c', '')) AS INT) AS c_count
FROM (SELECT *, ts % {DAY} * 24 DIV {DAY} AS hour FROM bids)
WHERE {EUROS}D * price > {LEAST} AND {EUROS}D * price < {MOST}
"""


def query(events: Inputs) -> jt.Stream:
    """The bids of a middle price, with the time of day and the number of letters.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q14")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> bids = {"ts": [0, DAY // 2], "auction": [7, 7], "bidder": [3, 3]}
    >>> bids |= {"price": [500, 5_000_000], "url": ["http", "https://www.nexmark.com/c"]}
    >>> flow.run({"bids": bids})["result"].select(["price", "time_of_day", "c_count"]).to_pylist()
    [{'price': 4540000.0, 'time_of_day': 'day', 'c_count': 2}]
    """

    def time_of_day(batch: jt.Batch) -> Any:
        return OF_HOUR.take(pa.array(batch.times % DAY * 24 // DAY))

    in_euros = events.bids.with_columns(price=lambda batch: batch["price"] * EUROS)
    middle = in_euros.filter(
        lambda batch: np.logical_and(batch["price"] > LEAST, batch["price"] < MOST)
    )
    return middle.with_columns(
        time_of_day=time_of_day, c_count=lambda batch: pc.count_substring(batch["url"], "c")
    ).drop("url")
