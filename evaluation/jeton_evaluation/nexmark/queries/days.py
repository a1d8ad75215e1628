"""Queries of days: statistics of their bids, and the last and the highest of them.

Elsewhere a day is one of the calendar. Here it is a tumbling window of `DAY` microseconds: two
seconds, or 20,000 events at the default rate, so that a short run has several. Elsewhere every bid
updates the rows of its day, and nothing is ever over; here they are emitted when the day is over.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

import jeton as jt
from jeton_evaluation.nexmark.queries import query
from jeton_evaluation.nexmark.sources import Inputs

DAY: Final = 2_000_000
PLACES: Final = 10
"""The highest bids that query 19 emits."""
_BIDS: Final = ("auction", "bidder", "price")

RANKS: Final = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}
"""Ranks of bids by price, in SQL."""
_WHICH: Final = {"total": "true", **RANKS}
_KINDS: Final = ("bids", "bidders", "auctions")
_BIDS_SQL: Final = ", ".join(f"count_if({which}) AS {name}_bids" for name, which in _WHICH.items())
_STATISTICS_SQL: Final = ", ".join(
    [_BIDS_SQL]
    + [
        f"count(DISTINCT {column}) FILTER (WHERE {which}) AS {name}_{column}s"
        for column in ("bidder", "auction")
        for name, which in _WHICH.items()
    ]
)
# Distinct values are not counted on a stream, but sets of them are collected.
_SETS_SQL: Final = re.sub(
    r"count\(DISTINCT (\w+)\) (FILTER \([^)]*\))",
    r"CAST(size(collect_set(\1) \2) AS BIGINT)",
    _STATISTICS_SQL,
)
_PRICES_SQL: Final = (
    f"{_BIDS_SQL}, min(price) AS min_price, max(price) AS max_price, "
    "sum(price) / count(*) AS avg_price, sum(price) AS sum_price"
)
_DAY_SQL: Final = f"(ts DIV {DAY} + 1) * {DAY} AS ts"


def _stream_day(columns: str, keys: int) -> str:
    """Aggregates by day and some keys, which come first, on a stream."""
    groups = ", ".join(str(n + 1) for n in range(keys + 1))
    return f"""
    SELECT {query.END_SQL}, * EXCEPT (window) FROM (
      SELECT {query.window_sql(DAY)} AS window, {columns} FROM bids GROUP BY {groups}
    )"""


def ranked(bids: jt.Stream) -> jt.Stream:
    """Bids with a column for each rank: 1 if the price is of that rank, else 0.

    >>> flow = jt.Flow("ranks")
    >>> flow.output("ranked", ranked(flow.input("bids")))
    >>> flow.run({"bids": {"time": [1], "price": [10_000]}})["ranked"].to_pylist()
    [{'time': 1, 'price': 10000, 'rank1': 0, 'rank2': 1, 'rank3': 0}]
    """

    def rank(batch: jt.Batch) -> jt.Batch:
        low, high = batch["price"] < 10_000, batch["price"] >= 1_000_000
        ranks = zip(RANKS, (low, ~(low | high), high), strict=True)
        return batch.with_columns({name: of_it.astype(np.int64) for name, of_it in ranks})

    return bids.map(rank, name="ranks")


def bids_by_rank() -> dict[str, jt.agg.Aggregate]:
    """The numbers of bids, in all and of each rank: aggregates of the columns of `ranked`.

    >>> list(bids_by_rank())
    ['total_bids', 'rank1_bids', 'rank2_bids', 'rank3_bids']
    """
    return {"total_bids": jt.agg.count(), **{f"{rank}_bids": jt.agg.sum(rank) for rank in RANKS}}


def daily_statistics(bids: jt.Stream, *key: str) -> jt.Stream:
    """The numbers of bids, bidders and auctions of a day, in all and for each rank; by key.

    Bidders are counted in two steps, and auctions likewise. First each bidder's bids are counted,
    by the worker that has that bidder; when the day is over, a bidder is one row, and rows are
    counted. So no worker needs to know all bidders, nor to keep sets of them.
    """
    with_ranks = ranked(bids)

    def each(column: str, *kinds: str) -> jt.Stream:
        """A row for each bidder or auction of a day: its part of the statistics of some kinds."""
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


@query.add(
    {"bids": _BIDS},
    f"SELECT {_DAY_SQL}, {_STATISTICS_SQL} FROM bids GROUP BY 1",
    stream_sql=_stream_day(_SETS_SQL, 0),
)
def q15(events: Inputs) -> jt.Stream:
    """How many bids a day has, by how many bidders, for how many auctions.

    Each is counted for all bids and for those of each rank by price: below 10,000, from there up to
    a million, and from a million on. A day is one row, emitted when it is over.

    >>> bids = {"ts": [1, 2, 3], "auction": [7, 7, 8], "bidder": [3, 4, 3]}
    >>> [day] = query.rows_of("q15", bids={**bids, "price": [500, 500, 9**9]})
    >>> day["ts"], day["total_bids"], day["total_bidders"], day["total_auctions"]
    (2000000, 3, 2, 2)
    >>> day["rank1_bids"], day["rank1_bidders"], day["rank1_auctions"], day["rank2_auctions"]
    (2, 2, 1, 0)
    """
    return daily_statistics(events.bids)


@query.add(
    {"bids": (*_BIDS, "channel")},
    f"SELECT {_DAY_SQL}, channel, {_STATISTICS_SQL} FROM bids GROUP BY 1, 2",
    stream_sql=_stream_day(f"channel, {_SETS_SQL}", 1),
)
def q16(events: Inputs) -> jt.Stream:
    """The statistics of a day, for each channel.

    As query 15, but with a row for each channel that has bids on that day. (Elsewhere a row also
    has the minute of its last update, which a row emitted when the day is over does not need.)

    >>> bids = {"ts": [1, 2, 3], "auction": [7, 7, 8], "bidder": [3, 4, 3], "price": [500] * 3}
    >>> found = query.rows_of("q16", bids={**bids, "channel": ["Apple", "Google", "Apple"]})
    >>> [(row["channel"], row["total_bidders"], row["rank1_auctions"]) for row in found]
    [('Apple', 1, 2), ('Google', 1, 1)]
    """
    return daily_statistics(events.bids, "channel")


@query.add(
    {"bids": ("auction", "price")},
    f"SELECT {_DAY_SQL}, auction, {_PRICES_SQL} FROM bids GROUP BY 1, 2",
    stream_sql=_stream_day(f"auction, {_PRICES_SQL}", 1),
)
def q17(events: Inputs) -> jt.Stream:
    """How many bids each auction gets in a day, and their prices.

    A row for each auction and day with bids, emitted when the day is over: how many there are, of
    all prices and of each rank, and the least, greatest, mean and sum of their prices.

    >>> [row] = query.rows_of("q17", bids={"ts": [1, 2], "auction": [7, 7], "price": [500, 20_000]})
    >>> row["total_bids"], row["rank1_bids"], row["max_price"], row["sum_price"]
    (2, 1, 20000, 20500)
    """
    return (
        ranked(events.bids)
        .key_by("auction")
        .tumbling(DAY)
        .aggregate(
            **bids_by_rank(),
            min_price=jt.agg.min("price"),
            max_price=jt.agg.max("price"),
            avg_price=jt.agg.mean("price"),
            sum_price=jt.agg.sum("price"),
        )
    )


@query.add(
    {"bids": _BIDS},
    f"""
    SELECT {_DAY_SQL}, auction, bidder, price, ts AS bid_ts
    FROM (
      SELECT *, row_number() OVER (
        PARTITION BY ts DIV {DAY}, auction, bidder ORDER BY ts DESC, price
      ) AS place
      FROM bids
    )
    WHERE place = 1
    """,
    stream_sql=f"""
    SELECT {query.END_SQL}, auction, bidder, last.price, -last.back AS bid_ts FROM (
      SELECT {query.window_sql(DAY)} AS window, auction, bidder,
        min(struct(-ts AS back, price)) AS last
      FROM bids GROUP BY 1, 2, 3
    )""",
)
def q18(events: Inputs) -> jt.Stream:
    """The last bid of each bidder for each auction.

    Of the bids of a bidder for an auction on one day the latest one, emitted when the day is over,
    with its own time as ``bid_ts``. Of several at the same time the one with the least price
    counts.

    >>> bids = {"ts": [1, 3, 2], "auction": [7] * 3, "bidder": [3] * 3, "price": [500, 400, 600]}
    >>> query.rows_of("q18", bids=bids)
    [{'ts': 2000000, 'auction': 7, 'bidder': 3, 'price': 400, 'bid_ts': 3}]
    """
    bids = events.bids.with_columns(bid_ts=lambda batch: batch.times)
    last = bids.key_by("auction", "bidder").tumbling(DAY).top_k(1, by="bid_ts")
    return last.drop("event_time", "rank")


@query.add(
    {"bids": _BIDS},
    f"""
    SELECT {_DAY_SQL}, auction, bidder, price, ts AS bid_ts, rank
    FROM (
      SELECT *, CAST(row_number() OVER (
        PARTITION BY ts DIV {DAY}, auction ORDER BY price DESC, ts, bidder
      ) AS BIGINT) AS rank
      FROM bids
    )
    WHERE rank <= {PLACES}
    """,
    stream_sql=f"""
    SELECT {query.END_SQL}, auction, best.bidder, -best.down AS price, best.ts AS bid_ts,
      CAST(place + 1 AS BIGINT) AS rank
    FROM (
      SELECT window, auction, posexplode(best) AS (place, best) FROM (
        SELECT {query.window_sql(DAY)} AS window, auction, slice(
          sort_array(collect_list(struct(-price AS down, ts, bidder))), 1, {PLACES}
        ) AS best
        FROM bids GROUP BY 1, 2
      )
    )""",
)
def q19(events: Inputs) -> jt.Stream:
    """The ten highest bids for each auction.

    Of the bids for an auction on one day, emitted when the day is over, with their ranks from 1
    and their own times as ``bid_ts``. Of equal prices the earlier bid comes first, then the one of
    the bidder with the lesser id.

    >>> bids = {"ts": [1, 2], "auction": [7, 7], "bidder": [3, 4], "price": [5, 6]}
    >>> query.rows_of("q19", bids=bids)
    [{'ts': 2000000, 'auction': 7, 'bidder': 4, 'price': 6, 'bid_ts': 2, 'rank': 1},
     {'ts': 2000000, 'auction': 7, 'bidder': 3, 'price': 5, 'bid_ts': 1, 'rank': 2}]
    """
    best = events.bids.key_by("auction").tumbling(DAY).top_k(PLACES, by="price")
    return best.rename({"event_time": "bid_ts"})
