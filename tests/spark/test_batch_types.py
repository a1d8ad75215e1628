"""Batch on Spark: columns and times of any type pass, and come out as Spark has them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.spark.internals import arrow_schema

WHEN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TIMES: dict[str, list[Any]] = {
    "timestamp": [WHEN + dt.timedelta(minutes=7 * n) for n in range(20)],
    "timestamp_ntz": [(WHEN + dt.timedelta(minutes=7 * n)).replace(tzinfo=None) for n in range(20)],
    "date": [(WHEN + dt.timedelta(days=n)).date() for n in range(20)],
    "int": list(range(20)),
    "smallint": list(range(20)),
}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("kind", TIMES)
def test_times_keep_their_type_and_dates_become_timestamps(
    kind: str, zone: str, spark: SparkSession
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = spark.createDataFrame(
            [(at, n % 3) for n, at in enumerate(TIMES[kind])], f"ts {kind}, n int"
        )
        flow = jt.Flow("times")
        numbers = flow.input("n", time="ts", schema={"n": pa.int32()})
        flow.output("counts", numbers.key_by("n").each_time().count())
        counts = flow.on_spark({"n": frame}, workers=2)["counts"]
        if kind == "date":
            frame = frame.selectExpr("cast(ts as timestamp_ntz) as ts", "n")
        assert counts.schema["ts"].dataType == frame.schema["ts"].dataType
        assert sorted(row.ts for row in counts.collect()) == sorted(
            row.ts for row in frame.collect()
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_columns_of_many_types_and_nulls_pass(spark: SparkSession) -> None:
    frame = spark.sql(
        """select id as ts, id % 3 as key, cast(id as decimal(12, 2)) as price,
        if(id % 2 = 0, null, cast(id as string)) as text, id % 2 = 0 as even,
        cast(id as tinyint) as tiny, cast(id as float) as f,
        cast(cast(id as string) as binary) as raw,
        date_add(date'2026-01-01', cast(id as int)) as day,
        timestamp_micros(id) as at, timestamp_ntz'2026-01-01 00:00:00' as local,
        array(id, null) as list, named_struct('a', id, 'b', 'x') as struct,
        map('k', id) as map, cast(null as string) as nothing, make_dt_interval(1) as gap
        from range(100)"""
    )
    flow = jt.Flow("types")
    flow.output(
        "out", flow.input("in", time="ts", schema=arrow_schema(frame.schema)).exchange("key")
    )
    result = flow.on_spark({"in": frame}, workers=3)["out"]
    assert result.schema.simpleString() == frame.schema.simpleString()
    assert sorted(map(repr, result.collect())) == sorted(map(repr, frame.collect()))


def test_unsigned_and_narrow_types_become_what_spark_has(spark: SparkSession) -> None:
    flow = jt.Flow("unsigned")
    numbers = flow.input("n", time="id", schema={})
    wide = numbers.map(
        lambda batch: {
            "small": np.full(len(batch), 255, dtype=np.uint8),
            "large": np.full(len(batch), 2**64 - 1, dtype=np.uint64),
            "text": pa.array(["x"] * len(batch), pa.large_string()),
            "at": np.full(len(batch), 1_000, dtype="datetime64[ns]"),
        }
    )
    flow.output("out", wide)
    (row,) = flow.on_spark({"n": spark.range(1)})["out"].collect()
    assert (row.small, int(row.large), row.text) == (255, 2**64 - 1, "x")
    assert row["at"] == dt.datetime(1970, 1, 1, microsecond=1)
