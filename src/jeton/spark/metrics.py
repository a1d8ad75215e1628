"""Metrics of batch runs and micro-batches, in a Spark accumulator."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame

from jeton.cluster.run_reports import RunReports
from jeton.core.checks import suggestion
from jeton.core.errors import GraphError, UnknownOutput
from jeton.dataflow.plan import progress_graph
from jeton.runtime import steering
from jeton.runtime.agent import Agent
from jeton.runtime.metrics import Totals, add_metrics, carried
from jeton.runtime.monitor import Monitor, Observation
from jeton.runtime.state_view import as_frame
from jeton.runtime.why import Holder, Question, Why

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.sql.streaming.query import StreamingQuery

    from jeton.connectors.sources import Source
    from jeton.dataflow.flow import Flow
    from jeton.inspector.server import Page
    from jeton.spark.micro_batch_coordinator import MicroBatchCoordinator
    from jeton.spark.stream_breakpoint import StreamBreakpoint

COUNTED: Final = ("runs", "rows_in", "rows_out", "late", "messages", "progress_batches")

Counts = tuple[int, dict[str, Any], dict[int, dict[str, Any]], Totals]
"""The epoch of the latest run of some workers, the sums of their metrics, their reports, and the
metrics of each worker in the runs before."""


class CountsParam(AccumulatorParam[Counts]):
    """Adds metrics up.

    >>> counts = CountsParam()
    >>> one, other = {"rows_in": 1, "late": 0}, {"rows_in": 2, "late": 1}
    >>> counts.addInPlace((1, one, {}, {}), (1, other, {}, {}))
    (1, {'rows_in': 3, 'late': 1}, {}, {})
    >>> counts.addInPlace((1, one, {0: {"metrics": one}}, {}), (2, other, {}, {}))[3]
    {0: {'rows_in': 1, 'late': 0}}
    """

    def zero(self, value: Counts) -> Counts:
        """Nothing counted yet."""
        return 0, {**dict.fromkeys(COUNTED, 0), "operators": []}, {}, {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:
        """The sums; levels such as tokens held, and reports, are those of the later run."""
        (first, one, earlier, before), (epoch, other, reports, past) = sorted(
            (value1, value2), key=lambda value: value[0]
        )
        later = epoch > first
        total = add_metrics(one, other, later=later)
        if later:
            return epoch, total, reports, carried(before, earlier)
        return epoch, total, {**earlier, **reports}, {**before, **past}


def accumulator(context: SparkContext) -> Accumulator[Counts]:
    """An accumulator for the runs of one flow."""
    param = CountsParam()
    return context.accumulator(param.zero((0, {}, {}, {})), param)


def counted(agent: Agent, epoch: int) -> Counts:
    """The counts of a worker that go into Spark's accumulator."""
    report = {**agent.reported(), "run": epoch}
    counts = {"runs": int(agent.worker.index == 0), **report["metrics"]}
    sums = {name: counts[name] for name in (*COUNTED, "operators")}
    return epoch, sums, {agent.worker.index: report}, {}


