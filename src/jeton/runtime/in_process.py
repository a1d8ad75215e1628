"""The in-process host: all workers in one thread, over a simulated network.

Without a seed it runs straight on. With one, it interleaves the turns of the agents, deliveries
and feeding at random, the same way each time, and checks every frontier against the truth at every
step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from random import Random
from threading import Condition, Thread, current_thread
from time import time as wall_clock
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.core.checks import described, require_workers
from jeton.core.errors import (
    FlowStalled,
    GraphError,
    OperatorFailed,
    SnapshotError,
    TimeError,
    summary,
)
from jeton.core.sizes import bytes_of
from jeton.dataflow.inputs import InputHandle
from jeton.dataflow.operators.capture import Event
from jeton.dataflow.operators.sequencer import SequencerHandle
from jeton.dataflow.partitions import follow
from jeton.dataflow.plan import progress_graph
from jeton.progress.relay import Hops, in_groups
from jeton.runtime import steering
from jeton.runtime.agent import Agent
from jeton.runtime.attachments import Feed, PartWriter, Sink
from jeton.runtime.breakpoints import ENDED, Predicate, require_predicate
from jeton.runtime.checker import Checker
from jeton.runtime.commands import Connection
from jeton.runtime.event_log import LIMIT, LogSettings, SampledLog, log_invocations
from jeton.runtime.metrics import measure
from jeton.runtime.migration import Await, Cancel, Moved, in_steps, migrating
from jeton.runtime.monitor import Monitor, Observation
from jeton.runtime.network import SimulatedNetwork
from jeton.runtime.result import Probe, Result
from jeton.runtime.state_view import as_frame
from jeton.runtime.tables import TableFeed, Tables
from jeton.runtime.turnstile import Turnstile
from jeton.runtime.why import Holder, Question, Why
from jeton.runtime.worker_facts import collect
from jeton.state.snapshot import Snapshot, merge

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

    from jeton.dataflow.flow import Flow
    from jeton.inspector.server import Page

P = ParamSpec("P")
T = TypeVar("T")

FEED_ROWS = 65_536
"""How many records of a table are fed at a time."""


_INTERNAL: Final = frozenset(
    (
        "agents",
        "attach",
        "checker",
        "graph",
        "monitor",
        "network",
        "now",
        "observe",
        "turnstile",
        "unit",
        "workers",
    )
)
"""Names for the library's own use, which completions leave out."""
PATIENCE: Final = 1.0
"""Seconds for which a question waits until a step is over."""


