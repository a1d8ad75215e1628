"""Query 4: the average closing price of a category.

When an auction expires, its price is that of the highest valid bid on it (see `closing`); auctions
without one do not count. Whenever auctions of a category close, the average price of all of them
that have closed until then: one row for each such time and category, at that time.
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
from jeton_evaluation.programs.mechanisms import Mechanism, add_stage, plain, plain_stream

COLUMNS: Final[Columns] = {
    "auctions": ("id", "category", "reserve", "expires"),
    "bids": ("auction", "price"),
}

SQL: Final = """
WITH closed AS (
    SELECT a.expires AS ts, a.id, a.category, max(b.price) AS price
    FROM auctions a JOIN bids b ON a.id = b.auction
    WHERE b.ts >= a.ts AND b.ts < a.expires AND b.price >= a.reserve
    GROUP BY a.expires, a.id, a.category
),
together AS (
    SELECT ts, category, sum(price) AS price, count(*) AS count FROM closed GROUP BY ts, category
)
SELECT ts, category, sum(price) OVER so_far / sum(count) OVER so_far AS average
FROM together WINDOW so_far AS (PARTITION BY category ORDER BY ts)
"""

_SCHEMA: Final = pa.schema([("category", pa.int64()), ("average", pa.float64())])


def query(events: Inputs, mechanism: Mechanism = "tokens") -> jt.Stream:
    """The average price of each category, whenever it changes.

    >>> from jeton_evaluation import nexmark
    >>> flow = jt.Flow("q4")
    >>> flow.output("result", query(nexmark.add_inputs(flow, columns=COLUMNS)))
    >>> auctions = {"id": [1, 2], "category": [10, 10], "reserve": [5, 5], "expires": [20, 30]}
    >>> bids = {"ts": [11, 12, 13], "auction": [1, 1, 2], "price": [6, 8, 9]}
    >>> inputs = {"auctions": {"ts": [1, 2], **auctions}, "bids": bids}
    >>> flow.run(inputs, workers=2)["result"].to_pylist()
    [{'ts': 20, 'category': 10, 'average': 8.0}, {'ts': 30, 'category': 10, 'average': 8.5}]
    """
    averages = add_stage(
        [closed_auctions(events, mechanism, auction=["category"])],
        lambda: InOrder(Averages(), key="category", by="category"),
        pacts=[jt.Exchange("category")],
        mechanism=mechanism,
        name="averages",
        schema=_SCHEMA,
    )
    return plain_stream(averages, _SCHEMA)


class Averages:
    """The sum and number of all prices of each category.

    >>> closed = {"category": [10, 10, 10], "price": [2, 3, 7]}
    >>> Averages().fold(jt.Batch(closed, times=[5, 5, 8])).rows()
    [{'time': 5, 'category': 10, 'average': 2.5}, {'time': 8, 'category': 10, 'average': 4.0}]
    """

    def __init__(self) -> None:
        self._categories = jt.state.KeySlots(1)
        # Sum and count by slot.
        self._sums = np.zeros((64, 2), np.int64)

    def fold(self, batch: jt.Batch) -> jt.Batch:
        """Add auctions, by time and category; returns a row for each of these."""
        slots = self._slots(batch["category"])
        last, averages = np.empty(len(slots), np.intp), np.empty(len(slots))
        prices = plain(batch["price"])
        count = _add(self._sums, slots, plain(batch.times), prices, last, averages)
        changed = batch.take(last[:count]).select("category")
        return changed.with_columns({"average": averages[:count]})

    def _slots(self, categories: Any) -> Any:
        slots, _ = self._categories.find([categories], len(categories))
        self._sums = jt.state.grown(self._sums, self._categories.slots_made)
        return slots

    def snapshot(self) -> pa.Table:
        """All categories."""
        live = self._categories.live()
        keys, sums = plain(self._categories.values(live)[0]), self._sums[live]
        columns = {"category": keys, "sum": sums[:, 0].copy(), "count": sums[:, 1].copy()}
        return pa.table({"bin": jt.state.bins_of([keys]), **columns})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """The categories again."""
        slots = self._slots(state.column("category").to_numpy())
        self._sums[slots, 0] = state.column("sum").to_numpy()
        self._sums[slots, 1] = state.column("count").to_numpy()


@jt.njit(cache=True)
def _add(sums: Any, slots: Any, times: Any, prices: Any, last: Any, averages: Any) -> int:
    """Add prices; where a time and category end, write the place and the average so far."""
    count = 0
    for i in range(len(slots)):
        slot = slots[i]
        sums[slot, 0] += prices[i]
        sums[slot, 1] += 1
        if i + 1 == len(slots) or slots[i + 1] != slot or times[i + 1] != times[i]:
            last[count] = i
            averages[count] = sums[slot, 0] / sums[slot, 1]
            count += 1
    return count
