"""Metrics of batch runs and micro-batches, in a Spark accumulator."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame

from jeton.cluster.run_reports import RunReports
from jeton.core.checks import suggestion
from jeton.core.errors import GraphError, UnknownOutput
from jeton.runtime.agent import Agent
from jeton.runtime.metrics import add_metrics
from jeton.runtime.monitor import Monitor, Observation

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql.streaming.query import StreamingQuery

    from jeton.dataflow.flow import Flow
    from jeton.inspector.server import Page

COUNTED: Final = ("runs", "rows_in", "rows_out", "late", "messages", "progress_batches")

Counts = tuple[int, dict[str, Any], dict[int, dict[str, Any]]]
"""The epoch of the latest run of some workers, the sums of their metrics, and their reports."""


class CountsParam(AccumulatorParam[Counts]):
    """Adds metrics up.

    >>> counts = CountsParam()
    >>> counts.addInPlace((1, {"rows_in": 1, "late": 0}, {}), (1, {"rows_in": 2, "late": 1}, {}))
    (1, {'rows_in': 3, 'late': 1}, {})
    """

    def zero(self, value: Counts) -> Counts:
        """Nothing counted yet."""
        return 0, {**dict.fromkeys(COUNTED, 0), "operators": []}, {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:
        """The sums; levels such as tokens held, and reports, are those of the later run."""
        (before, one, earlier), (epoch, other, reports) = sorted(
            (value1, value2), key=lambda value: value[0]
        )
        later = epoch > before
        total = add_metrics(one, other, later=later)
        return epoch, total, reports if later else {**earlier, **reports}


def accumulator(context: SparkContext) -> Accumulator[Counts]:
    """An accumulator for the runs of one flow."""
    param = CountsParam()
    return context.accumulator(param.zero((0, {}, {})), param)


def counted(agent: Agent, epoch: int) -> Counts:
    """The counts of a worker that go into Spark's accumulator."""
    report = {**agent.reported(), "run": epoch}
    counts = {"runs": int(agent.worker.index == 0), **report["metrics"]}
    sums = {name: counts[name] for name in (*COUNTED, "operators")}
    return epoch, sums, {agent.worker.index: report}


class Inspection:
    """Looks at a flow that runs in batches or micro-batches, for its page."""

    def __init__(self, flow: Flow, seen: RunReports | Accumulator[Counts]) -> None:
        self.flow = flow
        self._seen = seen
        self.monitor = Monitor(flow.name, self.observe)

    def observe(self) -> Observation:
        """The latest run, or the latest micro-batch that is done."""
        if isinstance(self._seen, RunReports):
            done = "complete" if self._seen.runs else "not started"
            status = "running" if self._seen.is_running else done
            return Observation(status=status, reports=dict(self._seen.latest))
        _, counts, reports = self._seen.value
        return Observation(
            status="streaming" if counts["runs"] else "not started", reports=dict(reports)
        )


class Frames(dict[str, DataFrame]):
    """A DataFrame for each output of a flow, and the metrics of the workers that compute them.

    >>> import jeton as jt
    >>> flow = jt.Flow("small")
    >>> numbers = flow.input("n", time="id", schema={})
    >>> flow.output("small", numbers.filter(lambda batch: batch.times < 3))
    >>> frames = flow.on_spark({"n": spark.range(100)}, workers=2)
    >>> len(frames["small"].collect())
    3
    >>> metrics = frames.metrics()
    >>> metrics["runs"], metrics["rows_in"], metrics["rows_out"], metrics["late"]
    (1, 100, 3, 0)
    >>> [each["name"] for each in metrics["operators"]]
    ['n', 'filter', 'small']
    """

    def __init__(
        self,
        frames: Mapping[str, DataFrame],
        counts: Accumulator[Counts] | None,
        whole: DataFrame,
        inspection: Inspection,
    ) -> None:
        super().__init__(frames)
        self._counts = counts
        self._whole = whole
        """The rows of all outputs, of which each frame takes its own."""
        self._inspection = inspection
        self._pages: dict[tuple[str, int], Page] = {}

    def __missing__(self, name: str) -> DataFrame:
        raise UnknownOutput(
            f"there is no output {name!r}{suggestion(str(name), self)} "
            f"(there are: {', '.join(map(repr, self)) or 'none'})"
        )

    def metrics(self) -> dict[str, Any]:
        """Sums over all workers and over all actions so far, from a Spark accumulator.

        Each action computes the flow anew and counts again. ``operators`` has a record of each
        operator; its tokens, queue and state are those of the latest run. Under Spark Connect,
        which has no accumulators, nothing is known.
        """
        return {} if self._counts is None else dict(self._counts.value[1])

    def inspect(self, *, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve a live page of this flow; returns the page's address.

        It shows the graph, frontiers, tokens and queues of the run that is under way or was the
        latest; of a stream, those of the latest micro-batch that is done. There is nothing to
        steer. Under Spark Connect, nothing is known. It needs ``pip install 'jeton[inspect]'``.

        >>> import jeton as jt
        >>> flow = jt.Flow("small")
        >>> flow.output("small", flow.input("n", time="id", schema={}))
        >>> print(flow.on_spark({"n": spark.range(100)}, workers=2).inspect())
        http://127.0.0.1:...
        """
        if (host, port) not in self._pages:
            from jeton.inspector.server import serve

            inspection = self._inspection
            self._pages[host, port] = serve(inspection.flow, inspection, host, port)
        return self._pages[host, port].url

    def pause_at(self, time: Any = None) -> NoReturn:
        """Refuse: breakpoints are for runs in this process and for long-lived queries.

        A batch runs to its end, and Spark takes every micro-batch of a stream from the sources to
        the sinks, so that no record of it can be held back.
        """
        raise GraphError(
            "batches and micro-batches cannot be paused at a time, since Spark takes each of them "
            "whole from its sources to its sinks: pause a long-lived query, flow.start(…), or a "
            "run in this process, flow.open()"
        )

    def cache(self) -> Self:
        """Run the flow once for all outputs: their rows are kept for later actions.

        `unpersist` lets go of them. Streaming frames have ``write_stream`` for this.

        >>> import jeton as jt
        >>> flow = jt.Flow("halves")
        >>> numbers = flow.input("n", time="id", schema={})
        >>> flow.output("small", numbers.filter(lambda batch: batch.times < 30))
        >>> flow.output("large", numbers.filter(lambda batch: batch.times >= 30))
        >>> frames = flow.on_spark({"n": spark.range(100)}, workers=2).cache()
        >>> frames["small"].count(), frames["large"].count(), frames.metrics()["runs"]
        (30, 70, 1)
        >>> frames.unpersist()
        """
        if self._whole.isStreaming:
            raise GraphError("streaming frames cannot be cached: write_stream runs the flow once")
        self._whole.cache()
        return self

    def unpersist(self) -> None:
        """Let go of the rows that `cache` keeps."""
        self._whole.unpersist()

    def write_stream(
        self,
        writers: Mapping[str, Callable[[DataFrame, int], None]],
        *,
        checkpoint: str | os.PathLike[str],
        name: str | None = None,
        trigger: Mapping[str, Any] | None = None,
    ) -> StreamingQuery:
        """Start one query that writes several outputs: see `StreamingFrames.write_stream`.

        Only streaming inputs make a query; batch DataFrames are written one by one.
        """
        raise GraphError(
            "write_stream needs a streaming input (spark.readStream): these are batch DataFrames, "
            "write each with frames[name].write"
        )
