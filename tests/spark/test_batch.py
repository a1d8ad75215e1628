"""Batch on Spark: the same rows as in process and as Spark's own SQL, from a DataFrame like any."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import jeton as jt
from tests.spark.flows import BIDS, CASES, in_order, rows_of, tumbling


def without_times(rows: list[Any], name: str) -> list[Any]:
    """A rolling count's rows as a multiset of counts: their times depend on who came first."""
    return sorted((row[-2:] for row in rows), key=repr) if name == "rolling" else rows


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_same_rows_in_process_on_spark_and_in_sql(
    name: str, workers: int, spark: SparkSession, views: dict[str, DataFrame]
) -> None:
    case = CASES[name]
    flow = case.make()
    ordered = {1: None, 2: False, 4: True}[workers]
    inputs = {k: views[k] for k in case.inputs}
    outputs = flow.on_spark(inputs, workers=workers, ordered=ordered)
    here = flow.run(case.inputs, workers=workers)
    assert list(outputs) == list(case.sql)
    for output, query in case.sql.items():
        rows = without_times(rows_of(outputs[output]), name)
        assert rows == without_times(in_order(here[output].to_pylist()), name)
        assert rows == without_times(rows_of(spark.sql(query)), name)
        assert rows


def test_spread_keys_give_the_same_rows(views: dict[str, DataFrame]) -> None:
    agg = jt.agg
    flow = jt.Flow("spread")
    bids = flow.input("bids", time="ts", schema=BIDS.schema)
    for name, spread in (("plain", None), ("spread", 2)):
        keyed = bids.key_by("who", spread=spread).tumbling(100, bounds=True)
        results = keyed.aggregate(
            n=agg.count(),
            sum=agg.sum("price"),
            mean=agg.mean("price"),
            first=agg.first("price"),
            prices=agg.collect("price"),
            different=agg.count_distinct("price"),
            about=agg.approx_count_distinct("price"),
            median=agg.approx_quantile("price", 0.5),
        )
        flow.output(name, results)
    outputs = flow.on_spark({"bids": views["bids"]}, workers=2)
    plain, spread_rows = rows_of(outputs["plain"]), rows_of(outputs["spread"])
    assert spread_rows == plain
    assert plain


def test_nothing_runs_before_an_action(spark: SparkSession, views: dict[str, DataFrame]) -> None:
    tag = "nothing-yet"
    spark.sparkContext.setJobGroup(tag, "should stay empty")
    try:
        shuffled = views["bids"].groupBy("ts", "auction", "who").agg(F.max("price").alias("price"))
        again = shuffled.join(F.broadcast(views["auctions"].select("auction")), "auction")
        flow = tumbling()
        result = flow.on_spark({"bids": again})["sums"]
        result.where("sum > 3").join(views["auctions"], "ts").schema  # noqa: B018
        assert not spark.sparkContext.statusTracker().getJobIdsForGroup(tag)
        result.count()
        assert spark.sparkContext.statusTracker().getJobIdsForGroup(tag)
    finally:
        spark.sparkContext.setJobGroup("", "")


def test_is_a_dataframe_like_any_other(
    spark: SparkSession, views: dict[str, DataFrame], tmp_path: Path
) -> None:
    sums = tumbling().on_spark({"bids": views["bids"]}, workers=2)["sums"]
    expected = tumbling().run({"bids": BIDS})["sums"]
    assert sums.columns == ["ts", "who", "sum"]
    sums.createOrReplaceTempView("sums")
    (row,) = spark.sql("select count(*) as n, sum(sum) as total from sums").collect()
    assert (row.n, row.total) == (expected.num_rows, sum(range(3_000)))
    names = spark.createDataFrame([("bidder 1", "Ann")], "who string, name string")
    assert sums.join(names, "who").count() == 10
    assert len(sums.take(3)) == len(sums.limit(3).collect()) == 3
    assert len(list(sums.toLocalIterator())) == expected.num_rows
    sums.show(2)
    sums.write.parquet(str(tmp_path / "sums"))
    assert spark.read.parquet(str(tmp_path / "sums")).count() == expected.num_rows
    cached = sums.cache()
    try:
        assert cached.count() == cached.count() == expected.num_rows
    finally:
        cached.unpersist()


def test_without_an_exchange(views: dict[str, DataFrame]) -> None:
    sums = tumbling().on_spark({"bids": views["bids"]}, workers=2, shuffle=False)["sums"]
    assert rows_of(sums) == in_order(tumbling().run({"bids": BIDS})["sums"].to_pylist())


