"""Batch on Spark with sources and sinks that the workers read and write by themselves.

The driver plans once what each worker reads, before the first run of the stage: so a stage that
Spark runs again reads the same. Where outputs have sinks, workers stage their rows, hidden, and the
driver commits those of the one attempt that succeeded.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession

from jeton.cluster.failures import WorkerFailed
from jeton.cluster.progress_bar import ProgressBar
from jeton.cluster.run_reports import RunReports
from jeton.columns.batch import Batch
from jeton.connectors.sinks import Sink, SinkContext
from jeton.connectors.sinks.driver_sink import DriverSink
from jeton.connectors.source_plan import SourcePlan, narrowed
from jeton.connectors.sources import Source
from jeton.core.checks import suggestion, type_name
from jeton.core.errors import BatchError, GraphError, JetonError, UnknownOutput
from jeton.mesh.link import PeerLost
from jeton.spark import store_access
from jeton.spark.application import conf_of, context_of, require_slots
from jeton.spark.batch import (
    check_inputs,
    divided,
    ends_for,
    meeting_of,
    time_type_of,
)
from jeton.spark.internals import arrow_schema, spark_schema
from jeton.spark.metrics import Counts, Frames, Inspection, accumulator
from jeton.spark.native_tasks import REPORT, VERSION, NativeTask
from jeton.spark.plans import columns_of, dealt_together, kept_apart
from jeton.spark.shipping import shipping
from jeton.spark.tasks import Ends
from jeton.spark.wire_settings import WireSettings, wire_settings
from jeton.storage.store_settings import StoreSettings

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

    from jeton.dataflow.flow import Flow

log = logging.getLogger(__name__)

ATTEMPTS: Final = 4
"""Times that a stage is run whose workers are lost, as Spark does it by default."""
FINAL: Final = (WorkerFailed.__name__, "SPARK_JOB_CANCELLED")
"""In the text of Spark's errors: errors of a worker's code, and of users who want no more."""
Inputs: TypeAlias = "Mapping[str, DataFrame | Source]"


def on_spark(
    flow: Flow,
    inputs: Inputs,
    *,
    workers: int | None = None,
    shuffle: bool = True,
    schemas: Mapping[str, pa.Schema] | None = None,
    progress: bool | None = None,
    tls: bool | None = None,
) -> Frames:
    """A DataFrame for each output of a flow, some of whose inputs the workers read themselves.

    See `Flow.on_spark`. What is read is planned here, once for all actions.

    >>> import tempfile, jeton as jt
    >>> import pyarrow.parquet as pq
    >>> from jeton.connectors import sources
    >>> folder = tempfile.mkdtemp()
    >>> pq.write_table(pa.table({"t": [1, 2, 13], "k": ["a", "b", "a"]}), f"{folder}/1.parquet")
    >>> flow = jt.Flow("counts")
    >>> words = flow.input("words", time="t", schema={"k": str})
    >>> flow.output("counts", words.key_by("k").tumbling(10).count())
    >>> frames = on_spark(flow, {"words": sources.Parquet(folder)}, workers=2)
    >>> frames["counts"].orderBy("t", "k").collect()
    [Row(t=10, k='a', count=1), Row(t=10, k='b', count=1), Row(t=20, k='a', count=1)]
    """
    stage = _Stage.of(flow, inputs, workers, progress, tls)
    ends = ends_for(flow, stage.frames, time_type_of(flow, stage.schemas), schemas)
    counts = stage.counts()
    task = stage.task(ends, counts)
    result = stage.run(task, ends.result)
    if shuffle:
        result = kept_apart(result, stage.workers)
    inspection = Inspection(flow, stage.reports)
    return Frames(divided(result, ends), counts, result, inspection, sources=stage.sources)


def write(
    flow: Flow,
    inputs: Inputs,
    sinks: Mapping[str, Sink],
    *,
    workers: int | None = None,
    progress: bool | None = None,
    tls: bool | None = None,
) -> Written:
    """Run a flow now, and have the workers write the rows of its outputs to sinks.

    See `Flow.on_spark`. Rows are visible once all workers have written all of them, for one output
    after the other. A run that fails before that leaves none; if a sink fails to commit, the rows
    of outputs before it stay.

    >>> import tempfile, jeton as jt
    >>> import pyarrow.parquet as pq
    >>> from jeton.connectors import sinks, sources
    >>> there, here = tempfile.mkdtemp(), tempfile.mkdtemp()
    >>> pq.write_table(pa.table({"t": [1, 2], "n": [5, 6]}), f"{there}/1.parquet")
    >>> flow = jt.Flow("doubled")
    >>> flow.output("out", flow.input("in", time="t").with_columns(n=jt.col("n") * 2))
    >>> written = write(flow, {"in": sources.Parquet(there)}, {"out": sinks.Parquet(here)})
    >>> written["out"].rows, pq.read_table(here).sort_by("t").to_pydict()
    (2, {'t': [1, 2], 'n': [10, 12]})
    """
    _require_sinks(flow, sinks)
    stage = _Stage.of(flow, inputs, workers, progress, tls)
    times = time_type_of(flow, stage.schemas)
    for name, sink in sinks.items():
        sink.begin(name, _columns(flow, name, times))
    counts = stage.counts()
    run = f"jeton-{os.urandom(6).hex()}"
    task = replace(
        stage.task(Ends((), ()), counts),
        sinks={name: sink.at_workers() for name, sink in sinks.items()},
        run=run,
    )
    contexts = {name: SinkContext(run, output=name) for name in sinks}
    done: set[str] = set()
    try:
        attempt, reports = _succeeded(stage, task)
        outputs: dict[str, WrittenOutput] = {}
        for name, sink in sinks.items():
            context = contexts[name]
            context.attempt = attempt
            rows = sum(report[name]["rows"] for report in reports)
            staged = [item for report in reports for item in report[name]["staged"]]
            if not rows:
                staged = _without_rows(flow, name, sink, context, times)
            outputs[name] = WrittenOutput(rows, tuple(staged))
        for name, sink in sinks.items():
            sink.commit(contexts[name], VERSION, outputs[name].committed)
            done.add(name)
            sink.clean(contexts[name], outputs[name].committed)
    finally:
        for name, sink in sinks.items():
            _clean_up(sink, contexts[name], VERSION if name in done else 0)
    return Written(outputs, counts)


@dataclass(frozen=True)
class WrittenOutput:
    """The rows of an output that a sink has got."""

    rows: int
    committed: tuple[Any, ...]
    """The output that the sink made visible: of `Parquet`, the names of files in its folder."""


class Written(dict[str, WrittenOutput]):
    """The rows that a run has written, for each output with a sink, and the metrics of its workers.

    >>> Written({"out": WrittenOutput(2, ("part-1.parquet",))}, None)["out"].rows
    2
    """

    def __init__(
        self, outputs: Mapping[str, WrittenOutput], counts: Accumulator[Counts] | None
    ) -> None:
        super().__init__(outputs)
        self._metrics = {} if counts is None else dict(counts.value[1])

    def __missing__(self, name: str) -> WrittenOutput:
        raise UnknownOutput(
            f"no sink has got rows of {name!r}{suggestion(str(name), self)} "
            f"(there are: {', '.join(map(repr, self)) or 'none'})"
        )

    def metrics(self) -> dict[str, Any]:
        """Sums over all workers: see `Frames.metrics`."""
        return self._metrics


@dataclass(frozen=True)
class _Stage:
    """The stage of a run: what its workers read, and how many they are."""

    flow: Flow
    spark: SparkSession
    workers: int
    frames: dict[str, DataFrame]
    """The inputs that Spark feeds."""
    sources: dict[str, Source]
    columns: dict[str, tuple[str, ...]]
    schemas: dict[str, pa.Schema]
    """The columns of each input."""
    plan: SourcePlan
    stores: StoreSettings
    reports: RunReports
    wire: WireSettings

    @classmethod
    def of(
        cls,
        flow: Flow,
        inputs: Inputs,
        workers: int | None,
        progress: bool | None,
        tls: bool | None,
    ) -> _Stage:
        """Plan what is read, and by how many."""
        check_inputs(flow, inputs)
        frames = {name: each for name, each in inputs.items() if isinstance(each, DataFrame)}
        spark = _session(frames)
        slots = require_slots(spark, 1 if workers is None else workers)
        workers = workers or slots or 2
        wire = wire_settings(conf_of(spark), tls)
        stores = store_access.adopt(spark)
        sources: dict[str, Source] = {}
        columns: dict[str, tuple[str, ...]] = {}
        schemas = {name: arrow_schema(frame.schema) for name, frame in frames.items()}
        for name, each in inputs.items():
            if name in frames:
                continue
            source = _bounded(name, each)
            sources[name], columns_read = narrowed(flow, name, source)
            if columns_read is not None:
                columns[name] = columns_read
            schemas[name] = _schema(flow, name, sources[name], columns_read)
            if log.isEnabledFor(logging.INFO):
                log.info("input %r reads %s", name, sources[name].about() or sources[name])
        plan = SourcePlan(flow.name, sources)
        plan.begin(workers, {})
        if progress is None:
            progress = ProgressBar.is_wanted()
        reports = ProgressBar(flow.name) if progress else RunReports()
        return cls(
            flow, spark, workers, frames, sources, columns, schemas, plan, stores, reports, wire
        )

    def counts(self) -> Accumulator[Counts] | None:
        """An accumulator for the workers' metrics, where there can be one."""
        context = context_of(self.spark)
        return None if context is None else accumulator(context)

    def task(self, ends: Ends, counts: Accumulator[Counts] | None) -> NativeTask:
        """The code of its tasks."""
        meeting, by_gathering = meeting_of(self.spark, self.flow, self.reports, self.wire)
        return NativeTask(
            self.flow,
            replace(
                ends,
                inputs=tuple(self.frames),
                columns=columns_of(list(self.frames.values())),
            ),
            meeting,
            by_gathering,
            counts,
            self.sources,
            self.plan.partitions,
            self.columns,
            stores=self.stores,
        )

    def run(self, task: NativeTask, schema: pa.Schema) -> DataFrame:
        """The rows that the tasks yield, in as many partitions as there are workers."""
        if self.frames:
            frame = dealt_together(list(self.frames.values()), self.workers)
        else:
            frame = self.spark.range(0, self.workers, 1, self.workers)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return task(batches)

        # Spark shows the name of the function in its plans.
        run.__name__ = f"jeton:{self.flow.name}"
        with shipping(self.flow):
            return frame.mapInArrow(run, spark_schema(schema), barrier=True)

    def reports_of(self, task: NativeTask) -> list[Any]:
        """Run the tasks, and collect the row of each that says what it has written."""
        context = context_of(self.spark)
        if self.frames or context is None:
            return self.run(task, REPORT).collect()

        def run(none: Iterable[Any]) -> Iterator[dict[str, Any]]:
            for batch in task(iter(none)):
                yield from batch.to_pylist()

        # Without a plan of Spark SQL, which would take longer than many a flow.
        numbers = context.parallelize(range(self.workers), self.workers)
        with shipping(self.flow):
            rows = numbers.barrier().mapPartitions(run).setName(f"jeton:{self.flow.name}")
            return rows.collect()


