"""Query 7: the highest bid of each window.

For each tumbling window of `WINDOW` microseconds (ten seconds), the bid with the highest price, at
the window's end; if several bids have that price, all of them, each with its own time ``bid_ts``.
Each worker finds the highest of its own bids first, so next to nothing travels between them.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

import jeton as jt
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.nexmark.stages import Highest
from jeton_evaluation.programs.mechanisms import Mechanism, add_stage, marked_for, plain_stream

COLUMNS: Final[Columns] = {"bids": ("auction", "bidder", "price")}

WINDOW: Final = 10_000_000

SQL: Final = f"""
WITH highest AS (
    SELECT ts DIV {WINDOW} AS window, max(price) AS price FROM bids GROUP BY ts DIV {WINDOW}
)
SELECT (h.window + 1) * {WINDOW} AS ts, b.auction, b.bidder, b.price, b.ts AS bid_ts
FROM bids b JOIN highest h ON b.ts DIV {WINDOW} = h.window AND b.price = h.price
"""

_SCHEMA: Final = pa.schema(
    [(name, pa.int64()) for name in ("auction", "bidder", "price", "bid_ts")]
)


def query(events: Inputs, mechanism: Mechanism = "tokens") -> jt.Stream:
    """The highest bids of each window.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q7")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> bids = {"ts": [1, 2, 3], "auction": [7, 8, 9], "bidder": [4, 5, 6], "price": [20, 50, 50]}
    >>> flow.run({"bids": bids}, workers=2)["result"].to_pylist()
    [{'ts': 10000000, 'auction': 8, 'bidder': 5, 'price': 50, 'bid_ts': 2},
     {'ts': 10000000, 'auction': 9, 'bidder': 6, 'price': 50, 'bid_ts': 3}]
    """
    bids = marked_for(events.bids.select("auction", "bidder", "price"), mechanism)
    here = add_stage(
        [bids],
        lambda: Highest("price", WINDOW),
        pacts=[None],
        mechanism=mechanism,
        name="highest here",
        schema=_SCHEMA,
    )
    highest = add_stage(
        [here],
        lambda: Highest("price"),
        pacts=[jt.Exchange(lambda batch: batch.times)],
        mechanism=mechanism,
        name="highest",
        schema=_SCHEMA,
    )
    return plain_stream(highest, _SCHEMA)
