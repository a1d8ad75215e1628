"""Queries that look at one bid at a time."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import jeton as jt
from jeton_evaluation.nexmark.queries import query
from jeton_evaluation.nexmark.queries.days import DAY
from jeton_evaluation.nexmark.sources import Inputs

EUROS: Final = 0.908
"""The exchange rate of the dollar."""
ONE_IN: Final = 123
"""Query 2 takes auctions whose ids are multiples of it."""
SIDE_ROWS: Final = 10_000
"""The size of the side table of query 13."""
LEAST: Final = 1_000_000
MOST: Final = 50_000_000
OF_HOUR: Final = pa.array(["night"] * 7 + ["other"] + ["day"] * 11 + ["other"] + ["night"] * 4)
"""The name of each of the 24 hours."""
LARGE: Final = ("apple", "google", "facebook", "baidu")
"""The large channels: their ids are their places here."""
_LARGE_SQL: Final = " ".join(f"WHEN '{name}' THEN '{id}'" for id, name in enumerate(LARGE))
_BIDS: Final = ("auction", "bidder", "price", "channel", "url")


@query.add({"bids": _BIDS}, "SELECT ts, auction, bidder, price, channel, url FROM bids")
def q0(events: Inputs) -> jt.Stream:
    """All bids, as they are.

    It shows the cost of moving records in and out.

    >>> query.rows_of("q0", bids={"ts": [1], "price": [500]})
    [{'ts': 1, 'price': 500}]
    """
    return events.bids


@query.add(
    {"bids": _BIDS},
    f"SELECT ts, auction, bidder, {EUROS}D * price AS price, channel, url FROM bids",
)
def q1(events: Inputs) -> jt.Stream:
    """All bids with their prices in euros.

    A price is multiplied by a fixed rate, as floating-point numbers are.

    >>> query.rows_of("q1", bids={"ts": [1], "price": [500]})
    [{'ts': 1, 'price': 454.0}]
    """
    return events.bids.with_columns(price=jt.col("price") * EUROS)


@query.add(
    {"bids": ("auction", "price")},
    f"SELECT ts, auction, price FROM bids WHERE auction % {ONE_IN} = 0",
)
def q2(events: Inputs) -> jt.Stream:
    """The bids for some auctions, chosen by their numbers.

    >>> query.rows_of("q2", bids={"ts": [1, 2], "auction": [1107, 1108], "price": [500, 700]})
    [{'ts': 1, 'auction': 1107, 'price': 500}]
    """
    return events.bids.filter(jt.col("auction") % ONE_IN == 0)


@cache
def side_table() -> pa.Array:
    """The values of the side table, each at the place of its key.

    >>> side_table()[7].as_py()
    'value 7'
    """
    return pa.array([f"value {key}" for key in range(SIDE_ROWS)])


@query.add(
    {"bids": ("auction", "bidder", "price")},
    f"""
    SELECT b.ts, b.auction, b.bidder, b.price, side.value
    FROM bids b
    JOIN (SELECT id AS key, concat('value ', id) AS value FROM range({SIDE_ROWS})) side
    ON b.auction % {SIDE_ROWS} = side.key
    """,
)
def q13(events: Inputs) -> jt.Stream:
    """Each bid with what a table, which is there from the start, says of its auction.

    The side table has a row for each remainder of an auction's id. It is small and does not
    change, so every worker has all of it: nothing is exchanged and no bid waits.

    >>> query.rows_of("q13", bids={"ts": [1], "auction": [10_007]})
    [{'ts': 1, 'auction': 10007, 'value': 'value 7'}]
    """

    def look_up(batch: jt.Batch) -> Any:
        return side_table().take(pa.array(batch["auction"] % SIDE_ROWS))

    return events.bids.with_columns(value=look_up)


@query.add(
    {"bids": ("auction", "bidder", "price", "url")},
    f"""
    SELECT ts, auction, bidder, {EUROS}D * price AS price,
      CASE WHEN hour BETWEEN 8 AND 18 THEN 'day' WHEN hour <= 6 OR hour >= 20 THEN 'night'
        ELSE 'other' END AS time_of_day,
      CAST(length(url) - length(replace(url, 'c', '')) AS INT) AS c_count
    FROM (SELECT *, ts % {DAY} * 24 DIV {DAY} AS hour FROM bids)
    WHERE {EUROS}D * price > {LEAST} AND {EUROS}D * price < {MOST}
    """,
)
def q14(events: Inputs) -> jt.Stream:
    """Bids of a middle price, with some things computed of each.

    They are converted to euros; those between a million and 50 million remain, both not included.
    Each is emitted with the time of day at which it was made, in words, and with how many letters
    "c" its url has. A `DAY` has 24 hours: *day* is from the 8th hour to the 18th, *night* from the
    20th to the 6th, and *other* lies between them. (Elsewhere the letters are counted in a text
    ``extra``, which bids here have only on demand.)

    >>> bids = {"ts": [0, DAY // 2], "price": [500, 5_000_000], "url": ["http", "https://x.com/c"]}
    >>> query.rows_of("q14", bids=bids)
    [{'ts': 1000000, 'price': 4540000.0, 'time_of_day': 'day', 'c_count': 2}]
    """

    def time_of_day(batch: jt.Batch) -> Any:
        return OF_HOUR.take(pa.array(batch.times % DAY * 24 // DAY))

    in_euros = events.bids.with_columns(price=jt.col("price") * EUROS)
    middle = in_euros.filter((jt.col("price") > LEAST) & (jt.col("price") < MOST))
    return middle.with_columns(
        time_of_day=time_of_day, c_count=lambda batch: pc.count_substring(batch["url"], "c")
    ).drop("url")


@query.add(
    {"bids": _BIDS},
    f"""
    SELECT ts, auction, bidder, price, channel, channel_id
    FROM (
      SELECT *, CASE lower(channel) {_LARGE_SQL}
        ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]+)', 2), '') END AS channel_id
      FROM bids
    )
    WHERE channel_id IS NOT NULL
    """,
)
def q21(events: Inputs) -> jt.Stream:
    """The bids with the id of the channel that they came through.

    Four large channels have ids of their own; the url of another one has its id after
    ``channel_id=``. Bids of which neither is known are left out. Ids are text.

    >>> urls = ["x", "x?query=1&channel_id=5", "x?query=1"]
    >>> query.rows_of("q21", bids={"ts": [1, 2, 3], "channel": ["Google", "a", "b"], "url": urls})
    [{'ts': 1, 'channel': 'Google', 'channel_id': '1'},
     {'ts': 2, 'channel': 'a', 'channel_id': '5'}]
    """
    names = pa.array(LARGE)
    ids = pa.array([str(place) for place in range(len(LARGE))])

    def channel_id(batch: jt.Batch) -> Any:
        large = ids.take(pc.index_in(pc.utf8_lower(batch["channel"]), value_set=names))
        # Urls are searched only where that is needed: it takes more time than all the rest.
        unknown = pc.if_else(pc.is_null(large), batch["url"], None)
        found = pc.extract_regex(unknown, r"(?:&|^)channel_id=(?P<id>[^&]+)")
        return pc.coalesce(large, pc.struct_field(found, "id"))

    known = events.bids.with_columns(channel_id=channel_id).drop("url")
    return known.filter(jt.col("channel_id").is_not_null())


@query.add(
    {"bids": _BIDS},
    """
    SELECT ts, auction, bidder, price, channel,
      get(parts, 3) AS dir1, get(parts, 4) AS dir2, get(parts, 5) AS dir3
    FROM (SELECT *, split(url, '/') AS parts FROM bids)
    """,
)
def q22(events: Inputs) -> jt.Stream:
    """The bids with the first three directories of their urls.

    A directory that a url does not have is null.

    >>> query.rows_of("q22", bids={"ts": [1], "url": ["https://www.nexmark.com/a/b"]})
    [{'ts': 1, 'dir1': 'a', 'dir2': 'b', 'dir3': None}]
    """

    def split(batch: jt.Batch) -> dict[str, Any]:
        parts = pc.list_slice(
            pc.split_pattern(batch["url"], "/"), 3, 6, return_fixed_size_list=True
        )
        kept = {name: column for name, column in batch.columns.items() if name != "url"}
        return kept | {f"dir{n + 1}": pc.list_element(parts, n) for n in range(3)}

    return events.bids.map(split)
