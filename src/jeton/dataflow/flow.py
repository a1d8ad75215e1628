"""Flows: whole dataflow programs, described once, run on any host."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, cast, overload

import pyarrow as pa

from jeton.columns.durations import Duration, Length, seconds
from jeton.columns.schema import SchemaLike, time_type
from jeton.columns.time_domain import TimeDomain
from jeton.core.checks import (
    described,
    require_name,
    require_tables,
    suggestion,
    type_name,
)
from jeton.core.errors import GraphError
from jeton.core.source_lines import calling_line
from jeton.core.times import END_OF_TIME, IntegerTimes, TimeKind, time_kind
from jeton.dataflow.drawing import plan_svg, plan_text
from jeton.dataflow.hints import require_stream
from jeton.dataflow.inputs import InputStream, add_input, add_unordered_input
from jeton.dataflow.operators.capture import Captured, add_replay
from jeton.dataflow.operators.output import add_output
from jeton.dataflow.operators.sequencer import add_sequencer
from jeton.dataflow.plan import OperatorPlan
from jeton.dataflow.scope import Scope
from jeton.state.bins import BINS, require_bins

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jeton.connectors.sinks import Sink
    from jeton.connectors.sources import Source
    from jeton.dataflow.stream import Stream
    from jeton.dataflow.stream_base import StreamBase
    from jeton.runtime.balance import Rebalance
    from jeton.runtime.in_process import Run
    from jeton.runtime.result import Result
    from jeton.spark.metrics import Frames
    from jeton.spark.native import Written
    from jeton.spark.query import Query
    from jeton.state.snapshot import Snapshot
    from jeton.storage.checkpoints import Checkpoints


_INTERNAL: Final = frozenset(
    (
        "add",
        "declared",
        "domain",
        "empty_output",
        "flow",
        "handle",
        "handles",
        "input_schemas",
        "lateness",
        "operators",
        "reserve",
        "time_name",
    )
)
"""Names for the library's own use, which completions leave out."""


