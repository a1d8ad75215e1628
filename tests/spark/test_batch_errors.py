"""Batch on Spark: flows that cannot run are refused at once, failures name their operator."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import jeton as jt
from jeton.connectors.sources import Rate
from jeton.errors import BatchError, FlowStalled, GraphError, OperatorFailed
from jeton.spark import application
from tests.spark.flows import BIDS, CASES, bids_of, in_order, rows_of, tumbling


def test_missing_and_unknown_inputs(views: dict[str, DataFrame]) -> None:
    with pytest.raises(GraphError, match=r"no input 'bid': did you mean 'bids'"):
        tumbling().on_spark({"bid": views["bids"]})
    with pytest.raises(GraphError, match=r"a source for each of its inputs, .* none for 'bids'"):
        tumbling().on_spark({})
    with pytest.raises(GraphError, match=r"ordered= is True, False or None, not 'yes' \(a str\)"):
        tumbling().on_spark({"bids": views["bids"]}, ordered="yes")  # type: ignore[call-overload]


def test_a_missing_time_column(views: dict[str, DataFrame]) -> None:
    with pytest.raises(GraphError, match="names 'ts' as its time column, but its rows have"):
        tumbling().on_spark({"bids": views["bids"].drop("ts")})


def test_a_time_column_that_is_no_time(views: dict[str, DataFrame]) -> None:
    frame = views["bids"].withColumn("ts", F.lit("noon"))
    with pytest.raises(GraphError, match="'ts' of input 'bids' is of type string"):
        tumbling().on_spark({"bids": frame})


def test_times_of_different_types(views: dict[str, DataFrame]) -> None:
    flow = CASES["joined"].make()
    frames = {
        "bids": views["bids"],
        "auctions": views["auctions"].withColumn("ts", F.current_timestamp()),
    }
    with pytest.raises(GraphError, match=r"times of input .* are .*, but"):
        flow.on_spark(frames)


def test_an_unknown_schema_must_be_declared(views: dict[str, DataFrame]) -> None:
    flow = jt.Flow("unknown")
    flow.output("sums", flow.input("bids", time="ts").key_by("who").tumbling(100).sum("price"))
    with pytest.raises(GraphError, match="must know the columns of output 'sums'"):
        flow.on_spark({"bids": views["bids"]})
    schema = pa.schema([("ts", pa.int64()), ("who", pa.string()), ("sum", pa.int64())])
    sums = flow.on_spark({"bids": views["bids"]}, workers=2, schemas={"sums": schema})["sums"]
    assert rows_of(sums) == in_order(tumbling().run({"bids": BIDS})["sums"].to_pylist())


def test_an_output_that_is_not_as_declared(views: dict[str, DataFrame]) -> None:
    flow = jt.Flow("wrong")
    flow.output("out", flow.input("bids", time="ts"))
    schema = pa.schema([("ts", pa.int64()), ("nobody", pa.string())])
    result = flow.on_spark({"bids": views["bids"]}, shuffle=False, schemas={"out": schema})
    with pytest.raises(Exception, match=r"output 'out' was declared with the columns \['ts', 'nob"):
        result["out"].collect()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (["value as ts"], "there is no column 'k'"),
        (["value as ts", "'a' as k"], "column 'k' is of type string, its schema says int64"),
        (["value as ts", "value as k", "1 as z"], "got columns that its schema does not have: 'z'"),
    ],
    ids=["missing", "another type", "one more"],
)
def test_columns_that_are_not_as_declared_are_refused_at_once(
    spark: SparkSession, columns: list[str], text: str, streaming: bool
) -> None:
    flow = jt.Flow("declared")
    flow.output("out", flow.input("r", time="ts", schema={"k": int}))
    frame = spark.range(3).withColumnRenamed("id", "value")
    if streaming:
        frame = spark.readStream.format("rate").load()
    with pytest.raises(GraphError, match=f"DataFrame of input 'r'.*{text}"):
        flow.on_spark({"r": frame.selectExpr(*columns)})


def test_outputs_that_differ_only_in_case(views: dict[str, DataFrame]) -> None:
    flow = jt.Flow("case")
    bids = bids_of(flow)
    flow.output("Late", bids.late)
    flow.output("late", bids)
    with pytest.raises(GraphError, match=r"'Late' and 'late' .* differ only in case"):
        flow.on_spark({"bids": views["bids"]})


def test_schemas_of_outputs_that_there_are_not(views: dict[str, DataFrame]) -> None:
    with pytest.raises(GraphError, match=r"schemas= names \['nope'\]"):
        tumbling().on_spark({"bids": views["bids"]}, schemas={"nope": pa.schema([])})


def test_too_many_workers(views: dict[str, DataFrame]) -> None:
    with pytest.raises(GraphError, match=r"5 workers .* slots for 4 tasks"):
        tumbling().on_spark({"bids": views["bids"]}, workers=5)
    with pytest.raises(GraphError, match="at least one worker, not workers=0"):
        tumbling().on_spark({"bids": views["bids"]}, workers=0)


@pytest.mark.parametrize("way", ["batch", "streaming", "long-lived"])
def test_dynamic_allocation_is_refused_at_once(
    spark: SparkSession, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark itself would refuse the stage when it is run, with a number and no advice."""
    conf: Any = spark.sparkContext._conf
    settings = ("spark.dynamicAllocation.enabled", "spark.dynamicAllocation.testing")
    flow = jt.Flow("elastic")
    flow.output("out", flow.input("in", time="value", schema={}))
    batch = spark.range(5).selectExpr("id as value")
    stream = spark.readStream.format("rate").load().select("value")
    source = Rate(10, lambda n: {}, time="value")
    calls: dict[str, Callable[[], Any]] = {
        "batch": lambda: flow.on_spark({"in": batch}, workers=1),
        "streaming": lambda: flow.on_spark({"in": stream}, workers=1),
        "long-lived": lambda: flow.start(spark, sources={"in": source}, workers=1),
    }
    for setting in settings:
        conf.set(setting, "True")
    monkeypatch.setattr(application, "_settings", WeakKeyDictionary())
    try:
        with pytest.raises(GraphError, match=r"SPARK-24942\): start .* with spark.dynamic"):
            calls[way]()
    finally:
        for setting in settings:
            conf._jconf.remove(setting)


