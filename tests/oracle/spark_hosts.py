"""Cases on Spark: several in one flow, since a stage costs more than the rows of a small case."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import jeton as jt
from jeton.spark.internals import spark_schema
from tests.oracle.case import Case
from tests.oracle.choices import Seeded
from tests.oracle.duck import Oracle, Refused
from tests.oracle.hosts import joined
from tests.oracle.pipelines import END, GAP, SHAPES, Limits, make
from tests.oracle.tables import TIME
from tests.oracle.verdicts import Verdict, compared

BATCH = Limits(spark=True)
MICRO_BATCHES = Limits(spark=True, micro_batches=True)

PIECES = 3
"""Micro-batches with a case's own rows; one more has the record that completes all times."""
FLUSH = 2**40
"""The time of that record, after all others."""
LIMIT = 600
WHOLE, MICRO = "spark batch", "micro-batches"
SOME = pa.field("__some", pa.bool_())
"""A field of every output's rows: there may be no others."""


def suitable(
    seed: int,
    count: int,
    limits: Limits,
    times: pa.DataType,
    shapes: Sequence[str] = SHAPES,
) -> list[tuple[int, Case]]:
    """The next cases with their seeds that Spark can run together: no errors, one type of times."""
    oracle = Oracle()
    found: list[tuple[int, Case]] = []
    while len(found) < count:
        case = make(Seeded(seed), limits, shapes)
        if case.times.type == times and _known(case) and _allowed(case, oracle):
            found.append((seed, case))
        seed += 1
    return found


def _known(case: Case) -> bool:
    """Whether the columns of all outputs are known before anything runs."""
    schemas = [stream.schema for stream in case.add_to(jt.Flow("case")).values()]
    return all(s is not None and pa.null() not in s.types for s in schemas)


def _allowed(case: Case, oracle: Oracle) -> bool:
    try:
        case.expected(oracle)
    except Refused:
        return False
    return True


def together(cases: Sequence[Case]) -> jt.Flow:
    """One flow that runs all cases side by side, with one output for all.

    Its rows have a structure for each output of each case, null but for the row's own: so that it
    takes one action to compute them all.
    """
    flow = jt.Flow("cases")
    streams = {
        f"c{number}_out{end}": stream
        for number, case in enumerate(cases)
        for end, stream in case.add_to(flow, f"c{number}_").items()
    }
    types = {name: pa.struct([SOME, *(stream.schema or ())]) for name, stream in streams.items()}

    def wrapped(name: str) -> jt.Stream:
        def wrap(batch: jt.Batch) -> dict[str, Any]:
            columns = [pa.repeat(True, len(batch))]
            columns += [pa.array(batch[f.name]).cast(f.type) for f in list(types[name])[1:]]
            own = pa.StructArray.from_arrays(columns, fields=list(types[name]))
            return {n: own if n == name else pa.nulls(len(batch), types[n]) for n in types}

        return streams[name].map(wrap)

    first, *others = map(wrapped, streams)
    flow.output("all", first.concat(*others))
    return flow


