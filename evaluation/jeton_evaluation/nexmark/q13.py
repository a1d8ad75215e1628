"""Query 13: each bid with what a table, which is there from the start, says of its auction.

The side table has a row for each remainder of an auction's id by `ROWS`. It is small and does not
change, so every worker has all of it: nothing is exchanged and no bid waits.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import pyarrow as pa

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs

COLUMNS: Final[Columns] = {"bids": ("auction", "bidder", "price")}

ROWS: Final = 10_000

SQL: Final = f"""
SELECT b.ts, b.auction, b.bidder, b.price, side.value
FROM bids b
JOIN (SELECT id AS key, concat('value ', id) AS value FROM range({ROWS})) side
ON b.auction % {ROWS} = side.key
"""


@cache
def side_table() -> pa.Array:
    """The values of the side table, each at the place of its key.

    >>> side_table()[7].as_py()
    'value 7'
    """
    return pa.array([f"value {key}" for key in range(ROWS)])


def query(events: Inputs) -> jt.Stream:
    """The bids, each with its value of the side table.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q13")
    >>> columns = {"bids": ["auction"]}
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=columns)))
    >>> flow.run({"bids": {"ts": [1], "auction": [10_007]}})["result"].to_pylist()
    [{'ts': 1, 'auction': 10007, 'value': 'value 7'}]
    """

    def look_up(batch: jt.Batch) -> Any:
        return side_table().take(pa.array(batch["auction"] % ROWS))

    return events.bids.with_columns(value=look_up)
