"""NEXMark queries over DataFrames, beside a plain ``mapInArrow`` over the same rows.

The plain function takes all rows of the same DataFrames into Python, looks at none of them, and
gives back as many rows as the query's answer has, of the same columns: copies of the answer's
first rows. Behind one DataFrame, nothing that runs in Python can take less. Of several, the plain
function reads the union: each row has the columns of the other inputs too, as nulls, and two
inputs have twice as many tasks.

Both are given the same DataFrames, which Spark holds in memory before the clock starts, and a sink
that forgets rows. Rounds of both are in turn, and the median counts; the first round compiles and
is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from statistics import median
from typing import TYPE_CHECKING, Annotated, Final

import pyarrow as pa
from pyspark import TaskContext

from jeton.spark.session import local_session
from jeton_evaluation.bench.harness import Line, OptionError, Rounds, Say, Table, Workers, command
from jeton_evaluation.nexmark import queries
from jeton_evaluation.nexmark.config import Config
from jeton_evaluation.nexmark.frames import frames
from jeton_evaluation.nexmark.measure import batch_answer, run_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERIES: Final = queries.names()
SAMPLE: Final = 10_000
"""Rows of an answer of which the plain function gives copies: as many as Spark has in a batch."""

TABLE = Table(
    {
        "query": "query:<6",
        "rows in": "rows_in:>12,",
        "rows out": "rows_out:>11,",
        "plain ms": "plain_ms:>10.0f",
        "flow ms": "flow_ms:>9.0f",
        "plain / flow": "ratio:>14.2f",
    }
)


def run(
    say: Say,
    query: Annotated[list[str], "the queries"] = list(QUERIES),  # noqa: B006
    events: Annotated[int, "events in all"] = 1_000_000,
    rounds: Rounds = 5,
    workers: Workers = 2,
) -> Iterator[Line]:
    """Measure queries, one row each."""
    unknown = [name for name in query if name not in queries.names()]
    if unknown:
        raise OptionError(
            f"there is no query {unknown[0]}: choose from {', '.join(queries.names())}"
        )
    spark = local_session(workers)
    say(f"{events:,} events, {workers} workers\n\n{TABLE.head}")
    for name in query:
        line = measure(spark, name, events, rounds, workers)
        say(TABLE.row(line))
        yield line


main = command(run)


def measure(spark: SparkSession, name: str, events: int, rounds: int, workers: int) -> Line:
    """One query's figures: the times of both, and that of the plain function over the flow's."""
    asked, config = queries.get(name), Config()
    made = frames(spark, config, events, columns=asked.columns, partitions=workers)
    cached = {kind: frame.persist() for kind, frame in made.items()}
    try:
        rows_in = sum(frame.count() for frame in cached.values())
        checked = batch_answer(asked, cached, config, workers, shuffle=True)
        sample, rows_out = checked.limit(SAMPLE).toArrow(), checked.count()
        flow = batch_answer(asked, cached, config, workers)
        plain = plain_answer(cached, flow, sample, rows_out)
        seconds: dict[str, list[float]] = {"plain": [], "flow": []}
        for number in range(rounds + 1):
            spent = run_batch(plain), run_batch(flow)
            if number:
                for times, took in zip(seconds.values(), spent, strict=True):
                    times.append(took)
    finally:
        for frame in cached.values():
            frame.unpersist(blocking=True)
    plain_s, flow_s = map(median, seconds.values())
    return {
        "query": name,
        "events": events,
        "workers": workers,
        "rows_in": rows_in,
        "rows_out": rows_out,
        "plain_ms": round(plain_s * 1e3, 1),
        "flow_ms": round(flow_s * 1e3, 1),
        "ratio": round(plain_s / flow_s, 3),
    }


def plain_answer(
    inputs: Mapping[str, DataFrame], answer: DataFrame, sample: pa.Table, rows: int
) -> DataFrame:
    """A DataFrame whose tasks read all inputs, and give back ``rows`` rows like the answer's."""
    frame = reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=True), inputs.values()
    )
    tasks = frame.rdd.getNumPartitions()
    shares = [rows // tasks + (task < rows % tasks) for task in range(tasks)]
    return frame.mapInArrow(_reading(shares, sample), answer.schema)


def _reading(
    shares: list[int], sample: pa.Table
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function of a task's batches that gives back its share of rows, for each batch a part."""
    whole = sample.combine_chunks()

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None, "this runs in a task"
        left = shares[task.partitionId()]
        for _ in batches:
            if left:
                yield from (given := whole.slice(0, left)).to_batches()
                left -= given.num_rows
        while left:
            yield from (given := whole.slice(0, left)).to_batches()
            left -= given.num_rows

    return read
