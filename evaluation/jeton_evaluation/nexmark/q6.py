"""Query 6: the average selling price of each seller, over the last ten auctions.

When an auction expires, its price is that of the highest valid bid on it (see `closing`); auctions
without one do not count. For each auction that closes, at that time, the average price of this and
of the seller's auctions that closed before, the last `LAST` at most in all. Of those that close at
the same time, the one with the lesser id is first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton_evaluation.nexmark.closing import closed_auctions
from jeton_evaluation.nexmark.config import Columns
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.nexmark.stages import InOrder
from jeton_evaluation.programs.mechanisms import add_stage, plain, plain_stream

COLUMNS: Final[Columns] = {
    "auctions": ("id", "seller", "reserve", "expires"),
    "bids": ("auction", "price"),
}

LAST: Final = 10

SQL: Final = f"""
WITH closed AS (
    SELECT a.expires AS ts, a.id, a.seller, max(b.price) AS price
    FROM auctions a JOIN bids b ON a.id = b.auction
    WHERE b.ts >= a.ts AND b.ts < a.expires AND b.price >= a.reserve
    GROUP BY a.expires, a.id, a.seller
)
SELECT ts, id AS auction, seller, avg(price) OVER (
    PARTITION BY seller ORDER BY ts, id ROWS BETWEEN {LAST - 1} PRECEDING AND CURRENT ROW
) AS average
FROM closed
"""

_SCHEMA: Final = pa.schema(
    [("auction", pa.int64()), ("seller", pa.int64()), ("average", pa.float64())]
)


def query(events: Inputs) -> jt.Stream:
    """The average price of the seller's last auctions, for each auction that closes.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q6")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> auctions = {"id": [1, 2], "seller": [3, 3], "reserve": [5, 5], "expires": [20, 30]}
    >>> bids = {"ts": [11, 12, 13], "auction": [1, 1, 2], "price": [6, 8, 9]}
    >>> inputs = {"auctions": {"ts": [1, 2], **auctions}, "bids": bids}
    >>> flow.run(inputs, workers=2)["result"].to_pylist()
    [{'ts': 20, 'auction': 1, 'seller': 3, 'average': 8.0},
     {'ts': 30, 'auction': 2, 'seller': 3, 'average': 8.5}]
    """
    averages = add_stage(
        [closed_auctions(events, auction=["seller"])],
        lambda: InOrder(LastPrices(), key="seller", by="id"),
        pacts=[jt.Exchange("seller")],
        mechanism="tokens",
        name="last prices",
        schema=_SCHEMA,
    )
    return plain_stream(averages, _SCHEMA)


class LastPrices:
    """The last prices of each seller, in rings.

    >>> closed = {"id": [1, 2, 3], "seller": [7, 7, 8], "price": [2, 3, 9]}
    >>> LastPrices().fold(jt.Batch(closed, times=[5, 5, 8]))["average"].tolist()
    [2.0, 2.5, 9.0]
    """

    def __init__(self) -> None:
        self._sellers = jt.state.KeySlots(1)
        self._rings = np.zeros((64, LAST), np.int64)
        # By slot: the number of all prices so far, and the sum of those in its ring.
        self._sums = np.zeros((64, 2), np.int64)

    def fold(self, batch: jt.Batch) -> jt.Batch:
        """Add auctions, by time and id; returns a row for each."""
        slots = self._slots(batch["seller"])
        averages = np.empty(len(slots))
        _turn(self._rings, self._sums, slots, plain(batch["price"]), averages)
        columns = {"auction": batch["id"], "seller": batch["seller"], "average": averages}
        return jt.Batch.trusted(columns, batch.times, batch.time_name)

    def _slots(self, sellers: Any) -> Any:
        slots, _ = self._sellers.find([sellers], len(sellers))
        self._rings = jt.state.grown(self._rings, self._sellers.slots_made)
        self._sums = jt.state.grown(self._sums, self._sellers.slots_made)
        return slots

    def snapshot(self) -> pa.Table:
        """All sellers."""
        live = self._sellers.live()
        keys = plain(self._sellers.values(live)[0])
        columns = {"seller": keys, "count": self._sums[live, 0]}
        columns |= {f"price {n}": self._rings[live, n] for n in range(LAST)}
        return pa.table({"bin": jt.state.bins_of([keys]), **columns})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """The sellers again."""
        slots = self._slots(state.column("seller").to_numpy())
        for n in range(LAST):
            self._rings[slots, n] = state.column(f"price {n}").to_numpy()
        self._sums[slots, 0] = state.column("count").to_numpy()
        self._sums[slots, 1] = self._rings[slots].sum(axis=1)


@jt.njit(cache=True)
def _turn(rings: Any, sums: Any, slots: Any, prices: Any, averages: Any) -> None:
    """Put each price in the place of the oldest one."""
    size = rings.shape[1]
    for i in range(len(slots)):
        slot = slots[i]
        place = sums[slot, 0] % size
        sums[slot, 0] += 1
        sums[slot, 1] += prices[i] - rings[slot, place]
        rings[slot, place] = prices[i]
        averages[i] = sums[slot, 1] / min(sums[slot, 0], size)