def test_an_unordered_input_is_refused(views: dict[str, DataFrame]) -> None:
    flow = jt.Flow("unordered")
    flow.output("out", flow.unordered_input("bids", time="ts"))
    schema = pa.schema([("ts", pa.int64())])
    with pytest.raises(GraphError, match="input 'bids' is unordered"):
        flow.on_spark({"bids": views["bids"]}, shuffle=False, schemas={"out": schema})[
            "out"
        ].collect()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("when", ["building", "running"])
def test_a_failing_operator_is_told_with_its_name_and_traceback(
    workers: int, when: str, views: dict[str, DataFrame]
) -> None:
    def prohibit() -> None:
        raise ValueError("too dear")

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()
        if when == "building" and info.worker == info.workers - 1:
            prohibit()

        def step(input: jt.Input, output: jt.Output) -> None:
            for _, batch in input:
                if (batch["price"] == 2_999).any():
                    prohibit()

        return step

    flow = jt.Flow("failing")
    flow.output(
        "out",
        bids_of(flow).unary_frontier(
            build, pact=jt.Exchange("auction"), name="judging", schema={"price": int}
        ),
    )
    result = flow.on_spark({"bids": views["bids"]}, workers=workers, shuffle=False)["out"]
    with pytest.raises(OperatorFailed, match="too dear") as caught:
        result.collect()
    assert caught.value.operator == "judging"
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("in prohibit") == 1, text
    assert "PeerFailed" not in text


@pytest.mark.parametrize("workers", [1, 2])
def test_a_token_held_for_ever_fails_the_action_and_names_its_holder(
    spark: SparkSession, workers: int
) -> None:
    def hoard(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        return lambda input, output: [token for _ in input]

    flow = jt.Flow("hoarding")
    numbers = flow.input("n", time="id", schema={})
    flow.output("n", numbers.unary(hoard, name="hoarder", schema={}))
    frames = flow.on_spark({"n": spark.range(10)}, workers=workers, shuffle=False)
    with pytest.raises(FlowStalled, match=f"'hoarder' holds {workers} token"):
        frames["n"].collect()


def test_a_frame_of_spark_is_not_collected_by_a_run_in_this_process(spark: SparkSession) -> None:
    flow = jt.Flow("copy")
    flow.output("out", flow.input("rows", time="at"))
    df = spark.sql("select timestamp '2026-01-31 12:00:00' as at, 1L as n")
    with pytest.raises(BatchError, match=r"run the flow on Spark, flow.on_spark.* df.toArrow\(\)"):
        flow.run({"rows": df})
    assert flow.run({"rows": df.toArrow()})["out"]["n"].to_pylist() == [1]
