"""Batch on Spark: DataFrames in, DataFrames out, with the tasks of a barrier stage as workers.

The flow travels inside the tasks' code, as every PySpark function does. The package itself must be
where executors' Python finds it, by any of Spark's own means: the same environment on all machines;
an environment packed and sent along (``spark.archives=env.tar.gz#env`` with
``spark.pyspark.python=./env/bin/python``, see venv-pack or conda-pack); or, where executors have
NumPy, Numba and PyArrow, this package alone as a zip file or wheel (``spark.submit.pyFiles``,
``spark.addArtifact(path, pyfile=True)``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jeton.cluster.progress_bar import ProgressBar
from jeton.cluster.rendezvous import Meeting
from jeton.cluster.run_reports import RunReports
from jeton.columns.batch import Batch
from jeton.columns.time_domain import Units
from jeton.columns.time_units import INTEGER, unit_of, zone_of
from jeton.core.errors import BatchError, GraphError, TimeError
from jeton.spark.application import Application, context_of, require_slots
from jeton.spark.internals import arrow_schema, partitions_of, spark_schema
from jeton.spark.metrics import Frames, Inspection, accumulator
from jeton.spark.plans import dealt_out, kept_apart, numbered
from jeton.spark.schemas import as_spark_has_it, warn_of_collations
from jeton.spark.shipping import shipping
from jeton.spark.tasks import INPUT, OUTPUT, Ends, named, run_task

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow


def on_spark(
    flow: Flow,
    inputs: Mapping[str, DataFrame],
    *,
    workers: int | None = None,
    shuffle: bool = True,
    schemas: Mapping[str, pa.Schema] | None = None,
    progress: bool | None = None,
) -> Frames:
    """A DataFrame for each output of a flow, computed when it is used, like any other.

    Args:
        flow: The program.
        inputs: A DataFrame for each of its inputs, with the time column that the input names.
        workers: How many tasks to run as workers; by default as many as there are partitions, if
            the cluster can run them at once, else as many as it can.
        shuffle: Put a shuffle behind the stage, so that Spark retries it after a failure and
            ``show()`` or ``limit()`` work. Without, it is a little faster.
        schemas: The schemas of outputs' tables, where the flow does not know them itself.
        progress: Show a progress bar while it runs; by default if a terminal is there to show it.

    An output is computed anew for each action that uses it, and several outputs all at once:
    `Frames.cache` keeps them for later actions. What the workers did is in the `Frames.metrics` of
    what is returned; in Spark's plans and pages the stage goes by the flow's name.

    >>> import jeton as jt
    >>> flow = jt.Flow("counts")
    >>> numbers = flow.input("numbers", time="id", schema={"k": int})
    >>> flow.output("counts", numbers.key_by("k").tumbling(50).count())
    >>> frame = spark.range(100).selectExpr("id", "id % 2 as k")
    >>> on_spark(flow, {"numbers": frame}, workers=2)["counts"].orderBy("id", "k").collect()
    [Row(id=50, k=0, count=25), Row(id=50, k=1, count=25),
     Row(id=100, k=0, count=25), Row(id=100, k=1, count=25)]
    """
    check_inputs(flow, inputs)
    if any(frame.isStreaming for frame in inputs.values()):
        raise GraphError("streaming DataFrames go through flow.on_spark, or streaming.on_stream")
    first = next(iter(inputs.values()))
    spark = first.sparkSession
    slots = require_slots(spark, 1 if workers is None else workers)
    ends = ends_for(flow, inputs, time_type(flow, inputs), schemas)
    frame = union_of_inputs([inputs[name] for name in ends.inputs])
    frame = _partitioned(frame, workers, slots)
    if progress is None:
        progress = ProgressBar.is_wanted()
    reports = ProgressBar(flow.name) if progress else RunReports()
    meeting, by_gathering = _meeting(spark, flow, reports)
    context = context_of(spark)
    counts = None if context is None else accumulator(context)

    columns = frame.columns

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_task(flow, ends, meeting, by_gathering, counts, named(batches, columns))

    # Spark shows the name of the function in its plans.
    task.__name__ = f"jeton:{flow.name}"
    with shipping(flow):
        result = numbered(frame).mapInArrow(task, spark_schema(ends.result), barrier=True)
    if shuffle:
        result = kept_apart(result, slots or workers or 2)
    return Frames(divided(result, ends), counts, result, Inspection(flow, reports))


def divided(result: DataFrame, ends: Ends) -> dict[str, DataFrame]:
    """A DataFrame for each output, from the one that has the rows of all."""
    if len(ends.outputs) == 1:
        return {ends.outputs[0][0]: result}
    return {
        name: result.where(F.col(OUTPUT) == number).select(f"_{number}.*")
        for number, (name, _) in enumerate(ends.outputs)
    }


def check_inputs(flow: Flow, inputs: Mapping[str, DataFrame]) -> None:
    """Refuse DataFrames that are not those of the flow's inputs."""
    missing = [name for name in flow.inputs if name not in inputs]
    unknown = [name for name in inputs if name not in flow.inputs]
    if missing or unknown:
        raise GraphError(
            f"flow {flow.name!r} has the inputs {list(flow.inputs)}: "
            + " and ".join(
                part
                for part in (
                    f"{missing} are missing" if missing else "",
                    f"{unknown} are not among them" if unknown else "",
                )
                if part
            )
        )
    if not inputs or not flow.outputs:
        raise GraphError(f"flow {flow.name!r} needs an input and an output to run on Spark")


