"""Structured Streaming: streaming DataFrames in, streaming DataFrames out, for any sink.

Each micro-batch is one barrier stage. Its workers start from the state after the micro-batch before
it, and commit theirs under the query's checkpoint location, keyed by the micro-batch's number. So
when Spark runs a micro-batch again, it gives the same answer: exactly once with Spark's own sinks.

What is late is decided once for a micro-batch: records below what the greatest time seen in all
micro-batches *before* it allows. Then all workers' inputs advance together to what the greatest
time seen so far allows, so that an idle partition holds back no other.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from jeton.columns.durations import NANOSECONDS
from jeton.columns.time_units import INTEGER, unit_of
from jeton.core.errors import GraphError
from jeton.spark import store_access
from jeton.spark.application import Application, conf_of, context_of, require_slots
from jeton.spark.batch import (
    check_inputs,
    divided,
    ends_for,
    time_type,
)
from jeton.spark.internals import operators_of, running_query, spark_schema, watermark_delay
from jeton.spark.metrics import Counts, Frames, Inspection, accumulator
from jeton.spark.micro_batch_coordinator import MicroBatchCoordinator, Rules
from jeton.spark.plans import (
    dealt_out_always,
    kept_apart,
    only_passes_on,
    united,
)
from jeton.spark.query_location import folder_of
from jeton.spark.rollback import roll_back
from jeton.spark.shipping import shipping
from jeton.spark.stream_breakpoint import StreamBreakpoint
from jeton.spark.streaming_tasks import run_micro_batch
from jeton.spark.tasks import Ends
from jeton.spark.wire_settings import wire_settings

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

    from jeton.dataflow.flow import Flow

__all__ = ["StreamingFrames", "Writer", "on_stream", "parquet_writer", "roll_back"]

log = logging.getLogger(__name__)

KEEP: Final = 10

Writer = Callable[[DataFrame, int], None]
"""Takes the rows of one output in one micro-batch, and that one's number."""