def test_runs_again_and_at_the_same_time(views: dict[str, DataFrame]) -> None:
    """One DataFrame twice in a row, then twice at once from two threads."""
    sums = tumbling().on_spark({"bids": views["bids"]}, workers=2)["sums"]
    first = rows_of(sums)
    assert rows_of(sums) == first
    found: list[list[Any]] = []
    threads = [threading.Thread(target=lambda: found.append(rows_of(sums))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert found == [first, first]


def test_workers_by_default_are_as_many_as_partitions(views: dict[str, DataFrame]) -> None:
    def workers(frame: DataFrame) -> int:
        flow = jt.Flow("workers")

        def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
            def step(input: jt.Input, output: jt.Output) -> None:
                for _ in input:
                    pass
                if input.frontier.is_empty and not token.dropped:
                    with output.session(token) as session:
                        session.give(worker=info.worker)
                    token.drop()

            return step

        each = flow.input("n", time="id").unary_frontier(build, schema={"worker": int})
        flow.output("workers", each)
        return len(flow.on_spark({"n": frame})["workers"].collect())

    spark = views["bids"].sparkSession
    assert workers(spark.range(0, 10, 1, 3)) == 3
    assert workers(spark.range(0, 10, 1, 9)) == 4
    assert workers(spark.range(10).coalesce(2)) == 4
    assert workers(spark.range(0, 10, 1, 3).where("id < 0")) == 3


def test_an_empty_dataframe_gives_no_rows(spark: SparkSession) -> None:
    empty = spark.createDataFrame([], "ts long, auction long, price long, who string")
    result = tumbling().on_spark({"bids": empty}, workers=2)["sums"]
    assert result.collect() == []
    assert result.columns == ["ts", "who", "sum"]


def test_a_sequencer_does_not_keep_a_batch_from_ending(views: dict[str, DataFrame]) -> None:
    flow = tumbling()
    flow.sequencer("commands")
    assert flow.on_spark({"bids": views["bids"]}, workers=2)["sums"].count() == 240


def test_no_sockets_are_left_at_the_driver(views: dict[str, DataFrame]) -> None:
    sums = tumbling().on_spark({"bids": views["bids"]}, workers=2)["sums"]
    sums.count()
    before = open_sockets()
    for _ in range(3):
        sums.count()
    assert open_sockets() <= before + 2


def open_sockets() -> int:
    found: Iterator[Path] = Path("/proc/self/fd").iterdir()
    return sum(str(each.resolve()).startswith("/proc") for each in found if each.exists())


def test_what_the_workers_did_is_in_an_accumulator(spark: SparkSession) -> None:
    flow = jt.Flow("counted")
    numbers = flow.input("n", time="id", schema={})
    flow.output("few", numbers.exchange(lambda batch: batch.times).filter(lambda b: b.times < 10))
    frames = flow.on_spark({"n": spark.range(0, 1000, 1, 2)}, workers=2)
    nothing = frames.metrics()
    assert (nothing.pop("operators"), nothing.pop("workers")) == ([], {})
    assert set(nothing.values()) == {0}
    for runs in (1, 2):
        assert frames["few"].count() == 10
        counted = frames.metrics()
        assert counted["runs"] == runs
        assert counted["rows_in"] == 1000 * runs
        assert counted["rows_out"] == 10 * runs
        assert counted["late"] == 0
        assert counted["messages"] >= 2 * runs
        assert counted["progress_batches"] >= 2 * runs
        [few] = [each for each in counted["operators"] if each["name"] == "filter"]
        assert few["invocations"] >= 2 * runs, "each worker, each time"
        assert (few["tokens"], few["queued"], few["frontiers"]) == (0, 0, [[]])


def test_rows_of_several_inputs_are_dealt_out_to_all_workers_unsorted(spark: SparkSession) -> None:
    def count(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        rows = 0

        def step(input: jt.Input, output: jt.Output) -> None:
            nonlocal rows
            rows += sum(len(batch) for _, batch in input)
            if input.frontier.is_empty:
                with token, output.session(token) as session:
                    session.give(worker=info.worker, rows=rows)

        return step

    flow = jt.Flow("dealt out")
    one, other = (flow.input(name, time="id", schema={}) for name in ("one", "other"))
    schema = {"worker": int, "rows": int}
    flow.output("counts", one.concat(other).unary_frontier(count, schema=schema))
    inputs = {"one": spark.range(0, 100_000, 1, 1), "other": spark.range(0, 1000, 1, 3)}
    counts = flow.on_spark(inputs, workers=2)["counts"]
    assert "RoundRobin" not in counts._jdf.queryExecution().executedPlan().toString()
    rows = {row.worker: row.rows for row in counts.collect()}
    assert sum(rows.values()) == 101_000
    assert min(rows[0], rows[1]) > 25_000


def test_nothing_of_a_data_frame_is_late(spark: SparkSession) -> None:
    flow = jt.Flow("late")
    numbers = flow.input("n", time="t", schema={}, lateness=0)
    flow.output("counts", numbers.key_by().tumbling(1000).count())
    # Four partitions, one after the other on two workers, and times from before 1970 on.
    frame = spark.range(-2000, 2000, 1, 4).selectExpr("id * id % 4001 - 2000 AS t")
    for ordered in (True, False):
        frames = flow.on_spark({"n": frame}, workers=2, ordered=ordered)
        assert sum(row["count"] for row in frames["counts"].collect()) == 4000
        assert frames.metrics()["late"] == 0


def test_windows_until_a_timestamp_of_spark_s(spark: SparkSession) -> None:
    flow = jt.Flow("auctions")
    bids = flow.input("bids", time="ts", schema={"ends": pa.timestamp("us", "UTC"), "price": int})
    flow.output("best", bids.key_by().until("ends").max("price"))
    frame = spark.range(100).selectExpr(
        "timestamp_seconds(id - 50) AS ts", "timestamp_seconds(100) AS ends", "id AS price"
    )
    (row,) = flow.on_spark({"bids": frame}, workers=2)["best"].collect()
    assert row["max"] == 99
    assert row["ts"].timestamp() == 100


def test_spark_shows_the_flow_s_name_in_its_plan(spark: SparkSession) -> None:
    flow = jt.Flow("well known")
    flow.output("n", flow.input("n", time="id", schema={}))
    plan = flow.on_spark({"n": spark.range(10)})["n"]._jdf.queryExecution().toString()
    assert "jeton:well known" in plan
