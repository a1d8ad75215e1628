"""All queries where everything ties: few times, auctions, bidders and prices, on every boundary."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jeton_evaluation.nexmark import queries, truth
from jeton_evaluation.nexmark.config import Config, Kind

STEP = 250_000
"""All windows, days and gaps of the queries are multiples of it."""
STEPS = 90
PRICES = (9_999, 10_000, 10_001, 999_999, 1_000_000, 1_101_321, 1_101_322, 55_066_079, 55_066_080)
CHANNELS = ("Apple", "GOOGLE", "facebook", "baidu", "apples", "")
URLS = (
    "",
    "//",
    "channel_id=3",
    "https://c.cc/a/b/c/item.htm?query=1&channel_id=7&c=1",
    "https://www.nexmark.com/a//b",
    "https://www.nexmark.com/xchannel_id=3/&channel_id=",
    "https://www.nexmark.com/a/b?channel_id=9&channel_id=&channel_id=8",
)


@cache
def crowd(seed: int) -> dict[str, pa.Table]:
    """Events of all kinds, in no order; ids of auctions are their own, those of persons not."""
    draw = np.random.default_rng(seed)

    def table(kind: Kind, count: int, **columns: Any) -> pa.Table:
        columns["ts"] = draw.integers(0, STEPS, count) * STEP - draw.integers(0, 2, count)
        columns["ts"] = np.maximum(columns["ts"], 0)
        if kind == "auctions":
            columns["expires"] = columns["ts"] + draw.integers(1, 20, count) * STEP
        return pa.table({name: columns[name] for name in Config().schema(kind).names})

    def some(values: Any, count: int) -> list[Any]:
        return [values[place] for place in draw.integers(0, len(values), count)]

    return {
        "persons": table(
            "persons",
            60,
            id=draw.integers(0, 8, 60),
            name=some(["Ada", "Tony"], 60),
            email=[""] * 60,
            credit_card=[""] * 60,
            city=some(["Salem", "Boise"], 60),
            state=some(["OR", "ID", "CA", "WA"], 60),
        ),
        "auctions": table(
            "auctions",
            40,
            id=draw.permutation(40) * 41,
            seller=draw.integers(0, 8, 40),
            category=draw.integers(10, 12, 40),
            initial_bid=some(PRICES, 40),
            reserve=some(PRICES, 40),
            item_name=some(["cup", "pen"], 40),
            description=[""] * 40,
        ),
        "bids": table(
            "bids",
            2_000,
            auction=draw.integers(0, 42, 2_000) * 41,
            bidder=draw.integers(0, 5, 2_000),
            price=some(PRICES, 2_000),
            channel=some(CHANNELS, 2_000),
            url=some(URLS, 2_000),
        ),
    }


def wanted_columns(query: queries.Query, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The inputs of a query."""
    return {str(k): tables[k].select(["ts", *names]) for k, names in query.columns.items()}


def rows(table: pa.Table) -> Counter[Any]:
    return Counter(tuple(row.items()) for row in table.to_pylist())


@pytest.mark.parametrize("name", queries.names())
def test_crowded(name: str, spark: SparkSession) -> None:
    query = queries.get(name)
    inputs = wanted_columns(query, crowd(1))
    frames = {kind: spark.createDataFrame(table) for kind, table in inputs.items()}
    wanted = rows(truth.answer(spark, query, frames).toArrow())
    assert sum(wanted.values()) > 1, "this would not show much"
    for mechanism in (None, *query.mechanisms):
        for workers, seed in ((1, None), (3, None), (2, 1)):
            result = query.flow(mechanism=mechanism).run(inputs, workers=workers, seed=seed)
            assert rows(result[queries.RESULT]) == wanted, (mechanism, workers)


@pytest.mark.parametrize("name", queries.names())
def test_nothing_comes_of_nothing(name: str) -> None:
    query = queries.get(name)
    empty = {kind: table.slice(0, 0) for kind, table in crowd(1).items()}
    inputs = wanted_columns(query, empty)
    for mechanism in (None, *query.mechanisms):
        result = query.flow(mechanism=mechanism).run(inputs, workers=2)[queries.RESULT]
        assert result.num_rows == 0
