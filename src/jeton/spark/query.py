"""Queries: flows that stay up on Spark, and the handle to one."""

from __future__ import annotations

import base64
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from html import escape
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from jeton.cluster.checkpoint_committer import CheckpointCommitter
from jeton.cluster.control import Control, read_table
from jeton.cluster.coordinator import Coordinator
from jeton.cluster.failures import Failure, QueryFailed
from jeton.cluster.inquiry import slow_sinks, uncommitted
from jeton.cluster.rebalancer import Rebalancer
from jeton.cluster.steering import Steering, WorkersLeft
from jeton.connectors.inbox import Inbox
from jeton.connectors.sinks import DriverSink, Memory, Sink, SinkContext
from jeton.connectors.sources import Source
from jeton.core.errors import GraphError, JetonError, PredicateFailed, ProtocolError, summary
from jeton.dataflow.plan import progress_graph
from jeton.runtime import steering
from jeton.runtime.balance import (
    Counts,
    Decision,
    Rebalance,
    balancing_moves,
    counted,
    counting,
)
from jeton.runtime.breakpoints import require_predicate
from jeton.runtime.commands import Advance, Command, LogEvents, Measure, Stop, Taken
from jeton.runtime.event_log import LIMIT, LogSettings, SampledLog
from jeton.runtime.metrics import Totals, add_metrics, carried
from jeton.runtime.migration import in_steps, migrating
from jeton.runtime.monitor import Listener, Monitor, Observation, Progress
from jeton.runtime.state_view import as_frame
from jeton.runtime.why import Holder, Question, Why
from jeton.spark.application import require_slots
from jeton.spark.internals import dumps_by_value

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from jeton.dataflow.flow import Flow
    from jeton.inspector.server import Page
    from jeton.runtime.breakpoints import Predicate
    from jeton.spark.jobs import Jobs
    from jeton.state.bins import Placement

T = TypeVar("T")

log = logging.getLogger(__name__)

Status = Literal["starting", "running", "restarting", "rescaling", "stopping", "ended", "failed"]


DESCRIBED: Final = 200
"""Letters of operators' names in the description of a query's jobs."""
MOVES_WITHIN: Final = 600.0
"""Seconds in which the bins of the rebalancer have to move."""
_INTERNAL: Final = frozenset(
    (
        "begin",
        "cancel",
        "committer",
        "count_records",
        "description",
        "end",
        "ended",
        "fail",
        "hear",
        "left",
        "misheard",
        "monitor",
        "move_bins",
        "observe",
        "rebalance_with",
        "relocate",
        "rescales",
        "restart",
        "spark",
        "standing",
        "take_over",
        "wait",
        "warn_of_waiting",
    )
)
"""Names for the library's own use, which completions leave out."""


@dataclass(frozen=True, slots=True)
class Rescale:
    """A change of a query's number of workers, and how long it took."""

    before: int
    """The number of workers before."""
    after: int
    version: int | None
    """The checkpoint that the new workers went on from."""
    stopped: float
    """Seconds from that checkpoint until all new workers ran: nothing was read meanwhile."""
    silent: float
    """Seconds from that checkpoint to the next one, in which no new rows reached the sinks."""


@dataclass(frozen=True, slots=True)
class Migration:
    """Bins that have moved to other workers, and how long it took."""

    moves: Mapping[int, int]
    """The bins, and the workers that own them now."""
    steps: int
    """How many migrations it took, one after the other."""
    rows: int
    """Rows of state that have moved."""
    seconds: float


