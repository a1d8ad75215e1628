"""Long-lived queries: a barrier job that stays up, for milliseconds instead of micro-batches.

`start` runs on the driver: it starts a job, and another one from the last checkpoint if workers are
lost. Spark only starts and ends the workers: they read sources and write to sinks themselves, and
the driver hears from each of them over a connection of its own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from jeton.cluster.checkpoint_committer import CheckpointCommitter
from jeton.cluster.checkpoint_writer import RestorePoint
from jeton.cluster.coordinator import CheckpointSchedule, Coordinator
from jeton.cluster.discovery import Discovery
from jeton.cluster.failures import Failure
from jeton.cluster.restarts import Restarts
from jeton.connectors.sinks import Sink
from jeton.connectors.source_plan import SourcePlan
from jeton.connectors.sources import Source
from jeton.core.checks import described
from jeton.core.errors import GraphError
from jeton.core.sizes import bytes_of
from jeton.inspector import offer, telemetry
from jeton.runtime.balance import Rebalance
from jeton.spark import store_access
from jeton.spark.application import Application, conf_of, require_slots
from jeton.spark.jobs import Jobs
from jeton.spark.long_lived_tasks import WorkerTask
from jeton.spark.query import Query
from jeton.spark.shipping import require_picklable
from jeton.spark.wire_settings import WireSettings, wire_settings
from jeton.state.bins import Placement
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.leases import Superseded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jeton.dataflow.flow import Flow

log = logging.getLogger(__name__)

SLOTS_WITHIN: Final = 10.0
"""Seconds after which a query that has no worker yet logs which jobs hold the slots."""


def start(
    flow: Flow,
    spark: SparkSession,
    *,
    sources: Mapping[str, Source] | None = None,
    sinks: Mapping[str, Sink] | None = None,
    workers: int = 2,
    name: str | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoints | None = None,
    every: float | None = 10.0,
    keep: int = 2,
    restarts: int = 10,
    allow_removed: Collection[str] = (),
    inspect: bool | None = None,
    rebalance: bool | Rebalance = False,
    tls: bool | None = None,
    memory_budget: int | str | None = None,
) -> Query:
    """Run a flow on Spark in the background, until its sources end or it is stopped.

    Args:
        flow: The program.
        spark: The session whose cluster it runs on.
        sources: Where the records of each input come from.
        sinks: Where the rows of each output go; an output without one is not collected.
        workers: How many tasks run as workers, all at the same time.
        name: What the query is called, in Spark's pages too; by default like the flow.
        checkpoint: Where the query's checkpoints are. If there are any, it goes on from the newest
            that is whole; rows reach sinks when the checkpoint that covers them is committed.
        every: Seconds from one checkpoint to the next; ``None`` takes one at the end only, and
            whenever `Query.checkpoint` is called. Without checkpoints, the seconds after which
            rows appear in sinks that hide them at first, such as `Parquet`.
        keep: How many checkpoints are kept.
        restarts: How many times in a row, without a new checkpoint, the query is started again
            after workers were lost or failed. The same error of a worker's twice in a row, without
            a new checkpoint in between, ends it. Without checkpoints it is never started again.
        allow_removed: Operators which the checkpoint has state of, and the flow has no more.
        inspect: Whether to serve a live page and to print its address to standard error; by
            default unless the environment variable ``JETON_INSPECT`` is 0.
        rebalance: Whether to move bins from busy workers by itself, or when: see `Rebalance`.
        tls: Whether connections between machines, and those to the driver, are under TLS, with
            certificates made for this query. By default if Spark's settings ask for it: see
            docs/security.md.
        memory_budget: The memory that the state of each worker may take, such as ``"2GB"``: state
            beyond it is on local disk.

    >>> import jeton as jt
    >>> from jeton.connectors.sinks import Memory
    >>> from jeton.connectors.sources import Rate
    >>> flow = jt.Flow("live")
    >>> flow.output("numbers", flow.input("numbers").exchange("n"))
    >>> rate = Rate(10_000, lambda positions: {"n": positions}, limit=100)
    >>> query = start(flow, spark, sources={"numbers": rate}, sinks={"numbers": Memory()})
    >>> query.await_termination(60)
    True
    >>> query.table("numbers").count()
    100

    With ``checkpoint=`` it survives: see docs/checkpoints.md.
    """
    sources, sinks = sources or {}, sinks or {}
    _require_sense(every, keep)
    if not isinstance(rebalance, bool | Rebalance):
        raise GraphError(f"rebalance= is True, False or a Rebalance, not {described(rebalance)}")
    budget = None if memory_budget is None else bytes_of(memory_budget, "memory_budget=")
    _require_names(flow, "input", flow.inputs, sources, all_of_them=True)
    _require_names(flow, "output", flow.outputs, sinks, all_of_them=False)
    _require_kinds(sources, sinks)
    require_picklable(flow)
    require_slots(spark, workers)
    wire = wire_settings(conf_of(spark), tls)
    # A session on which this cannot work is an error here, not one of the query.
    Application.of(spark)
    label = name or flow.name
    jobs = Jobs(spark, f"jeton-{os.urandom(6).hex()}")
    query = Query(label, spark, workers, sinks, jobs, flow, sources)
    restore_point: RestorePoint | None = None
    store_access.adopt(spark)
    for output, sink in sinks.items():
        empty = flow.empty_output(output)
        sink.begin(output, None if empty is None else empty.schema)
    if checkpoint is not None:
        store = checkpoint if isinstance(checkpoint, Checkpoints) else Checkpoints(checkpoint)
        query.committer = CheckpointCommitter(
            flow, store, sinks, query.wait, every=every, keep=keep, allow_removed=allow_removed
        )
        # State that does not fit is an error at once.
        restore_point = query.committer.recover()
    plan = SourcePlan(label, sources, query.committer.began() if query.committer else None)
    # So is a source that cannot name its partitions.
    plan.begin(workers, {} if restore_point is None else restore_point.positions)
    if query.committer is not None:
        query.committer.begin(plan.first)

    limit = Restarts(restarts if query.committer else 0)
    attempts = _Attempts(query, spark, flow, sources, sinks, plan, every, jobs, limit, wire, budget)
    jobs.run(lambda: attempts.run(restore_point))
    telemetry.export(query.monitor)
    query.monitor.start()
    jobs.watch_executors(query)
    if rebalance:
        query.rebalance_with(Rebalance() if rebalance is True else rebalance)
    if offer.is_wanted() if inspect is None else inspect:
        offer.offer(label, query.inspect, jobs.through_ui)
    threading.Thread(target=query.warn_of_waiting, args=(SLOTS_WITHIN,), daemon=True).start()
    return query


def _require_sense(every: float | None, keep: int) -> None:
    if every is not None and not every >= 0:
        raise GraphError(f"there can be a checkpoint every 0 seconds or more, not every {every}")
    if keep < 1:
        raise GraphError(f"at least one checkpoint must be kept, not {keep}")


def _require_names(
    flow: Flow, what: str, known: tuple[str, ...], given: Mapping[str, Any], *, all_of_them: bool
) -> None:
    for name in given:
        flow.handle(what, name)
    missing = [name for name in known if name not in given] if all_of_them else []
    if missing:
        raise GraphError(
            f"flow {flow.name!r} needs a source for each of its inputs, and has none for "
            f"{', '.join(map(repr, missing))}"
        )


def _require_kinds(sources: Mapping[str, Any], sinks: Mapping[str, Any]) -> None:
    for given, kind, what in ((sources, Source, "source"), (sinks, Sink, "sink")):
        for name, each in given.items():
            if not isinstance(each, kind):
                raise GraphError(
                    f"the {what} of {name!r} is {each!r}, which is not a {what}: "
                    f"{_remedy(each, what)}"
                )


def _remedy(each: Any, what: str) -> str:
    if isinstance(each, type):
        return f"make one, {each.__name__}(…)"
    if what == "source" and type(each).__module__.startswith("pyspark."):
        return "flow.on_spark(…) takes DataFrames"
    base = what.title()
    return f"use one of jeton.connectors.{what}s, or a class of your own that derives from {base}"


@dataclass(frozen=True)
class _Attempts:
    """Runs one job after the other until the query ends or fails for good."""

    query: Query
    spark: SparkSession
    flow: Flow
    sources: Mapping[str, Source]
    sinks: Mapping[str, Sink]
    plan: SourcePlan
    every: float | None
    jobs: Jobs
    restarts: Restarts
    wire: WireSettings
    memory_budget: int | None

    def run(self, restore_point: RestorePoint | None) -> None:
        """Run one attempt after the other, the first of them from the given restore point."""
        query, committer = self.query, self.query.committer
        error: BaseException | None = None
        cause: Failure | None = None
        try:
            while True:
                attempt, error = self._attempt(restore_point)
                cause = attempt.cause or attempt.lost
                if query.rescales() and error is None:
                    restore_point = None
                    continue
                if error is None or committer is None or isinstance(error, Superseded):
                    break
                wait = self.restarts.wait(attempt.cause, committer.version)
                if wait is None or not query.restart(wait, cause):
                    break
                restore_point = None
        except BaseException as caught:
            error, cause = caught, Failure.of(caught)
        query.ended(error, cause)

    def _attempt(
        self, restore_point: RestorePoint | None
    ) -> tuple[Coordinator, BaseException | None]:
        """Run a job from a restore point, by default the newest; returns its error, if any."""
        if restore_point is None and self.query.committer is not None:
            try:
                restore_point = self.query.committer.recover()
            except Exception as caught:
                return Coordinator(cause=Failure.of(caught)), caught
        return self._job(restore_point)

    def _job(self, restore_point: RestorePoint | None) -> tuple[Coordinator, BaseException | None]:
        """Run a job to its end; returns its error, if any."""
        query, workers = self.query, self.query.workers
        application = Application.of(self.spark)
        server, plan = application.rendezvous, application.next_plan(self.flow)
        attempt, committer = Coordinator(workers), query.committer
        if restore_point is not None and committer is not None:
            CheckpointSchedule(
                attempt, committer, restore_point, every=committer.every, failed=query.cancel
            )
        bins = self.flow.bins
        query.begin(
            attempt,
            Placement.even(workers, bins)
            if restore_point is None
            else restore_point.placed_on(workers, bins),
        )
        steered = attempt.steering
        assert steered is not None
        meeting = server.meeting(
            plan,
            lambda rank, _, sock: query.take_over(attempt, rank, sock),
            tls=self.wire.tls,
            binding=self.wire.workers,
        )
        known = {} if restore_point is None else restore_point.positions
        task = WorkerTask(
            self.flow,
            dict(self.sources),
            self.plan.begin(workers, known),
            {name: sink.at_workers() for name, sink in self.sinks.items()},
            meeting,
            self.jobs.tag,
            restore_point,
            self.every,
            None if steered.at is None else steered.at.time,
            steered.watch,
            tuple(query.standing),
            store_access.adopt(self.spark),
            self.memory_budget,
        )
        discovery = Discovery(self.plan, attempt)
        error: BaseException | None = None
        try:
            self.jobs.describe(query.description)
            frame = self.spark.range(0, workers, 1, workers)
            frame.mapInArrow(task, "worker long", barrier=True).collect()
        except Exception as caught:
            error = caught
        finally:
            discovery.end()
            server.forget(plan)
            query.end(attempt, error)
        schedule = attempt.schedule
        at_driver = (None if schedule is None else schedule.error) or attempt.error
        if at_driver is not None:
            error, attempt.cause = at_driver, Failure.of(at_driver)
        return attempt, error
