"""Spark's plans of streams: what is in them, and how none of their micro-batches is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

WORKER: Final = "__worker"

_PASSING: Final = {
    "EventTimeWatermark",
    "Filter",
    "Generate",
    "MapInArrow",
    "MapInPandas",
    "Project",
    "StreamingRelation",
    "StreamingRelationV2",
    "SubqueryAlias",
    "Union",
}


def operators_of(frame: DataFrame) -> set[str]:
    """What Spark calls the operators of a streaming DataFrame, less those of static ones.

    >>> stream = spark.readStream.format("rate").load()
    >>> sorted(operators_of(stream.where("value > 3").select("value")))
    ['Filter', 'Project', 'StreamingRelationV2']
    """
    return set(_names(frame._jdf.queryExecution().analyzed()))


def only_passes_on(frame: DataFrame) -> bool:
    """Whether a DataFrame has rows only in micro-batches in which one of its sources has some.

    >>> stream = spark.readStream.format("rate").load()
    >>> only_passes_on(stream.where("value > 3"))
    True
    >>> only_passes_on(stream.withWatermark("timestamp", "1 second").dropDuplicates(["value"]))
    False
    """
    return operators_of(frame) <= _PASSING


def dealt_out_always(frame: DataFrame, workers: int) -> DataFrame:
    """The same rows in so many partitions, each of which has a task in every micro-batch.

    Where Spark finds that there are no rows, before a micro-batch or while it runs, it leaves out
    what comes behind. So one row more goes along, which never reaches the tasks.
    """
    # Whole partitions at a time: to deal out single rows, Spark would sort them before.
    rows = frame.select("*", F.pmod(F.spark_partition_id(), F.lit(workers)).alias(WORKER))
    rows = rows.union(_one_row(rows, workers))
    if hasattr(rows, "repartitionById"):
        rows = rows.repartitionById(workers, F.pmod(F.col(WORKER), F.lit(workers)))
    else:
        rows = rows.repartition(workers)
    # What depends on the partition stays behind the shuffle, whatever Spark would rather do first.
    worker = F.when(F.spark_partition_id() >= 0, F.col(WORKER))
    return rows.where(worker < workers).drop(WORKER)


def _one_row(like: DataFrame, worker: int) -> DataFrame:
    """A row for a worker that there is not, in a DataFrame that says it is a stream."""
    spark = like.sparkSession
    columns = [
        F.lit(None).cast(field.dataType).alias(field.name) for field in like.schema.fields[:-1]
    ]
    still = spark.range(0, 1, 1, 1).select(*columns, F.lit(worker).alias(WORKER))
    # Streams can be joined with streams only, and Spark offers no other way to make a constant one.
    made = spark._jsparkSession.internalCreateDataFrame(
        still._jdf.queryExecution().toRdd(), still._jdf.schema(), True
    )
    return DataFrame(made, spark)


def _names(plan: Any) -> Iterator[str]:
    if plan.isStreaming():
        yield str(plan.getClass().getSimpleName())
        children = plan.children()
        for at in range(children.size()):
            yield from _names(children.apply(at))