class Inspection:
    """Looks at a flow that runs in batches or micro-batches, for its page."""

    def __init__(
        self,
        flow: Flow,
        seen: RunReports | Accumulator[Counts],
        breakpoint: StreamBreakpoint | None = None,
    ) -> None:
        self.flow = flow
        self._seen = seen
        self._breakpoint = breakpoint
        self.monitor = Monitor(flow.name, self.observe)

    def observe(self) -> Observation:
        """The latest run, or the latest micro-batch that is done."""
        if isinstance(self._seen, RunReports):
            done = "complete" if self._seen.runs else "not started"
            status = "running" if self._seen.is_running else done
            return Observation(
                status=status, reports=dict(self._seen.latest), before=self._seen.before
            )
        _, counts, reports, before = self._seen.value
        paused_at, rests = None, False
        if self._breakpoint is not None:
            paused_at, rests = self._breakpoint.shown, self._breakpoint.is_paused
        return Observation(
            status="streaming" if counts["runs"] or rests else "not started",
            reports=dict(reports),
            before=before,
            paused_at=paused_at,
            awaited=None if paused_at is None or rests else "no micro-batch has come to it",
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
        coordinator: MicroBatchCoordinator | None = None,
        *,
        ordered: bool | None = None,
        sources: Mapping[str, Source] | None = None,
    ) -> None:
        super().__init__(frames)
        self._ordered = ordered
        self._sources = sources or {}
        """The sources that workers read by themselves."""
        self._coordinator = coordinator
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

    def explain(self) -> None:
        """Print the plan of the flow, and how a batch reads its rows.

        Spark may sort them by time; workers may read sources by themselves, in whole or in part.

        >>> import jeton as jt
        >>> flow = jt.Flow("counts")
        >>> numbers = flow.input("n", time="id", schema={})
        >>> flow.output("counts", numbers.key_by().tumbling(10).count())
        >>> flow.on_spark({"n": spark.range(10**9)}, workers=2).explain()
        Flow 'counts'
          0 n       input, times in 'id'
          1 count   from 0 n by Gather    → count: int64
          2 counts  output, from 1 count
        Waits for times to pass: 1 count
        Rows are read in order of time
        """
        self._inspection.flow.explain()
        if self._ordered is not None:
            how = "in order of time" if self._ordered else "as they come"
            print(f"Rows are read {how}")
        for name, source in self._sources.items():
            print(f"Workers read {name!r}: {source.about() or source}")

    def metrics(self) -> dict[str, Any]:
        """Sums over all workers and over all actions so far, from a Spark accumulator.

        Each action computes the flow anew and counts again. ``operators`` has a record of each
        operator; its tokens, queue and state are those of the latest run. ``workers`` has the
        metrics of each worker in the latest run, such as its peak memory. Under Spark Connect,
        which has no accumulators, nothing is known.
        """
        if self._counts is None:
            return {}
        _, sums, reports, _ = self._counts.value
        each = {worker: report["metrics"] for worker, report in sorted(reports.items())}
        return {**sums, "workers": each}

    def inspect(self, *, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve a live page of this flow; returns the page's address.

        It shows the graph, frontiers, tokens and queues of the run that is under way or was the
        latest; of a stream, those of the latest micro-batch that is done. A stream can be paused
        there; a batch cannot be steered. Under Spark Connect, nothing is known. It needs
        ``pip install 'jeton[inspect]'``.

        >>> import jeton as jt
        >>> flow = jt.Flow("small")
        >>> flow.output("small", flow.input("n", time="id", schema={}))
        >>> print(flow.on_spark({"n": spark.range(100)}, workers=2).inspect())
        http://127.0.0.1:...
        """
        if (host, port) not in self._pages:
            from jeton.inspector.server import serve

            inspection = self._inspection
            target = inspection if self._coordinator is None else self
            self._pages[host, port] = serve(inspection.flow, target, host, port)
        return self._pages[host, port].url

    @property
    def monitor(self) -> Monitor:
        """Looks at it every second, for its page."""
        return self._inspection.monitor

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name != "monitor"]

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

    # Breakpoints of streams

    def pause_at(self, time: Any = None) -> Any:
        """Set a breakpoint: the first micro-batch with a record at or after a time waits there.

        Its workers hold these records back and rest, and nothing of it reaches the sink, until
        `step` or `resume`. Micro-batches before that time are not affected. ``time`` is a timestamp
        or an integer, as the flow has them; without one, it is the least time after all records of
        the micro-batches so far. Returns the time. A micro-batch that is under way already does not
        wait. Batches cannot be paused, since Spark runs them to their end.

        >>> import jeton as jt
        >>> flow = jt.Flow("ticks")
        >>> flow.output("ticks", flow.input("ticks", time="value", schema={}, lateness=0))
        >>> source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
        >>> frames = flow.on_spark({"ticks": source.load().select("value")}, workers=2)
        >>> frames.pause_at(15)
        15
        >>> query = frames["ticks"].writeStream.format("memory").queryName("ticks").start()
        >>> frames.await_paused()
        >>> spark.table("ticks").agg({"value": "max"}).collect()
        [Row(max(value)=9)]
        >>> int(frames.in_flight()["rows"].sum())
        5
        >>> frames.resume()
        >>> query.stop()
        """
        return self._breakpoint().pause(time)

    def step(self, until: Any = None) -> Any:
        """Move the breakpoint on. Returns its time.

        It is ``until``, or else the least time after the breakpoint of a record that is held back.
        A micro-batch goes on once all its records are before the breakpoint.
        """
        return self._breakpoint().step(until)

    def resume(self) -> None:
        """Remove the breakpoint: the micro-batch that waits goes on."""
        self._breakpoint().resume()

    @property
    def paused_at(self) -> Any:
        """The time of the breakpoint, ``None`` if there is none."""
        return self._breakpoint().shown

    @property
    def is_paused(self) -> bool:
        """Whether a micro-batch waits at the breakpoint, and its workers rest."""
        return self._breakpoint().is_paused

    def await_paused(self, timeout: float = 60.0) -> None:
        """Wait until a micro-batch waits at the breakpoint; `TimeoutError` otherwise."""
        self._breakpoint().await_paused(timeout)

    def state(self, operator: str) -> pd.DataFrame:
        """The state of an operator while a micro-batch waits at the breakpoint, over all workers.

        It has the columns of the operator's containers, the number of tokens that it holds on the
        worker, and the least of their times.
        """
        return as_frame(
            self._breakpoint().look(lambda: steering.state_of(self._inspection.flow, operator))
        )

    def in_flight(self) -> pd.DataFrame:
        """The records that the breakpoint holds back, and messages that wait in operators."""
        return as_frame(self._breakpoint().look(steering.messages))

    def why(self, name: str | None = None, *, at: Any = None) -> Why:
        """Name what holds the frontier of an output, probe or operator in the present micro-batch.

        Between micro-batches, nothing is known of frontiers. See `jeton.spark.query.Query.why`.
        """
        facts, troubles, flow = [], [], self._inspection.flow
        if self._coordinator is None:
            raise GraphError(
                "a batch cannot be asked why, since Spark runs it to its end: inspect() shows how "
                "far it is; ask a stream, a long-lived query, flow.start(…), or a run in this "
                "process, flow.open()"
            )
        for attempt in self._coordinator.under_way:
            found = attempt.inquiry.ask(attempt)
            facts += found
            troubles += attempt.inquiry.silent(attempt, found)
        if not facts and not troubles:
            text = "no micro-batch is under way: the next one comes with new rows of the sources"
            troubles = [Holder(what="query", text=text)]
        return Question(flow, progress_graph(flow.operators), facts, troubles).why(name, at)

    def _breakpoint(self) -> StreamBreakpoint:
        return self._stream().breakpoint

    def _stream(self) -> MicroBatchCoordinator:
        if self._coordinator is None:
            raise GraphError(
                "a batch cannot be paused at a time, since Spark runs it to its end: pause a "
                "stream, a long-lived query, flow.start(…), or a run in this process, flow.open()"
            )
        return self._coordinator