def apart(found: pa.Table, cases: Sequence[Case]) -> list[list[pa.Table]]:
    """The outputs of each case again."""

    def output(name: str) -> pa.Table:
        mine = found.filter(found[name].is_valid()).select([TIME, name]).combine_chunks()
        table = mine.flatten()
        return table.rename_columns([n.removeprefix(f"{name}.") for n in table.column_names]).drop(
            [SOME.name]
        )

    return [
        [output(f"c{number}_out{end}") for end in case.ends] for number, case in enumerate(cases)
    ]


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A DataFrame in which timestamps without a zone have none either."""
    return spark.createDataFrame(table, spark_schema(table.schema))


def in_one_batch(spark: SparkSession, cases: Sequence[Case], workers: int) -> list[list[pa.Table]]:
    """The outputs of each case, from one batch flow."""
    inputs = {
        f"c{number}_in{which}": frame_of(spark, table).repartition(2)
        for number, case in enumerate(cases)
        for which, table in enumerate(case.tables)
    }
    frames = together(cases).on_spark(inputs, workers=workers)
    return apart(frames["all"].toArrow(), cases)


def in_micro_batches(
    spark: SparkSession, cases: Sequence[Case], folder: Path, workers: int
) -> list[list[pa.Table]]:
    """The outputs of each case, from a stream of `PIECES` micro-batches and one that ends it."""
    inputs = {
        f"c{number}_in{which}": _stream(spark, table, folder / f"c{number}_in{which}", pieces)
        for number, case in enumerate(cases)
        for which, (table, pieces) in enumerate(zip(case.tables, cut(case), strict=True))
    }
    found: dict[int, pa.Table] = {}

    def write(frame: DataFrame, batch: int) -> None:
        found[batch] = frame.toArrow()

    frames: Any = together(cases).on_spark(inputs, workers=workers)
    query = frames.write_stream(
        {"all": write}, checkpoint=str(folder / "checkpoint"), trigger={"availableNow": True}
    )
    assert query.awaitTermination(LIMIT), "the query hangs"
    rows = joined([found[batch] for batch in sorted(found)])
    return apart(rows.filter(pc.less(rows[TIME], FLUSH // 2)), cases)


def cut(case: Case) -> list[list[int]]:
    """The number of the micro-batch of each row, table by table."""
    random = Random(case.schedule.seed or 0)
    return [
        sorted(random.randrange(PIECES) for _ in range(table.num_rows)) for table in case.tables
    ]


def judged(
    spark: SparkSession,
    seed: int,
    count: int,
    host: str,
    folder: Path,
    shapes: Sequence[str] = SHAPES,
) -> list[tuple[int, Case, Verdict]]:
    """The next cases from a seed on, run together on ``spark batch`` or in ``micro-batches``."""
    oracle, streaming = Oracle(), host == MICRO
    # Every third flow has timestamps; micro-batches need room after all times.
    times = pa.int64() if streaming or seed % 3 else pa.timestamp("us")
    chosen = suitable(seed, count, MICRO_BATCHES if streaming else BATCH, times, shapes)
    some = [case for _, case in chosen]
    workers = 1 + seed % 4
    if streaming:
        found = in_micro_batches(spark, some, folder, workers)
        expected = [expected_in_micro_batches(case, oracle) for case in some]
    else:
        found = in_one_batch(spark, some, workers)
        expected = [case.expected(oracle) for case in some]
    return [
        (number, case, compared(case, have, want, typed=False))
        for (number, case), have, want in zip(chosen, found, expected, strict=True)
    ]


def expected_in_micro_batches(case: Case, oracle: Oracle) -> list[pa.Table]:
    """The result of SQL if records are late by Spark's rule."""
    late = case.schedule.lateness
    assert late is not None
    return case.expected(
        oracle,
        [
            table.take(oracle.punctual(table[TIME], pieces, late))
            for table, pieces in zip(case.tables, cut(case), strict=True)
        ],
    )


def _stream(spark: SparkSession, table: pa.Table, folder: Path, pieces: list[int]) -> DataFrame:
    """A stream of files, each a micro-batch."""
    folder.mkdir(parents=True)
    values = {TIME: FLUSH, END: FLUSH, GAP: 1}
    last = {
        name: pa.array([values.get(name)], table.schema.field(name).type)
        for name in table.column_names
    }
    parts = [table.filter(pa.array([n == at for n in pieces], pa.bool_())) for at in range(PIECES)]
    for number, part in enumerate([*parts, pa.table(last, schema=table.schema)]):
        hidden = folder.parent / "hidden"
        pq.write_table(part, hidden)
        # Spark reads the oldest file first, and looks at whole seconds.
        path = folder / f"{number:04d}.parquet"
        hidden.rename(path)
        os.utime(path, (0, 1000 + 10 * number))
    schema = frame_of(spark, table).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))
