"""One flow for each family of operators, its inputs, and where it can be had, the same in SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

import jeton as jt

ROWS = 3_000
_random = np.random.default_rng(7)

BIDS = pa.table(
    {
        "ts": pa.array(_random.integers(0, 1_000, ROWS)),
        "auction": pa.array(_random.integers(0, 40, ROWS)),
        "price": pa.array(_random.permutation(ROWS)),
        "who": pa.array(
            [None if n % 17 == 0 else f"bidder {n % 23}" for n in _random.integers(0, 500, ROWS)]
        ),
    }
)
AUCTIONS = pa.table(
    {
        "ts": pa.array(np.zeros(30, dtype=np.int64)),
        "auction": pa.array(np.arange(30)),
        "item": pa.array([None if n == 3 else f"item {n}" for n in range(30)]),
    }
)


@dataclass(frozen=True)
class Case:
    """A flow, and a query over the views ``bids`` and ``auctions`` that gives the same rows."""

    make: Callable[[], jt.Flow]
    sql: dict[str, str]
    inputs: dict[str, pa.Table] = field(default_factory=lambda: {"bids": BIDS})


def rows_of(frame: DataFrame) -> list[Any]:
    return in_order(row.asDict() for row in frame.collect())


def in_order(rows: Any) -> list[Any]:
    return sorted((tuple(row.values()) for row in rows), key=repr)


def bids_of(flow: jt.Flow) -> Any:
    return flow.input("bids", time="ts", schema=BIDS.schema)


def auctions_of(flow: jt.Flow) -> Any:
    return flow.input("auctions", time="ts", schema=AUCTIONS.schema)


def stateless() -> jt.Flow:
    flow = jt.Flow("stateless")
    cheap = bids_of(flow).filter(lambda batch: batch["price"] < 1500)
    flow.output("cheap", cheap.with_columns(double=lambda batch: batch["price"] * 2))
    return flow


def running() -> jt.Flow:
    flow = jt.Flow("rolling")
    flow.output("counts", bids_of(flow).key_by("who").running().count().select("who", "count"))
    return flow


def tumbling() -> jt.Flow:
    flow = jt.Flow("tumbling")
    bids = bids_of(flow).key_by("who").tumbling(100)
    flow.output("sums", bids.sum("price"))
    return flow


def sliding() -> jt.Flow:
    flow = jt.Flow("sliding")
    flow.output("counts", bids_of(flow).key_by("auction").sliding(200, every=100).count())
    return flow


def sessions() -> jt.Flow:
    flow = jt.Flow("sessions")
    flow.output("visits", bids_of(flow).key_by("auction").session_window(30).count())
    return flow


def top_k() -> jt.Flow:
    flow = jt.Flow("top_k")
    best = bids_of(flow).key_by("auction").tumbling(250).top_k(2, by="price")
    flow.output("best", best.select("auction", "price"))
    return flow


def distinct() -> jt.Flow:
    flow = jt.Flow("distinct")
    flow.output("who", bids_of(flow).key_by("who").distinct())
    return flow


def joined() -> jt.Flow:
    flow = jt.Flow("joined")
    bids, auctions = bids_of(flow), auctions_of(flow)
    both = bids.key_by("auction").interval_join(auctions.key_by("auction"), -1000, 0)
    flow.output("joined", both.select("auction", "price", "item"))
    return flow


def joined_each_time() -> jt.Flow:
    flow = jt.Flow("joined each time")
    early = bids_of(flow).filter(lambda batch: batch["ts"] < 50)
    both = early.key_by("auction").join(auctions_of(flow).key_by("auction"), how="left")
    flow.output("joined", both.select("auction", "price", "item"))
    return flow


def looped() -> jt.Flow:
    """How often each price can be halved."""
    flow = jt.Flow("looped")
    loop = flow.loop()
    again = loop.feedback(schema={"auction": pa.int64(), "price": pa.int64(), "times": pa.int64()})
    start = bids_of(flow).map(
        lambda batch: {
            "auction": batch["auction"],
            "price": batch["price"] + 1,
            "times": np.zeros(len(batch), dtype=np.int64),
        }
    )
    numbers = start.enter(loop).concat(again.stream)
    odd, even = numbers.branch(lambda batch: batch["price"] % 2 == 0)
    halved = even.map(
        lambda batch: {
            "auction": batch["auction"],
            "price": batch["price"] // 2,
            "times": batch["times"] + 1,
        }
    )
    again.connect(halved.exchange("price"))
    flow.output("odd", odd.leave())
    return flow


def many_ends() -> jt.Flow:
    """Two inputs and two outputs with names that Spark must quote."""
    flow = jt.Flow("many ends")
    bids, auctions = bids_of(flow), auctions_of(flow)
    flow.output("per who", bids.key_by("who").tumbling(500).count())
    flow.output("items.all", auctions.key_by("item").distinct())
    return flow


CASES = {
    "stateless": Case(
        stateless,
        {"cheap": "select ts, auction, price, who, price * 2 as double from bids where price<1500"},
    ),
    "rolling": Case(
        running,
        {
            # Which bid is the third is up to the order in which they come; that there is one not.
            "counts": "select who, row_number() over (partition by who order by ts) as count "
            "from bids"
        },
    ),
    "tumbling": Case(
        tumbling,
        {
            "sums": "select (ts div 100 + 1) * 100 as ts, who, sum(price) as sum from bids "
            "group by 1, 2"
        },
    ),
    "sliding": Case(
        sliding,
        {
            "counts": "select end as ts, auction, count(*) as count from bids "
            "lateral view explode(array((ts div 100 + 1) * 100, (ts div 100 + 2) * 100)) as end "
            "group by 1, 2"
        },
    ),
    "sessions": Case(
        sessions,
        {
            "visits": "select max(ts) + 30 as ts, auction, min(ts) as start, count(*) as count "
            "from (select *, sum(fresh) over (partition by auction order by ts) as visit from "
            "(select *, if(ts - lag(ts, 1, -99) over (partition by auction order by ts) >= 30, "
            "1, 0) as fresh from bids)) group by auction, visit"
        },
    ),
    "top_k": Case(
        top_k,
        {
            "best": "select end as ts, auction, price from (select *, row_number() over "
            "(partition by end, auction order by price desc) as place from "
            "(select (ts div 250 + 1) * 250 as end, auction, price from bids)) where place <= 2"
        },
    ),
    "distinct": Case(distinct, {"who": "select min(ts) as ts, who from bids group by who"}),
    "joined": Case(
        joined,
        {"joined": "select bids.ts, auction, price, item from bids join auctions using (auction)"},
        {"bids": BIDS, "auctions": AUCTIONS},
    ),
    "joined each time": Case(
        joined_each_time,
        {
            "joined": "select ts, auction, price, item from bids left join auctions "
            "using (ts, auction) where ts < 50"
        },
        {"bids": BIDS, "auctions": AUCTIONS},
    ),
    "looped": Case(
        looped,
        {
            "odd": "select ts, auction, p div cast(power(2, n) as bigint) as price, n as times "
            "from (select ts, auction, price + 1 as p, length(bin(price + 1)) - "
            "length(rtrim('0', bin(price + 1))) as n from bids)"
        },
    ),
    "many ends": Case(
        many_ends,
        {
            "per who": "select (ts div 500 + 1) * 500 as ts, who, count(*) as count from bids "
            "group by 1, 2",
            "items.all": "select min(ts) as ts, item from auctions group by item",
        },
        {"bids": BIDS, "auctions": AUCTIONS},
    ),
}
