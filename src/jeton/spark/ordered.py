"""Batches beyond memory: rows in order of time, so that frontiers move while workers read.

Spark sorts the rows of each partition by time; its sort spills to disk. A worker then knows after
each batch that nothing earlier can come from its partition, and advances all inputs to the latest
time that it has read. Windows close and joins forget while the rest is still to be read: state
holds the records near the frontier, and not all of them.

A frontier is the least of all workers', so workers read in step: see `jeton.runtime.read_ahead`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame, types
from pyspark.sql import functions as F

from jeton.core.errors import JetonError
from jeton.dataflow.inputs import InputHandle
from jeton.dataflow.plan import waiting
from jeton.runtime.agent import Agent
from jeton.runtime.read_ahead import ReadAhead
from jeton.spark.internals import size_of
from jeton.spark.tasks import Columns, Ends, SparkBatches

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow

SMALL: Final = 128 << 20
"""The bytes of all inputs, by Spark's estimate, up to which they are not sorted by default."""
LEAD: Final = 16 << 20
"""Bytes that a worker may read beyond the time of the slowest one."""


def needs_order(flow: Flow, inputs: Mapping[str, DataFrame]) -> bool:
    """Whether a batch is to be read in order of time, if nobody says so.

    It is if an operator waits for times to pass and the inputs may be large.

    >>> import jeton as jt
    >>> flow = jt.Flow("flow")
    >>> numbers = flow.input("n", time="id")
    >>> flow.output("small", numbers.filter(jt.col("id") < 3))
    >>> needs_order(flow, {"n": spark.range(10**9)})
    False
    >>> flow.output("counts", numbers.key_by().tumbling(10).count())
    >>> needs_order(flow, {"n": spark.range(10**9)}), needs_order(flow, {"n": spark.range(10)})
    (True, False)
    """
    handles = [flow.handle("input", name) for name in flow.inputs]
    if not flow.kind.integers or not waiting(flow.operators, handles):
        return False
    left = SMALL
    for size in map(size_of, inputs.values()):
        if size is None or size > left:
            return True
        left -= size
    return False


def in_order_of_time(rows: DataFrame, flow: Flow, ends: Ends) -> DataFrame:
    """The rows of all inputs, as the stage reads them, with each partition sorted by time.

    Columns are numbered. Rows without a time come first, so that they are refused at once.
    """
    found = []
    for name, columns in zip(ends.inputs, ends.columns, strict=True):
        time = flow.operators[flow.handle("input", name)].time_name
        found.append(columns.at[columns.names.index(time)])
    if len(set(found)) == 1:
        return rows.sortWithinPartitions(F.col(f"_{found[0]}"))
    common = _common_type([rows.schema[f"_{at}"].dataType for at in found])
    # The first column says which input a row belongs to.
    times = (
        F.when(F.col("_0") == number, F.col(f"_{at}").cast(common))
        for number, at in enumerate(found)
    )
    return rows.sortWithinPartitions(F.coalesce(*times))


def _common_type(kinds: Sequence[types.DataType]) -> types.DataType:
    """A type that has the times of all inputs in the same order.

    >>> _common_type([types.ShortType(), types.LongType()])
    LongType()
    >>> _common_type([types.DateType(), types.TimestampNTZType()])
    TimestampNTZType()
    """
    first = kinds[0]
    if all(kind == first for kind in kinds):
        return first
    # Of other types only dates and timestamps without a zone can meet in a flow.
    whole = isinstance(first, types.IntegralType)
    return types.LongType() if whole else types.TimestampNTZType()


class OrderedBatches(SparkBatches):
    """The feed of a batch in order of time: inputs advance as it is read, in step with others."""

    # It would read ahead of the others what it should not hold yet.
    gathers = False

    def __init__(
        self,
        agent: Agent,
        inputs: Sequence[InputHandle],
        columns: Sequence[Columns],
        batches: Iterator[pa.RecordBatch],
    ) -> None:
        super().__init__(agent, inputs, columns, batches)
        flow, worker = agent.flow, agent.worker
        # All inputs of a worker are at the same time, so that one tells for all.
        first = worker.graph.nodes[flow.handle("input", inputs[0].name)]
        self._ahead = ReadAhead(worker.tracker, first.outputs[0], most=LEAD)

    def read(self, busy: bool) -> bool:
        """Send the rows of one batch, unless others are too far behind."""
        return not self._leads() and super().read(busy)

    def take(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch, and advance to the last of their times."""
        super().take(batch)
        if batch.num_rows == 0:
            return
        latest = max(each.furthest for each in self._inputs if each.furthest is not None)
        if any(each.late_count for each in self._inputs):
            raise JetonError(
                f"Spark's rows are not in order of time before {self._inputs[0].in_words(latest)}: "
                "report this, and pass on_spark(…, ordered=False)"
            )
        for handle in self._inputs:
            if handle.time < latest:
                handle.advance_to(latest)
        self._ahead.took(latest, batch.nbytes)

    def patience(self, idle: float) -> float:
        """As long as it takes the slowest to advance, if this worker is far ahead."""
        return math.inf if self._leads() else super().patience(idle)

    def _leads(self) -> bool:
        """Whether this worker has read enough beyond the time of the slowest."""
        return not self._ended and self._ahead.is_enough()
