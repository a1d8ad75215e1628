"""A worker: one thread of control that runs its copy of the whole graph.

It is a state machine: messages, progress batches, posted acts and timers come in; `step` invokes
the operators that have something to do, and sends what they did to the others. It neither waits
nor reads a clock of its own: the host around it does.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from threading import Lock, get_ident
from typing import Any, Final, Protocol

import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.time_domain import TimeDomain, Units
from jeton.columns.time_units import in_words
from jeton.core.antichain import Antichain
from jeton.core.bookkeeping import Bookkeeping, Changes, Connection
from jeton.core.changes import ChangeBatch
from jeton.core.errors import (
    JetonError,
    LeakedToken,
    ProtocolError,
    SnapshotError,
    UnboundedState,
)
from jeton.core.times import Time
from jeton.core.tokens import mint
from jeton.dataflow.activator import Activator
from jeton.dataflow.pacts import KeyGuard, Pact
from jeton.dataflow.plan import OperatorInfo, OperatorPlan, arrivals, origins
from jeton.dataflow.ports import Edge, Input, Moment, Output
from jeton.progress.graph import ProgressGraph
from jeton.progress.protocol import Changes as PointstampChanges
from jeton.progress.protocol import Inbox, Outbox, ProgressBatch, WorkerPointstamp
from jeton.progress.relay import Hops, in_groups, misrouted
from jeton.progress.tracker import Pointstamp, Tracker
from jeton.runtime.channels import Channel, RoutedChannel
from jeton.runtime.network import Network
from jeton.runtime.operator import Operator, Tokens, Watch, Watches, abandon
from jeton.runtime.schedule import Schedule
from jeton.runtime.spilling import MemoryBudget, Spill, may_spill
from jeton.runtime.timers import Timers
from jeton.state.bins import BINS, Placement, require_bins
from jeton.state.changes import Cut
from jeton.state.snapshot import Snapshot
from jeton.state.tagged_state import BoundedState

ROUNDS: Final = 3
"""So often, at most, a step goes through the operators that have something to do."""


Observer = Callable[[Mapping[Pointstamp, int], Mapping[WorkerPointstamp, int]], None]
"""Called with net changes of pointstamps, those on this worker and those on others."""


class Delivering(Protocol):
    """Where the messages of an input go: the input itself, as a rule."""

    def deliver(self, time: Time, batch: Batch) -> None:
        """A message arrives."""
        ...


class Migrating(Protocol):
    """A migration that is under way, as the worker sees it."""

    def receive(self, location: int, time: Time, batch: Batch) -> bool:
        """Take a message that is for no input; returns whether it was for the migration."""
        ...

    def wake(self) -> None:
        """Frontiers have moved: look soon for what can be done."""
        ...

    def after_operators(self) -> None:
        """The operators of a step have been invoked."""
        ...


class Measuring(Protocol):
    """The interface of the meter to which a worker reports: see `jeton.runtime.metrics`."""

    def step_begins(self) -> None:
        """A step begins."""
        ...

    def frontiers_moved(self) -> None:
        """A step has ended, or news of another worker has come."""
        ...

    def arrived(self, operator: Operator, batch: Batch) -> None:
        """A message has arrived at an input of an operator."""
        ...

    def invoke(self, operator: Operator, act: Callable[[Operator], None]) -> None:
        """Invoke an operator by calling ``act``."""
        ...


class Worker:
    """One worker's copy of the graph, its view of progress, and the step that drives both."""

    def __init__(
        self,
        plans: list[OperatorPlan],
        graph: ProgressGraph,
        *,
        index: int,
        workers: int,
        network: Network,
        clock: Callable[[], float],
        wake: Callable[[], None],
        restore: Snapshot | None = None,
        bins: int = BINS,
        domain: TimeDomain | None = None,
        memory_budget: int | None = None,
        hops: Hops = in_groups,
        connected: Callable[[Worker], object] | None = None,
    ) -> None:
        """``hops`` says how progress gets to the others: through relays, if there are many.

        ``connected`` is called before the operators are built, which may send already.
        """
        self.index = index
        self.bins = require_bins(bins if restore is None else restore.bins, workers)
        """Into how many bins keys are divided; what state goes on from decides it."""
        self.placement = (
            Placement.even(workers, self.bins) if restore is None else restore.placed_on(workers)
        )
        """The owners of the bins."""
        self.migration: Migrating | None = None
        """The migration that is under way, if there is one."""
        self.meter: Measuring | None = None
        """The meter of its operators, if they are measured."""
        self.running: Operator | None = None
        """The operator that is invoked now: for other threads, which say what it is busy with."""
        self.workers = workers
        self.graph = graph
        self.tracker = Tracker(graph, elsewhere=workers - 1)
        self.dirty: list[Bookkeeping] = []
        self.handles: dict[int, Any] = {}
        self.leaks: list[str] = []
        self._leaky: set[tuple[str, str]] = set()
        """The operators and lines whose forgotten tokens have been reported."""
        self.closed = False
        self.threads_expected = 0
        self.step_began = clock()
        self.timers = Timers()
        self._network = network
        self._clock = clock
        self._wake = wake
        self._restore = restore
        self._outbox = Outbox(index, alone=workers == 1)
        self.consumed = self._outbox.add
        self.counted_at = self._outbox.add_at
        """Add to the count of a pointstamp on another worker."""
        self._inbox = Inbox(workers)
        self._hop = hops(index, workers)
        self._posts: deque[Callable[[], None]] = deque()
        self._ends: list[Callable[[], None]] = []
        self._observers: list[Observer] = []
        self._common: dict[Hashable, Any] = {}
        self.units = Units(domain)
        self._announced_unit: str | None = None
        self._lock = Lock()
        self._on_thread: int | None = None
        self._frontiers: dict[int, Antichain] = {}
        self._watches = Watches(self.tracker.places)
        sources = (plan.index for plan in plans if not plan.inputs)
        self._schedule = Schedule(len(plans), sources)
        self.activate = self._schedule.activate
        """Invoke an operator soon."""
        self.hold_sources = self._schedule.hold_sources
        """Do not invoke operators without inputs for now, or do so again."""
        self._by_location: list[tuple[int, Delivering, KeyGuard | None] | None]
        self._by_location = [None] * len(graph.steps)
        self.routed: list[RoutedChannel] = []
        self._by_book: dict[int, Operator] = {}
        self.budget = None if memory_budget is None else MemoryBudget(memory_budget)
        """The memory that state may take, if it is bounded."""
        self.operators = [self._make(plan) for plan in plans]
        self._connect()
        if connected is not None:
            connected(self)
        self._build()

    # Building

    def _make(self, plan: OperatorPlan) -> Operator:
        node = self.graph.nodes[plan.index]
        books = [
            Bookkeeping(self, plan.name, output, location, plan.kind)
            for output, location in enumerate(node.outputs)
        ]
        inputs = []
        moment = Moment()
        for location, row, wanted in zip(node.inputs, node.summaries, plan.inputs, strict=True):
            connections = [
                Connection(book, cell) if cell else None
                for book, cell in zip(books, row, strict=True)
            ]
            port = Input(self, location, plan.kind, connections, moment, self.units)
            self._by_location[location] = (plan.index, port, self._guard(plan.name, wanted.pact))
            inputs.append(port)
        outputs = [Output(book, plan.time_name, self.units) for book in books]
        for output in outputs:
            output.notes_times = not plan.inputs and plan.kind.integers
        operator = Operator(plan, inputs, outputs, books, moment)
        for location in node.outputs:
            self._by_book[location] = operator
        return operator

    def _guard(self, operator: str, pact: Pact) -> KeyGuard | None:
        """The check of an input's messages, which knows the keys that are restored here."""
        guard = pact.guard()
        if guard is not None and self._restore is not None:
            for name in self._restore.operators.get(operator, ()):
                found = self.restored(operator, name)
                if found is not None and found.num_rows:
                    guard.learn(found.schema)
        return guard

    def _connect(self) -> None:
        edges: dict[tuple[int, int], list[Edge]] = {}
        for operator in self.operators:
            for port, plan in zip(operator.inputs, operator.plan.inputs, strict=True):
                for source in () if plan.observes else plan.sources:
                    where = (self, self._outbox, port.location, source, plan.time_name)
                    edge: Channel
                    if plan.pact.local or self.workers == 1:
                        edge = Channel(*where)
                    else:
                        edge = RoutedChannel(*where, plan.pact, self._network, self.placement)
                        self.routed.append(edge)
                    edges.setdefault((source.operator, source.output), []).append(edge)
        for operator in self.operators:
            for output in operator.outputs:
                found = edges.get((operator.index, output.index), ())
                output.connect(found)

    def _build(self) -> None:
        self._on_thread = get_ident()
        try:
            places = origins([operator.plan for operator in self.operators])
            for operator, origin in zip(self.operators, places, strict=True):
                operator.origin = origin
                self._build_one(operator)
        finally:
            self._on_thread = None

    def _build_one(self, operator: Operator) -> None:
        plan = operator.plan
        tokens = [mint(book, plan.kind.minimum) for book in operator.books]
        if self.budget is not None and may_spill(plan):
            operator.spill = Spill(self.budget, self, operator)
        info = self.info_for(operator, lambda name: self.restored(plan.name, name))
        try:
            operator.step = plan.build(tokens, info)
            if self._restore is not None:
                self._restore.require_taken(plan.name, operator.kept)
            for output in operator.outputs:
                output.flush()
        except BaseException as error:
            operator.fail(error, "building it", self.index)
        del tokens
        if self.budget is not None:
            self._bound(operator)
        self.built(operator)

    def _bound(self, operator: Operator) -> None:
        """Have the state of an operator that was built follow the memory budget, if it can."""
        spill = operator.spill
        if spill is not None and spill.takes_part and operator.step is not None:
            spill.install()
            return
        if spill is not None:
            spill.give_up()
            operator.spill = None
        kept = [each.state for each in operator.kept.values()]
        keeps = bool(operator.inputs) and any(not isinstance(each, BoundedState) for each in kept)
        if keeps and self.index == 0:
            warnings.warn(
                f"the state of operator {operator.plan.name!r} stays in memory, whatever "
                "memory_budget= says: see docs/state.md for the operators whose state can be on "
                "disk",
                UnboundedState,
                stacklevel=2,
            )

    def built(self, operator: Operator) -> None:
        """An operator has been built: let it begin."""
        self._harvest(operator)
        self._update_watch(operator)
        # Without inputs, or with a token in hand, it may have something to say unasked.
        if operator.step is not None and (
            not operator.inputs or any(book.held > 0 for book in operator.books)
        ):
            self.activate(operator.index)

    def info_for(
        self, operator: Operator, restored: Callable[[str], pa.Table | None]
    ) -> OperatorInfo:
        """The context in which an operator is built, with the state that it begins with."""
        plan = operator.plan
        return OperatorInfo(
            name=plan.name,
            worker=self.index,
            workers=self.workers,
            activator=Activator(self, plan.index),
            kind=plan.kind,
            inputs=operator.inputs,
            outputs=operator.outputs,
            post=self.post,
            publish=lambda handle: self.handles.__setitem__(plan.index, handle),
            restored=restored,
            at_end=operator.ends.append,
            kept=operator.kept,
            common=self._common,
            used=operator.shared,
            origin=operator.origin,
            pacts=[port.pact for port in plan.inputs if not port.observes],
            arrivals=lambda: arrivals([each.plan for each in self.operators], plan.index),
            bins=self.bins,
            placement=lambda: self.placement,
            spill=operator.spill,
        )

    def restored(self, operator: str, name: str) -> pa.Table | None:
        """This worker's part of a container in the snapshot that it goes on from."""
        if self._restore is None:
            return None
        return self._restore.share(operator, name, self.index, self.placement)

    def restored_bytes(self, operator: str) -> int:
        """About how many bytes this worker's part of an operator's state has."""
        names = () if self._restore is None else self._restore.operators.get(operator, ())
        tables = (self.restored(operator, name) for name in names)
        return sum(table.nbytes for table in tables if table is not None)

    @property
    def restores(self) -> bool:
        """Whether it goes on from a snapshot."""
        return self._restore is not None

    # Called by tokens, ports, activators and the network

    @property
    def present(self) -> bool:
        """Whether this worker is running here and now."""
        return self._on_thread == get_ident()

    def from_outside(self, book: Bookkeeping, changes: Changes) -> None:
        """Changes by activating tokens: one act, taken in order with everything posted."""
        if not self.closed:
            self.post(lambda: book.record_all(changes))

    def in_words(self, time: Time) -> str:
        """A time for people, as the records of the flow have it."""
        return in_words(time, self.units.unit)

    def leaked(self, book: Bookkeeping, time: Time, origin: str) -> None:
        """Python freed a token that was not dropped: drop it, and warn."""
        if self.closed:
            return

        def report() -> None:
            book.record(time, -1)
            at = self.in_words(time)
            text = f"token at {at} for {book!r} was forgotten without drop(): {origin}"
            self.leaks.append(text)
            if (book.operator, origin) not in self._leaky:
                self._leaky.add((book.operator, origin))
                warnings.warn(text, LeakedToken, stacklevel=2)

        self.post(report)

    def observe(self, observer: Observer) -> None:
        """Call a function with the net changes of pointstamps whenever this worker settles some."""
        self._observers.append(observer)

    def post(self, act: Callable[[], None]) -> None:
        """Run an act in the next step; safe from any thread."""
        self._posts.append(act)
        self._wake()

    @property
    def has_posts(self) -> bool:
        """Whether acts of other threads wait for the next step."""
        return bool(self._posts)

    def expect_threads(self, change: int) -> None:
        """Count outside threads that may still wake this worker."""
        with self._lock:
            self.threads_expected += change
        self._wake()

    def now(self) -> float:
        """The clock's time, in seconds."""
        return self._clock()

    def activate_after(self, operator: int, seconds: float) -> None:
        """Invoke an operator once the clock has moved on."""
        self.timers.add(self._clock() + seconds, operator)

    def frontier(self, location: int) -> Antichain:
        """The frontier at a location, as far as this worker knows."""
        frontier = self._frontiers.get(location)
        if frontier is None:
            watch = self._watches.by_location.get(location)
            least = self.tracker.least(location) if watch is None else watch.seen
            frontier = self._frontiers[location] = Antichain.frozen(least)
        return frontier

    def receive_message(self, location: int, time: Time, batch: Batch) -> None:
        """A message has arrived at an input."""
        found = self._by_location[location] if 0 <= location < len(self._by_location) else None
        if found is None:
            if self.migration is not None and self.migration.receive(location, time, batch):
                return
            raise ProtocolError(f"a message came for location {location}, which is not an input")
        operator, port, guard = found
        if self.meter is not None:
            self.meter.arrived(self.operators[operator], batch)
        if guard is not None and not self.admits(operator, guard, location, time, batch):
            return
        port.deliver(time, batch)
        self.activate(operator)

    def admits(
        self, operator: int, guard: KeyGuard, location: int, time: Time, batch: Batch
    ) -> bool:
        """Whether a message has records; one that only announces types is taken at once."""
        try:
            admitted = guard.admits(batch)
        except JetonError as error:
            plan = self.operators[operator].plan
            moment = self.in_words(time)
            error.located(operator=plan.name, worker=self.index, time=time, moment=moment)
            error.located(line=plan.defined)
            raise
        if not admitted:
            self.post(partial(self.consumed, (location, time), -1))
        return admitted

    def redirect(
        self, location: int, to: Delivering, guard: KeyGuard | None = None
    ) -> KeyGuard | None:
        """Have the messages of an input delivered elsewhere; returns how they were checked."""
        found = self._by_location[location]
        assert found is not None
        self._by_location[location] = (found[0], to, guard)
        return found[2]

    def guard_of(self, location: int) -> KeyGuard | None:
        """The check of an input's messages."""
        found = self._by_location[location]
        return None if found is None else found[2]

    def delivers_to(self, location: int) -> Delivering:
        """Where the messages of an input go."""
        found = self._by_location[location]
        assert found is not None
        return found[1]

    @property
    def held(self) -> int:
        """Records that wait for state that is on disk."""
        return 0 if self.budget is None else sum(spill.held for spill in self.budget.spills)

    def catch_up(self) -> bool:
        """Have records answered that wait for state on disk: when there is nothing else to do."""
        return self.budget is not None and any(s.catch_up() for s in self.budget.spills)

    def send_message(self, to: int, location: int, time: Time, batch: Batch) -> None:
        """Send a message to another worker, which is not counted here."""
        self._network.send_message(to, location, time, batch)

    @property
    def sealed(self) -> int:
        """The number of progress batches that it has sent."""
        return self._outbox.sealed

    def has_heard(self, sealed: Sequence[int]) -> bool:
        """Whether a number of progress batches of each other worker has arrived.

        With relays, all that was sealed before the marks: see `mark_progress`.
        """
        if self._hop is not None:
            return self._hop.has_heard
        return self._inbox.has_heard(sealed, self.index)

    def mark_progress(self) -> None:
        """Have all workers know when all has arrived that was sealed before; all must call it."""
        if self._hop is not None:
            self._hop.mark()
            self._wake()

    @property
    def must_forward(self) -> bool:
        """Whether there is progress of other workers that has to go on to others in a step."""
        return self._hop is not None and self._hop.pending

    def forget_shared(self, keys: Iterable[Hashable]) -> None:
        """Have values that operators share made anew by the next that asks for them."""
        for key in keys:
            self._common.pop(key, None)

    def receive_progress(self, batches: Sequence[ProgressBatch]) -> None:
        """Apply progress batches of another worker, in their order and as one.

        A worker that falls behind gets many at once, and frontiers are derived once for all.
        """
        if self.migration is not None:
            self.migration.wake()
        if len(batches) == 1:
            here, elsewhere = self._accept(batches[0])
        else:
            sums: tuple[ChangeBatch[Pointstamp], ...] = ChangeBatch(), ChangeBatch()
            for batch in batches:
                for net, changes in zip(sums, self._accept(batch), strict=True):
                    net.extend(changes)
            here, elsewhere = tuple(sums[0]), tuple(sums[1])
        self._apply(here, elsewhere)
        if self.meter is not None:
            self.meter.frontiers_moved()

    def _accept(self, batch: ProgressBatch) -> tuple[PointstampChanges, PointstampChanges]:
        """The changes here and elsewhere of a progress batch that is the next of its worker."""
        self._inbox.accept(batch)
        if batch.unit is not None:
            try:
                self.units.hear(batch.unit)
            except JetonError as error:
                error.located(worker=self.index)
                raise
        hop = self._hop
        here, elsewhere = batch.yours, batch.changes
        if hop is not None:
            here, elsewhere = hop.receive(batch)
        elif batch.named or batch.mark:
            raise misrouted(batch, self.index)
        self.tracker.require_known(here + elsewhere if here else elsewhere)
        return here, elsewhere

    # Running

    def snapshot(self) -> dict[str, dict[str, pa.Table]]:
        """The state of this worker's operators; at rest only."""
        self._require_rest()
        found = {o.plan.name: o.snapshot(self.index) for o in self.operators}
        return {name: kept for name, kept in found.items() if kept}

    def cut(self, tokens: Tokens) -> dict[str, dict[str, Cut | pa.Table]]:
        """The changes of this worker's state, for a checkpoint; at rest only.

        ``tokens`` has those of containers that the checkpoint before has. The cuts are read later,
        by any thread, while the flow goes on.
        """
        self._require_rest()
        found: dict[str, dict[str, Cut | pa.Table]] = {}
        try:
            for operator in self.operators:
                found[operator.plan.name] = operator.cut(self.index, tokens)
        except BaseException:
            for kept in found.values():
                abandon(kept)
            raise
        return {name: kept for name, kept in found.items() if kept}

    def _require_rest(self) -> None:
        if self.migration is not None:
            raise SnapshotError(
                "a snapshot needs a flow whose state does not move: wait for the migration"
            ).located(worker=self.index)
        waits = self.held or any(operator.has_input() for operator in self.operators)
        if self.has_work or waits:
            raise SnapshotError("a snapshot needs a flow at rest").located(worker=self.index)

    def at_end(self, act: Callable[[], None]) -> None:
        """Call a function when the run is over, on success or failure."""
        self._ends.append(act)

    def close(self) -> None:
        """The run is over, on success or failure: tokens that are still held have no meaning."""
        self.closed = True
        for ends in (self._ends, *(each.ends for each in reversed(self.operators))):
            while ends:
                ends.pop()()

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        timer = self.timers.next
        due = timer is not None and timer <= self._clock()
        return due or bool(self._posts or self._schedule) or self.must_forward

    def step(self, random: Random | None = None) -> None:
        """Run posted calls, invoke the operators that have something to do, inform the others.

        With ``random``, only some of them are invoked, in any order: for simulation.
        """
        self._on_thread = get_ident()
        self.step_began = self._clock()
        meter = self.meter
        if meter is not None:
            meter.step_begins()
        try:
            self._take_posts()
            if self.timers.next is not None:
                for index in self.timers.take_due(self._clock()):
                    self.activate(index)
            if random is None:
                self._go_on()
            else:
                for index in self._schedule.stumble(random):
                    self._invoke(self.operators[index])
                    if random.random() < 0.5:
                        self._settle()
            if self.migration is not None:
                self.migration.after_operators()
                if self.dirty:
                    self._harvest()
        finally:
            self._on_thread = None
        self._settle()
        if self.workers > 1:
            self._tell()
        if meter is not None:
            meter.frontiers_moved()

    def _go_on(self) -> None:
        """Invoke sources or the others, never both, so that progress is sent sooner."""
        schedule, operators = self._schedule, self.operators
        if schedule.is_for_sources():
            for index in schedule.take_sources():
                self._invoke(operators[index])
            return
        for _ in range(ROUNDS):
            while (operator := schedule.take()) is not None:
                self._invoke(operators[operator])
            self._settle()
            if not schedule.goes_on:
                break

    @property
    def queued(self) -> int:
        """How many messages wait in inputs."""
        return sum(len(port) for operator in self.operators for port in operator.inputs)

    def _take_posts(self) -> None:
        posts = self._posts
        for _ in range(len(posts)):
            try:
                posts.popleft()()
            except JetonError as error:
                error.located(worker=self.index)
                raise
            if self.dirty:
                self._harvest()

    def _invoke(self, operator: Operator) -> None:
        if self.meter is None:
            self._call(operator)
        else:
            self.meter.invoke(operator, self._call)

    def _call(self, operator: Operator) -> None:
        step = operator.step
        if step is None:
            return
        self.running = operator
        operator.invocations += 1
        moment = operator.moment
        moment.begin()
        try:
            if operator.guard.open:
                with operator.guard:
                    step(operator.inputs, operator.outputs)
            else:
                step(operator.inputs, operator.outputs)
            for output in operator.outputs:
                output.flush()
        except BaseException as error:
            operator.fail(error, "", self.index)
        finally:
            self.running = None
        for port in operator.inputs:
            port.end()
        if self.dirty:
            self._harvest(operator)
        # What it left is offered again, unless it took nothing: then something must change first.
        if moment.time is not None and operator.has_input():
            self.activate(operator.index)

    def _harvest(self, during: Operator | None = None) -> None:
        """Drain what tokens did; it goes out together with what was consumed and produced."""
        outbox = self._outbox
        dirty, self.dirty = self.dirty, []
        for book in dirty:
            location = book.location
            for time, delta in book.drain().items():
                outbox.add((location, time), delta)
            operator = self._by_book[location]
            if operator.watching != operator.wants_frontiers:
                self._update_watch(operator)
                # Tokens that were put into its hands from elsewhere: let it have a look.
                if operator.watching and operator is not during:
                    self.activate(operator.index)

    def _update_watch(self, operator: Operator) -> None:
        wants = operator.wants_frontiers
        if wants == operator.watching:
            return
        operator.watching = wants
        for port in operator.inputs:
            if wants:
                seen = self.tracker.least(port.location)
                self._watches.add(Watch(operator.index, port.location, seen))
            else:
                self._watches.remove(port.location)

    def _settle(self) -> None:
        """Have what whole invocations did show in this worker's own frontiers."""
        here, elsewhere = self._outbox.settle()
        if elsewhere:
            for observer in self._observers:
                observer(here, elsewhere)
            stamps = [(stamp, delta) for (_, stamp), delta in elsewhere.items()]
            # With two workers, all are on the same one.
            self._apply(here.items(), stamps if self.workers == 2 else ChangeBatch(stamps))
        elif here:
            for observer in self._observers:
                observer(here, elsewhere)
            self._apply(here.items())

    def _tell(self) -> None:
        """Seal what was settled since the last time into one batch for each other worker.

        With relays, a batch goes to the relay, and the relay sends on what has come to it.
        """
        unit = self.units.unit
        is_new = unit is not self._announced_unit
        sealed = self._outbox.seal(self.units.announced if is_new else None)
        if self._hop is not None:
            for to, batch in self._hop.send(sealed):
                self._network.send_progress(to, batch)
        elif sealed is not None:
            for worker in range(self.workers):
                if worker != self.index:
                    self._network.send_progress(worker, sealed.batch_for(worker))
        if sealed is not None:
            self._announced_unit = unit

    def _apply(
        self,
        here: Iterable[tuple[Pointstamp, int]],
        elsewhere: Iterable[tuple[Pointstamp, int]] = (),
    ) -> None:
        segments = self.tracker.apply(here, elsewhere)
        if segments:
            self._frontiers.clear()
            if self.migration is not None:
                self.migration.wake()
            if self._watches.by_segment:
                for operator in self._watches.moved(self.tracker, segments):
                    self.activate(operator)

    def widen_frontiers(self, wide: bool) -> None:
        """Have frontiers wait for all workers, since pointstamps may move here; or no longer."""
        (self.tracker.widen if wide else self.tracker.narrow)()
        self._frontiers.clear()
        for operator in self._watches.moved(self.tracker, set(self._watches.by_segment)):
            self.activate(operator)
