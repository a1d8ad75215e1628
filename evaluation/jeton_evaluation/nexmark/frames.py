"""NEXMark events as tables and as Spark DataFrames, batch and streaming, made in the executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from jeton.spark.internals import spark_schema
from jeton_evaluation.nexmark.config import Columns, Config
from jeton_evaluation.nexmark.generator import Blocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCK: Final = 65_536
"""Events that are made at a time, all kinds taken together."""


def tables(config: Config, events: int, *, columns: Columns | None = None) -> dict[str, pa.Table]:
    """The first ``events`` events as Arrow tables, one for each kind that is wanted.

    >>> made = tables(Config(), 100, columns={"bids": ["price"], "persons": ["id"]})
    >>> {kind: table.num_rows for kind, table in made.items()}
    {'bids': 92, 'persons': 2}
    """
    made = {}
    for kind, schema in config.schemas(columns).items():
        blocks = Blocks(config, kind, schema, BLOCK, events)
        made[str(kind)] = pa.Table.from_batches(blocks.between(0, events), schema)
    return made


def frames(
    spark: SparkSession,
    config: Config,
    events: int,
    *,
    partitions: int | None = None,
    columns: Columns | None = None,
    block: int = BLOCK,
) -> dict[str, DataFrame]:
    """The first ``events`` events as DataFrames, one for each kind of ``columns``, or of all.

    They are made in the executors, each time that they are used, and are the same each time.
    Times are whole microseconds, as in tables: ``timestamp_micros(ts)`` has them as timestamps.
    Each partition has consecutive events; ``block`` of them are made at a time.

    >>> frames(spark, Config(), 1000, columns={"bids": ["auction"]})["bids"].count()
    920
    """
    made = {}
    for kind, schema in config.schemas(columns).items():
        blocks = Blocks(config, kind, schema, block, events)
        numbers = spark.range(0, blocks.count, 1, partitions)
        made[str(kind)] = numbers.mapInArrow(blocks, spark_schema(schema))
    return made


def stream_frames(
    spark: SparkSession,
    config: Config,
    events: int | None = None,
    rate: float | None = None,
    *,
    columns: Columns | None = None,
    start: float | None = None,
    partitions: int = 2,
    most: int = 1_000_000,
    block: int = BLOCK,
) -> dict[str, DataFrame]:
    """Events as streaming DataFrames, one for each kind of ``columns``; needs Spark 4.2 or newer.

    A query goes on after a restart where it was, and a micro-batch that is run again has the same
    rows. Each DataFrame counts its own events and has its own clock.

    Args:
        spark: The session.
        config: The settings of the generator.
        events: The number of events in all (default: without end).
        rate: Events that are due in a second, whether or not the query keeps up (default: as many
            as the query takes).
        columns: The columns that are wanted of each kind (default: all of all kinds).
        start: When the first event is due, as ``time.time()`` has it (default: when the query
            starts, each time that it does).
        partitions: The partitions of a micro-batch.
        most: The most events of a micro-batch, all kinds taken together.
        block: The events that are made at a time.

    >>> bids = stream_frames(spark, Config(), 1000, columns={"bids": ["auction"]})["bids"]
    >>> query = bids.writeStream.format("memory").queryName("bids").start()
    >>> query.processAllAvailable()
    >>> spark.table("bids").count()
    920
    >>> query.stop()
    """
    # Older versions of Spark do not have what it is built on.
    from jeton_evaluation.nexmark.stream import NexmarkSource, StreamOptions

    spark.dataSource.register(NexmarkSource)
    made = {}
    for kind, schema in config.schemas(columns).items():
        names = tuple(schema.names)
        options = StreamOptions(config, kind, names, events, rate, start, partitions, most, block)
        reader = spark.readStream.format(NexmarkSource.name())
        made[str(kind)] = reader.option("stream", options.to_json()).load()
    return made