class Flow(Scope):
    """A dataflow program: inputs, operators, outputs.

    Building it runs nothing. `run` takes whole inputs to whole outputs in this process;
    `open` returns a run that you drive yourself; `on_spark` and `start` run it on Spark.

    Times are integers, or timestamps of any unit and dates. Timestamps are converted to the flow's
    ``unit`` at its inputs (``"s"``, ``"ms"``, ``"us"`` or ``"ns"``); those that cannot be converted
    exactly are refused.

    Keys hash to ``bins`` (a power of two up to 65,536), which are divided among the workers: there
    can be no more workers than bins, and several bins for each worker keep the shares even. A
    checkpoint stores this number, and a run that is restored from it uses the same.

    >>> import jeton as jt
    >>> flow = jt.Flow("evens")
    >>> numbers = flow.input("numbers")
    >>> flow.output("evens", numbers.filter(lambda batch: batch["n"] % 2 == 0))
    >>> flow.run({"numbers": {"time": [0, 1, 2], "n": [1, 2, 4]}}, workers=2)["evens"].to_pylist()
    [{'time': 1, 'n': 2}, {'time': 2, 'n': 4}]
    """

    def __init__(
        self,
        name: str = "flow",
        *,
        time: type | TimeKind = int,
        unit: str = "us",
        bins: int = BINS,
    ) -> None:
        super().__init__(None, None, require_name(name, "a flow"), time_kind(time))
        self.domain = TimeDomain(unit)
        """Whether times are integers or timestamps, as far as that is known, and their unit."""
        self.bins = require_bins(bins)
        """Into how many bins keys are divided, unless the flow goes on from a checkpoint."""
        self._flow = self
        self.operators: list[OperatorPlan] = []
        self._handles: dict[tuple[str, str], int] = {}
        self._output_schemas: dict[str, pa.Schema | None] = {}
        self.lateness: dict[str, int | None] = {}
        """How late the records of each input may be, if it says so."""
        self.input_schemas: dict[str, pa.Schema | None] = {}
        self._time_fields: dict[str, pa.Field] = {}
        """The value columns that each input was declared with, if it was."""

    def add(self, plan: OperatorPlan) -> OperatorPlan:
        """Add an operator's plan; builders do this."""
        plan.index = len(self.operators)
        plan.defined = calling_line()
        self.operators.append(plan)
        return plan

    def input(
        self,
        name: str,
        *,
        time: str = "time",
        schema: SchemaLike | None = None,
        lateness: Length | None = None,
        idle_after: float | Duration | None = None,
    ) -> InputStream:
        """An input fed from outside; ``time`` names the column with each record's time.

        Times are integers, or timestamps and dates, which come out as timestamps of the flow's
        unit, with the zone that they came in with (if inputs have several, that of the first).
        Timestamps with and without a zone do not mix.

        When the flow is opened, ``run.input(name)`` sends records and advances.

        With a ``schema`` (Arrow's or Spark's, or names with Arrow, NumPy or Python types), records
        are checked against it as they come in, and operators when they are added: their
        functions are tried on an empty batch to learn what they make.

        >>> import jeton as jt
        >>> flow = jt.Flow("checked")
        >>> sales = flow.input("sales", schema={"price": float, "n": int})
        >>> sales.with_columns(total=lambda batch: batch["price"] * batch["n"]).schema
        price: double
        n: int64
        total: double
        >>> sales.filter(lambda batch: batch["prise"] > 2)
        Traceback (most recent call last):
        jeton.core.errors.GraphError: there is no column 'prise': did you mean 'price'? ...

        With a ``lateness``, the times of a stream need not be in order but within that bound. Each
        partition of its source counts for itself: the greatest time that it has sent less
        ``lateness`` (a duration such as ``"5s"``, or an integer if times are integers) is its
        floor, and records below that are late. They go to ``.late`` and are counted. The input
        advances by itself, with the slowest of its partitions.

        >>> flow = jt.Flow("unsorted")
        >>> clicks = flow.input("clicks", lateness=5)
        >>> flow.output("counts", clicks.key_by().tumbling(10).count())
        >>> with flow.open() as run:
        ...     run.input("clicks").send({"time": [8, 12, 9, 21, 3]})
        ...     result = run.finish()
        >>> result["counts"].to_pylist(), result.late
        ... # doctest: +NORMALIZE_WHITESPACE
        ([{'time': 10, 'count': 2}, {'time': 20, 'count': 1}, {'time': 30, 'count': 1}],
         {'clicks': 1})

        Whole tables and batch DataFrames are complete: nothing in them is late.

        >>> result = flow.run({"clicks": {"time": [8, 12, 9, 21, 3]}})
        >>> result["counts"]["count"].to_pylist(), result.late
        ([3, 1, 1], {'clicks': 0})

        A partition that has no records for a while holds the input back. With ``idle_after``, a
        long-lived query leaves it aside after that many seconds (or a duration) without a record,
        until its next one; that is late if the input has passed it. By default partitions are
        waited for indefinitely, so that a pause of a source never makes its records late.
        """
        self.reserve("input", name)
        require_name(time, "a time column")
        if type(schema).__module__.startswith("pyspark."):
            from jeton.spark.internals import arrow_schema

            schema = arrow_schema(cast("Any", schema))
        if schema is not None:
            declared = time_type(schema, time)
            if declared is not None and self.kind.integers:
                self.domain.declare(name, declared)
        late = None
        if lateness is not None:
            if not isinstance(self.kind, IntegerTimes):
                raise GraphError(f"input {name!r} has no integer times: lateness= needs them")
            call = f"input({name!r}, lateness={{}})"
            late = self.domain.length(lateness, call, "lateness")
            if not 0 <= late <= END_OF_TIME:
                raise GraphError(
                    f"the lateness of input {name!r} is zero or more, not {lateness!r}"
                )
        self.lateness[name] = late
        patience = None if idle_after is None else seconds(idle_after, "idle_after=")
        stream = add_input(self, name, time, schema, late, patience)
        self.input_schemas[name] = stream.schema
        if schema is not None and declared is not None:
            self._time_fields[name] = pa.field(time, declared)
        return stream

    def unordered_input(self, name: str, *, time: str = "time") -> Stream:
        """An input whose tokens the caller holds: see `UnorderedInputHandle`.

        >>> import jeton as jt
        >>> flow = jt.Flow("unordered")
        >>> flow.output("seen", flow.unordered_input("n"))
        >>> with flow.open() as run:
        ...     numbers = run.input("n")
        ...     with numbers.token as token:
        ...         numbers.session(token, 3).give(n=30)
        ...     run.finish()["seen"].to_pylist()
        [{'time': 3, 'n': 30}]
        """
        self.reserve("input", name)
        return add_unordered_input(self, name, time)

    def replay(self, captured: Captured, *, name: str = "replay", time: str = "time") -> Stream:
        """A stream captured before, with its data and its progress: see `Stream.capture`.

        >>> import jeton as jt
        >>> flow = jt.Flow("first")
        >>> _ = flow.input("n").capture("events")
        >>> with flow.open() as run:
        ...     run.input("n").send({"time": [1], "n": [10]})
        ...     _ = run.finish()
        ...     events = run.captured("events")
        >>> again = jt.Flow("second")
        >>> again.output("n", again.replay(events))
        >>> again.run()["n"].to_pylist()
        [{'time': 1, 'n': 10}]
        """
        return add_replay(self, captured, name, time)

    def sequencer(self, name: str = "sequencer") -> None:
        """Commands that all workers get in the same order: see ``run.sequencer``.

        >>> import jeton as jt
        >>> flow = jt.Flow("commands")
        >>> flow.sequencer("commands")
        >>> with flow.open(workers=2) as run:
        ...     ends = [run.sequencer("commands", worker) for worker in (0, 1)]
        ...     ends[1].push({"move": 3})
        ...     run.run_to_rest()
        ...     [end.next() for end in ends]
        [{'move': 3}, {'move': 3}]
        """
        self.reserve("sequencer", name)
        add_sequencer(self, name)

    def output(self, name: str, stream: StreamBase) -> None:
        """Name a stream as a result of the flow.

        >>> import jeton as jt
        >>> flow = jt.Flow("copy")
        >>> flow.output("copy", flow.input("n"))
        >>> flow.outputs
        ('copy',)
        """
        require_name(name, "an output")
        require_stream(stream, f"output {name!r}")
        if stream.flow is not self:
            raise GraphError(
                f"output {name!r} of flow {self.name!r} got a stream of another flow, "
                f"{stream.flow.name!r}: name it as an output of that one"
            )
        if stream.scope is not self:
            raise GraphError(f"output {name!r} needs a stream of the flow itself: leave() first")
        self.reserve("output", name)
        self._output_schemas[name] = stream.schema
        add_output(stream, name)

    def declared(self, name: str) -> pa.Schema | None:
        """The columns that an input declares, with that of its times if it does; see `input`."""
        schema, time = self.input_schemas.get(name), self._time_fields.get(name)
        return schema if schema is None or time is None else schema.insert(0, time)

    def time_name(self, name: str) -> str:
        """The name of an input's time column."""
        return self.operators[self.handle("input", name)].time_name

    def empty_output(self, name: str) -> pa.Table | None:
        """A table without rows of an output, if its columns and the type of its times are known."""
        schema, times = self.output_schema(name), self.domain.type
        if schema is None or pa.types.is_null(times):
            return None
        time_name = self.operators[self.handle("output", name)].time_name
        return schema.insert(0, pa.field(time_name, times)).empty_table()

    def output_schema(self, name: str) -> pa.Schema | None:
        """The value columns of an output, if they are known: see ``schema=`` of `input`."""
        self.handle("output", name)
        return self._output_schemas[name]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(name for what, name in self._handles if what == "input")

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return tuple(name for what, name in self._handles if what == "output")

    def handle(self, what: str, name: str) -> int:
        """The operator that stands behind a named input, output, probe, capture or sequencer."""
        try:
            return self._handles[what, name]
        except KeyError:
            names = [known for kind, known in self._handles if kind == what]
            raise GraphError(
                f"flow {self.name!r} has no {what} {name!r}{suggestion(str(name), names)} "
                f"(there are: {', '.join(map(repr, names)) or 'none'})"
            ) from None

    def handles(self) -> list[tuple[str, str]]:
        """All named ends of the flow: the kind of each, and its name."""
        return list(self._handles)

    def reserve(self, what: str, name: str) -> None:
        """Take a name for the operator that is added next."""
        article = "an" if what[0] in "io" else "a"
        require_name(name, f"{article} {what}")
        if (what, name) in self._handles:
            raise GraphError(
                f"flow {self.name!r} has {article} {what} {name!r} already: choose another name"
            )
        self._handles[what, name] = len(self.operators)

    def explain(self) -> None:
        """Print the plan: each operator with its inputs, how records reach it, and its columns.

        The last line names operators that wait for times to pass: large batches on Spark are
        sorted by time for them, see `on_spark`. In a notebook, a flow as the last line of a cell
        draws the same as a graph.

        >>> import jeton as jt
        >>> flow = jt.Flow("averages")
        >>> readings = flow.input("readings", time="ts", schema={"sensor": str, "value": float})
        >>> flow.output("means", readings.key_by("sensor").tumbling(10).mean("value"))
        >>> flow.explain()
        Flow 'averages'
          0 readings  input, times in 'ts'         → sensor: string, value: double
          1 mean      from 0 readings by 'sensor'  → sensor: string, mean: double
          2 means     output, from 1 mean
        Waits for times to pass: 1 mean
        """
        print(plan_text(self.name, self.operators, self._handles))

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def _repr_html_(self) -> str:
        return plan_svg(self.name, self.operators, self._handles)

    def open(
        self,
        *,
        workers: int = 1,
        seed: int | None = None,
        check: bool | None = None,
        restore: Snapshot | None = None,
        memory_budget: int | str | None = None,
    ) -> Run:
        """A run in this process that you drive yourself: see `Run`.

        With ``restore``, it goes on from a snapshot, on any number of workers. With a
        ``memory_budget`` for each worker, such as ``"2GB"``, state beyond it is on local disk.

        >>> import jeton as jt
        >>> flow = jt.Flow("copy")
        >>> flow.output("copy", flow.input("n"))
        >>> with flow.open(workers=2) as run:
        ...     run.input("n").send({"time": [1], "n": [10]})
        ...     run.finish()["copy"].to_pylist()
        [{'time': 1, 'n': 10}]
        """
        # An exception to the floors, as those of `on_spark` and `start`: see docs/architecture.md.
        from jeton.runtime.in_process import Run

        return Run(
            self,
            workers=workers,
            seed=seed,
            check=check,
            restore=restore,
            memory_budget=memory_budget,
        )

    def run(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        workers: int = 1,
        seed: int | None = None,
        check: bool | None = None,
        memory_budget: int | str | None = None,
    ) -> Result:
        """Run to the end in this process; returns a table for each output.

        Inputs are Arrow tables, dictionaries of columns, data frames or lists of rows. With a
        ``seed``, the workers' steps and the messages between them are interleaved at random,
        reproducibly, and every frontier is checked against the truth at every step.

        Every input needs a table. Nothing in it is late, even if the input has a lateness. With a
        ``memory_budget`` for each worker, such as ``"2GB"``, state beyond it is on local disk.

        >>> import jeton as jt
        >>> flow = jt.Flow("copy")
        >>> flow.output("copy", flow.input("n"))
        >>> flow.run({"n": [{"time": 1, "n": 10}]})["copy"].to_pylist()
        [{'time': 1, 'n': 10}]
        """
        if inputs is not None:
            require_tables(inputs, self.inputs, "table")
        for name in inputs or {}:
            self.handle("input", name)
        missing = [name for name in self.inputs if name not in (inputs or {})]
        if missing:
            raise GraphError(
                f"flow {self.name!r} needs a table for each of its inputs, and has none for "
                f"{', '.join(map(repr, missing))}: pass an empty one where there are no rows, or "
                "use open() to send rows"
            )
        with self.open(workers=workers, seed=seed, check=check, memory_budget=memory_budget) as run:
            run.feed(inputs or {})
            return run.finish()

    @overload
    def on_spark(
        self,
        inputs: Mapping[str, DataFrame | Source],
        *,
        sinks: None = None,
        workers: int | None = None,
        shuffle: bool = True,
        schemas: Mapping[str, pa.Schema] | None = None,
        progress: bool | None = None,
        ordered: bool | None = None,
        repartition: bool = True,
        checkpoint: str | os.PathLike[str] | None = None,
        keep: int = 10,
        allow_removed: Collection[str] = (),
        tls: bool | None = None,
        memory_budget: int | str | None = None,
    ) -> Frames: ...
    @overload
    def on_spark(
        self,
        inputs: Mapping[str, DataFrame | Source],
        *,
        sinks: Mapping[str, Sink],
        workers: int | None = None,
        progress: bool | None = None,
        tls: bool | None = None,
    ) -> Written: ...
    def on_spark(
        self,
        inputs: Mapping[str, DataFrame | Source],
        *,
        sinks: Mapping[str, Sink] | None = None,
        workers: int | None = None,
        shuffle: bool = True,
        schemas: Mapping[str, pa.Schema] | None = None,
        progress: bool | None = None,
        ordered: bool | None = None,
        repartition: bool = True,
        checkpoint: str | os.PathLike[str] | None = None,
        keep: int = 10,
        allow_removed: Collection[str] = (),
        tls: bool | None = None,
        memory_budget: int | str | None = None,
    ) -> Frames | Written:
        """Run on Spark: a DataFrame for each input, a DataFrame for each output.

        Batch DataFrames give batch DataFrames, computed when they are used. Streaming ones give
        streaming ones, as `jeton.spark.streaming.StreamingFrames`, and take four options more.

        In a batch, the workers can read inputs and write outputs themselves, so that rows do not
        pass through Spark: an input is then a source, such as `jeton.connectors.sources.Parquet`,
        and ``sinks`` has a sink for each output that is to be written. With ``sinks``, the flow
        runs at once, and returns what was written. See docs/spark.md.

        Args:
            inputs: A DataFrame for each input, with the time column that the input names: all of
                them batch DataFrames, or all streaming. In place of batch DataFrames there may be
                sources that come to an end.
            sinks: Where workers write the rows of outputs; an output without one is not collected.
                Batch only.
            workers: How many tasks run as workers. By default there are as many as partitions
                (in a batch), but at most as many as the cluster can run at once.
            shuffle: Put a shuffle behind the stage, so that Spark retries it when a worker dies,
                and ``show()`` and ``limit()`` work. Without it, the stage is a little faster.
            schemas: The schemas of outputs that the flow does not know itself.
            progress: Show a progress bar; by default if there is a terminal. Batch only.
            ordered: Let Spark sort the rows by time, so that frontiers move while the workers read
                and state need not fit into memory. By default if an operator waits for times to
                pass, as `explain` shows, and the inputs are not small. For batches from DataFrames
                alone.
            repartition: Put a shuffle before the stage, which deals the rows out to ``workers``
                tasks. Without it, each partition of the one input is a worker. Streaming only.
            checkpoint: Where to keep the state; by default with Spark's own under the query's
                checkpoint location. Streaming only.
            keep: How many versions of the state to keep. Streaming only.
            allow_removed: Names of operators that the flow no longer has, whose state is to be
                dropped. Streaming only.
            tls: Whether connections between machines, and those to the driver, are under TLS, with
                certificates made for this run. By default if Spark's settings ask for it: see
                docs/security.md.
            memory_budget: The memory that the state of each worker may take, such as ``"2GB"``:
                state beyond it is on local disk. Batch only.

        >>> import jeton as jt
        >>> flow = jt.Flow("small")
        >>> numbers = flow.input("numbers", time="id", schema={})
        >>> flow.output("small", numbers.filter(lambda batch: batch.times < 3))
        >>> flow.on_spark({"numbers": spark.range(100)})["small"].count()  # doctest: +SKIP
        3
        """
        require_tables(inputs, self.inputs, "DataFrame of Spark, or a source,")
        native = sinks is not None
        frames: dict[str, DataFrame] = {}
        for name, each in inputs.items():
            if hasattr(each, "isStreaming"):
                frames[name] = cast("DataFrame", each)
            elif not hasattr(each, "partitions"):
                raise GraphError(
                    f"input {name!r} got {type_name(each)}, not a DataFrame of Spark or a source: "
                    "use spark.createDataFrame(…), or flow.run(…) to run without Spark"
                )
            else:
                native = True
        streaming_only = not repartition or checkpoint is not None or keep != 10 or allow_removed
        if any(frame.isStreaming for frame in frames.values()) and not native:
            if ordered:
                raise GraphError(
                    f"the inputs of flow {self.name!r} are streaming DataFrames: ordered= is for "
                    "batch ones"
                )
            if memory_budget is not None:
                raise GraphError(
                    f"the inputs of flow {self.name!r} are streaming DataFrames: memory_budget= is "
                    "for batch ones, and for start(…)"
                )
            from jeton.spark.streaming import on_stream

            return on_stream(
                self,
                frames,
                workers=workers,
                shuffle=shuffle,
                repartition=repartition,
                schemas=schemas,
                checkpoint=checkpoint,
                keep=keep,
                allow_removed=allow_removed,
                progress=progress,
                tls=tls,
            )
        if streaming_only:
            raise GraphError(
                f"the inputs of flow {self.name!r} are batch DataFrames: repartition=, "
                "checkpoint=, keep= and allow_removed= are for streaming ones"
            )
        if native and ordered:
            raise GraphError(
                f"flow {self.name!r} has sources or sinks of its own, whose rows Spark does not "
                "see: ordered= is for DataFrames alone"
            )
        if native and memory_budget is not None:
            raise GraphError(
                f"flow {self.name!r} has sources or sinks of its own: with them, memory_budget= is "
                "for start(…)"
            )
        if sinks is not None:
            if schemas is not None or not shuffle:
                raise GraphError(
                    f"with sinks=, flow {self.name!r} runs at once and makes no DataFrames: "
                    "shuffle= and schemas= are for those"
                )
            from jeton.spark.native import write

            return write(self, inputs, sinks, workers=workers, progress=progress, tls=tls)
        if native:
            from jeton.spark.native import on_spark as on_spark_natively

            return on_spark_natively(
                self,
                inputs,
                workers=workers,
                shuffle=shuffle,
                schemas=schemas,
                progress=progress,
                tls=tls,
            )
        from jeton.spark.batch import on_spark

        return on_spark(
            self,
            frames,
            workers=workers,
            shuffle=shuffle,
            schemas=schemas,
            progress=progress,
            ordered=ordered,
            tls=tls,
            memory_budget=memory_budget,
        )

    def start(
        self,
        spark: SparkSession,
        *,
        sources: Mapping[str, Source] | None = None,
        sinks: Mapping[str, Sink] | None = None,
        workers: int = 2,
        name: str | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoints | None = None,
        every: float | Duration | None = 10.0,
        keep: int = 2,
        restarts: int = 10,
        allow_removed: Collection[str] = (),
        inspect: bool | None = None,
        rebalance: bool | Rebalance = False,
        tls: bool | None = None,
        memory_budget: int | str | None = None,
    ) -> Query:
        """Run on Spark in the background, until the sources end or the query is stopped.

        Args:
            spark: The session whose cluster it runs on.
            sources: Where the records of each input come from.
            sinks: Where the rows of each output go; an output without one is not collected.
            workers: How many tasks run as workers, all at the same time.
            name: The name of the query, also in Spark's pages; by default that of the flow.
            checkpoint: Where the query's checkpoints are. If there are any, it goes on from the
                newest complete one. Rows reach sinks when the checkpoint that covers them is
                committed.
            every: Seconds, or a duration, from one checkpoint to the next. With ``None``, there is
                one at the end and one for each call of `Query.checkpoint`.
            keep: How many checkpoints to keep.
            restarts: How many times in a row, without a new checkpoint, the query is started again
                after workers were lost or failed. The same error of a worker twice in a row,
                without a new checkpoint in between, ends it. A query without checkpoints is never
                started again.
            allow_removed: Names of operators that the flow no longer has, whose state is to be
                dropped.
            inspect: Whether to serve a live page and to print its address to standard error; by
                default unless the environment variable ``JETON_INSPECT`` is 0.
            rebalance: Whether to move bins from busy workers by itself; a
                `jeton.spark.Rebalance` says when, and how.
            tls: Whether connections between machines, and those to the driver, are under TLS, with
                certificates made for this query. By default if Spark's settings ask for it: see
                docs/security.md.
            memory_budget: The memory that the state of each worker may take, such as ``"2GB"``:
                state beyond it is on local disk. See docs/state.md.

        >>> import jeton as jt
        >>> from jeton.connectors.sinks import Memory
        >>> from jeton.connectors.sources import Rate
        >>> flow = jt.Flow("live")
        >>> flow.output("numbers", flow.input("numbers"))
        >>> rate = Rate(10_000, lambda positions: {"n": positions}, limit=100)
        >>> query = flow.start(
        ...     spark, sources={"numbers": rate}, sinks={"numbers": Memory()}
        ... )  # doctest: +SKIP
        """
        if not hasattr(spark, "createDataFrame"):
            raise GraphError(
                f"start() needs a Spark session, not {described(spark)}: "
                "jeton.spark.local_session() makes one on this machine"
            )
        from jeton.spark.long_lived import start

        return start(
            self,
            spark,
            sources=sources,
            sinks=sinks,
            workers=workers,
            name=name,
            checkpoint=checkpoint,
            every=None if every is None else seconds(every, "every="),
            keep=keep,
            restarts=restarts,
            allow_removed=allow_removed,
            inspect=inspect,
            rebalance=rebalance,
            tls=tls,
            memory_budget=memory_budget,
        )
