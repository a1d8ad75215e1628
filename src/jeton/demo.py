"""What ``make demo`` shows: one flow, in this process and on Spark."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

import jeton as jt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2_000_000
SENSORS = 5
WINDOW = 250_000


def averages() -> jt.Flow:
    """Tumbling averages of readings, by sensor."""
    flow = jt.Flow("averages")
    readings = flow.input("readings", time="ts", schema={"sensor": int, "value": float})
    by_sensor = readings.key_by("sensor").tumbling(WINDOW)
    flow.output(
        "averages",
        by_sensor.aggregate(average=jt.agg.mean("value"), readings=jt.agg.count()),
    )
    return flow


def run_in_process() -> None:
    """The flow on a small table, on two workers of this process, by the paper's own example."""
    flow = jt.Flow("paper")
    readings = flow.input("readings", time="ts")
    flow.output("averages", readings.key_by().tumbling(10).mean("value"))
    data = {"ts": [3, 12, 7, 35, 38], "value": [1.0, 4.0, 2.0, 8.0, 9.0]}
    print("In this process: tumbling averages over windows of 10, on two workers")
    for row in flow.run({"readings": data}, workers=2)["averages"].to_pylist():
        print(f"  window ending at {row['ts']:>2}: {row['mean']}")


def run_on_spark(spark: SparkSession, workers: int) -> None:
    """The flow on a DataFrame, its workers being the tasks of a barrier stage."""
    from pyspark.sql import functions as F

    readings = spark.range(0, ROWS, 1, workers).select(
        F.col("id").alias("ts"),
        (F.col("id") % SENSORS).alias("sensor"),
        F.sin(F.col("id") / 1e5).alias("value"),
    )
    print(f"On Spark: {ROWS:_} readings of {SENSORS} sensors through {workers} workers ...")
    result = averages().on_spark({"readings": readings}, workers=workers)["averages"]
    start = perf_counter()
    rows = result.orderBy("ts", "sensor").toPandas()
    seconds = perf_counter() - start
    told = rows.groupby("ts").agg(average=("average", "mean"), readings=("readings", "sum"))
    for end, row in told.iterrows():
        print(f"  window ending at {end:>9_}: {row.average:+.4f} of {int(row.readings):_} readings")
    same = spark_sql_agrees(readings, rows)
    print(f"  {seconds:.1f} s; Spark SQL {'agrees' if same else 'DISAGREES'}")


def spark_sql_agrees(readings: DataFrame, rows: Any) -> bool:
    """Whether plain Spark SQL computes the same averages."""
    from pyspark.sql import functions as F

    ends = (F.floor(F.col("ts") / WINDOW) + 1) * WINDOW
    expected: Any = (
        readings.groupBy(ends.alias("ts"), "sensor")
        .agg(F.avg("value").alias("average"), F.count("*").alias("readings"))
        .orderBy("ts", "sensor")
        .toPandas()
    )
    return expected.shape == rows.shape and all(
        np.allclose(expected[name], rows[name]) for name in expected.columns
    )
