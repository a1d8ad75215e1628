"""Structured Streaming: streaming DataFrames in, streaming DataFrames out, for any sink.

Each micro-batch is one barrier stage. Its workers start from the state after the micro-batch before
it, and commit theirs under the query's checkpoint location, keyed by the micro-batch's number. So
when Spark runs a micro-batch again, it gives the same answer: exactly once with Spark's own sinks.

What is late is decided once for a micro-batch: records below what the greatest time seen in all
micro-batches *before* it allows. Then all workers' inputs advance together to what the greatest
time seen so far allows, so that an idle partition holds nobody back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import fs as arrow_fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from jeton.core.errors import GraphError, SnapshotError
from jeton.spark.batch import (
    check_inputs,
    divided,
    exchanged,
    next_plan,
    output_schema,
    rendezvous_of,
    require_slots,
    time_type,
    together,
)
from jeton.spark.checkpoints import Checkpoints, file_system
from jeton.spark.conductor import Conductor, Rules
from jeton.spark.metrics import Frames, accumulator
from jeton.spark.schemas import spark_schema
from jeton.spark.streaming_tasks import run_micro_batch
from jeton.spark.tasks import Ends

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

    from jeton.dataflow.flow import Flow

log = logging.getLogger(__name__)

FOLDER: Final = "jeton"
"""Where flows keep their state inside a query's checkpoint location."""
KEEP: Final = 10

Writer = Callable[[DataFrame, int], None]
"""Takes the rows of one output in one micro-batch, and that one's number."""


def on_stream(
    flow: Flow,
    inputs: Mapping[str, DataFrame],
    *,
    workers: int | None = None,
    exchange: bool = True,
    repartition: bool = True,
    schemas: Mapping[str, pa.Schema] | None = None,
    checkpoint: str | None = None,
    keep: int = KEEP,
    allow_removed: Collection[str] = (),
) -> StreamingFrames:
    """A streaming DataFrame for each output of a flow: what ``flow.on_spark`` does with streams.

    Args:
        flow: The program. Its inputs say how late records can be (``lateness=``); an input that
            does not takes the delay of the DataFrame's ``withWatermark``, if it has one. Without
            either, nothing is ever late, but no time is ever complete.
        inputs: A streaming DataFrame for each input, with the time column that the input names.
        workers: How many tasks run as workers in each micro-batch; by default, and at most, as
            many as the cluster can run at once. It may change when a query is started again.
        exchange: Put a shuffle behind the stage, so that Spark retries it when a worker dies.
            Without, the query fails then; started again, it goes on where it was.
        repartition: Put a shuffle before the stage, which deals the rows out to ``workers`` tasks.
            Without, each partition of the one input is a worker. That is quicker, for streams
            whose micro-batches all have the same number of partitions, no more than the cluster
            can run at once: where the number changes, workers start from the files.
        schemas: The schemas of outputs' tables, where the flow does not know them itself.
        checkpoint: Where to keep the state; by default with Spark's own under the query's
            checkpoint location.
        keep: How many versions of the state stay, but no more than Spark keeps of its own.
        allow_removed: Names of operators whose state is to be dropped, since the flow no longer
            has them.

    Each sink that is started is a query that runs the flow for itself, with state of its own. To
    run it once and write several outputs, use `StreamingFrames.write_stream`.

    >>> import jeton as jt
    >>> flow = jt.Flow("counts")
    >>> numbers = flow.input("numbers", time="value", schema={})
    >>> flow.output("counts", numbers.key_by().rolling().count())
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
            f"the inputs {still} are no streaming DataFrames, but others are: every micro-batch "
            "would read them whole again. Join them in Spark before, or make streams of them"
        )
    if keep < 1:
        raise GraphError(f"at least one version of the state must be kept, not {keep}")
    if not repartition and (len(inputs) > 1 or workers is not None):
        raise GraphError(
            "repartition=False makes a worker of each partition of the one input, so that it goes "
            "with neither several inputs nor workers="
        )
    spark = next(iter(inputs.values())).sparkSession
    server = rendezvous_of(spark)
    slots = require_slots(spark, 1 if workers is None else workers)
    names = tuple(flow.inputs)
    times = time_type(flow, inputs)
    lateness = {name: _lateness(flow, name, inputs[name], times) for name in names}
    _warn_of_waiting(flow, lateness)
    ends = Ends(
        names,
        tuple((name, output_schema(flow, name, times, schemas)) for name in flow.outputs),
    )
    plan = next_plan(flow)
    policy = spark.conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")
    retained = int(spark.conf.get("spark.sql.streaming.minBatchesToRetain", "100") or 100)
    removed = tuple(allow_removed)
    conductor = Conductor(
        flow,
        plan,
        Rules(removed, keep=max(1, min(keep, retained)), together=policy == "max"),
        lambda query: _root(spark, query, checkpoint),
        server.forget_stages,
    )
    meeting = server.meeting(plan, conductor.take_over)
    counts = accumulator(spark.sparkContext)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_micro_batch(flow, ends, lateness, removed, meeting, counts, batches)

    task.__name__ = f"jeton:{flow.name}"
    frame = together([inputs[name] for name in names])
    if repartition:
        frame = _partitioned(frame, workers or slots or 2)
    result = frame.mapInArrow(task, spark_schema(ends.result), barrier=True)
    if exchange:
        result = exchanged(result, slots)
    return StreamingFrames(result, ends, counts)


class StreamingFrames(Frames):
    """A streaming DataFrame for each output of a flow, and one writer for all of them."""

    def __init__(self, whole: DataFrame, ends: Ends, counts: Accumulator[dict[str, int]]) -> None:
        super().__init__(divided(whole, ends), counts)
        self._whole = whole
        self._ends = ends

    def write_stream(
        self,
        writers: Mapping[str, Writer],
        *,
        checkpoint: str,
        name: str | None = None,
        trigger: Mapping[str, Any] | None = None,
    ) -> StreamingQuery:
        """Start one query that runs the flow once and writes several outputs.

        Args:
            writers: For each output that is wanted a function of its rows in one micro-batch, a
                DataFrame, and the micro-batch's number. Spark may run a micro-batch again after
                a failure, with the same rows: `parquet_writer` is one that minds that.
            checkpoint: The query's checkpoint location. If its newest state is damaged, the
                query goes back to the one before first: see `go_back`.
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
        go_back(checkpoint)
        ends = self._ends

        def write(rows: DataFrame, batch: int) -> None:
            # Kept, so that the flow runs once however many times its rows are looked at.
            rows.persist()
            try:
                frames = divided(rows, ends)
                for output, writer in writers.items():
                    writer(frames[output], batch)
            finally:
                rows.unpersist()

        writer = self._whole.writeStream.foreachBatch(write).option(
            "checkpointLocation", checkpoint
        )
        if name is not None:
            writer = writer.queryName(name)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        query: StreamingQuery = writer.start()
        return query


