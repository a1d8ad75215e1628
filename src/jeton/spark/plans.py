"""Spark's plans: which partition each row goes to, and how every micro-batch runs the flow.

Spark may run a part of a stage again and keep the rest of what the first attempt made. So each row
goes to a partition that follows from the row and from the partition that it comes from, never from
its place among the others, which another attempt may change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from itertools import islice
from typing import Final

from pyspark.sql import DataFrame, types
from pyspark.sql import functions as F

from jeton.spark.internals import as_stream, by_number, operators_of, runs_as_barrier
from jeton.spark.tasks import Columns, shared

HASHED_COLUMNS: Final = 8
"""How many columns decide which worker gets a row: enough to spread the rows."""

# The types whose values are the same in each attempt. Sums of floats differ in their last bits with
# the order of the rows, and so does the order of collected lists.
_EXACT: Final = (
    types.IntegralType,
    types.DecimalType,
    types.BooleanType,
    types.StringType,
    types.BinaryType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
)

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


def only_passes_on(frame: DataFrame) -> bool:
    """Whether a DataFrame has rows only in micro-batches in which one of its sources has some.

    >>> stream = spark.readStream.format("rate").load()
    >>> only_passes_on(stream.where("value > 3"))
    True
    >>> only_passes_on(stream.withWatermark("timestamp", "1 second").dropDuplicates(["value"]))
    False
    """
    operators = operators_of(frame)
    return operators is not None and operators <= _PASSING


def kept_apart(frame: DataFrame, partitions: int) -> DataFrame:
    """The same rows behind a shuffle that leaves each partition as it is.

    Behind a shuffle, Spark retries the stage before it, and ``show()`` or ``limit()`` work.
    """
    return by_number(frame, partitions, F.pmod(F.spark_partition_id(), F.lit(partitions)))


def dealt_out(frame: DataFrame, workers: int) -> DataFrame:
    """The same rows in ``workers`` partitions of about the same size.

    Columns are numbered. Rows are dealt out by what is in them. Dealing them out in turn, as
    ``repartition(n)`` does, is slower: Spark sorts all rows before, so that a task that runs again
    deals them out as it did. Equal rows go to different workers if they come from different
    partitions.

    >>> frame = dealt_out(numbered(spark.range(1000)), 2)
    >>> sizes = frame.groupBy(F.spark_partition_id()).count().collect()
    >>> [400 < row["count"] < 600 for row in sizes]
    [True, True]
    """
    exact = (F.col(field.name) for field in frame.schema if isinstance(field.dataType, _EXACT))
    decisive = islice(exact, HASHED_COLUMNS)
    return frame.repartition(workers, F.xxhash64(F.spark_partition_id(), *decisive))


def columns_of(frames: Sequence[DataFrame]) -> tuple[Columns, ...]:
    """Where each DataFrame has its columns in the rows of all of them: see `alike`.

    >>> [columns.at for columns in columns_of([spark.range(1), spark.sql("select 'a', 1L, 2L")])]
    [(1,), (2, 1, 3)]
    """
    return shared([[(each.name, each.dataType) for each in frame.schema] for frame in frames])


def alike(frames: Sequence[DataFrame]) -> list[DataFrame]:
    """The DataFrames with the same numbered columns, of which the first says where a row is from.

    >>> frames = alike([spark.range(1), spark.sql("select 'a' as word, 1L as n")])
    >>> [tuple(row) for frame in frames for row in frame.collect()]
    [(0, 0, None), (1, 1, 'a')]
    """
    if len(frames) == 1:
        return [numbered(frames[0])]
    columns = columns_of(frames)
    kinds = {
        at: field.dataType
        for frame, its in zip(frames, columns, strict=True)
        for at, field in zip(its.at, frame.schema.fields, strict=True)
    }
    made = []
    for number, (frame, its) in enumerate(zip(frames, columns, strict=True)):
        own = {at: F.col(f"_{n}") for n, at in enumerate(its.at)}
        slots = (own.get(at, F.lit(None).cast(kind)) for at, kind in sorted(kinds.items()))
        made.append(numbered(numbered(frame).select(F.lit(number), *slots)))
    return made


def united(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of all DataFrames, as `alike` has them."""
    return reduce(DataFrame.union, alike(frames))


def dealt_together(frames: Sequence[DataFrame], workers: int) -> DataFrame:
    """The rows of all DataFrames, as `alike` has them, in ``workers`` partitions."""
    # One that is a barrier stage itself has to end before a union, which has more tasks.
    parted = [
        dealt_out(frame, workers) if runs_as_barrier(frame) else frame for frame in alike(frames)
    ]
    return dealt_out(reduce(DataFrame.union, parted), workers)


def numbered(frame: DataFrame) -> DataFrame:
    """The same columns called ``_0``, ``_1`` …, for expressions that any name of a user's breaks.

    >>> numbered(spark.sql("select 1 as `a``b.c`, 2 as `a``b.c`")).columns
    ['_0', '_1']
    """
    return frame.toDF(*(f"_{at}" for at in range(len(frame.columns))))


def free_name(wanted: str, taken: Collection[str]) -> str:
    """A name for one more column that differs from all others, in more than in case.

    >>> free_name("worker", ["k", "Worker"])
    'worker_'
    """
    lower = {name.lower() for name in taken}
    while wanted.lower() in lower:
        wanted += "_"
    return wanted


def dealt_out_always(frame: DataFrame, workers: int) -> DataFrame:
    """The same rows in ``workers`` partitions, each with a task in every micro-batch.

    Where Spark finds that there are no rows, before a micro-batch or while it runs, it leaves out
    what comes behind. So one row more goes along, which never reaches the tasks.
    """
    # Whole partitions at a time: to deal out single rows, Spark would sort them before.
    name = free_name("worker", frame.columns)
    rows = frame.select("*", F.pmod(F.spark_partition_id(), F.lit(workers)).alias(name))
    rows = rows.union(_one_row(rows, workers))
    rows = by_number(rows, workers, F.pmod(F.col(name), F.lit(workers)))
    # An expression on the partition keeps Spark from moving the filter before the shuffle.
    worker = F.when(F.spark_partition_id() >= 0, F.col(name))
    return rows.where(worker < workers).drop(name)


def _one_row(like: DataFrame, worker: int) -> DataFrame:
    """A streaming DataFrame with one row, for a worker that does not exist."""
    spark = like.sparkSession
    *fields, last = like.schema.fields
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in fields]
    return as_stream(spark.range(0, 1, 1, 1).select(*columns, F.lit(worker).alias(last.name)))
