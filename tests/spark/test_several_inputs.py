"""Several inputs of a batch: in one stage as they lie, or dealt out, with the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

import jeton as jt
from jeton.spark import internals
from jeton.spark.tasks import rows_by_input, shared
from tests.spark.flows import in_order

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-9, 9),
    pa.string(): st.text(max_size=2),
    pa.float64(): st.floats(allow_nan=False),
    pa.list_(pa.int64()): st.lists(st.integers(0, 9), max_size=2),
    pa.struct([("a", pa.int64())]): st.fixed_dictionaries({"a": st.integers(0, 9)}),
}


@st.composite
def rows_of_inputs(draw: st.DrawFn) -> tuple[list[pa.Schema], list[tuple[int, dict[str, Any]]]]:
    """Schemas of some inputs, and rows of them in any order."""
    schemas = []
    for _ in range(draw(st.integers(1, 3))):
        kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=5))
        schemas.append(pa.schema([(f"c{at}", kind) for at, kind in enumerate(kinds)]))
    rows = []
    for number in draw(st.lists(st.integers(0, len(schemas) - 1), max_size=8)):
        row = {each.name: draw(st.none() | KINDS[each.type]) for each in schemas[number]}
        rows.append((number, row))
    return schemas, rows


@given(made=rows_of_inputs())
@settings(max_examples=100)
def test_rows_of_inputs_share_columns(
    made: tuple[list[pa.Schema], list[tuple[int, dict[str, Any]]]],
) -> None:
    schemas, rows = made
    columns = shared([[(each.name, each.type) for each in schema] for schema in schemas])
    kinds = {} if len(schemas) == 1 else {0: pa.int32()}
    for schema, its in zip(schemas, columns, strict=True):
        for at, field in zip(its.at, schema, strict=True):
            assert kinds.setdefault(at, field.type) == field.type
        assert len(set(its.at)) == len(schema)
    lying: dict[int, list[Any]] = {at: [] for at in sorted(kinds)}
    for number, row in rows:
        own = dict(zip(columns[number].at, row.values(), strict=True))
        for at, values in lying.items():
            values.append(number if at == 0 and len(schemas) > 1 else own.get(at))
    arrays = [pa.array(values, kinds[at]) for at, values in lying.items()]
    batch = pa.RecordBatch.from_arrays(arrays, [f"_{at}" for at in lying])
    found = dict(rows_by_input(columns, batch))
    for number, schema in enumerate(schemas):
        expected = [row for its, row in rows if its == number]
        got = found.pop(number, None)
        assert ([] if got is None else got.to_pylist()) == expected
        assert got is None or got.schema.types == schema.types
    assert not found


def joined() -> jt.Flow:
    flow = jt.Flow("joined")
    bids = flow.input("bids", time="t", schema={"item": int, "price": int})
    items = flow.input("items", time="at", schema={"name": str, "item": int})
    pairs = bids.key_by("item").interval_join(items.key_by("item"), -50, 50)
    flow.output("pairs", pairs.select("item", "price", "name"))
    return flow


def inputs_of(spark: SparkSession, partitions: tuple[int, int] = (2, 2)) -> dict[str, DataFrame]:
    bids = spark.range(0, 300, 1, partitions[0])
    items = spark.range(0, 60, 1, partitions[1])
    return {
        "bids": bids.selectExpr("id as t", "coalesce(id % 7, 0L) as item", "id * 3 as price"),
        "items": items.selectExpr("concat('n', id % 5) as name", "id * 5 as at", "id % 7 as item"),
    }


def answer(inputs: dict[str, DataFrame]) -> list[Any]:
    """The rows of the flow in this process."""
    tables = {name: frame.toArrow() for name, frame in inputs.items()}
    return in_order(joined().run(tables)["pairs"].to_pylist())


@pytest.mark.parametrize("lie", ["in memory", "elsewhere", "apart"])
def test_inputs_are_read_wherever_they_lie(spark: SparkSession, lie: str) -> None:
    flow, inputs = joined(), inputs_of(spark, (2, 3) if lie == "apart" else (2, 2))
    expected = answer(inputs)
    assert len(expected) > 300
    if lie == "in memory":
        inputs = {name: frame.persist() for name, frame in inputs.items()}
    elif lie == "elsewhere":
        inputs["items"] = inputs["items"].repartition(2)
    pairs = flow.on_spark(inputs, workers=2, shuffle=False, ordered=False)["pairs"]
    found = in_order(pairs.toArrow().to_pylist())
    assert found == expected
    if lie == "in memory":
        for frame in inputs.values():
            frame.unpersist(blocking=True)
        assert in_order(pairs.toArrow().to_pylist()) == found


def test_the_number_of_workers_is_not_that_of_an_inputs_partitions(spark: SparkSession) -> None:
    frames = joined().on_spark(inputs_of(spark, (1, 1)), ordered=False)
    assert frames["pairs"].count() > 300
    assert len(frames.metrics()["workers"]) == internals.slots_of(spark.sparkContext)


def test_inputs_of_which_one_is_a_barrier_stage_itself(spark: SparkSession) -> None:
    inputs = inputs_of(spark)
    expected = answer(inputs)

    flow, bids = jt.Flow("copy"), inputs["bids"]
    flow.output("same", flow.input("rows", time="t", schema=bids.schema))
    same = flow.on_spark({"rows": bids}, workers=2, shuffle=False)["same"]
    for bids in (same, same.persist()):
        pairs = joined().on_spark({**inputs, "bids": bids}, workers=2, ordered=False)["pairs"]
        assert in_order(pairs.toArrow().to_pylist()) == expected
    same.unpersist(blocking=True)


def test_inputs_whose_partitions_are_not_those_of_what_they_read(spark: SparkSession) -> None:
    inputs, context = inputs_of(spark), spark.sparkContext
    rows = [context.parallelize([tuple(row)], 1) for row in inputs["items"].take(2)]
    items = spark.createDataFrame(context.union(rows), inputs["items"].schema)
    ones = spark.range(0, 1, 1, 1).withColumnRenamed("id", "one")
    threshold = spark.conf.get("spark.sql.autoBroadcastJoinThreshold")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        crossed = inputs["bids"].crossJoin(ones).drop("one")
        for changed in ({"items": items}, {"bids": crossed}):
            given = {**inputs, **changed}
            assert {frame.rdd.getNumPartitions() for frame in given.values()} == {2}
            pairs = joined().on_spark(given, workers=2, ordered=False)["pairs"]
            assert in_order(pairs.toArrow().to_pylist()) == answer(given)
    finally:
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", str(threshold))


def test_nulls_of_one_input_in_columns_that_another_has_without(spark: SparkSession) -> None:
    inputs = inputs_of(spark)
    inputs["items"] = inputs["items"].selectExpr("name", "at", "nullif(item, 3) as item")
    assert not inputs["bids"].schema["item"].nullable
    pairs = joined().on_spark(inputs, workers=2, ordered=False)["pairs"]
    assert in_order(pairs.toArrow().to_pylist()) == answer(inputs)


def test_tables_may_not_be_written_over_while_they_are_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark has to see what a result is made of, or it empties the table before it reads it."""
    names = ("written_over_a", "written_over_b")
    for name in names:
        rows = spark.range(0, 100, 1, 2).selectExpr("id as t", "id as v")
        rows.write.mode("overwrite").option("path", str(tmp_path / name)).saveAsTable(name)
    try:
        flow = jt.Flow("same")
        for name in ("a", "b"):
            flow.output(f"of {name}", flow.input(name, time="t", schema={"v": int}))
        inputs = {"a": spark.table(names[0]), "b": spark.table(names[1])}
        result = flow.on_spark(inputs, workers=2, ordered=False)["of b"]
        with pytest.raises(AnalysisException):
            result.selectExpr("t", "v").write.insertInto(names[1], overwrite=True)
        assert spark.table(names[1]).count() == 100
        spark.table(names[0]).limit(50).write.insertInto(names[1])
        assert result.count() == 150
    finally:
        for name in names:
            spark.sql(f"DROP TABLE {name}")


def test_inputs_can_be_observed(spark: SparkSession) -> None:
    observation = Observation("seen")
    rows = spark.range(0, 100, 1, 2).selectExpr("id as t", "id as v")
    flow = jt.Flow("observed")
    for name in ("a", "b"):
        flow.output(f"of {name}", flow.input(name, time="t", schema={"v": int}))
    counted = rows.observe(observation, F.count(F.lit(1)).alias("rows"))
    result = flow.on_spark({"a": counted, "b": rows}, workers=2, ordered=False)["of a"]
    assert result.count() == 100
    assert observation.get == {"rows": 100}