def _session(frames: Mapping[str, DataFrame]) -> SparkSession:
    """The session of the DataFrames, or else the active one."""
    for frame in frames.values():
        if frame.isStreaming:
            raise GraphError(
                "sources and sinks of the workers go with batch DataFrames: use flow.start(…) for "
                "a query that does not end"
            )
        return frame.sparkSession
    try:
        # In any thread: where none is active, it is the default one.
        return SparkSession.active()
    except PySparkRuntimeError as error:
        raise GraphError(
            "there is no active Spark session: make one first, such as with "
            "jeton.spark.local_session()"
        ) from error


def _bounded(name: str, source: object) -> Source:
    """A source that a batch can read to its end."""
    if not isinstance(source, Source):
        raise GraphError(
            f"input {name!r} got {type_name(source)}, not a DataFrame of Spark or a source: derive "
            "the class of a source from jeton.connectors.sources.Source"
        )
    if source.endless or source.discover_every is not None:
        raise GraphError(
            f"the source of input {name!r} has no end, so that a batch cannot read all of it: give "
            "it one (end=True, limit=…), or use flow.start(…)"
        )
    return source


def _require_sinks(flow: Flow, sinks: Mapping[str, Any]) -> None:
    if not sinks:
        raise GraphError("sinks= has no sinks: name one for each output that is to be written")
    for name, sink in sinks.items():
        flow.handle("output", name)
        if not isinstance(sink, Sink):
            raise GraphError(
                f"the sink of {name!r} is {sink!r}, which is not a sink: use one of "
                "jeton.connectors.sinks, such as sinks.Parquet(path), or a class of your own that "
                "derives from Sink"
            )
        if isinstance(sink, DriverSink):
            raise GraphError(
                f"the sink of {name!r} gets rows at the driver: leave sinks= out, and use the "
                f"DataFrame, flow.on_spark(…)[{name!r}].collect() or .toPandas()"
            )


