"""Queries over windows of bids: tumbling, sliding and sessions."""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.queries import query
from jeton_evaluation.nexmark.sources import Inputs
from jeton_evaluation.programs.highest import highest_bids

WINDOW: Final = 10_000_000
"""The windows of queries 5 and 7, in microseconds."""
SLIDE: Final = 2_000_000
"""A window of query 5 is a whole number of slides."""
GAP: Final = 500_000
"""Between sessions of query 11."""
SECOND: Final = 1_000_000
"""The windows of query 12."""

_BIDS: Final = ("auction", "bidder", "price")


@query.add(
    {"bids": ("auction",)},
    f"""
    WITH counts AS (
        SELECT ts, auction, count(*) AS num
        FROM (
            SELECT auction, explode(sequence(
                (ts DIV {SLIDE} + 1) * {SLIDE}, ts DIV {SLIDE} * {SLIDE} + {WINDOW}, {SLIDE}
            )) AS ts
            FROM bids
        )
        GROUP BY ts, auction
    )
    SELECT ts, auction, num
    FROM (SELECT *, max(num) OVER (PARTITION BY ts) AS most FROM counts) WHERE num = most
    """,
    stream_sql=f"""
    SELECT {query.END_SQL}, hot.auction, hot.num FROM (
      SELECT window, explode(filter(all, item -> item.num = most)) AS hot FROM (
        SELECT window, collect_list(struct(auction, num)) AS all, max(num) AS most FROM (
          SELECT {query.window_sql(WINDOW, SLIDE)} AS window, auction, count(*) AS num
          FROM bids GROUP BY 1, 2
        ) GROUP BY window
      )
    )""",
)
def q5(events: Inputs) -> jt.Stream:
    """The hot items, those with the most bids in a sliding window.

    For each window of `WINDOW` microseconds that ends at a multiple of `SLIDE` and has bids, the
    auction with the most bids in it, at the window's end; if several have as many, all of them.

    >>> query.rows_of("q5", 2, bids={"ts": [1, 2, 3, 2_000_001], "auction": [7, 7, 8, 8]})[:3]
    [{'ts': 2000000, 'auction': 7, 'num': 2},
     {'ts': 4000000, 'auction': 7, 'num': 2},
     {'ts': 4000000, 'auction': 8, 'num': 2}]
    """
    counts = events.bids.key_by("auction").sliding(WINDOW, every=SLIDE).count(name="num")
    return counts.key_by().each_time().top_k(1, by="num", ties=True).drop("rank")


@query.add(
    {"bids": _BIDS},
    f"""
    WITH highest AS (
        SELECT ts DIV {WINDOW} AS window, max(price) AS price FROM bids GROUP BY ts DIV {WINDOW}
    )
    SELECT (h.window + 1) * {WINDOW} AS ts, b.auction, b.bidder, b.price, b.ts AS bid_ts
    FROM bids b JOIN highest h ON b.ts DIV {WINDOW} = h.window AND b.price = h.price
    """,
    stream_sql=f"""
    SELECT {query.END_SQL}, bid.auction, bid.bidder, bid.price, bid.bid_ts FROM (
      SELECT window, explode(max_by(same, price)) AS bid FROM (
        SELECT {query.window_sql(WINDOW)} AS window, price,
          collect_list(struct(auction, bidder, price, ts AS bid_ts)) AS same
        FROM bids GROUP BY 1, 2
      ) GROUP BY window
    )""",
    by_mechanism=lambda events, mechanism: highest_bids(events.bids, WINDOW, mechanism),
)
def q7(events: Inputs) -> jt.Stream:
    """The highest bid of each window.

    For each tumbling window of `WINDOW` microseconds (ten seconds), the bid with the highest price,
    at the window's end; if several bids have that price, all of them, each with its own time
    ``bid_ts``. Each worker finds the highest of its own bids first, so next to nothing travels.

    >>> bids = {"ts": [1, 2, 3], "auction": [7, 8, 9], "bidder": [4, 5, 6], "price": [20, 50, 50]}
    >>> query.rows_of("q7", 2, bids=bids)
    [{'ts': 10000000, 'auction': 8, 'bidder': 5, 'price': 50, 'bid_ts': 2},
     {'ts': 10000000, 'auction': 9, 'bidder': 6, 'price': 50, 'bid_ts': 3}]
    """
    highest = events.bids.key_by().tumbling(WINDOW).top_k(1, by="price", ties=True)
    return highest.drop("rank").rename({"event_time": "bid_ts"})


@query.add(
    {"bids": ("bidder",)},
    f"""
    SELECT max(ts) + {GAP} AS ts, bidder, min(ts) AS start, count(*) AS count
    FROM (
      SELECT ts, bidder,
        count_if(ts - before >= {GAP}) OVER (PARTITION BY bidder ORDER BY ts) AS session
      FROM (SELECT ts, bidder, lag(ts) OVER (PARTITION BY bidder ORDER BY ts) AS before FROM bids)
    )
    GROUP BY bidder, session
    """,
    # A microsecond short: Spark joins events that are exactly the gap apart.
    stream_sql=f"""
    SELECT unix_micros(session.end) + 1 AS ts, bidder, start, count FROM (
      SELECT session_window({query.AT}, '{GAP - 1} microseconds') AS session, bidder,
        min(ts) AS start, count(*) AS count
      FROM bids GROUP BY 1, 2
    )""",
)
def q11(events: Inputs) -> jt.Stream:
    """How many bids each bidder makes while active.

    Bids of a bidder that follow each other by less than `GAP` are one session. It is emitted at the
    time of its last bid plus `GAP`, with the time of its first bid and the number of bids. At the
    default rate of 10,000 events a second a bidder is active for five seconds, with some two bids a
    second: hence a gap of half a second (elsewhere it is ten).

    >>> query.rows_of("q11", bids={"ts": [0, 499_999, 999_999], "bidder": [3, 3, 3]})
    [{'ts': 999999, 'bidder': 3, 'start': 0, 'count': 2},
     {'ts': 1499999, 'bidder': 3, 'start': 999999, 'count': 1}]
    """
    return events.bids.key_by("bidder").session_window(GAP).count()


@query.add(
    {"bids": ("bidder",)},
    f"""
    SELECT (ts DIV {SECOND} + 1) * {SECOND} AS ts, bidder, count(*) AS count
    FROM bids GROUP BY 1, 2
    """,
    stream_sql=f"""
    SELECT {query.END_SQL}, bidder, count FROM (
      SELECT {query.window_sql(SECOND)} AS window, bidder, count(*) AS count FROM bids GROUP BY 1, 2
    )""",
)
def q12(events: Inputs) -> jt.Stream:
    """How many bids each bidder makes in a window.

    Elsewhere these are windows of processing time: of the clock on the wall while the query runs.
    Its answer is then another one each time. Here they are tumbling windows of the bids' own times,
    emitted at their ends, so that there is one right answer. They last a second: 10,000 events at
    the default rate.

    >>> query.rows_of("q12", bids={"ts": [1, 2, 1_000_000], "bidder": [3, 3, 3]})
    [{'ts': 1000000, 'bidder': 3, 'count': 2}, {'ts': 2000000, 'bidder': 3, 'count': 1}]
    """
    return events.bids.key_by("bidder").tumbling(SECOND).count()
