"""Structured Streaming: the rows that Spark SQL has, but for those of windows still open."""

import pytest
from pyspark.sql import SparkSession

from jeton_evaluation import nexmark
from jeton_evaluation.nexmark import measure, queries, truth

# So slow that a few thousand events last for several windows of all queries, and so even that
# bids of a bidder are often exactly the gap of a session apart.
CONFIG = nexmark.Config(rate=200, seed=5, in_flight_auctions=20, active_people=30)
EVENTS = 5_000

EACH_KIND = ("q5", "q11")
"""One aggregation after another, sessions."""
STREAMED = [name for name in queries.names() if queries.get(name).stream_sql is not None]
OTHERS = sorted({*STREAMED} - {*EACH_KIND})


@pytest.mark.parametrize(
    "name", [*EACH_KIND, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
)
def test_rows_are_right_as_far_as_the_watermark_goes(name: str, spark: SparkSession) -> None:
    query = queries.get(name)
    measure.run_stream(spark, query, CONFIG, EVENTS, sink="memory")
    frames = nexmark.frames(spark, CONFIG, EVENTS, columns=query.columns)
    wanted = truth.answer(spark, query, frames)
    everything = truth.compare(spark.table(name), wanted)
    assert everything.extra == 0, str(everything)
    # The watermark is that of the last event of the kind that is rarest.
    over = f"ts < {CONFIG.time(EVENTS) - 1_000_000}"
    emitted = truth.compare(spark.table(name).where(over), wanted.where(over))
    assert emitted.equal, str(emitted)
    assert emitted.rows > 1


@pytest.mark.parametrize("name", STREAMED)
def test_the_question_is_the_same(name: str, spark: SparkSession) -> None:
    query = queries.get(name)
    stream = nexmark.stream_frames(spark, CONFIG, 100, columns=query.columns)
    frames = nexmark.frames(spark, CONFIG, 100, columns=query.columns)
    asked = measure.stream_answer(spark, query, stream)
    assert asked.isStreaming
    assert asked.dtypes == truth.answer(spark, query, frames).dtypes


def test_only_windows_that_end_with_the_data_are_not_asked() -> None:
    reasons = {name: queries.get(name).no_stream for name in queries.names()}
    assert {name for name in reasons if name not in STREAMED} == {"q4", "q6", "q9"}
    assert {name for name, reason in reasons.items() if reason} == {"q4", "q6", "q9"}


@pytest.mark.parametrize("name", ["q4", "q6", "q9"])
def test_what_it_cannot_do_it_refuses(name: str, spark: SparkSession) -> None:
    """So that the table's footnotes stay true with newer versions of Spark."""
    query = queries.get(name)
    stream = nexmark.stream_frames(spark, CONFIG, 100, columns=query.columns)
    for kind, frame in stream.items():
        frame.createOrReplaceTempView(kind)
    with pytest.raises(Exception, match=r"not supported|unsupported|UNSUPPORTED|NON_TIME"):
        spark.sql(query.sql).writeStream.format("noop").outputMode("append").start()