def on_stream(
    flow: Flow,
    inputs: Mapping[str, DataFrame],
    *,
    workers: int | None = None,
    shuffle: bool = True,
    repartition: bool = True,
    schemas: Mapping[str, pa.Schema] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    keep: int = KEEP,
    allow_removed: Collection[str] = (),
    progress: bool | None = None,
    tls: bool | None = None,
) -> StreamingFrames:
    """A streaming DataFrame for each output of a flow: ``flow.on_spark`` for streams.

    Args:
        flow: The program. Its inputs say how late records can be (``lateness=``); an input that
            does not takes the delay of the DataFrame's ``withWatermark``, if it has one. Without
            either, nothing is ever late, but no time is ever complete.
        inputs: A streaming DataFrame for each input, with the time column that the input names.
        workers: How many tasks run as workers in each micro-batch; by default, and at most, as
            many as the cluster can run at once. It may change when a query is started again.
        shuffle: Put a shuffle behind the stage, so that Spark retries it when a worker dies.
            Without, the query fails then; started again, it goes on where it was.
        repartition: Put a shuffle before the stage, which deals the rows out to ``workers`` tasks.
            Without, each partition of the one input is a worker. That is quicker, for streams
            whose micro-batches all have the same number of partitions, no more than the cluster
            can run at once: where the number changes, workers start from the files.
        schemas: The schemas of outputs' tables, where the flow does not know them itself.
        checkpoint: Where to keep the state; by default with Spark's own under the query's
            checkpoint location.
        keep: How many versions of the state stay, but no more than Spark keeps of its own. They
            are cleaned up now and then, so that a few more may be there.
        allow_removed: Names of operators whose state is to be dropped, since the flow no longer
            has them.
        progress: Not for streams, which have no end: see ``query.lastProgress``.
        tls: Whether connections between machines, and those to the driver, are under TLS, with
            certificates made for this plan. By default if Spark's settings ask for it: see
            docs/security.md.

    Each sink that is started is a query that runs the flow for itself, with state of its own. To
    run it once and write several outputs, use `StreamingFrames.write_stream`.

    >>> import jeton as jt
    >>> flow = jt.Flow("counts")
    >>> numbers = flow.input("numbers", time="value", schema={})
    >>> flow.output("counts", numbers.key_by().running().count())
    >>> source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5)
    >>> stream = source.load().select("value")
    >>> counts = flow.on_spark({"numbers": stream}, workers=2)["counts"]
    >>> query = counts.writeStream.format("memory").queryName("rolling").start()
    >>> while query.lastProgress is None or query.lastProgress.batchId < 2:
    ...     assert query.exception() is None
    >>> query.stop()
    >>> spark.table("rolling").where("value < 10").agg({"count": "max"}).collect()
    [Row(max(count)=10)]
    """
    check_inputs(flow, inputs)
    still = [name for name, frame in inputs.items() if not frame.isStreaming]
    if still:
        raise GraphError(
            f"the inputs {still} are not streaming DataFrames, but others are: every micro-batch "
            "would read them whole again. Join them in Spark before, or make streams of them"
        )
    if keep < 1:
        raise GraphError(f"at least one version of the state must be kept, not {keep}")
    if isinstance(allow_removed, str):
        raise GraphError(f"allow_removed= takes a list of names: [{allow_removed!r}]")
    if progress:
        raise GraphError("a stream has no end to show progress to: look at query.lastProgress")
    folder_of(flow.name)
    if not repartition and (len(inputs) > 1 or workers is not None):
        raise GraphError(
            "repartition=False makes a worker of each partition of the one input, so that it goes "
            "with neither several inputs nor workers="
        )
    spark = next(iter(inputs.values())).sparkSession
    if context_of(spark) is None:
        raise GraphError(
            "a stream needs a classic Spark session. Under Spark Connect, no call adds a row to "
            "every micro-batch, so that Spark would leave the flow out of those without rows, and "
            "the query does not say where its checkpoint is nor what its sink is, by which the "
            "flow's state is committed with it: use a classic session (docs/spark.md), or a "
            "long-lived query, flow.start(spark, …), which Spark Connect can run"
        )
    wire = wire_settings(conf_of(spark), tls)
    application = Application.of(spark)
    slots = require_slots(spark, 1 if workers is None else workers)
    times = time_type(flow, inputs)
    ends = ends_for(flow, inputs, times, schemas)
    frame = united([inputs[name] for name in ends.inputs])
    lateness = {name: _lateness(flow, name, inputs[name], times) for name in ends.inputs}
    _warn_of_waiting(flow, lateness)
    plan = application.next_plan(flow)
    policy = spark.conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")
    retained = int(spark.conf.get("spark.sql.streaming.minBatchesToRetain", "100") or 100)
    removed = tuple(allow_removed)
    state = None if checkpoint is None else os.fspath(checkpoint)
    rules = Rules(
        removed,
        keep=max(1, min(keep, retained)),
        follow_furthest=policy == "max",
        left_out=not repartition and only_passes_on(frame),
        aggregated="Aggregate" in (operators_of(frame) or ()),
    )
    server = application.rendezvous
    coordinator = MicroBatchCoordinator(
        flow,
        plan,
        rules,
        lambda query: running_query(spark, query, state),
        server.forget_stages,
        application.state_owners,
        StreamBreakpoint(flow, unit_of(times) or INTEGER),
    )
    meeting = server.meeting(plan, coordinator.take_over, tls=wire.tls, binding=wire.workers)
    counts = accumulator(spark.sparkContext)

    stores = store_access.adopt(spark)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store_access.use(stores)
        return run_micro_batch(flow, ends, lateness, removed, meeting, counts, batches)

    task.__name__ = f"jeton:{flow.name}"
    if repartition:
        frame = dealt_out_always(frame, workers or slots or 2)
    with shipping(flow):
        result = frame.mapInArrow(task, spark_schema(ends.result), barrier=True)
    if shuffle:
        result = kept_apart(result, slots or workers or 2)
    return StreamingFrames(result, ends, counts, flow, coordinator, state, shuffle)