def _schema(flow: Flow, name: str, source: Source, columns: tuple[str, ...] | None) -> pa.Schema:
    """The columns of a source's records, checked against those that its input declares."""
    time, declared = flow.time_name(name), flow.input_schemas.get(name)
    schema = source.schema()
    if schema is None:
        schema = flow.declared(name)
        if schema is None or time not in schema.names:
            raise GraphError(
                f"the type of the time column {time!r} of input {name!r} is not known, since its "
                "source does not say it: declare it, flow.input(…, schema={…}), with the others"
            )
        return schema
    if declared is not None and time in schema.names:
        if columns is not None:
            declared = pa.schema([declared.field(each) for each in columns])
        try:
            none = Batch.from_arrow(schema.empty_table(), time=time, kind=flow.kind)
            none.conform(declared, f"the source of input {name!r}")
        except BatchError as error:
            raise GraphError(error.message) from error
    return schema


def _succeeded(stage: _Stage, task: NativeTask) -> tuple[int, list[dict[str, Any]]]:
    """Run the stage until an attempt succeeds; returns its number, and what workers have written.

    Spark runs no barrier stage again that ends a job. Behind a shuffle it would, which takes longer
    than to do so here: nothing is visible yet.
    """
    for left in reversed(range(ATTEMPTS)):
        try:
            # A new plan each time, since Spark may remember the failure of the old one.
            return _of_one_attempt(stage.reports_of(task), stage.workers)
        except Exception as error:
            of_code = isinstance(error, JetonError) and not isinstance(error, PeerLost)
            if not left or of_code or any(each in str(error) for each in FINAL):
                raise
            cause = str(error).partition("\n")[0]
            log.warning("flow %r runs again, since workers were lost: %s", stage.flow.name, cause)
    raise AssertionError("the last attempt returns or raises")


