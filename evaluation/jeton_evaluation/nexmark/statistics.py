"""Common parts of queries 14 to 19: days, ranks of prices, and the statistics of a day's bids.

Elsewhere a day is one of the calendar. Here it is a tumbling window of `DAY` microseconds: two
seconds, or 20,000 events at the default rate, so that a short run has several.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

import jeton as jt

DAY: Final = 2_000_000

LOW: Final = 10_000
"""Prices below it are of rank 1."""
HIGH: Final = 1_000_000
"""Prices from here on are of rank 3."""

DAY_SQL: Final = f"(ts DIV {DAY} + 1) * {DAY} AS ts"
"""The end of a bid's day."""

_RANKS: Final = ("rank1", "rank2", "rank3")
_WHICH: Final = ("total", *_RANKS)
_KINDS: Final = ("bids", "bidders", "auctions")

_WHICH_SQL: Final = {
    "total": "true",
    "rank1": f"price < {LOW}",
    "rank2": f"price >= {LOW} AND price < {HIGH}",
    "rank3": f"price >= {HIGH}",
}

BIDS_SQL: Final = ", ".join(f"count_if({_WHICH_SQL[which]}) AS {which}_bids" for which in _WHICH)
"""How many bids there are, in all and of each rank."""

STATISTICS_SQL: Final = ", ".join(
    [BIDS_SQL]
    + [
        f"count(DISTINCT {column}) FILTER (WHERE {_WHICH_SQL[which]}) AS {which}_{column}s"
        for column in ("bidder", "auction")
        for which in _WHICH
    ]
)
"""The same, and by how many bidders and for how many auctions they are."""


def ranked(bids: jt.Stream) -> jt.Stream:
    """Bids with a column for each rank: 1 if the price is of that rank, else 0.

    >>> flow = jt.Flow("ranks")
    >>> flow.output("ranked", ranked(flow.input("bids")))
    >>> flow.run({"bids": {"time": [1], "price": [10_000]}})["ranked"].to_pylist()
    [{'time': 1, 'price': 10000, 'rank1': 0, 'rank2': 1, 'rank3': 0}]
    """

    def rank(batch: jt.Batch) -> jt.Batch:
        low, high = batch["price"] < LOW, batch["price"] >= HIGH
        ranks = zip(_RANKS, (low, ~(low | high), high), strict=True)
        return batch.with_columns({name: of_it.astype(np.int64) for name, of_it in ranks})

    return bids.map(rank, name="ranks")


def bids_by_rank() -> dict[str, jt.agg.Aggregate]:
    """How many bids there are, in all and of each rank: aggregates of what `ranked` makes.

    >>> list(bids_by_rank())
    ['total_bids', 'rank1_bids', 'rank2_bids', 'rank3_bids']
    """
    return {"total_bids": jt.agg.count(), **{f"{rank}_bids": jt.agg.sum(rank) for rank in _RANKS}}


def daily_statistics(bids: jt.Stream, *key: str) -> jt.Stream:
    """How many bids there are in a day, by how many bidders, for how many auctions; by key.

    Each of these is emitted in all and for each rank of prices, when the day is over.

    Bidders are counted in two steps, and auctions likewise. First each bidder's bids are counted,
    by the worker that has that bidder; when the day is over, a bidder is one row, and rows are
    counted. So no worker needs to know all bidders, nor to keep sets of them.

    >>> flow = jt.Flow("statistics")
    >>> flow.output("days", daily_statistics(flow.input("bids")))
    >>> bids = {"time": [1, 2], "bidder": [3, 3], "auction": [7, 8], "price": [500, 500]}
    >>> [day] = flow.run({"bids": bids})["days"].to_pylist()
    >>> day["total_bids"], day["rank1_bidders"], day["rank1_auctions"], day["rank2_auctions"]
    (2, 1, 2, 0)
    """
    with_ranks = ranked(bids)

    def each(column: str, *kinds: str) -> jt.Stream:
        """A row for each bidder or auction of a day: what it adds to the statistics of kinds."""
        counted = with_ranks.key_by(*key, column).tumbling(DAY).aggregate(**bids_by_rank())

        def added(batch: jt.Batch) -> dict[str, Any]:
            made: dict[str, Any] = {name: batch.column(name) for name in key}
            nothing = np.zeros(len(batch), np.int64)
            for kind in _KINDS:
                for which in _WHICH:
                    count = np.asarray(batch.column(f"{which}_bids"))
                    adds = count if kind == "bids" else np.sign(count)
                    made[f"{which}_{kind}"] = adds if kind in kinds else nothing
            return made

        return counted.map(added)

    # All bids are in both streams, but shall be counted once.
    both = each("bidder", "bids", "bidders").concat(each("auction", "auctions"))
    names = [f"{which}_{kind}" for kind in _KINDS for which in _WHICH]
    return both.key_by(*key).each_time().aggregate(**{name: jt.agg.sum(name) for name in names})
