"""Batch on Spark: DataFrames in, DataFrames out, with the tasks of a barrier stage as workers.

The flow travels inside the tasks' code, as every PySpark function does. The package itself must be
where executors' Python finds it, by any of Spark's own means: the same environment on all machines;
an environment packed by ``jeton package`` and sent along (``spark.archives=env.tar.gz#env`` with
``PYSPARK_PYTHON=./env/bin/python``); or, where executors have
NumPy, Numba and PyArrow, this package alone as a zip file or wheel (``spark.submit.pyFiles``,
``spark.addArtifact(path, pyfile=True)``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jeton.cluster.progress_bar import ProgressBar
from jeton.cluster.rendezvous import Meeting
from jeton.cluster.run_reports import RunReports
from jeton.columns.batch import Batch
from jeton.columns.time_domain import Units
from jeton.columns.time_units import INTEGER, unit_of, zone_of
from jeton.core.checks import described
from jeton.core.errors import BatchError, GraphError, TimeError
from jeton.core.sizes import bytes_of
from jeton.mesh.certificates import issue
from jeton.spark.application import Application, conf_of, context_of, require_slots
from jeton.spark.internals import arrow_schema, partitions_of, spark_schema
from jeton.spark.metrics import Frames, Inspection, accumulator
from jeton.spark.ordered import OrderedBatches, in_order_of_time, needs_order
from jeton.spark.plans import columns_of, dealt_out, dealt_together, kept_apart, numbered
from jeton.spark.schemas import as_spark_has_it, warn_of_collations
from jeton.spark.shipping import shipping
from jeton.spark.tasks import OUTPUT, Ends, SparkBatches, run_task
from jeton.spark.wire_settings import WireSettings, wire_settings

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
    ordered: bool | None = None,
    tls: bool | None = None,
    memory_budget: int | str | None = None,
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
        ordered: Let Spark sort the rows by time, so that state need not fit into memory; by default
            if an operator waits for times to pass and the inputs are not small: see
            `jeton.spark.ordered`.
        tls: Whether connections between machines, and those to the driver, are under TLS, with
            certificates made for this run. By default if Spark's settings ask for it: see
            docs/security.md.
        memory_budget: The memory that the state of each worker may take, such as ``"2GB"``.

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
    wire = wire_settings(conf_of(spark), tls)
    ends = ends_for(flow, inputs, time_type(flow, inputs), schemas)
    if ordered not in (None, True, False):
        raise GraphError(f"ordered= is True, False or None, not {described(ordered)}")
    if ordered is None:
        ordered = needs_order(flow, inputs)
    rows = _partitioned([inputs[name] for name in ends.inputs], workers, slots, spread=ordered)
    if progress is None:
        progress = ProgressBar.is_wanted()
    reports = ProgressBar(flow.name) if progress else RunReports()
    meeting, by_gathering = meeting_of(spark, flow, reports, wire)
    context = context_of(spark)
    counts = None if context is None else accumulator(context)

    feed = SparkBatches
    if ordered:
        rows, feed = in_order_of_time(rows, flow, ends), OrderedBatches

    budget = None if memory_budget is None else bytes_of(memory_budget, "memory_budget=")

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_task(flow, ends, meeting, by_gathering, counts, feed, batches, budget)

    # Spark shows the name of the function in its plans.
    task.__name__ = f"jeton:{flow.name}"
    with shipping(flow):
        result = rows.mapInArrow(task, spark_schema(ends.result), barrier=True)
    if shuffle:
        result = kept_apart(result, slots or workers or 2)
    inspection = Inspection(flow, reports)
    return Frames(divided(result, ends), counts, result, inspection, ordered=ordered)


def divided(result: DataFrame, ends: Ends) -> dict[str, DataFrame]:
    """A DataFrame for each output, from the one that has the rows of all."""
    if len(ends.outputs) == 1:
        return {ends.outputs[0][0]: result}
    return {
        name: result.where(F.col(OUTPUT) == number).select(f"_{number}.*")
        for number, (name, _) in enumerate(ends.outputs)
    }


def check_inputs(flow: Flow, inputs: Mapping[str, Any]) -> None:
    """Refuse inputs that are not those of the flow."""
    for name in inputs:
        flow.handle("input", name)
    missing = [name for name in flow.inputs if name not in inputs]
    if missing:
        raise GraphError(
            f"flow {flow.name!r} needs a DataFrame or a source for each of its inputs, and has "
            f"none for {', '.join(map(repr, missing))}"
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
    columns = columns_of([inputs[name] for name in flow.inputs if name in inputs])
    return Ends(tuple(flow.inputs), tuple(outputs), columns)


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
    """The type of outputs' time columns, where all inputs are DataFrames."""
    schemas = {name: arrow_schema(frame.schema) for name, frame in inputs.items()}
    return time_type_of(flow, schemas)


def time_type_of(flow: Flow, schemas: Mapping[str, pa.Schema]) -> pa.DataType:
    """The type of outputs' time columns: timestamps of the flow's unit, or the inputs' integers."""
    units = Units(flow.domain)
    found: set[pa.DataType] = set()
    for name in flow.inputs:
        time = flow.operators[flow.handle("input", name)].time_name
        schema = schemas[name]
        if time not in schema.names:
            raise GraphError(
                f"input {name!r} names {time!r} as its time column, but its rows have "
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


def _partitioned(
    inputs: list[DataFrame], workers: int | None, slots: int | None, *, spread: bool
) -> DataFrame:
    """The rows of all inputs in as many partitions as there are to be workers.

    They are no more than the cluster can run. With ``spread``, each has rows from everywhere, since
    workers that read in order of time would have to wait for each other if their times did not
    overlap.
    """
    if len(inputs) > 1:
        return dealt_together(inputs, workers or slots or 2)
    frame = numbered(inputs[0])
    if slots is not None:
        have = partitions_of(frame)
        if have and have == (workers or have) and have <= slots:
            if have == 1 or not spread:
                return frame
            workers = have
    return dealt_out(frame, workers or slots or 2)


def meeting_of(
    spark: SparkSession, flow: Flow, reports: RunReports, wire: WireSettings
) -> tuple[Meeting, bool]:
    """Where the tasks meet: at a server here, or by Spark's own means where none can be reached."""
    if context_of(spark) is None:
        credentials = issue(0)[1] if wire.tls else None
        meeting = Meeting(
            "",
            0,
            os.urandom(32),
            flow.name,
            credentials=credentials,
            binding=wire.workers,
        )
        return meeting, True
    application = Application.of(spark)
    plan = application.next_plan(flow)
    server = application.rendezvous
    return (
        server.meeting(plan, reports.take_over, tls=wire.tls, binding=wire.workers),
        False,
    )