class StreamingFrames(Frames):
    """A streaming DataFrame for each output of a flow, and one writer for all of them."""

    def __init__(
        self,
        whole: DataFrame,
        ends: Ends,
        counts: Accumulator[Counts],
        flow: Flow,
        coordinator: MicroBatchCoordinator,
        state: str | None,
        shuffle: bool,
    ) -> None:
        inspection = Inspection(flow, counts, coordinator.breakpoint)
        super().__init__(divided(whole, ends), counts, whole, inspection, coordinator)
        self._ends = ends
        self._flow = flow.name
        self._state = state
        self._shuffled = shuffle

    def write_stream(
        self,
        writers: Mapping[str, Writer],
        *,
        checkpoint: str | os.PathLike[str],
        name: str | None = None,
        trigger: Mapping[str, Any] | None = None,
    ) -> StreamingQuery:
        """Start one query that runs the flow once and writes several outputs.

        Args:
            writers: For each output that is wanted a function of its rows in one micro-batch, a
                DataFrame, and the micro-batch's number. Spark may run a micro-batch again after
                a failure, with the same rows: `parquet_writer` overwrites its files then.
            checkpoint: The query's checkpoint location. If the flow's newest state is damaged,
                the query first returns to the one before: see `roll_back`.
            name: The query's name.
            trigger: When to run: what ``DataStreamWriter.trigger`` takes.

        >>> import tempfile, jeton as jt
        >>> flow = jt.Flow("both")
        >>> numbers = flow.input("numbers", time="value", schema={})
        >>> even, odd = numbers.branch(lambda batch: batch.times % 2 == 1)
        >>> flow.output("even", even)
        >>> flow.output("odd", odd)
        >>> source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5)
        >>> stream = source.load().select("value")
        >>> seen = []
        >>> query = flow.on_spark({"numbers": stream}, workers=2).write_stream(
        ...     {
        ...         "even": lambda rows, batch: seen.append(rows.count()),
        ...         "odd": lambda rows, batch: seen.append(rows.count()),
        ...     },
        ...     checkpoint=tempfile.mkdtemp(),
        ... )
        >>> while len(seen) < 4:
        ...     assert query.exception() is None
        >>> query.stop()
        >>> seen[:4]
        [3, 2, 2, 3]
        """
        unknown = [output for output in writers if output not in self]
        if unknown or not writers:
            raise GraphError(
                f"writers are for the outputs {list(self)}, not for {unknown or 'none at all'}"
            )
        if not self._shuffled:
            raise GraphError(
                "write_stream needs shuffle=True: without, a writer could not look at a part of "
                "the rows, as isEmpty(), take() and limit() do"
            )
        roll_back(checkpoint, flow=self._flow, state=self._state)
        ends = self._ends

        def write(rows: DataFrame, batch: int) -> None:
            # Cached, so that the flow runs once for all uses of its rows.
            rows.persist()
            try:
                frames = divided(rows, ends)
                for output, writer in writers.items():
                    writer(frames[output], batch)
            finally:
                rows.unpersist()

        writer = self._whole.writeStream.foreachBatch(write).option(
            "checkpointLocation", os.fspath(checkpoint)
        )
        if name is not None:
            writer = writer.queryName(name)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        query: StreamingQuery = writer.start()
        return query


def parquet_writer(path: str | os.PathLike[str]) -> Writer:
    """A writer of Parquet files: a folder for each micro-batch, so that each is there once.

    Read them with ``spark.read.parquet(path)``, which also has the micro-batch's number in a
    column ``batch``.
    """

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{os.fspath(path)}/batch={batch}")

    return write


def _lateness(flow: Flow, name: str, frame: DataFrame, times: pa.DataType) -> int | None:
    """How late an input's records can be: as the flow says, or else as the DataFrame does."""
    own = flow.lateness.get(name)
    column = frame.schema[flow.operators[flow.handle("input", name)].time_name]
    delay = watermark_delay(column)
    if own is not None or delay is None or not pa.types.is_timestamp(times):
        return own
    # At least as much as Spark allows for.
    return -(-delay * NANOSECONDS["ms"] // NANOSECONDS[times.unit])


def _warn_of_waiting(flow: Flow, lateness: Mapping[str, int | None]) -> None:
    waiting = [plan.name for plan in flow.operators if plan.inputs and plan.notify == "held"]
    unsaid = [name for name, late in lateness.items() if late is None]
    if unsaid and waiting:
        log.warning(
            "flow %r has operators that wait until times are complete (%s), but the inputs %s do "
            "not say how late their records can be, so that no time ever is: use "
            "flow.input(…, lateness=…) or withWatermark",
            flow.name,
            ", ".join(waiting),
            unsaid,
        )