def _of_one_attempt(rows: list[Any], workers: int) -> tuple[int, list[dict[str, Any]]]:
    """The attempt that succeeded, and what each of its workers has written."""
    attempts = {row["attempt"] for row in rows}
    if len(attempts) != 1 or sorted(row["worker"] for row in rows) != list(range(workers)):
        raise JetonError(
            f"{workers} workers of one attempt were to report what they wrote, but these did: "
            f"{sorted((row['attempt'], row['worker']) for row in rows)}"
        )
    ordered = sorted(rows, key=lambda row: row["worker"])
    return attempts.pop(), [json.loads(row["written"]) for row in ordered]


def _columns(flow: Flow, name: str, times: pa.DataType) -> pa.Schema | None:
    """The columns of an output, if all of them are known."""
    known = flow.output_schema(name)
    if known is None or any(pa.types.is_null(field.type) for field in known):
        return None
    time = flow.operators[flow.handle("output", name)].time_name
    return pa.schema([pa.field(time, times), *known])


def _without_rows(
    flow: Flow, name: str, sink: Sink, context: SinkContext, times: pa.DataType
) -> list[Any]:
    """Stage a table without rows, so that a reader finds the columns at least."""
    schema = _columns(flow, name, times)
    if schema is None:
        return []
    writer = sink.open(context)
    try:
        writer.write(schema.empty_table())
        return writer.stage(VERSION)
    finally:
        writer.close()


def _clean_up(sink: Sink, context: SinkContext, version: int) -> None:
    """Delete what attempts have left that did not succeed."""
    last = replace(context, attempt=1 << 62)
    try:
        sink.roll_back(last, version)
    except Exception:
        log.warning("rows that failed attempts left in %r are not deleted", sink, exc_info=True)