class Query:
    """A flow that runs on Spark in the background, as familiar as a ``StreamingQuery``.

    >>> import jeton as jt
    >>> from jeton.connectors.sources import Batches
    >>> flow = jt.Flow("patient")
    >>> flow.output("numbers", flow.input("numbers"))
    >>> def nothing_yet(partition, partitions):
    ...     while True:
    ...         yield None
    >>> with flow.start(spark, sources={"numbers": Batches(nothing_yet)}) as query:
    ...     query.await_running()
    ...     query.status, query.metrics()["rows_in"]
    ('running', 0)
    >>> query.status
    'ended'
    """

    def __init__(
        self,
        name: str,
        spark: SparkSession,
        workers: int,
        sinks: Mapping[str, Sink],
        jobs: Jobs,
        flow: Flow,
        sources: Mapping[str, Source] | None = None,
    ) -> None:
        self.name = name
        self.workers = workers
        self.committer: CheckpointCommitter | None = None
        """The driver's side of its checkpoints, if it takes any."""
        self.spark = spark
        self._sources = sources or {}
        self._sinks = sinks
        self._jobs = jobs
        self._flow = flow
        self._status: Status = "starting"
        self._coordinator = Coordinator()
        """The workers of the present attempt."""
        self._attempts = 0
        self._before: Totals = {}
        """The metrics of workers in earlier attempts."""
        self._error: BaseException | None = None
        self._cause: Failure | None = None
        self._restarts = 0
        self._stop: Stop | None = None
        self._next_workers: int | None = None
        """The number of workers of the next attempt, if it is another one."""
        self._rescaling = threading.Lock()
        self._moving = threading.Lock()
        self._rebalancer: Rebalancer | None = None
        self._progress: dict[str, int] | None = None
        """How far a migration is."""
        self._changed = threading.Condition()
        self._hurry = threading.Event()
        """Nothing is waited for any more."""
        self.monitor = Monitor(name, self.observe, identity=jobs.tag)
        self.standing: list[Command] = []
        """Commands for all workers, also those of later attempts."""
        self._pages: dict[tuple[str, int], Page] = {}

    @property
    def status(self) -> Status:
        """Where the query is in its life.

        Starting, running, restarting after a worker was lost, rescaling to another number of
        workers, stopping, ended or failed.
        """
        return self._status

    @property
    def is_active(self) -> bool:
        """Whether the query has not come to its end yet."""
        return self._status not in ("ended", "failed")

    def frontiers(self) -> dict[str, list[Any]]:
        """For each output and probe the least times that may still pass there.

        An empty list says that it is complete. This is the latest that workers reported; each
        knows the frontier of all workers.
        """
        return self.observe().frontiers

    def observe(self) -> Observation:
        """How far the query is, by the latest reports, for a monitor."""
        with self._changed:
            attempt, before, status = self._attempts, self._before, self._status
            reports = {
                rank: {**report, "run": attempt}
                for rank, report in self._coordinator.reports.items()
            }
        checkpoints = None
        if self.committer is not None:
            checkpoints = {**self.committer.metrics(), "restarts": self._restarts}
        steered = self._coordinator.steering
        return Observation(
            status=status,
            reports=reports,
            before=before,
            checkpoints=checkpoints,
            paused_at=self.paused_at,
            bins=None if steered is None else steered.placement.counts(),
            migration=self.migration,
            rebalancing=None if self._rebalancer is None else self._rebalancer.metrics(),
        )

    def metrics(self) -> dict[str, Any]:
        """Counts summed over the present workers, and each worker's own under ``workers``.

        ``operators`` has a record of each operator, in the order of the flow.

        With checkpoints, ``checkpoints`` has the latest version, for how long the flow stopped for
        it (``pause_ms``) and at most so far (``longest_pause_ms``), the ``seconds`` and ``bytes``
        that it took to write, how many were ``taken`` and ``missed``, and the ``restarts``.

        With ``rebalance=``, ``rebalancing`` has the ``looks`` at the load, the ``migrations``, the
        ``bins_moved`` in all of them, and the last ``reason`` and ``load`` of each worker.
        """
        with self._changed:
            reports = {
                rank: dict(report["metrics"]) for rank, report in self._coordinator.reports.items()
            }
        none: dict[str, Any] = {"operators": []}
        total = reduce(add_metrics, reports.values(), none)
        if self.committer is not None:
            total["checkpoints"] = {**self.committer.metrics(), "restarts": self._restarts}
        if self._rebalancer is not None:
            total["rebalancing"] = self._rebalancer.metrics()
        return {**total, "workers": reports}

    @property
    def recent_progress(self) -> list[Progress]:
        """The progress records of the last seconds, the latest last: one for each second.

        They have the fields of Spark's ``StreamingQueryProgress``, and ``frontiers`` besides.

        >>> import jeton as jt
        >>> from jeton.connectors.sources import Rate
        >>> flow = jt.Flow("rate")
        >>> flow.output("numbers", flow.input("numbers"))
        >>> rate = Rate(1_000, lambda positions: {"n": positions}, limit=100)
        >>> ended = []
        >>> class Noted:
        ...     def onQueryTerminated(self, event):
        ...         ended.append((event.name, event.exception))
        >>> query = flow.start(spark, sources={"numbers": rate}, workers=1)
        >>> query.add_listener(Noted())
        >>> query.await_termination(60)
        True
        >>> query.monitor.join()
        >>> ended
        [('rate', None)]
        >>> sum(record.numInputRows for record in query.recent_progress)
        100
        """
        return list(self.monitor.recent)

    @property
    def last_progress(self) -> Progress | None:
        """The latest progress record: rows and rates, frontiers, state, checkpoints."""
        recent = self.recent_progress
        return recent[-1] if recent else None

    def add_listener(self, listener: Listener) -> None:
        """Call a listener in the shape of Spark's ``StreamingQueryListener``, once a second.

        An error in a listener is logged, and does not stop the query.
        """
        self.monitor.add_listener(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Call a listener no more."""
        self.monitor.remove_listener(listener)

    def log_events(
        self, path: str | os.PathLike[str], *, full: bool = False, limit: int = LIMIT
    ) -> None:
        """Write an event log of this query to Arrow files in a folder, until it ends.

        A sampled log has a row for each operator, worker and second. With ``full``, each worker
        writes a row for each invocation of an operator, to ``path`` on its own machine. The oldest
        files are removed once a writer has ``limit`` bytes.
        `jeton.inspector.events` reads, summarises and replays a log.

        >>> import tempfile
        >>> import jeton as jt
        >>> from jeton.connectors.sources import Rate
        >>> from jeton.inspector.events import summarise
        >>> flow = jt.Flow("rate")
        >>> flow.output("numbers", flow.input("numbers"))
        >>> rate = Rate(1_000, lambda positions: {"n": positions}, limit=100)
        >>> folder = tempfile.mkdtemp()
        >>> query = flow.start(spark, sources={"numbers": rate}, workers=1)
        >>> query.log_events(folder)
        >>> query.await_termination(60)
        True
        >>> query.monitor.join()
        >>> [each["operator"] for each in summarise(folder)]
        ['numbers', 'numbers-2']
        """
        settings = LogSettings(path=os.fspath(path), limit=limit)
        if full:
            if any(isinstance(command, LogEvents) for command in self.standing):
                raise GraphError(f"a full event log of query {self.name!r} is written already")
            self._always(LogEvents(path=settings.path, limit=limit))
        else:
            self._always(Measure())
            self.monitor.log(SampledLog(settings))

    def _always(self, command: Command) -> None:
        """Send a command to all workers, also to those that join later."""
        with self._changed:
            self.standing.append(command)
            coordinator = self._coordinator
        coordinator.send(command)

    def inspect(self, *, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve a live page of this query; returns the page's address.

        It shows the graph, frontiers, rates, tokens and queues, and steers the query. The address
        has a secret: who knows it can do the same. Once someone has opened the page, workers keep
        the time spent in each operator too. It needs ``pip install 'jeton[inspect]'``.

        >>> import jeton as jt
        >>> from jeton.connectors.sources import Rate
        >>> flow = jt.Flow("rate")
        >>> flow.output("numbers", flow.input("numbers"))
        >>> rate = Rate(1_000, lambda positions: {"n": positions})
        >>> with flow.start(spark, sources={"numbers": rate}, workers=1) as query:
        ...     print(query.inspect())
        http://127.0.0.1:...
        """
        if (host, port) not in self._pages:
            from jeton.inspector.server import serve

            visited = partial(self._always, Measure())
            self._pages[host, port] = serve(self._flow, self, host, port, visited)
        return self._pages[host, port].url

    def why(self, name: str | None = None, *, at: Any = None) -> Why:
        """Name what holds the frontier of an output, probe or operator; by default of all outputs.

        With ``at``, everything that could still result in that time or an earlier one there. All
        workers are asked. Those that are busy answer with their stack, and those that do not answer
        within some seconds are named.

        >>> import jeton as jt
        >>> from jeton.connectors.sources import Batches
        >>> flow = jt.Flow("patient")
        >>> flow.output("numbers", flow.input("numbers", lateness=0))
        >>> def one_batch(partition, partitions):
        ...     yield {"time": [partition]}
        ...     while True:
        ...         yield None
        >>> with flow.start(spark, sources={"numbers": Batches(one_batch)}, workers=2) as query:
        ...     query.await_running()
        ...     print(query.why("numbers"))
        'numbers' is at ...: input 'numbers' on worker ...: partition ... has had no record ...
        """
        coordinator = self._coordinator
        facts = coordinator.inquiry.ask(coordinator) if self.is_active else []
        silent = coordinator.inquiry.silent(coordinator, facts) if self.is_active else []
        sinks: list[Holder] = []
        if self.is_active:
            waiting = [inbox.waiting for inbox in coordinator.inboxes.values()]
            if self.committer is not None:
                waiting += self.committer.waiting
            sinks = [*slow_sinks(waiting), *uncommitted(self.committer, facts)]
        graph = progress_graph(self._flow.operators)
        troubles = [*self._troubles(), *silent]
        return Question(self._flow, graph, facts, troubles, sinks).why(name, at)

    def explain(self) -> None:
        """Print the plan of the flow, its sources, and how often rows appear in its sinks.

        >>> import jeton as jt
        >>> from jeton.connectors.sinks import Memory
        >>> from jeton.connectors.sources import Rate
        >>> flow = jt.Flow("rate")
        >>> flow.output("numbers", flow.input("numbers", schema={"n": int}))
        >>> rate = Rate(1_000, lambda positions: {"n": positions})
        >>> ends = {"sources": {"numbers": rate}, "sinks": {"numbers": Memory()}}
        >>> with flow.start(spark, **ends, workers=1) as query:
        ...     query.explain()
        Flow 'rate'
          0 numbers    input, times in 'time'  → n: int64
          1 numbers-2  output, from 0 numbers
        Sources
          numbers: Rate
        Sinks
          numbers: Memory, no checkpoints: rows are lost if the query fails
        """
        self._flow.explain()
        for title, lines in (("Sources", self._explained_sources()), ("Sinks", self._explained())):
            if lines:
                print(title, *(f"  {line}" for line in lines), sep="\n")

    def _explained_sources(self) -> list[str]:
        found = []
        for name, source in self._sources.items():
            every = source.discover_every
            grows = "" if every is None else f", looks for new partitions every {every:g} s"
            found.append(f"{name}: {type(source).__name__}{grows}")
        return found

    def _explained(self) -> list[str]:
        lost = "no checkpoints: rows are lost if the query fails"
        return [
            f"{name}: {type(sink).__name__}, {lost if self.committer is None else sink.guarantee}"
            for name, sink in self._sinks.items()
        ]

    def table(self, name: str) -> DataFrame:
        """The rows so far of an output that has a `Memory` sink, as a DataFrame.

        Before the first row, it is an empty one if the flow knows the output's columns.
        """
        sink = self._sinks.get(name)
        if not isinstance(sink, Memory):
            raise GraphError(f"output {name!r} of query {self.name!r} has no Memory sink")
        table = sink.table()
        if table is None:
            table = self._flow.empty_output(name)
        if table is None:
            raise GraphError(
                f"no row of output {name!r} of query {self.name!r} has come yet, and its columns "
                "are not known: declare those of the inputs, flow.input(…, schema=…)"
            )
        return self.spark.createDataFrame(table)

    def checkpoint(self, timeout: float = 60.0) -> int:
        """Take a checkpoint now, and wait until it is committed; returns its version."""
        if self.committer is None:
            raise GraphError(f"query {self.name!r} has no checkpoints: start it with checkpoint=")
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0 and self.is_active:
            coordinator = self._coordinator
            schedule = coordinator.schedule
            if schedule is not None and (version := schedule.take(left)) is not None:
                return version
            with self._changed:
                # If an attempt has failed, there is another one, or none any more.
                while self._coordinator is coordinator and self.is_active:
                    if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                        break
        if self.await_termination(0):
            raise JetonError(
                f"query {self.name!r} has ended, and takes no checkpoint any more; its last one is "
                f"version {self.committer.version}"
            )
        raise TimeoutError(
            f"query {self.name!r} ({self._status}) did not commit a checkpoint within "
            f"{timeout:g} seconds"
        )

    def rescale(self, workers: int, *, timeout: float = 120.0) -> Rescale:
        """Go on with another number of workers; returns how long that took.

        A checkpoint is taken, the present workers end, and as many as wanted go on from there: in
        one stage of Spark's after the other, so that there need be slots for the greater number
        only. Sources continue where they were, and no row is lost or comes twice. Returns once the
        new workers have taken a checkpoint of their own. If a worker is lost meanwhile, the query
        is started again from its last checkpoint, with the new number.

        >>> import tempfile
        >>> import jeton as jt
        >>> from jeton.connectors.sinks import Memory
        >>> from jeton.connectors.sources import Rate
        >>> flow = jt.Flow("elastic")
        >>> flow.output("counts", flow.input("ticks").key_by("n").running().count())
        >>> source = Rate(1000, lambda positions: {"n": positions % 7})
        >>> ends = {"sources": {"ticks": source}, "sinks": {"counts": Memory()}}
        >>> folder = tempfile.mkdtemp()
        >>> with flow.start(spark, **ends, workers=1, checkpoint=folder) as query:
        ...     change = query.rescale(2)
        >>> change.before, change.after, query.workers
        (1, 2, 2)
        """
        if self.committer is None:
            raise GraphError(
                f"query {self.name!r} has no checkpoints for other workers to go on from: start "
                "it with checkpoint="
            )
        require_slots(self.spark, workers)
        deadline = time.monotonic() + timeout
        with self._rescaling, self._by_the_user():
            if workers == self.workers:
                return Rescale(workers, workers, self.committer.version, 0.0, 0.0)
            return self._rescale(workers, deadline)

    def _rescale(self, workers: int, deadline: float) -> Rescale:
        def left() -> float:
            return max(0.0, deadline - time.monotonic())

        before = self.workers
        self.await_running(left())
        version = self.checkpoint(left())
        cut = time.monotonic()
        with self._changed:
            coordinator = self._coordinator
            if self._status == "running":
                self._status = "rescaling"
            self._next_workers = workers
            self._changed.notify_all()
        coordinator.send(Stop())
        with self._changed:
            self._changed.wait_for(
                lambda: self._coordinator is not coordinator or not self.is_active, left()
            )
        self._require_active()
        self.await_running(left())
        ran = time.monotonic()
        self.checkpoint(left())
        return Rescale(before, workers, version, ran - cut, time.monotonic() - cut)

    # Breakpoints

    def pause_at(self, time: Any = None, *, timeout: float = 60.0) -> Any:
        """Set a breakpoint: hold a token at a time in every input, on every worker.

        Everything before it completes, and nothing at or after it is emitted, until `step` or
        `resume`. Sources are read until they have passed it, and keep their positions; records at
        or after it are held back. A paused query still takes checkpoints. ``time`` is a timestamp
        or an integer, as the flow has them; without one, it is the least time after all that went
        in. Returns the time once all workers have it; `await_paused` waits until they rest there.

        >>> import jeton as jt
        >>> from jeton.connectors.sinks import Memory
        >>> from jeton.connectors.sources import Rate
        >>> flow = jt.Flow("ticks")
        >>> flow.output("ticks", flow.input("ticks"))
        >>> source = Rate(1000, lambda positions: {"n": positions}, limit=2000)
        >>> sinks = {"ticks": Memory()}
        >>> with flow.start(spark, sources={"ticks": source}, sinks=sinks, workers=1) as query:
        ...     query.await_running()
        ...     at = query.pause_at()
        ...     query.await_paused()
        ...     held = query.in_flight()["rows"].sum()
        ...     query.resume()
        ...     query.is_paused, query.paused_at
        (False, None)
        """
        return self._steer(steering.pausing(time), timeout).shown

    def step(self, until: Any = None, *, timeout: float = 60.0) -> Any:
        """Move the breakpoint on. Returns its time.

        It is ``until``, or else the least time after the breakpoint of a record that is held back
        on any worker. `await_paused` waits until the query rests there.
        """
        return self._steer(steering.stepping(until), timeout).shown

    def resume(self, *, timeout: float = 60.0) -> None:
        """Remove the breakpoint: what is held back goes on, and sources are read again."""
        if self.paused_at is None:
            raise GraphError(f"query {self.name!r} is not paused: pause_at(…) first")
        self._steer(steering.resuming(), timeout)

    def pause_when(self, output: str, predicate: Predicate, *, timeout: float = 60.0) -> None:
        """Pause right after all that went in, once rows of an output match.

        ``predicate`` takes a batch of the output, and returns a mask of its rows, or whether the
        batch matches. It runs on the workers. `matched` has the rows then, and `paused_at` the
        time. If it fails, the query is paused too, and `await_paused` raises
        `jeton.errors.PredicateFailed`.
        """
        self._flow.handle("output", output)
        require_predicate(predicate)
        self.await_running(timeout)
        steering_ = self._current_steering()
        steering_.matched = steering_.failed = None
        coded = base64.b64encode(dumps_by_value(predicate)).decode()
        self._steer(steering.watching(output, coded), timeout)

    @property
    def paused_at(self) -> Any:
        """The time of the breakpoint, ``None`` if there is none, or the query has ended."""
        found = self._coordinator.steering
        if found is None or found.at is None or not self.is_active:
            return None
        return found.at.shown

    @property
    def is_paused(self) -> bool:
        """Whether a breakpoint is set, and all workers rest there."""
        return self._rests(60.0)

    @property
    def matched(self) -> pa.Table | None:
        """The rows that `pause_when` has stopped at, if it has."""
        found = self._coordinator.steering
        return None if found is None else found.matched

    def await_paused(self, timeout: float = 60.0) -> None:
        """Wait until a breakpoint is set and all workers rest there; `TimeoutError` otherwise.

        If the query rests since the predicate of `pause_when` failed, that error is raised, until
        `step`, `resume` or another `pause_when`.
        """
        deadline = time.monotonic() + timeout
        while not self._rests(left := max(0.0, deadline - time.monotonic())):
            with self._changed:
                # Reports come several times a second, and each of them may bring it.
                self._changed.wait(min(0.05, left))
            self._require_active()
            if time.monotonic() > deadline:
                at = self.paused_at
                where = "has no breakpoint" if at is None else f"does not rest at {at} yet"
                raise TimeoutError(f"after {timeout:g} seconds, query {self.name!r} {where}")
        failed = self._current_steering().failed
        if failed is not None:
            raise PredicateFailed(failed.message)

    def state(self, operator: str, *, timeout: float = 60.0) -> pd.DataFrame:
        """The state of an operator while the query is paused, over all workers.

        It has the columns of the operator's containers, the number of tokens that it holds on the
        worker, and the least of their times.
        """
        protocol = steering.state_of(self._flow, operator)
        self._require_paused()
        return as_frame(self._steer(protocol, timeout))

    def sample(self, operator: str, rows: int = 10, *, timeout: float = 60.0) -> pd.DataFrame:
        """Some of the latest rows that an operator sent, or that came to an output.

        Each worker gives as many as ``rows``. They are kept from the moment when someone opens the
        query's page. The query need not be paused.
        """
        return self._steer(steering.sample_of(self._flow, operator, rows), timeout).to_pandas()

    def in_flight(self, *, timeout: float = 60.0) -> pd.DataFrame:
        """The messages that wait in operators, and the records that the breakpoint holds back."""
        self._require_paused()
        return self._steer(steering.messages(), timeout).to_pandas()

    def _rests(self, timeout: float) -> bool:
        """Whether a breakpoint is set and all workers rest there, if they answer in time."""
        if self.paused_at is None or not self.is_active:
            return False
        try:
            return self._steer(steering.resting(), timeout)
        except WorkersLeft:
            # Others take their place, and come to rest there again.
            return False

    # Migration

    def migrate(
        self,
        moves: Mapping[int, int],
        *,
        at: Any = None,
        plan: str | int = "all_at_once",
        timeout: float = 600.0,
    ) -> Migration:
        """Move bins of keys to other workers, with their state, while records flow.

        ``moves`` says for each bin the worker that it goes to; `placement` has the bins of each
        worker. Records before ``at`` meet the state at the old worker, later ones at the new one;
        without ``at``, state moves at once. ``plan`` is
        ``"all_at_once"``, ``"fluid"`` (one bin at a time), or how many bins move at a time.
        Returns once all have moved, for which inputs must reach the time. Checkpoints
        wait for a step under way; if a worker is lost, the query goes on from its last checkpoint,
        with the owners of bins that this one has.

        >>> import jeton as jt
        >>> from jeton.connectors.sinks import Memory
        >>> from jeton.connectors.sources import Rate
        >>> flow = jt.Flow("moving", bins=256)
        >>> counts = flow.input("ticks", lateness=0).key_by("n").running().count()
        >>> flow.output("counts", counts)
        >>> source = Rate(1000, lambda positions: {"n": positions % 7})
        >>> ends = {"sources": {"ticks": source}, "sinks": {"counts": Memory()}}
        >>> with flow.start(spark, **ends, workers=2) as query:
        ...     query.await_running()
        ...     moved = query.migrate({bin: 1 for bin in query.placement[0]})
        ...     print(len(moved.moves), [len(bins) for bins in query.placement.values()])
        128 [0, 256]
        """
        with self._by_the_user():
            return self._migrate(moves, plan, at, timeout)

    def _migrate(
        self,
        moves: Mapping[int, int],
        plan: str | int,
        at: Any,
        timeout: float,
        gives_way: Callable[[], bool] = lambda: False,
    ) -> Migration:
        """Move bins step by step, unless it has to give way."""
        deadline = time.monotonic() + timeout
        self.await_running(timeout)
        self._require_active()
        if not self._moving.acquire(blocking=False):
            raise GraphError(f"state of query {self.name!r} is moving already: wait for that")
        try:
            moves = self._current_steering().placement.require_moves(moves)
            began, rows, moved = time.monotonic(), 0, dict[int, int]()
            steps = in_steps(moves, plan, at)
            done = 0
            for step in steps:
                if gives_way():
                    break
                self._progress = {"moved": len(moved), "bins": len(moves)}
                left = max(0.0, deadline - time.monotonic())
                rows += self._steer(
                    migrating(step, at, more=step is not steps[-1]), left, moves=True
                ).rows
                moved |= step
                done += 1
            return Migration(moved, done, rows, time.monotonic() - began)
        finally:
            self._progress = None
            self._moving.release()

    def _by_the_user(self) -> AbstractContextManager[None]:
        """A time in which the rebalancer, if there is one, moves nothing."""
        return nullcontext() if self._rebalancer is None else self._rebalancer.held_off()

    def rebalance(
        self,
        *,
        seconds: float = 1.0,
        within: float = 0.1,
        plan: str | int = "fluid",
        timeout: float = 600.0,
    ) -> Migration:
        """Move bins from workers that get more records to those that get fewer.

        Records of each bin are counted for some ``seconds``. Then as few bins as possible move, so
        that no worker has more than the mean and a share ``within`` more. See `migrate` for
        ``plan``. With ``flow.start(…, rebalance=True)``, a query does so by itself.
        """
        deadline = time.monotonic() + timeout
        with self._by_the_user():
            placement, load = self.count_records(seconds, timeout=timeout)
            moves = balancing_moves(placement, load, within)
            return self._migrate(moves, plan, None, max(0.0, deadline - time.monotonic()))

    @property
    def rebalancing(self) -> list[tuple[float, Decision]]:
        """The latest decisions to move bins or not, each with its time and its reason.

        They are those of ``flow.start(…, rebalance=True)``; without, there are none.
        """
        return [] if self._rebalancer is None else list(self._rebalancer.decisions)

    @property
    def placement(self) -> dict[int, list[int]]:
        """The bins of each worker."""
        found = self._current_steering().placement
        return {worker: found.bins_of(worker) for worker in range(found.workers)}

    @property
    def migration(self) -> dict[str, int] | None:
        """How many bins of a migration have moved, and of how many; ``None`` if there is none."""
        return self._progress

    def _steer(self, protocol: steering.Protocol[T], timeout: float, *, moves: bool = False) -> T:
        """Have all workers carry a protocol out, and wait for its result."""
        deadline = time.monotonic() + timeout
        self.await_running(timeout)
        self._require_active()
        request = self._current_steering().ask(protocol, moves=moves)
        if not request.done.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError(
                f"after {timeout:g} seconds, the workers of query {self.name!r} have not answered"
            )
        return request.result()

    def _current_steering(self) -> Steering:
        found = self._coordinator.steering
        if found is None:
            raise GraphError(f"query {self.name!r} has not started yet: await_running() first")
        return found

    def _require_active(self) -> None:
        if not self.is_active:
            self.await_termination(0)
            raise GraphError(f"query {self.name!r} has ended")

    def _require_paused(self) -> None:
        self._require_active()
        if self.paused_at is None:
            raise GraphError(f"query {self.name!r} is not paused: pause_at(…) first")
        if not self.is_paused:
            raise GraphError(
                f"query {self.name!r} does not rest at {self.paused_at} yet: await_paused() first"
            )

    def stop(self, *, drain: bool = False, timeout: float = 30.0) -> None:
        """End the query in good order.

        With ``drain``, inputs are closed and what is under way is brought to its end, so that
        also the windows that are open now are emitted. Without, workers stop where they are; if the
        query has checkpoints, they take one more, so that it can go on from there.
        """
        if self.is_active:
            with self._changed:
                if self.is_active:
                    self._status = "stopping"
                schedule = self._coordinator.schedule
                self._changed.notify_all()
            if schedule is not None and not drain and schedule.take(timeout, last=True) is None:
                log.warning("query %r stops without a last checkpoint", self.name)
            with self._changed:
                # Workers that have not joined yet get the command when they do.
                self._stop = Stop(drain=drain)
                coordinator = self._coordinator
            coordinator.send(self._stop)
        if not self.await_termination(timeout):
            self._cancel()
            self.await_termination(5.0)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait for the end; returns whether it came in time. Raises if the query failed."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_active, timeout)
        if self._status == "failed":
            failure = self.exception()
            assert failure is not None
            raise failure
        return not self.is_active

    def await_running(self, timeout: float = 120.0) -> None:
        """Wait until all workers have reported; raises if the query fails, or not in time."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: len(self._coordinator.reports) == self.workers or not self.is_active,
                timeout,
            )
            reported = len(self._coordinator.reports)
        if self._status == "failed":
            self.await_termination(0)
        if not came:
            raise TimeoutError(
                f"after {timeout:g} seconds, {reported} of {self.workers} workers of query "
                f"{self.name!r} have reported{self._held_by()}"
            )

    def exception(self) -> QueryFailed | None:
        """Why the query failed, if it did."""
        if self._status != "failed":
            return None
        cause, error = self._cause, self._error
        failed = QueryFailed(f"query {self.name!r} failed: {cause.text if cause else error}")
        if cause is not None and cause.worker is not None:
            original = cause.exception()
            error = original.__cause__ or original
        failed.__cause__ = error
        return failed

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_active:
            self.stop()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def _repr_html_(self) -> str:
        metrics = self.metrics()
        facts = {name: metrics.get(name, 0) for name in ("rows_in", "rows_out", "late")}
        facts |= {f"frontier at {place}": times for place, times in self.frontiers().items()}
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
            for name, value in facts.items()
        )
        return f"<div>{escape(repr(self)[1:-1])}<table>{rows}</table></div>"

    def __repr__(self) -> str:
        return f"<Query {self.name!r}: {self._status}, {self.workers} workers>"

    # Called by the driver's side of the query

    def relocate(self, workers: int, timeout: float) -> Rescale:
        """Go on from a checkpoint with some workers, elsewhere, whether or not it had as many."""
        with self._rescaling, self._by_the_user():
            return self._rescale(workers, time.monotonic() + timeout)

    def rebalance_with(self, policy: Rebalance) -> None:
        """Move bins by itself from now on."""
        self._rebalancer = Rebalancer(self, policy)
        self._rebalancer.start()

    def count_records(self, seconds: float, *, timeout: float = 600.0) -> tuple[Placement, Counts]:
        """The owners of bins, and the records of each bin that come in some seconds."""
        self._steer(counting(), timeout)
        self._hurry.wait(seconds)
        load = self._steer(counted(), timeout)
        return self._current_steering().placement, load

    def move_bins(
        self, moves: Mapping[int, int], plan: str | int, gives_way: Callable[[], bool]
    ) -> Mapping[int, int]:
        """Move bins for the rebalancer; returns those that have moved."""
        return self._migrate(moves, plan, None, MOVES_WITHIN, gives_way).moves

    @property
    def description(self) -> str:
        """The description of the query's jobs in Spark's pages."""
        operators = ", ".join(plan.name for plan in self._flow.operators)
        if len(operators) > DESCRIBED:
            operators = operators[:DESCRIBED] + "…"
        return f"Jeton query {self.name!r} on {self.workers} workers: {operators}"

    def warn_of_waiting(self, after: float) -> None:
        """Log the jobs that hold the slots, if no worker has started within some seconds."""
        with self._changed:
            started = self._changed.wait_for(lambda: self._status != "starting", after)
        held = "" if started else self._held_by()
        if held:
            log.warning("query %r waits for %d slots%s", self.name, self.workers, held)

    def _held_by(self) -> str:
        """The jobs that hold slots, as the end of a sentence; nothing if there are none."""
        jobs = self._jobs.holders_of_slots(self.description)
        return f": slots are held by {'; '.join(jobs)}" if jobs else ""

    def _troubles(self) -> list[Holder]:
        """The conditions that keep the whole query from going on, as far as the driver knows."""
        if not self.is_active:
            said = f"has {self._status}" + (f": {self._cause.summary}" if self._cause else "")
            return [Holder(what="query", text=f"query {self.name!r} {said}", detail=said)]
        missing = self.workers - len(self._coordinator.controls)
        if not missing:
            return []
        held = f"{missing} of {self.workers} workers have no slot yet{self._held_by()}"
        after = f", {self._status}" if self._status != "starting" else ""
        return [Holder(what="slots", text=f"query {self.name!r}{after}: {held}", detail=held)]

    def begin(self, coordinator: Coordinator, placement: Placement | None = None) -> None:
        """An attempt begins, whose workers own bins as ``placement`` says."""
        coordinator.name = f"jeton-{self.name}"
        coordinator.steering = Steering(coordinator, placement=placement)
        if self._coordinator.steering is not None:
            coordinator.steering.follow(self._coordinator.steering)
        if coordinator.schedule is None:
            for name, sink in self._sinks.items():
                if isinstance(sink, DriverSink):
                    context = SinkContext(self._jobs.tag, output=name, wait=self.wait)
                    failed = partial(self.fail, coordinator)
                    coordinator.inboxes[name] = Inbox(sink, context, failed)
        with self._changed:
            self._before = carried(self._before, self._coordinator.reports)
            self._attempts += 1
            self._coordinator = coordinator
            self._changed.notify_all()

    def take_over(self, coordinator: Coordinator, rank: int, sock: socket.socket) -> None:
        """A worker has joined: listen to it from now on."""
        control = Control(sock)
        with self._changed:
            coordinator.join(rank, control)
            if self._status in ("starting", "restarting", "rescaling"):
                self._status = "running"
            # Those of the attempt's beginning came with the task: a second time does no harm.
            stop, standing = self._stop, list(self.standing)
            coordinator.listen(rank, control, self)
            self._changed.notify_all()
        for command in standing:
            coordinator.send(command, rank)
        if coordinator.schedule is not None:
            coordinator.schedule.joined()
        if stop is not None:
            coordinator.send(stop, rank)

    def end(self, coordinator: Coordinator, error: BaseException | None) -> None:
        """The job of an attempt is over."""
        # Workers' last rows and words may still be on their way when Spark says that the job is
        # over. Rows are waited for as long as a sink takes for them, words of the dead are not.
        deadline = None if error is None else time.monotonic() + 5.0
        for thread in list(coordinator.listeners):
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for inbox in coordinator.inboxes.values():
            inbox.end(None if deadline is None else max(0.0, deadline - time.monotonic()))
        coordinator.hang_up()
        if coordinator.steering is not None:
            coordinator.steering.end(f"the workers of query {self.name!r} have left")
        if coordinator.schedule is not None:
            coordinator.schedule.end()

    def fail(self, coordinator: Coordinator, error: JetonError) -> None:
        """Give up an attempt because of what went wrong at the driver."""
        with self._changed:
            coordinator.error = coordinator.error or error
        self.cancel()

    def wait(self, seconds: float) -> bool:
        """Wait for some seconds; returns whether there is no more time to wait."""
        return self._hurry.wait(seconds)

    def rescales(self) -> bool:
        """Whether an attempt with another number of workers comes next; that is set then."""
        with self._changed:
            workers, self._next_workers = self._next_workers, None
            if workers is not None:
                self.workers = workers
            return workers is not None and self._status != "stopping"

    def restart(self, wait: float, cause: Failure | None) -> bool:
        """After a failure: wait, unless the query is to be stopped; returns whether to go on."""
        with self._changed:
            if self._status != "stopping":
                self._status = "restarting"
                self._restarts += 1
                self._changed.notify_all()
                log.warning(
                    "query %r is started again from its last checkpoint: %s",
                    self.name,
                    " ".join(cause.summary.split()) if cause else "its job failed",
                )
                self._changed.wait_for(lambda: self._status == "stopping", wait)
            return self._status != "stopping"

    def ended(self, error: BaseException | None, cause: Failure | None) -> None:
        """There will be no further attempt."""
        with self._changed:
            self._error, self._cause = error, cause
            stopped = self._status == "stopping" and cause is None
            self._status = "failed" if error is not None and not stopped else "ended"
            self._changed.notify_all()
        if self._rebalancer is not None:
            self._rebalancer.stop()
        failure = self.exception()
        self.monitor.stop(None if failure is None else str(failure))

    def cancel(self) -> None:
        """Have Spark end the job."""
        self._jobs.cancel()

    # Called by the coordinator, for each worker in a thread of its own

    def hear(
        self, coordinator: Coordinator, worker: int, header: dict[str, Any], payload: bytes
    ) -> None:
        """A worker has sent a frame."""
        kind = header["kind"]
        if kind in ("facts", "busy", "report"):
            coordinator.inquiry.hear(worker, header)
        if kind == "rows":
            table = read_table(payload)
            taken = Taken(output=header["output"], bytes=len(payload))
            inbox = coordinator.inboxes[header["output"]]
            inbox.put(table, lambda: coordinator.send(taken, worker))
        elif kind in ("report", "failed"):
            follow: dict[str, int] = {}
            with self._changed:
                if kind == "report":
                    before = coordinator.reports.get(worker)
                    coordinator.reports[worker] = report = _checked(header)
                    # Not every report has the operators.
                    report["operators_at"] = report["metrics"].get("seconds", 0.0)
                    if not report["metrics"].get("operators") and before is not None:
                        report["metrics"]["operators"] = before["metrics"].get("operators", [])
                        report["operators_at"] = before["operators_at"]
                    follow = coordinator.to_follow(worker)
                else:
                    failure = Failure.from_json(header["failure"])
                    if failure.lost:
                        coordinator.lost = coordinator.lost or failure
                    else:
                        coordinator.cause = coordinator.cause or failure
                self._changed.notify_all()
            if follow:
                coordinator.send(Advance(inputs=follow), worker)
        elif kind in ("complete", "part", "missed") and coordinator.schedule is not None:
            coordinator.schedule.hear(worker, header)
        elif kind in ("steered", "matched") and coordinator.steering is not None:
            coordinator.steering.hear(worker, header, payload)
            with self._changed:
                self._changed.notify_all()
        elif kind not in ("facts", "busy"):
            raise ProtocolError(f"there are no frames of kind {kind!r}")

    def misheard(self, coordinator: Coordinator, worker: int, error: Exception) -> None:
        """A frame cannot be understood: that ends the attempt."""
        text = summary(error)
        if isinstance(error, KeyError):
            text = f"a frame of a kind that needs {error} does not have it"
        log.warning("query %r gives up an attempt: worker %d said: %s", self.name, worker, text)
        failure = ProtocolError(
            f"the driver of query {self.name!r} cannot understand worker {worker}: {text}"
        )
        failure.__cause__ = error
        self.fail(coordinator, failure)

    def left(self, coordinator: Coordinator, worker: int) -> None:
        """A worker has hung up: Spark reports the reason."""

    def _cancel(self) -> None:
        log.warning("query %r did not stop by itself: cancelling its Spark job", self.name)
        self._hurry.set()
        self.cancel()


def _checked(report: dict[str, Any]) -> dict[str, Any]:
    """A report, if it has what others look for in one."""
    if not isinstance(report["frontiers"], dict) or not isinstance(report["metrics"], dict):
        raise ProtocolError("a report has no frontiers or no metrics")
    return report
