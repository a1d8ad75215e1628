"""The examples' flows give the same rows on Spark as in process, whatever the number of workers.

That they are right in process, `tests/test_examples.py` holds by independent computations.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import TimestampNTZType, TimestampType

import jeton as jt
from tests.helpers import EXAMPLES, load

Columns = Mapping[str, Any]
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
"""Every one: an example that is added needs its inputs below."""


def flow_and_inputs(name: str) -> tuple[jt.Flow, dict[str, Columns]]:
    example = load(name)
    if name == "joins":
        return example.bidding(), {"auctions": example.AUCTIONS, "bids": example.BIDS}
    if name == "loops":
        return example.loops(), {"numbers": example.NUMBERS, "edges": example.EDGES}
    if name == "windows":
        # In order of time, so that how late a record is does not depend on who reads it.
        rides = pa.table(example.reports()).sort_by("ended")
        return example.taxis(), {"rides": rides.to_pydict()}
    if name == "async_lookup":
        return example.lookup(), {"orders": example.ORDERS}
    if name == "priority":
        return example.parking(), {"payments": example.PAYMENTS}
    if name == "migration":
        # To the worker that there always is.
        return example.shop(), {
            "purchases": example.PURCHASES,
            "moves": {**example.MOVE, "worker": [0] * 256},
        }
    if name == "flow_control":
        return example.divisors(), {"ranges": example.RANGES}
    if name == "shared_index":
        return example.company(), example.INPUTS
    if name == "notifications":
        return example.longest_words(), {"words": example.WORDS}
    if name == "watermarks":
        return example.averages(), {"readings": example.READINGS}
    if name == "word_count":
        return example.word_count(), {"lines": example.LINES}
    if name == "session_timeout":
        return example.shop(), {"clicks": example.clicks(100)}
    assert name == "tumbling_average", f"what does example {name!r} read?"
    readings = {"ts": [3, 7, 12, 35], "value": [1.0, 2.0, 4.0, 8.0]}
    return example.averages(), {"readings": readings}


def rows(table: Iterable[Mapping[str, Any]], *, leave_out: str = "") -> Counter[Any]:
    return Counter(
        tuple(
            (name, round(value, 9) if isinstance(value, float) else value)
            for name, value in sorted(row.items())
            if name != leave_out
        )
        for row in table
    )


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("name", NAMES)
def test_an_example_on_spark(name: str, workers: int, spark: SparkSession) -> None:
    if name == "tumbling_average":
        workers = 1  # as in the paper, each worker averages what it reads
    flow, inputs = flow_and_inputs(name)
    here = flow.run(inputs)
    assert not any(here.late.values())
    frames = {}
    for given, columns in inputs.items():
        table = pa.table(dict(columns))
        # As many partitions as workers, each a stretch of the rows as they stand.
        spread = spark.sparkContext.parallelize(list(zip(*columns.values(), strict=True)), workers)
        schema = spark.createDataFrame(table).schema
        for field in schema:
            if field.dataType == TimestampType():  # the examples' datetimes have no zone
                field.dataType = TimestampNTZType()
        frames[given] = spark.createDataFrame(spread, schema)
    schemas = {output: here[output].schema for output in flow.outputs}
    there = flow.on_spark(frames, workers=workers, schemas=schemas)
    for output in flow.outputs:
        # Which record of a key is counted first is up to the schedule; how often each count
        # comes is not.
        skip = "time" if name == "word_count" and output == "counts" else ""
        found = (row.asDict() for row in there[output].collect())
        assert rows(found, leave_out=skip) == rows(here[output].to_pylist(), leave_out=skip)