def _in_turn(
    method: Callable[Concatenate[Run, P], T],
) -> Callable[Concatenate[Run, P], T]:
    """A method that waits while another thread, such as that of the page, is at the run."""

    @wraps(method)
    def waiting(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with run.turnstile:
            return method(run, *args, **kwargs)

    return waiting


class Run:
    """A flow running in this process, driven by the caller.

    The caller's thread and that of the live page take turns: each step, and each act of either of
    them, is done before the next one begins.

    >>> import jeton as jt
    >>> flow = jt.Flow("echo")
    >>> flow.output("out", flow.input("in").probe("seen"))
    >>> with flow.open(workers=2, seed=7) as run:
    ...     run.input("in", worker=0).send({"time": [1, 2], "n": [10, 20]})
    ...     run.input("in", worker=0).advance_to(2)
    ...     run.input("in", worker=1).advance_to(5)
    ...     run.run_to_rest()
    ...     print(run.probe("seen").frontier)
    ...     table = run.finish()["out"]
    Antichain([2])
    >>> table["n"].to_pylist()
    [10, 20]
    """

    def __init__(
        self,
        flow: Flow,
        *,
        workers: int = 1,
        seed: int | None = None,
        check: bool | None = None,
        restore: Snapshot | None = None,
        memory_budget: int | str | None = None,
        hops: Hops = in_groups,
    ) -> None:
        workers = require_workers(workers)
        budget = None if memory_budget is None else bytes_of(memory_budget, "memory_budget=")
        if restore is not None:
            if not isinstance(restore, Snapshot):
                raise SnapshotError(
                    f"restore= needs a snapshot, as run.snapshot() returns, not "
                    f"{described(restore)}"
                )
            restore.check(flow.name, [plan.name for plan in flow.operators])
        self.flow = flow
        self.graph = progress_graph(flow.operators)
        self.network = SimulatedNetwork(self._wake)
        self.now = 0.0
        """The simulated clock, in seconds: it jumps when there is nothing else to do."""
        self.steps = 0
        self._failure: BaseException | None = None
        self._random = None if seed is None else Random(seed)
        self._feeding: list[Agent] = []
        """The agents whose feeds have not ended."""
        self._woken = Condition()
        self.turnstile = Turnstile()
        """Lets another thread look at the run, and steer it, between two steps."""
        self._looked_at = False
        self._paused_in: Thread | None = None
        """The thread that has set the breakpoint."""
        self.monitor = Monitor(flow.name, self.observe)
        self._pages: dict[tuple[str, int], Page] = {}
        self._tables = Tables(flow)
        try:
            ports = [self.network.port(index) for index in range(workers)]
            self.agents = [
                Agent(
                    flow,
                    port,
                    index=index,
                    workers=workers,
                    restore=restore,
                    clock=lambda: self.now,
                    graph=self.graph,
                    memory_budget=budget,
                    hops=hops,
                )
                for index, port in enumerate(ports)
            ]
        except OperatorFailed as error:
            interrupt = _interrupt_behind(error)
            if interrupt is None:
                raise
            raise interrupt from None
        self.workers = [agent.worker for agent in self.agents]
        self.matched: pa.Table | None = None
        """The rows that `pause_when` has stopped at."""
        self._moving: InProcessMigration | None = None
        """The migration that is under way."""
        self._watching: str | None = None
        """The output whose rows are looked at."""
        self._idle: set[str] = set()
        """Inputs that may be idle on some workers, where they follow those of the others."""
        for name in flow.inputs:
            for handle in self._ends(name):
                if isinstance(handle, InputHandle):
                    handle.turn = self.turnstile
                    handle.became_idle = partial(self._idle.add, name)
        wanted = seed is not None if check is None else check
        self.checker = Checker(self.graph, self.workers) if wanted else None

    # Handles

    def input(self, name: str, worker: int = 0) -> Any:
        """One worker's end of an input (`InputHandle` or `UnorderedInputHandle`)."""
        return self._handle("input", name, worker)

    def probe(self, name: str = "probe", worker: int = 0) -> Probe:
        """The frontier at a probe, as one worker knows it."""
        return Probe(self._handle("probe", name, worker))

    def sequencer(self, name: str = "sequencer", worker: int = 0) -> SequencerHandle:
        """One worker's end of a sequencer."""
        handle: SequencerHandle = self._handle("sequencer", name, worker)
        return handle

    def captured(self, name: str = "capture") -> list[list[Event]]:
        """The batches that each worker has captured so far."""
        return [list(self._handle("capture", name, w)) for w in range(len(self.workers))]

    @_in_turn
    def results(self) -> Result:
        """The rows of each output so far, also after a failure."""
        return Result(
            {
                name: self._tables.made(name, self._collected(name), self.unit)
                for name in self.flow.outputs
            },
            late={name: self._late(name) for name in self.flow.inputs},
            leaks=[leak for worker in self.workers for leak in worker.leaks],
            steps=self.steps,
            progress_batches=self.network.progress_batches,
            checks=self.checker.checks if self.checker is not None else 0,
        )

    def why(self, name: str | None = None, *, at: Any = None) -> Why:
        """Name what holds the frontier of an output, probe or operator; by default of all outputs.

        With ``at``, everything that could still result in that time or an earlier one there.

        >>> import jeton as jt
        >>> flow = jt.Flow("forgetful")
        >>> kept = {}
        >>> def keep(token, info):
        ...     token.drop()
        ...
        ...     def step(input, output):
        ...         for ref, batch in input:
        ...             kept[batch["n"][0]] = ref.retain()
        ...
        ...     return step
        >>> flow.output("out", flow.input("in").unary(keep, name="keep"))
        >>> with flow.open() as run:
        ...     run.input("in").send({"time": [3], "n": [1]})
        ...     run.input("in").close()
        ...     run.run_to_rest()
        ...     print(run.why("out"))
        'out' is at 3: 'keep' holds 1 token at 3 on worker 0, retained at ...:6: kept[...
            by way of keep → out
        """
        troubles = []
        said = "" if self._failure is None else f"has failed: {summary(self._failure)}"
        if not said and self.workers[0].closed:
            said = "was closed"
        if said:
            troubles = [Holder(what="query", text=f"the run {said}", detail=said)]
        # A thread that is busy in a step is a part of the answer, and is not waited for.
        with self.turnstile.within(PATIENCE):
            return Question(self.flow, self.graph, collect(self.agents), troubles).why(name, at)

    def observe(self) -> Observation:
        """How far the run is now, for a monitor; what was seen last if a step takes long."""
        with self.turnstile.within(self.monitor.every) as inside:
            if inside:
                return self._observed()
        before = self.monitor.seen
        if before is not None:
            return replace(before, status="busy", clock=wall_clock())
        with self.turnstile:
            return self._observed()

    def _observed(self) -> Observation:
        status = "complete" if all(agent.is_complete for agent in self.agents) else "running"
        if self._failure is not None:
            status = "failed"
        elif any(worker.closed for worker in self.workers):
            status = "ended"
        reports = {agent.worker.index: agent.reported() for agent in self.agents}
        for rank, report in reports.items():
            ends = {name: self.input(name, rank) for name in self.flow.inputs}
            report["inputs"] = {
                name: (end.time, end.idle)
                for name, end in ends.items()
                if isinstance(end, InputHandle) and not end.closed
            }
            handles = self.workers[rank].handles
            outputs = [handles[self.flow.handle("output", name)] for name in self.flow.outputs]
            rows = sum(len(batch) for output in outputs for batch in output)
            report["metrics"]["rows_out"] = rows
        return Observation(
            status=status,
            reports=reports,
            paused_at=self.paused_at,
            bins=self.workers[0].placement.counts(),
            migration=self.migration,
        )

    def inspect(self, *, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve a live page of this run until it is closed; returns the page's address.

        It shows the graph, frontiers, rates, tokens and queues, and answers `why`. The address has
        a secret: who knows it can look at the run and steer it. From now on, the time spent in each
        operator is kept too. It needs ``pip install 'jeton[inspect]'``.

        >>> import jeton as jt
        >>> flow = jt.Flow("echo")
        >>> flow.output("out", flow.input("in"))
        >>> with flow.open() as run:
        ...     print(run.inspect())
        http://127.0.0.1:...
        """
        if (host, port) not in self._pages:
            from jeton.inspector.server import serve

            self._look()
            self._pages[host, port] = serve(self.flow, self, host, port)
        return self._pages[host, port].url

    def log_events(
        self, path: str | os.PathLike[str], *, full: bool = False, limit: int = LIMIT
    ) -> None:
        """Write an event log of this run to Arrow files in a folder, until the run is closed.

        A sampled log has a row for each operator, worker and second. With ``full``, each worker
        writes a row for each invocation of an operator, to ``path`` on its own machine. The oldest
        files are removed once a writer has ``limit`` bytes.
        `jeton.inspector.events` reads, summarises and replays a log.

        >>> import tempfile
        >>> import jeton as jt
        >>> from jeton.inspector.events import summarise
        >>> flow = jt.Flow("echo")
        >>> flow.output("out", flow.input("in"))
        >>> folder = tempfile.mkdtemp()
        >>> with flow.open() as run:
        ...     run.log_events(folder, full=True)
        ...     run.input("in").send({"n": [1, 2]})
        ...     run.run_to_rest()
        >>> [(each["operator"], each["records_in"]) for each in summarise(folder)]
        [('out', 2)]
        """
        settings = LogSettings(path=os.fspath(path), limit=limit)
        if full:
            for worker in self.workers:
                log_invocations(worker, settings)
        else:
            self._look()
            self.monitor.log(SampledLog(settings))

    @_in_turn
    def _look(self) -> None:
        """Have the monitor look from now on, and the workers keep what there is to see."""
        if not self._looked_at:
            self._looked_at = True
            for worker in self.workers:
                measure(worker)
            self.monitor.start()

    # Driving

    def turn(self) -> bool:
        """Do one thing: deliver, feed, or let a worker step. Returns whether there was any.

        After a failure nothing can be done any more, and the same error is raised again.
        """
        with self.turnstile:
            return self._turn()

    def _turn(self) -> bool:
        if self._failure is not None:
            raise self._failure
        if self._idle:
            self._idle = {name for name in self._idle if follow(self._ends(name))}
        try:
            did = (
                self._step_in_order()
                if self._random is None
                else self._step_at_random(self._random)
            )
            if did and self.checker is not None:
                self.checker.check()
        except BaseException as error:
            interrupt = error if not isinstance(error, Exception) else _interrupt_behind(error)
            if interrupt is None:
                self._failure = error
                raise
            self._failure = FlowStalled(f"the run was interrupted by {interrupt!r}")
            raise interrupt from None
        self.steps += did
        if self._watching is not None:
            self._look_for_match()
        return did

    def run_to_rest(self) -> None:
        """Step until nothing is left to do; the simulated clock jumps to timers that are due."""
        while True:
            with self.turnstile:
                if self._turn() or self._jump():
                    continue
                if self.checker is not None:
                    self.checker.check_at_rest()
                return

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Step until a condition holds; `FlowStalled` if the flow comes to rest before."""
        while not reached():
            if self.turn() or self._jump() or self._await_threads() or self._await_resume():
                continue
            with self.turnstile:
                # Another thread may have steered the run since it came to rest.
                if not (reached() or self._can_go_on()):
                    raise FlowStalled(f"the flow came to rest before that: {self._explain()}")

    @_in_turn
    def feed(self, inputs: Mapping[str, Any]) -> None:
        """Feed whole tables, dealt out to the workers; each input is closed after its last row.

        An input advances as far as the rows still to come allow, in any order. Nothing is
        late, also if the input has a lateness.
        """
        for name in inputs:
            self.flow.handle("input", name)
        batches = {name: self._tables.read(name, data) for name, data in inputs.items()}
        for name in self.flow.inputs:
            unit = batches[name].unit if name in batches else None
            if unit is not None:
                for worker in self.workers:
                    worker.units.fix(unit, name)
        for name, batch in batches.items():
            self._feed_table(name, batch)

    @_in_turn
    def attach(
        self,
        worker: int,
        *,
        feed: Feed | None = None,
        sink: Sink | None = None,
        driver: Connection | None = None,
        parts: PartWriter | None = None,
    ) -> None:
        """Have one worker's agent read, write, report and obey, as in a process of its own.

        The simulated clock decides when it looks for commands: move `now` on between steps.
        """
        agent = self.agents[worker]
        agent.attach(feed=feed, sink=sink, driver=driver, parts=parts)
        if not agent.feed.ended:
            self._feeding.append(agent)

    def finish(self) -> Result:
        """Close all inputs once what is fed has been sent, run to the end, return the results.

        A breakpoint that was set on the page is waited for until it is resumed there.
        """
        while True:
            while self._feeding and self.paused_at is None:
                self.turn()
            closed = self._close_ends()
            self.run_to_rest()
            if self._await_resume():
                continue
            with self.turnstile:
                # Another thread may have steered the run since it came to rest.
                if self._can_go_on():
                    continue
                if self.paused_at is not None:
                    raise FlowStalled(
                        f"the flow came to rest at the breakpoint at {self.paused_at}: resume() "
                        "first"
                    )
                if not closed:
                    continue
                if all(worker.tracker.is_complete for worker in self.workers):
                    return self.results()
            if not self._await_threads():
                raise FlowStalled(f"the flow came to rest but is not complete: {self._explain()}")

    @_in_turn
    def _close_ends(self) -> bool:
        """Close the inputs and the sequencers, unless there is something to feed."""
        if self._feeding:
            return False
        for what in ("input", "sequencer"):
            for name in (name for kind, name in self.flow.handles() if kind == what):
                for worker in range(len(self.workers)):
                    self._handle(what, name, worker).close()
        return True

    def _can_go_on(self) -> bool:
        """Take a step, if there is one to take; or whether another thread has paused the run."""
        return self.turn() or self._jump() or self._paused_elsewhere

    # Breakpoints

    @_in_turn
    def pause_at(self, time: Any = None) -> Any:
        """Set a breakpoint: hold a token at a time in every input. Returns the time.

        Everything before it completes, and nothing at or after it is emitted, until `step` or
        `resume`. Inputs can be sent to and advanced as usual; records at or after the time are
        held back. ``time`` is an integer or a timestamp, as the flow has them. Without one, it is
        the least time after all that went in.

        >>> import jeton as jt
        >>> flow = jt.Flow("counts")
        >>> flow.output("counts", flow.input("words").key_by("word").running().count())
        >>> run = flow.open(workers=2)
        >>> run.pause_at(5)
        5
        >>> run.feed({"words": {"time": [1, 5, 9], "word": ["a", "a", "a"]}})
        >>> run.run_to_rest()
        >>> run.is_paused, run.results()["counts"].to_pylist()
        (True, [{'time': 1, 'word': 'a', 'count': 1}])
        >>> run.step()
        9
        >>> run.results()["counts"]["count"].to_pylist()
        [1, 2]
        >>> run.resume()
        >>> run.finish()["counts"]["count"].to_pylist()
        [1, 2, 3]
        """
        at = self._steer(steering.pausing(time)).shown
        self._paused_in = current_thread()
        return at

    def step(self, until: Any = None) -> Any:
        """Move the breakpoint on, and run until the flow rests there. Returns its time.

        It is ``until``, or else the least time after the breakpoint of a record that is held back
        once the flow rests. See `pause_at` for an example.
        """
        with self.turnstile:
            return self._step_to(until)

    def _step_to(self, until: Any) -> Any:
        if until is None and self.paused_at is not None:
            # Records that were sent may not have come to the breakpoint yet.
            self.run_to_rest()
        at = self._steer(steering.stepping(until)).shown
        self.run_to_rest()
        return at

    @_in_turn
    def resume(self) -> None:
        """Remove the breakpoint: what is held back goes on. See `pause_at` for an example."""
        for agent in self.agents:
            agent.breakpoints.require_paused()
        self._steer(steering.resuming())
        self._wake()

    @_in_turn
    def pause_when(self, output: str, predicate: Predicate) -> None:
        """Pause right after all that went in, once rows of an output match.

        ``predicate`` takes a batch of the output, and returns a mask of its rows, or whether the
        batch matches. The rows are in `matched` then. If it fails, the run is paused too, and the
        call that has run it raises `jeton.errors.PredicateFailed`.

        >>> import jeton as jt
        >>> flow = jt.Flow("echo")
        >>> flow.output("out", flow.input("in"))
        >>> run = flow.open()
        >>> run.pause_when("out", lambda batch: batch["n"] > 1)
        >>> for time in range(4):
        ...     run.input("in").send({"time": [time], "n": [time]})
        ...     run.run_to_rest()
        >>> run.paused_at, run.matched.to_pylist(), run.results()["out"]["n"].to_pylist()
        (3, [{'time': 2, 'n': 2}], [0, 1, 2])
        """
        self.flow.handle("output", output)
        require_predicate(predicate)
        for agent in self.agents:
            agent.breakpoints.require_integers()
            agent.breakpoints.watch(output, predicate)
        self._watching = output
        self.matched = None

    @property
    @_in_turn
    def paused_at(self) -> Any:
        """The time of the breakpoint, ``None`` if there is none."""
        points = self.agents[0].breakpoints
        at = points.at
        return None if at is None else steering.At(at, self.unit or points.unit).shown

    @property
    @_in_turn
    def is_paused(self) -> bool:
        """Whether a breakpoint is set, and nothing is left to do before it."""
        ready = self.network or self._first_reading() is not None
        return self.paused_at is not None and not (
            ready or any(agent.is_ready for agent in self.agents)
        )

    # Migration

    @_in_turn
    def migrate(
        self, moves: Mapping[int, int], *, at: Any = None, plan: str | int = "all_at_once"
    ) -> None:
        """Move bins of keys to other workers, with their state, while records flow.

        Records before ``at`` meet the state at the old worker, later ones at the new one. Without
        ``at``, it moves at once. The state moves while the run goes on: `migration` says how far
        it is. ``plan`` is ``"all_at_once"``, ``"fluid"`` (one bin at
        a time), or how many bins move at a time.

        >>> import jeton as jt
        >>> flow = jt.Flow("counts")
        >>> flow.output("counts", flow.input("words").key_by("word").running().count())
        >>> run = flow.open(workers=2)
        >>> run.input("words").send({"time": [1, 1], "word": ["a", "b"]})
        >>> run.migrate({bin: 1 for bin in run.placement[0]}, at=5)
        >>> run.input("words").send({"time": [7, 8], "word": ["a", "b"]})
        >>> run.finish()["counts"]["count"].to_pylist()
        [1, 1, 2, 2]
        >>> len(run.placement[0]), len(run.placement[1])
        (0, 4096)
        """
        if self._moving is not None:
            raise GraphError("state is moving already: wait until run.migration is None")
        moves = self.workers[0].placement.require_moves(moves)
        steps = in_steps(moves, plan, at)
        if steps:
            self._moving = InProcessMigration(self.agents, steps, at)
            try:
                self._moving.begin()
            except BaseException:
                self._moving = None
                raise

    @property
    @_in_turn
    def placement(self) -> dict[int, list[int]]:
        """The bins of each worker.

        >>> import jeton as jt
        >>> with jt.Flow("empty", bins=256).open(workers=128) as run:
        ...     run.placement[3]
        [3, 131]
        """
        placement = self.workers[0].placement
        return {worker: placement.bins_of(worker) for worker in range(len(self.workers))}

    @property
    @_in_turn
    def migration(self) -> dict[str, int] | None:
        """How many bins of a migration have moved, and of how many; ``None`` if there is none.

        >>> import jeton as jt
        >>> flow = jt.Flow("counts")
        >>> flow.output("counts", flow.input("words").key_by("word").running().count())
        >>> with flow.open(workers=2) as run:
        ...     run.migrate({0: 1, 2: 1}, plan="fluid")
        ...     print(run.migration)
        {'moved': 0, 'bins': 2}
        """
        return None if self._moving is None else self._moving.progress

    @_in_turn
    def state(self, operator: str) -> pd.DataFrame:
        """The state of an operator while the flow is paused, over all workers.

        It has the columns of the operator's containers, the number of tokens that it holds on the
        worker, and the least of their times.

        >>> import jeton as jt
        >>> flow = jt.Flow("counts")
        >>> words = flow.input("words").named("windows").key_by("word")
        >>> flow.output("counts", words.tumbling(10).count())
        >>> with flow.open() as run:
        ...     run.input("words").send({"time": [1, 2], "word": ["a", "a"]})
        ...     _ = run.pause_at()
        ...     run.run_to_rest()
        ...     run.state("windows")
           worker key.word  of.count.count  end  tokens  token_time
        0       0        a               2   10       1          10
        """
        protocol = steering.state_of(self.flow, operator)
        self._require_rest()
        return as_frame(self._steer(protocol))

    @_in_turn
    def sample(self, operator: str, rows: int = 10) -> pd.DataFrame:
        """Some of the latest rows that an operator sent, or that came to an output.

        They are kept from the moment when the run is looked at: see `inspect`. It need not rest.

        >>> import jeton as jt
        >>> flow = jt.Flow("echo")
        >>> flow.output("out", flow.input("in"))
        >>> with flow.open() as run:
        ...     _ = run.inspect()
        ...     run.input("in").send({"time": [1, 7], "n": [1, 2]})
        ...     run.run_to_rest()
        ...     run.sample("out", rows=1)
           worker  time  n
        0       0     1  1
        """
        return self._steer(steering.sample_of(self.flow, operator, rows)).to_pandas()

    @_in_turn
    def in_flight(self) -> pd.DataFrame:
        """The messages that wait in operators, and the records that the breakpoint holds back.

        >>> import jeton as jt
        >>> flow = jt.Flow("echo")
        >>> flow.output("out", flow.input("in"))
        >>> with flow.open() as run:
        ...     _ = run.pause_at(5)
        ...     run.input("in").send({"time": [1, 7], "n": [1, 2]})
        ...     run.run_to_rest()
        ...     run.in_flight()
          operator    side  port  worker status  time  rows
        0       in  output     0       0   held     7     1
        """
        self._require_rest()
        return self._steer(steering.messages()).to_pandas()

    @_in_turn
    def snapshot(self) -> Snapshot:
        """The state of the flow, which must be at rest.

        ``flow.open(restore=…)`` goes on from it, on any number of workers.

        >>> import jeton as jt
        >>> flow = jt.Flow("count")
        >>> flow.output("counts", flow.input("words").key_by("word").running().count())
        >>> with flow.open(workers=2) as run:
        ...     run.input("words").send({"time": [0, 0], "word": ["a", "b"]})
        ...     run.run_to_rest()
        ...     snapshot = run.snapshot()
        >>> with flow.open(workers=3, restore=snapshot) as run:
        ...     run.input("words").send({"time": [1], "word": ["a"]})
        ...     run.finish()["counts"].to_pylist()
        [{'time': 1, 'word': 'a', 'count': 2}]
        """
        if self.network or self._feeding:
            raise SnapshotError("a snapshot needs a flow at rest: run_to_rest() first")
        while True:
            try:
                parts = [worker.snapshot() for worker in self.workers]
            except SnapshotError:
                # Another thread, such as that of a call, may have answered since the flow rested.
                if not any(worker.has_posts for worker in self.workers):
                    raise
                self.run_to_rest()
            else:
                return merge(self.flow.name, parts, self.workers[0].placement)

    def close(self) -> None:
        """End the run: tokens that are still held no longer mean anything."""
        with self.turnstile:
            for worker in self.workers:
                worker.close()
        self._wake()
        self.monitor.stop()
        self.monitor.join()
        for page in self._pages.values():
            page.close()
        self._pages.clear()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside

    @_in_turn
    def _steer(self, protocol: steering.Protocol[T]) -> T:
        """Carry a protocol out: all workers are at hand."""
        try:
            command = next(protocol)
            while True:
                command = protocol.send([command.answer(agent) for agent in self.agents])
        except StopIteration as end:
            result: T = end.value
            return result

    def _look_for_match(self) -> None:
        for agent in self.agents:
            found = agent.breakpoints.matched()
            if found is not None:
                self.matched = found.rows
                self._watching = None
                for each in self.agents:
                    each.breakpoints.watch()
                if self.paused_at is None:
                    # If all inputs have ended, there is nothing left to pause.
                    with suppress(GraphError, TimeError):
                        self._steer(steering.pausing(None, found.reason))
                        self._paused_in = None
                if found.error is not None:
                    raise found.error
                return

    def _require_rest(self) -> None:
        if self.paused_at is None:
            raise GraphError("the run is not paused: pause_at(…) first")
        if not self.is_paused:
            raise GraphError(
                f"the run has not come to rest at {self.paused_at} yet: run_to_rest() first"
            )

    def _first_reading(self) -> int | None:
        """The first agent that has something to feed, unless a breakpoint keeps it from that."""
        for index, agent in enumerate(self._feeding):
            if not agent.breakpoints.stops_reading:
                return index
        return None

    def _step_in_order(self) -> bool:
        did = self.network.deliver_all()
        if self._moving is not None:
            did = self._migrate_on(self._moving, self._moving.due()) or did
        for agent in self.agents:
            did = agent.step() or did
        if did:
            return True
        index = self._first_reading()
        if index is not None:
            return self._feed_one(index)
        return any(agent.catch_up() for agent in self.agents)

    def _step_at_random(self, random: Random) -> bool:
        ready = [agent for agent in self.agents if agent.is_ready or agent.worker.catch_up()]
        reading = [
            index
            for index, agent in enumerate(self._feeding)
            if not agent.breakpoints.stops_reading
        ]
        moving = self._moving
        due = [] if moving is None else moving.due()
        choices = len(ready) + (2 if self.network else 0) + (1 if reading else 0)
        if moving is not None and due and (not choices or random.random() < 0.5):
            return self._migrate_on(moving, [random.choice(due)])
        if not choices:
            return False
        choice = random.randrange(choices)
        if choice < len(ready):
            ready[choice].step(random)
        elif self.network and choice < len(ready) + 2:
            self.network.deliver_some(random)
        else:
            self._feed_one(random.choice(reading))
        return True

    def _migrate_on(self, moving: InProcessMigration, due: list[int]) -> bool:
        """Have some workers do their next part in a migration."""
        moving.obey(due)
        if moving.is_over:
            self._moving = None
        return bool(due)

    def _feed_one(self, index: int) -> bool:
        agent = self._feeding.pop(index)
        agent.read()
        if not agent.feed.ended:
            self._feeding.append(agent)
        return True

    def _feed_table(self, name: str, batch: Batch) -> None:
        workers = len(self.workers)
        handles = self._ends(name)
        if not isinstance(handles[0], InputHandle):
            raise GraphError(f"input {name!r} is unordered: send with run.input({name!r})")
        batch = handles[0].in_flow_unit(batch)
        rows = FEED_ROWS
        if self._random is not None:
            rows = self._random.randint(1, max(2, len(batch) // 3))
        # Enough pieces for every worker to get some, even of a small table.
        rows = max(1, min(rows, -(-len(batch) // workers)))
        pieces = [batch.slice(at, at + rows) for at in range(0, len(batch), rows)]
        for worker, (agent, handle) in enumerate(zip(self.agents, handles, strict=True)):
            if not isinstance(agent.feed, TableFeed):
                agent.feed = TableFeed(self._random)
            if agent.feed.ended:
                self._feeding.append(agent)
            agent.feed.add(handle, pieces[worker::workers])

    @property
    def unit(self) -> str | None:
        """The unit of the flow's times, as far as any worker knows it."""
        return next((w.units.unit for w in self.workers if w.units.unit is not None), None)

    def _collected(self, name: str) -> list[Batch]:
        index = self.flow.handle("output", name)
        return [batch for worker in self.workers for batch in worker.handles[index]]

    def _late(self, name: str) -> int:
        return sum(getattr(handle, "late_count", 0) for handle in self._ends(name))

    def _ends(self, name: str) -> list[Any]:
        """All workers' ends of an input."""
        return [self.input(name, worker) for worker in range(len(self.workers))]

    def _handle(self, what: str, name: str, worker: int) -> Any:
        if not 0 <= worker < len(self.workers):
            raise GraphError(f"there is no worker {worker}: this run has {len(self.workers)}")
        return self.workers[worker].handles[self.flow.handle(what, name)]

    @_in_turn
    def _jump(self) -> bool:
        """Move the clock to the next timer, if there is one."""
        timers = [w.timers.next for w in self.workers if w.timers.next is not None]
        if not timers:
            return False
        self.now = max(self.now, min(timers))
        return True

    def _wake(self) -> None:
        with self._woken:
            self._woken.notify_all()

    def _await_threads(self) -> bool:
        """Wait until another thread wakes a worker, if any may still do so."""
        with self._woken:
            self._woken.wait_for(
                lambda: (
                    any(w.has_work for w in self.workers)
                    or not any(w.threads_expected for w in self.workers)
                )
            )
        return any(worker.has_work for worker in self.workers)

    def _await_resume(self) -> bool:
        """Wait while a breakpoint holds that another thread has set, as that of the page does."""
        if not self._paused_elsewhere:
            return False
        with self._woken:
            self._woken.wait_for(
                lambda: self.agents[0].breakpoints.at is None or self.workers[0].closed
            )
        return not self.workers[0].closed

    @property
    def _paused_elsewhere(self) -> bool:
        """Whether a breakpoint holds that another thread has set."""
        if self.paused_at is None or self.workers[0].closed:
            return False
        return self._paused_in not in (None, current_thread())

    def _explain(self) -> str:
        return Question(self.flow, self.graph, collect(self.agents)).stalled()


class InProcessMigration:
    """A migration of workers that are all at hand, which need not obey at the same moment."""

    def __init__(self, agents: list[Agent], steps: list[dict[int, int]], at: Any) -> None:
        self._agents = agents
        self._left = steps
        self._at = at
        self._moved = 0
        self._bins = sum(map(len, steps))
        self._protocol: steering.Protocol[Moved]
        self._command: steering.Steer
        self._answers: dict[int, steering.Answer] = {}
        self.is_over = False

    @property
    def progress(self) -> dict[str, int]:
        """How many bins have moved, and of how many."""
        return {"moved": self._moved, "bins": self._bins}

    def begin(self) -> None:
        """Prepare the next step on all workers; an error if that cannot be."""
        self._protocol = migrating(self._left.pop(0), self._at)
        self._command = next(self._protocol)
        self._answers.clear()
        self.obey(range(len(self._agents)))

    def due(self) -> list[int]:
        """The workers that have a command to obey, and can."""
        command = self._command
        return [
            index
            for index, agent in enumerate(self._agents)
            if index not in self._answers
            and not (isinstance(command, Await) and not command.is_due(agent))
        ]

    def obey(self, workers: Iterable[int]) -> None:
        """Have some workers obey; once all have, the next command is due."""
        for worker in workers:
            self._answers[worker] = self._command.answer(self._agents[worker])
        if len(self._answers) < len(self._agents):
            return
        answers = [self._answers[index] for index in range(len(self._agents))]
        self._answers.clear()
        try:
            self._command = self._protocol.send(answers)
            if isinstance(self._command, Cancel):
                self._protocol.send([self._command.answer(agent) for agent in self._agents])
        except StopIteration as end:
            self._moved += len(end.value.moves)
            self.is_over = not self._left
            if self._left:
                self._begin_next()

    def _begin_next(self) -> None:
        try:
            self.begin()
        except GraphError as error:
            # If all inputs have ended, no more records come that state could move for.
            if error.message != ENDED:
                raise
            self.is_over = True


def _interrupt_behind(error: Exception) -> BaseException | None:
    """Ctrl-C ends the program, wherever it hits: it is the user's, not an operator's."""
    cause = error.__cause__
    if not isinstance(error, OperatorFailed) or not isinstance(cause, KeyboardInterrupt):
        return None
    cause.add_note(str(error))
    return cause
