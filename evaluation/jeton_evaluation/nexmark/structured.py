"""The queries in Spark's Structured Streaming, as far as it can express them.

Where its own rules allow the query's SQL, that is what runs; else the same question is asked in a
way that it can answer: windows of timestamps with a watermark, one aggregation after the other,
lists instead of ranks. A window is emitted when the watermark has passed its end, so the last ones
of a bounded stream are never emitted: its rows are the right ones, but not all of them. Sessions
are cut a microsecond short, since Spark joins events that are exactly the gap apart and the query
does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from jeton_evaluation.nexmark import q5, q7, q8, q11, q12, q19, q20
from jeton_evaluation.nexmark.config import Config
from jeton_evaluation.nexmark.frames import stream_frames
from jeton_evaluation.nexmark.q3 import CATEGORY
from jeton_evaluation.nexmark.queries import Query
from jeton_evaluation.nexmark.statistics import BIDS_SQL, DAY, STATISTICS_SQL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AT: Final = "at"
"""The name of an event's time as a timestamp: what Spark's windows and watermarks want."""
_END: Final = "unix_micros(window.end) AS ts"

AS_IT_IS: Final = ("q0", "q1", "q2", "q3", "q13", "q14", "q21", "q22")
"""Queries whose SQL does for a stream: row by row, or joins that keep both sides indefinitely."""


# Distinct values are not counted on a stream, but sets of them are collected.
_SETS_SQL: Final = re.sub(
    r"count\(DISTINCT (\w+)\) (FILTER \([^)]*\))",
    r"CAST(size(collect_set(\1) \2) AS BIGINT)",
    STATISTICS_SQL,
)


def _window(size: int, slide: int | None = None) -> str:
    lengths = [f"'{length} microseconds'" for length in (size, slide) if length is not None]
    return f"window({AT}, {', '.join(lengths)})"


STREAMED: Final[Mapping[str, str]] = {
    "q5": f"""
        SELECT {_END}, hot.auction, hot.num FROM (
          SELECT window, explode(filter(all, item -> item.num = most)) AS hot FROM (
            SELECT window, collect_list(struct(auction, num)) AS all, max(num) AS most FROM (
              SELECT {_window(q5.WINDOW, q5.SLIDE)} AS window, auction, count(*) AS num
              FROM bids GROUP BY 1, 2
            ) GROUP BY window
          )
        )""",
    "q7": f"""
        SELECT {_END}, bid.auction, bid.bidder, bid.price, bid.bid_ts FROM (
          SELECT window, explode(max_by(same, price)) AS bid FROM (
            SELECT {_window(q7.WINDOW)} AS window, price,
              collect_list(struct(auction, bidder, price, ts AS bid_ts)) AS same
            FROM bids GROUP BY 1, 2
          ) GROUP BY window
        )""",
    "q8": f"""
        SELECT unix_micros(p.window.end) AS ts, p.id, p.name
        FROM (
          SELECT {_window(q8.WINDOW)} AS window, id, name FROM persons GROUP BY 1, 2, 3
        ) p JOIN (
          SELECT {_window(q8.WINDOW)} AS window, seller FROM auctions GROUP BY 1, 2
        ) a ON p.window = a.window AND p.id = a.seller""",
    "q11": f"""
        SELECT unix_micros(session.end) + 1 AS ts, bidder, start, count FROM (
          SELECT session_window({AT}, '{q11.GAP - 1} microseconds') AS session, bidder,
            min(ts) AS start, count(*) AS count
          FROM bids GROUP BY 1, 2
        )""",
    "q12": f"""
        SELECT {_END}, bidder, count FROM (
          SELECT {_window(q12.WINDOW)} AS window, bidder, count(*) AS count
          FROM bids GROUP BY 1, 2
        )""",
    "q15": f"""
        SELECT {_END}, * EXCEPT (window) FROM (
          SELECT {_window(DAY)} AS window, {_SETS_SQL} FROM bids GROUP BY 1
        )""",
    "q16": f"""
        SELECT {_END}, * EXCEPT (window) FROM (
          SELECT {_window(DAY)} AS window, channel, {_SETS_SQL} FROM bids GROUP BY 1, 2
        )""",
    "q17": f"""
        SELECT {_END}, * EXCEPT (window) FROM (
          SELECT {_window(DAY)} AS window, auction, {BIDS_SQL}, min(price) AS min_price,
            max(price) AS max_price, sum(price) / count(*) AS avg_price, sum(price) AS sum_price
          FROM bids GROUP BY 1, 2
        )""",
    "q18": f"""
        SELECT {_END}, auction, bidder, last.price, -last.back AS bid_ts FROM (
          SELECT {_window(DAY)} AS window, auction, bidder,
            min(struct(-ts AS back, price)) AS last
          FROM bids GROUP BY 1, 2, 3
        )""",
    "q19": f"""
        SELECT {_END}, auction, best.bidder, -best.down AS price, best.ts AS bid_ts,
          CAST(place + 1 AS BIGINT) AS rank
        FROM (
          SELECT window, auction, posexplode(best) AS (place, best) FROM (
            SELECT {_window(DAY)} AS window, auction, slice(
              sort_array(collect_list(struct(-price AS down, ts, bidder))), 1, {q19.PLACES}
            ) AS best
            FROM bids GROUP BY 1, 2
          )
        )""",
    "q20": f"""
        SELECT greatest(b.ts, a.ts) AS ts, b.auction, b.bidder, b.price, b.ts AS bid_ts,
          a.seller, a.initial_bid, a.reserve, a.expires, a.item_name
        FROM bids b JOIN auctions a
        ON b.auction = a.id AND a.{AT} <= b.{AT} + INTERVAL {q20.EARLY // 1_000_000} SECONDS
        WHERE a.category = {CATEGORY}""",
}
"""The same questions, asked of a stream."""

CANNOT: Final[Mapping[str, str]] = {
    "q4": "a window whose end is a column of the data, and an average of all rows so far",
    "q6": "a window whose end is a column of the data, and an average of the last ten rows",
    "q9": "a window whose end is a column of the data",
}
"""Why Structured Streaming has no answer, unless one writes the operator's state by hand."""


def stream_answer(spark: SparkSession, query: Query, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The query over streaming DataFrames; the views of its inputs are made anew.

    >>> from jeton_evaluation.nexmark import queries
    >>> q12 = queries.get("q12")
    >>> stream = stream_answer(spark, q12, stream_frames(spark, Config(), 100, columns=q12.columns))
    >>> stream.isStreaming, stream.columns
    (True, ['ts', 'bidder', 'count'])
    """
    for name, frame in inputs.items():
        timed = frame.withColumn(AT, F.timestamp_micros("ts")).withWatermark(AT, "0 seconds")
        timed.createOrReplaceTempView(name)
    return spark.sql(query.sql if query.name in AS_IT_IS else STREAMED[query.name])


def run_stream(
    spark: SparkSession, query: Query, config: Config, events: int, *, sink: str = "noop"
) -> float:
    """Run the query over all events, as fast as it goes; returns the seconds that it took.

    The ``sink`` is a format of Spark's that needs no more options; a table in ``"memory"`` is
    called like the query.

    >>> from jeton_evaluation.nexmark import queries
    >>> seconds = run_stream(spark, queries.get("q2"), Config(), 20_000, sink="memory")
    >>> spark.table("q2").count()
    76
    """
    inputs = stream_frames(spark, config, events, columns=query.columns)
    stream = stream_answer(spark, query, inputs)
    with TemporaryDirectory(prefix="jeton-nexmark-") as folder:
        writer = stream.writeStream.format(sink).outputMode("append").queryName(query.name)
        writer = writer.option("checkpointLocation", folder).trigger(availableNow=True)
        began = perf_counter()
        writer.start().awaitTermination()
        return perf_counter() - began