def parquet_writer(path: str) -> Writer:
    """A writer of Parquet files: a folder for each micro-batch, so that each is there once.

    Read them with ``spark.read.parquet(path)``, which also has the micro-batch's number in a
    column ``batch``.
    """

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{path}/batch={batch}")

    return write


def go_back(checkpoint: str) -> int | None:
    """If the newest state of a query that is not running is damaged, go back to the one before.

    Spark then runs the last micro-batch again, with the same rows: sinks that mind that, as
    Spark's file sink does, have every row once. Returns that micro-batch, or nothing if all is
    well. What is older cannot be repaired so: `SnapshotError`.
    """
    fs, root = file_system(checkpoint)
    flows = [
        info
        for info in fs.get_file_info(
            arrow_fs.FileSelector(f"{root}/{FOLDER}", allow_not_found=True)
        )
        if not info.is_file
    ]
    done = max(_numbers(fs, f"{root}/commits"), default=-1)
    if not flows or done < 0:
        return None
    whole = []
    for info in flows:
        store = Checkpoints(info.path, fs)
        found = store.latest(below=done + 1)
        whole.append(-1 if found is None else found.version)
    if min(whole) >= done:
        return None
    if min(whole) < done - 1:
        raise SnapshotError(
            f"of the state after micro-batch {done} in {checkpoint} only that after micro-batch "
            f"{min(whole)} is whole, which is too far back for Spark to do the rest again: start "
            "anew with another checkpoint location"
        )
    log.warning("the query in %s goes back: it does micro-batch %d again", checkpoint, done)
    # What was planned but not done yet will be planned anew.
    for batch in [number for number in _numbers(fs, f"{root}/offsets") if number > done]:
        _delete_log(fs, f"{root}/offsets", batch)
    _delete_log(fs, f"{root}/commits", done)
    return done


def _partitioned(frame: DataFrame, workers: int) -> DataFrame:
    """As many partitions as there are to be workers, whatever each micro-batch has."""
    if not hasattr(frame, "repartitionById"):
        return frame.repartition(workers)
    # Whole partitions at a time: to deal out single rows, Spark would sort them before.
    return frame.repartitionById(workers, F.pmod(F.spark_partition_id(), F.lit(workers)))


def _numbers(fs: Any, folder: str) -> list[int]:
    selector = arrow_fs.FileSelector(folder, allow_not_found=True)
    return [
        int(info.base_name) for info in fs.get_file_info(selector) if info.base_name.isdecimal()
    ]


def _delete_log(fs: Any, folder: str, batch: int) -> None:
    for path in (f"{folder}/{batch}", f"{folder}/.{batch}.crc"):
        if fs.get_file_info(path).is_file:
            fs.delete_file(path)


def _root(spark: SparkSession, query: str, checkpoint: str | None) -> str:
    """Where a query that is running now keeps its flows' state."""
    if checkpoint is not None:
        return f"{checkpoint.rstrip('/')}/{query}"
    running: Any = spark.streams.get(query)
    if running is None:
        raise GraphError(f"query {query} is not active in this session")
    return f"{running._jsq.streamingQuery().resolvedCheckpointRoot()}/{FOLDER}"


def _lateness(flow: Flow, name: str, frame: DataFrame, times: pa.DataType) -> int | None:
    """How late an input's records can be: as the flow says, or else as the DataFrame does."""
    own = flow.lateness.get(name)
    column = frame.schema[flow.operators[flow.handle("input", name)].time_name]
    delay = column.metadata.get("spark.watermarkDelayMs")
    if own is not None or delay is None or not pa.types.is_timestamp(times):
        return own
    return int(delay) * {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 10**9}[times.unit] // 1000


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
