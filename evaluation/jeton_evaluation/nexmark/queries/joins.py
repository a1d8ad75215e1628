"""Queries that join auctions with persons, or bids with auctions."""

from __future__ import annotations

from typing import Final

import jeton as jt
from jeton_evaluation.nexmark.queries import query
from jeton_evaluation.nexmark.sources import Inputs

CATEGORY: Final = 10
STATES: Final = ("OR", "ID", "CA")
EVER: Final = 2**62
"""As far apart as times can be."""
NEW: Final = 500_000
"""The windows of query 8, in microseconds."""
EARLY: Final = 1_000_000
"""How far bids may be ahead of their auctions in query 20, in microseconds."""


@query.add(
    {"auctions": ("id", "seller", "category"), "persons": ("id", "name", "city", "state")},
    f"""
    SELECT greatest(a.ts, p.ts) AS ts, p.name, p.city, p.state, a.id
    FROM auctions a JOIN persons p ON a.seller = p.id
    WHERE a.category = {CATEGORY} AND p.state IN {STATES}
    """,
)
def q3(events: Inputs) -> jt.Stream:
    """Who sells things of one category in some states, and what.

    A join of auctions and persons over all of time: each auction of the category with the person
    who sells it, if that is one from these states. The pair is emitted as soon as both are there,
    at the later of their two times; so both sides are kept indefinitely.

    >>> auctions = {"ts": [1], "id": [7], "seller": [3], "category": [10]}
    >>> persons = {"ts": [5], "id": [3], "name": ["Ada"], "city": ["Salem"], "state": ["OR"]}
    >>> query.rows_of("q3", auctions=auctions, persons=persons)
    [{'ts': 5, 'name': 'Ada', 'city': 'Salem', 'state': 'OR', 'id': 7}]
    """
    things = events.auctions.filter(jt.col("category") == CATEGORY)
    sellers = events.persons.filter(jt.col("state").is_in(STATES))
    pairs = things.key_by("seller").interval_join(sellers.key_by("id"), -EVER, EVER)
    return pairs.select("name", "city", "state", "id")


@query.add(
    {"auctions": ("seller",), "persons": ("id", "name")},
    f"""
    SELECT p.ts, p.id, p.name
    FROM (SELECT DISTINCT (ts DIV {NEW} + 1) * {NEW} AS ts, id, name FROM persons) p
    JOIN (SELECT DISTINCT (ts DIV {NEW} + 1) * {NEW} AS ts, seller FROM auctions) a
    ON p.ts = a.ts AND p.id = a.seller
    """,
    stream_sql=f"""
    SELECT unix_micros(p.window.end) AS ts, p.id, p.name
    FROM (SELECT {query.window_sql(NEW)} AS window, id, name FROM persons GROUP BY 1, 2, 3) p
    JOIN (SELECT {query.window_sql(NEW)} AS window, seller FROM auctions GROUP BY 1, 2) a
    ON p.window = a.window AND p.id = a.seller
    """,
)
def q8(events: Inputs) -> jt.Stream:
    """Who has registered and put something up for sale in the same window.

    For each tumbling window, those who registered in it and are the seller of some auction of it:
    once, at the window's end, for any number of auctions. Windows are `NEW` long: at the default
    rate of 10,000 events a second, the half second in which 100 persons register (elsewhere it is
    ten seconds, or twelve hours).

    >>> persons = {"ts": [5, 6], "id": [3, 4], "name": ["Ada", "Tony"]}
    >>> query.rows_of("q8", auctions={"ts": [1, 7, 600_000], "seller": [3, 3, 4]}, persons=persons)
    [{'ts': 500000, 'id': 3, 'name': 'Ada'}]
    """
    persons = events.persons.key_by("id", "name").tumbling(NEW).distinct()
    sellers = events.auctions.key_by("seller").tumbling(NEW).distinct()
    return persons.key_by("id").join(sellers.key_by("seller"))


_BIDS_SQL: Final = """
    SELECT greatest(b.ts, a.ts) AS ts, b.auction, b.bidder, b.price, b.ts AS bid_ts,
      a.seller, a.initial_bid, a.reserve, a.expires, a.item_name
    FROM bids b JOIN auctions a ON b.auction = a.id"""


@query.add(
    {
        "auctions": ("id", "seller", "category", "initial_bid", "reserve", "expires", "item_name"),
        "bids": ("auction", "bidder", "price"),
    },
    f"{_BIDS_SQL} WHERE a.category = {CATEGORY} AND a.ts <= b.ts + {EARLY}",
    stream_sql=f"""
    {_BIDS_SQL} AND a.{query.AT} <= b.{query.AT} + INTERVAL {EARLY // 1_000_000} SECONDS
    WHERE a.category = {CATEGORY}
    """,
)
def q20(events: Inputs) -> jt.Stream:
    """The bids for auctions of one category, each with its auction.

    A bid is emitted at its own time, or at that of its auction if that is put up later: bidders
    may be `EARLY` microseconds ahead, and no more. So auctions of the category are kept
    indefinitely, but bids only for that long, which is far more than the generator needs at its
    default rate. (Elsewhere bids too are kept indefinitely.)

    >>> auctions = {"ts": [3, 3], "id": [7, 8], "category": [10, 11], "seller": [1, 2]}
    >>> bids = {"ts": [1, 4, 4], "auction": [7, 7, 8], "price": [500, 600, 700]}
    >>> query.rows_of("q20", auctions=auctions, bids=bids)
    [{'ts': 3, 'auction': 7, 'price': 500, 'bid_ts': 1, 'seller': 1},
     {'ts': 4, 'auction': 7, 'price': 600, 'bid_ts': 4, 'seller': 1}]
    """
    auctions = events.auctions.filter(jt.col("category") == CATEGORY).drop("category")
    bids = events.bids.with_columns(bid_ts=lambda batch: batch.times)
    return bids.key_by("auction").interval_join(auctions.key_by("id"), -EVER, EARLY)