def ends_for(
    flow: Flow,
    inputs: Mapping[str, DataFrame],
    times: pa.DataType,
    schemas: Mapping[str, pa.Schema] | None,
) -> Ends:
    """A flow's inputs and outputs, if their columns are what Spark and the flow expect."""
    for name, frame in inputs.items():
        _check_columns(flow, name, arrow_schema(frame.schema))
        warn_of_collations(flow.name, name, frame.schema)
    unknown = [name for name in schemas or () if name not in flow.outputs]
    if unknown:
        raise GraphError(
            f"schemas= names {unknown}, but the outputs of flow {flow.name!r} are "
            f"{list(flow.outputs)}"
        )
    alike: dict[str, str] = {}
    for name in flow.outputs:
        if alike.setdefault(name.lower(), name) != name:
            raise GraphError(
                f"the outputs {alike[name.lower()]!r} and {name!r} of flow {flow.name!r} differ "
                "only in case, which Spark does not tell apart by default: rename one of them"
            )
    outputs = ((name, output_schema(flow, name, times, schemas)) for name in flow.outputs)
    return Ends(tuple(flow.inputs), tuple(outputs))


def _check_columns(flow: Flow, name: str, schema: pa.Schema) -> None:
    """Refuse a DataFrame whose columns are not those that its input was declared with."""
    declared = flow.input_schemas.get(name)
    if declared is None:
        return
    time = flow.operators[flow.handle("input", name)].time_name
    try:
        none = Batch.from_arrow(schema.empty_table(), time=time, kind=flow.kind)
        none.conform(declared, f"the DataFrame of input {name!r}")
    except BatchError as error:
        raise GraphError(error.message) from error


def output_schema(
    flow: Flow, name: str, times: pa.DataType, schemas: Mapping[str, pa.Schema] | None = None
) -> pa.Schema:
    """The schema of an output's table: the time column, then the values."""
    time = flow.operators[flow.handle("output", name)].time_name
    if schemas is not None and name in schemas:
        return as_spark_has_it(schemas[name], f"output {name!r}")
    known = flow.output_schema(name)
    if known is None or any(pa.types.is_null(field.type) for field in known):
        raise GraphError(
            f"Spark must know the columns of output {name!r} of flow {flow.name!r} beforehand: "
            "declare the inputs' schemas with their time columns, so that they follow "
            f"(flow.input(…, schema=df.schema)), or pass schemas={{{name!r}: pa.schema(…)}}"
        )
    return as_spark_has_it(pa.schema([pa.field(time, times), *known]), f"output {name!r}")


def time_type(flow: Flow, inputs: Mapping[str, DataFrame]) -> pa.DataType:
    """The type of outputs' time columns: timestamps of the flow's unit, or the inputs' integers."""
    units = Units(flow.domain)
    found: set[pa.DataType] = set()
    for name in flow.inputs:
        time = flow.operators[flow.handle("input", name)].time_name
        schema = arrow_schema(inputs[name].schema)
        if time not in schema.names:
            raise GraphError(
                f"input {name!r} names {time!r} as its time column, but its DataFrame has "
                f"{schema.names}"
            )
        kind = schema.field(time).type
        unit = unit_of(kind)
        if unit is None:
            raise GraphError(
                f"the time column {time!r} of input {name!r} is of type {kind}: times are "
                "integers, timestamps or dates"
            )
        try:
            units.fix(unit, name)
        except TimeError as error:
            raise GraphError(error.message) from error
        found.add(kind)
    assert units.unit is not None, "a flow on Spark has an input"
    if units.unit == INTEGER:
        return found.pop() if len(found) == 1 else pa.int64()
    return pa.timestamp(flow.domain.unit, None if zone_of(units.unit) is None else "UTC")


def union_of_inputs(frames: list[DataFrame]) -> DataFrame:
    """All inputs in one DataFrame; rows of several say which input they belong to."""
    if len(frames) == 1:
        return frames[0]
    tagged = []
    for number, frame in enumerate(frames):
        columns = [F.lit(number).alias(INPUT)]
        for at, other in enumerate(frames):
            own = F.struct(*(F.col(f"_{n}").alias(name) for n, name in enumerate(frame.columns)))
            columns.append(
                (own if at == number else F.lit(None).cast(other.schema)).alias(f"_{at}")
            )
        tagged.append(numbered(frame).select(*columns))
    whole = tagged[0]
    for frame in tagged[1:]:
        whole = whole.union(frame)
    return whole


def _partitioned(frame: DataFrame, workers: int | None, slots: int | None) -> DataFrame:
    """As many partitions as there are to be workers, and no more than the cluster can run."""
    if slots is not None:
        have = partitions_of(frame)
        if have and have == (workers or have) and have <= slots:
            return frame
    return dealt_out(frame, workers or slots or 2)


def _meeting(spark: SparkSession, flow: Flow, reports: RunReports) -> tuple[Meeting, bool]:
    """Where the tasks meet: at a server here, or by Spark's own means where none can be reached."""
    if context_of(spark) is None:
        return Meeting("", 0, os.urandom(32), flow.name), True
    application = Application.of(spark)
    plan = application.next_plan(flow)
    return application.rendezvous.meeting(plan, reports.take_over), False
