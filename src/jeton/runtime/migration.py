"""Live migration: the state of some bins moves to other workers while records flow.

A migration has a time *t* of the flow's inputs. Records before *t* meet the state of a bin at its
old worker, later ones at the new worker. Without a time of the user's, *t* is where the frontiers
of inputs are. Then state moves at once, records at or after *t* that went in before are a part of
it, and inputs hold nothing. All workers obey six commands, each once all have obeyed
the one before:

1. `Prepare`: every input holds a token at *t*, and holds back records at or after *t*.
2. `Begin`: every operator with state by bins, a *mover*, gets a *siding* before each input that
   is routed by bins. It stops records at or after *t* of bins that leave or arrive.
3. `Reroute`: records at or after *t* are routed by the new owners of bins. A marker follows what
   was routed by the old ones. Sidings send records of bins that leave to the new owner. Inputs
   let records through, and keep their tokens.
4. `AwaitMoved`: answered once all state has moved here. A mover gives its bins away when the
   frontiers of all its inputs have reached *t*. The new owner takes the state over when that of all
   givers has come; then its sidings let the records pass that waited.
5. `AwaitHeard`: answered once the progress batches of all workers until then have arrived here.
6. `Release`: the tokens at *t* are dropped, and the sidings removed.

Why this is right:

- **One place.** At any moment the state of a bin is on one worker, or in one message. It leaves the
  giver and the message is sent in one act; it is taken over in one act.
- **Every record meets it.** A record before *t* can only be under way to the giver, which gives
  after all of these. A record at or after *t* that reaches the giver before `Begin`, because an
  operator has sent it early, is a part of the state that moves. One that reaches it later waits in
  a siding and is sent on, also if it was under way under the old routing when the state left.
  The marker on each channel shows that no more such records can come: sidings stay until all
  markers have arrived. At the new owner, which has begun before any worker reroutes, a record waits
  in a siding until the state is there.
- **No right from nothing.** A record that waits stays counted, at its own time. One that is sent on
  is consumed, and counted again at the same input and at its time or later, in one act: the message
  is the right to that. A token that state needs travels with it: the giver clones one that the
  operator holds, it stays counted at the operator's output while it travels, and the new owner
  holds it then. So state moves without any other right, also where a frontier has passed *t*.
- **No −1 before its +1.** As a rule, a worker that hears that a message was consumed before it
  hears that it was sent is safe: the sender's right is at another pointstamp, which it still knows.
  What moves has its right at the very same one: the −1 would hide another token, or another
  message. So tokens that came with state are held, and records that were sent on wait, until
  `Release`: then all workers have heard of them. They are at or after *t*, since an operator gives
  only once it holds no token before that: so they hold back no other operator that is to give.
- **Pipelines move together.** An operator that gets its records by `Pipeline` from one that is
  routed by bins has state of the same bins. Such operators form one mover, as do those that share
  values (`info.shared`). It moves in one act, when no message waits between them.
- **No frontier passes a time that the user has named** at an operator behind an open input before
  all have taken their state over, since inputs hold tokens there from before `Begin` until
  `Release`. Nothing else depends on these tokens.
- **Loops.** A container inside a loop can be taken only while nothing waits in it. Where there are
  such, inputs hold records at or after *t* back until `Release`, so that the loop comes to rest.

Operators are taken apart and built anew in general: their containers' snapshots are divided by bin,
and the operator is built as on a restart, with tokens that it already held. An operator stays as it
is if all its containers are `Movable`: bins are taken out of them, and added to them.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from jeton.columns import time_columns
from jeton.columns.batch import Batch
from jeton.core.bookkeeping import Bookkeeping
from jeton.core.errors import GraphError, ProtocolError, SnapshotError
from jeton.core.times import Product, Time, TimeKind
from jeton.core.tokens import grant, revoke, tokens_for
from jeton.dataflow.pacts import Broadcast, KeyGuard, Pact
from jeton.runtime.breakpoints import ENDED, Breakpoints, from_bytes, to_bytes
from jeton.runtime.channels import from_time
from jeton.runtime.operator import Operator
from jeton.runtime.steering import (
    Protocol,
    Steer,
    first_error,
    given,
    in_flow_unit,
    require_no_errors,
)
from jeton.state.bins import Placement
from jeton.state.snapshot import (
    Movable,
    bin_numbers,
    concatenated,
    is_for_everyone,
    is_held_by_breakpoint,
    rows_where,
)

if TYPE_CHECKING:
    from jeton.runtime.agent import Agent
    from jeton.runtime.worker import Worker

MARKER: Final = "jeton.rerouted"
"""The only column of a message that follows what was routed by the old owners."""
_STATE: Final = "state"

Tables = dict[str, pa.Table]
"""The state of one operator, by the names of its containers."""


class Siding:
    """The place before an input, where records at or after *t* of bins that move have to wait."""

    def __init__(self, migration: Migration, mover: Mover, operator: Operator, port: int) -> None:
        self._migration = migration
        self._mover = mover
        self._operator = operator
        self._worker = migration.worker
        self._pact: Pact = operator.plan.inputs[port].pact
        self._port = operator.inputs[port]
        self.location = self._port.location
        self._waiting: list[tuple[Time, Batch]] = []
        """Records of bins whose state has not come yet."""
        self._leaving: list[tuple[int, Time, Batch]] = []
        """Records of bins that leave, until the new owners have begun."""
        self.markers = 0
        self._guard: KeyGuard | None = self._worker.redirect(self.location, self)
        for time, batch in self._port.take_all():
            self.deliver(time, batch)

    def belongs_to(self, mover: Mover) -> bool:
        """Whether it is before an operator of this mover."""
        return self._mover is mover

    def is_before(self, operator: Operator) -> bool:
        """Whether it is before an input of this operator."""
        return self._operator is operator

    def learn(self, state: pa.Table) -> None:
        """State has come, whose keys must be of the types of those that come as records."""
        if self._guard is not None and state.num_rows:
            self._guard.learn(state.schema)

    def deliver(self, time: Time, batch: Batch) -> None:
        """A message has arrived: let its records pass, wait, or go to their new owner."""
        if MARKER in batch.columns:
            self.markers += 1
            self._migration.wake()
            return
        worker, guard = self._worker, self._guard
        if guard is not None and not worker.admits(
            self._operator.index, guard, self.location, time, batch
        ):
            return
        migration = self._migration
        later = from_time(batch, migration.at)
        if not later.any():
            self._port.deliver(time, batch)
            return
        bins = self._pact.bins(batch, migration.after.bins)
        here, to = worker.index, migration.after.owners[bins]
        was_here = migration.before.owners[bins] == here
        leaves = later & was_here & (to != here)
        waits = later & ~was_here & (to == here) & (not self._mover.has_taken)
        passes = ~(leaves | waits)
        if passes.all():
            self._port.deliver(time, batch)
            return
        if passes.any():
            self._port.deliver(time, batch.filter(passes))
        else:
            worker.consumed((self.location, time), -1)
        if waits.any():
            self._waiting.append(self._count(time, batch.filter(waits)))
        for other in np.unique(to[leaves]).tolist():
            part = self._count(time, batch.filter(leaves & (to == other)))
            self._leaving.append((other, *part))
        if migration.has_rerouted:
            self.send_on()

    def _count(self, time: Time, part: Batch) -> tuple[Time, Batch]:
        """Count some records of a message as one of their own, at a time that is theirs."""
        bound = time_columns.lower_bound(part.times, time)
        self._worker.consumed((self.location, bound), +1)
        return bound, part

    def send_on(self) -> None:
        """Send the records of bins that leave to the new owners."""
        leaving, self._leaving = self._leaving, []
        for other, time, part in leaving:
            self._migration.send_on(other, self.location, time, part)

    def mark(self) -> None:
        """Tell all other workers that nothing more will be routed by the old owners."""
        none = np.empty(0, dtype=np.int64)
        for other in range(self._worker.workers):
            if other != self._worker.index:
                marker = Batch.trusted({MARKER: none}, none)
                self._worker.send_message(other, self.location, 0, marker)

    def let_pass(self) -> None:
        """Let the records pass that waited for state, or for a migration that is cancelled."""
        waiting, self._waiting = self._waiting, []
        for time, part in waiting:
            self._port.deliver(time, part)
        if waiting:
            self._worker.activate(self._operator.index)

    def remove(self) -> None:
        """Have messages delivered to the input again."""
        self._waiting += [(time, part) for _, time, part in self._leaving]
        self._leaving = []
        self.let_pass()
        self._worker.redirect(self.location, self._port, self._guard)


@dataclass(eq=False)
class Arrival:
    """The state that one worker has given: by operator, with the tokens that it needs."""

    tables: dict[int, Tables]
    tokens: list[tuple[int, int, Time]]
    """The operator, its output and the time of each."""


@dataclass(eq=False)
class Mover:
    """Operators of one worker whose state moves in one act."""

    number: int
    """The same on all workers."""
    operators: list[Operator]
    to: list[int] = field(default_factory=list)
    """The workers that it still has to give state to."""
    missing: set[int] = field(default_factory=set)
    """The workers whose state has not come yet."""
    arrived: list[Arrival] = field(default_factory=list)
    has_taken: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it has given and taken everything."""
        return not self.to and self.has_taken

    def is_ready(self, worker: Worker, at: int) -> bool:
        """Whether all before *t* is done, and nothing waits between its operators.

        Tokens before *t* would hold back the movers behind it until `Release`.
        """
        for operator in self.operators:
            for port, plan in zip(operator.inputs, operator.plan.inputs, strict=True):
                if plan.pact.local and not plan.observes and len(port):
                    return False
                if any(_outermost(time) < at for time in worker.frontier(port.location)):
                    return False
        books = [book for operator in self.operators for book in operator.books]
        return all(_outermost(token.time) >= at for _, token in tokens_for(books))

    def snapshot(self, worker: Worker) -> dict[Operator, Tables] | None:
        """The state of operators that are built anew; nothing while some waits inside a loop."""
        whole = [each for each in self.operators if not _moves_in_place(each)]
        try:
            found = {each: each.snapshot(worker.index) for each in whole}
        except SnapshotError:
            if all(each.plan.kind.total for each in self.operators):
                raise
            return None
        return {
            operator: {n: t for n, t in tables.items() if not is_held_by_breakpoint(n)}
            for operator, tables in found.items()
        }

    def sharing(self, operators: Iterable[Operator]) -> list[Operator]:
        """Some of its operators, and those that share values with any of them, in order."""
        found = set(operators)
        while True:
            keys = {key for operator in found for key in operator.shared}
            more = {each for each in self.operators if each.shared & keys}
            if more <= found:
                return sorted(found, key=lambda each: each.index)
            found |= more


class Migration:
    """One worker's part in a migration."""

    def __init__(self, worker: Worker, breakpoints: Breakpoints) -> None:
        self.worker = worker
        self.at = 0
        self.before = self.after = worker.placement
        self.has_rerouted = False
        self.movers: list[Mover] = []
        self.sidings: list[Siding] = []
        self.moved_rows = 0
        """Rows of state that were given away."""
        self.sent_on = [0] * worker.workers
        """Messages that were sent on to each worker."""
        self._came_on: list[tuple[int, Time, Batch]] = []
        """Messages that others have sent on: they wait until all workers have heard of them."""
        self._carried: list[tuple[Bookkeeping, Time]] = []
        """Tokens that came with state, held for the same reason."""
        self._was_done = self.is_confirmed = False
        self._breakpoints = breakpoints
        self._in_loops = self._holds = False
        self._is_woken = False
        self._state_location = len(worker.graph.steps)
        self.when_changed: list[Callable[[], None]] = []
        """Called whenever something has changed."""

    # Commands

    def prepare(self, at: int | None) -> int:
        """Hold a token at *t* in every input, by default at a time that is reached already."""
        require_movable(self.worker.operators)
        self.movers = movers_of(self.worker.operators)
        self._in_loops = any(
            operator.kept and not operator.plan.kind.total
            for mover in self.movers
            for operator in mover.operators
        )
        self._holds = at is not None or self._in_loops
        if not self._holds:
            self.at = self._breakpoints.reached()
            return self.at
        self.at = self._breakpoints.first_time(at)
        self._breakpoints.hold(self.at)
        return self.at

    def begin(self, at: int, moves: Mapping[int, int]) -> None:
        """Stop records at or after *t* of bins that move before the operators that keep state."""
        worker = self.worker
        self.at = at
        self.after = self.before.moved(moves)
        if self._holds:
            self._breakpoints.hold(at)
        pairs = {(int(self.before.owners[bin]), int(self.after.owners[bin])) for bin in moves}
        here = worker.index
        for mover in self.movers:
            mover.to = [to for giver, to in sorted(pairs) if giver == here]
            mover.missing = {giver for giver, to in pairs if to == here}
            mover.has_taken = not mover.missing
            for operator in mover.operators:
                for port, plan in enumerate(operator.plan.inputs):
                    if plan.pact.by_bins and not plan.observes:
                        self.sidings.append(Siding(self, mover, operator, port))
        self.wake()

    def reroute(self) -> None:
        """Route records at or after *t* by the new owners."""
        self.has_rerouted = True
        for channel in self.worker.routed:
            channel.reroute(self.after, self.before, self.at)
        for siding in self.sidings:
            siding.mark()
            siding.send_on()
        if self._holds and not self._in_loops:
            self._breakpoints.let_through()
        self.wake()

    def release(self) -> None:
        """End it: nothing before *t* is left anywhere, and all state is where it belongs."""
        self._end(self.after)
        for book, time in self._carried:
            self.worker.consumed((book.location, time), -1)
        for message in self._came_on:
            self.worker.receive_message(*message)

    def has_heard(self, sealed: Sequence[int], sent_on: Sequence[Sequence[int]]) -> bool:
        """Whether all has arrived here that workers have sealed, and sent on."""
        mine = sum(to[self.worker.index] for to in sent_on)
        return self.worker.has_heard(sealed) and len(self._came_on) == mine

    def send_on(self, to: int, location: int, time: Time, part: Batch) -> None:
        """Send records to the worker that owns their bins now."""
        self.sent_on[to] += 1
        self.worker.send_message(to, self._state_location + 1 + location, time, part)

    def cancel(self) -> None:
        """Give it up, before any worker has rerouted."""
        if self.has_rerouted:
            raise ProtocolError("a migration cannot be cancelled any more once records are routed")
        self._end(self.before)

    def _end(self, placement: Placement) -> None:
        worker = self.worker
        worker.placement = placement
        for channel in worker.routed:
            channel.reroute(placement)
        for siding in self.sidings:
            siding.remove()
        if self._holds:
            self._breakpoints.let_go()
        worker.migration = None

    @property
    def is_done(self) -> bool:
        """Whether all state has moved here, and nothing routed by the old owners can come."""
        others = self.worker.workers - 1
        return (
            self.has_rerouted
            and all(mover.is_done for mover in self.movers)
            and all(siding.markers == others for siding in self.sidings)
        )

    # Called by the worker

    def receive(self, location: int, time: Time, batch: Batch) -> bool:
        """State has come from another worker, or records that it has sent on."""
        if location > self._state_location:
            self._came_on.append((location - self._state_location - 1, time, batch))
            self.wake()
            return True
        if location != self._state_location:
            return False
        first, *parts = pa.array(batch.column(_STATE)).to_pylist()
        header = json.loads(first)
        mover = next(each for each in self.movers if each.number == header["mover"])
        tables: dict[int, Tables] = {}
        for (operator, name), data in zip(header["parts"], parts, strict=True):
            tables.setdefault(operator, {})[name] = from_bytes(data)
        tokens = [(operator, output, _time(time)) for operator, output, time in header["tokens"]]
        mover.arrived.append(Arrival(tables, tokens))
        mover.missing.remove(header["from"])
        self.wake()
        return True

    def wake(self) -> None:
        """Look soon for what can be done."""
        if not self._is_woken:
            self._is_woken = True
            self.worker.post(self.go_on)

    def go_on(self) -> None:
        """Give and take what is ready."""
        self._is_woken = False
        if self.worker.migration is not self or not self.has_rerouted:
            return
        for mover in self.movers:
            if not mover.is_done and mover.is_ready(self.worker, self.at):
                if mover.to:
                    self._give(mover)
                if not mover.to and not mover.has_taken and not mover.missing:
                    self._take(mover)
        if self.is_done and not self.is_confirmed:
            # In the next step, what was done so far has been sealed.
            self.is_confirmed, self._was_done = self._was_done, True
            if not self.is_confirmed:
                self.wake()
        calls, self.when_changed = self.when_changed, []
        for call in calls:
            call()

    # Inside

    def _give(self, mover: Mover) -> None:
        """Send the state of the bins that leave to their new owners."""
        state = mover.snapshot(self.worker)
        if state is None:
            return
        here = self.worker.index
        staying: dict[Operator, Tables] = {}
        leaving: dict[int, dict[Operator, Tables]] = {to: {} for to in mover.to}
        for operator, tables in state.items():
            stay: Tables = {}
            for name, table in tables.items():
                if is_for_everyone(table):
                    stay[name] = table
                    continue
                bins = bin_numbers(table, self.after.bins)
                to = np.where(self.before.owners[bins] == here, self.after.owners[bins], here)
                stay[name] = rows_where(table, to == here)
                for other in np.unique(to[to != here]).tolist():
                    part = rows_where(table, to == other)
                    leaving[other].setdefault(operator, {})[name] = part
                    self.moved_rows += part.num_rows
            staying[operator] = stay
        changed = mover.sharing({operator for each in leaving.values() for operator in each})
        rights = self._take_tokens(changed)
        for operator in mover.operators:
            if _moves_in_place(operator):
                rights |= self._take_out(operator, leaving)
        for other, given_away in leaving.items():
            tokens = []
            for operator in given_away:
                for book in operator.books:
                    if rights[book]:
                        least = _least(rights[book])
                        # Counted here, held there.
                        self.worker.consumed((book.location, least), +1)
                        tokens.append((operator.index, book.output, least))
            self._send(other, mover, given_away, tokens)
        self._rebuild(changed, staying, rights)
        mover.to = []

    def _take_out(
        self, operator: Operator, leaving: Mapping[int, dict[Operator, Tables]]
    ) -> dict[Bookkeeping, list[Time]]:
        """Take the bins that leave out of an operator; returns the tokens that it had."""
        here = self.worker.index
        rights: dict[Bookkeeping, list[Time]] = {book: [] for book in operator.books}
        for book, token in tokens_for(operator.books):
            rights[book].append(token.time)
        # Until the end of this act: the operator may give its own up.
        held = [grant(book, _least(times)) for book, times in rights.items() if times]
        for other, parts in leaving.items():
            mine = self.before.owners == here
            chosen = mine & (self.after.owners == other)
            tables = {name: kept.take_bins(chosen) for name, kept in operator.kept.items()}
            if any(table.num_rows for table in tables.values()):
                parts[operator] = tables
                self.moved_rows += sum(table.num_rows for table in tables.values())
        for token in held:
            token.drop()
        return rights

    def _send(
        self,
        to: int,
        mover: Mover,
        tables: Mapping[Operator, Tables],
        tokens: Sequence[tuple[int, int, Time]],
    ) -> None:
        parts = [
            (o.index, name, table) for o, some in tables.items() for name, table in some.items()
        ]
        header = {
            "mover": mover.number,
            "from": self.worker.index,
            "parts": [part[:2] for part in parts],
            "tokens": tokens,
        }
        rows = [json.dumps(header).encode(), *(to_bytes(table) for *_, table in parts)]
        batch = Batch({_STATE: pa.array(rows, pa.large_binary())}, np.zeros(len(rows), np.int64))
        self.worker.send_message(to, self._state_location, 0, batch)

    def _take(self, mover: Mover) -> None:
        """Take over the state that has come."""
        arrived = mover.arrived
        came = {
            self.worker.operators[index]
            for each in arrived
            for index, tables in each.tables.items()
            if any(table.num_rows for table in tables.values())
        }
        changed = mover.sharing(each for each in came if not _moves_in_place(each))
        state = mover.snapshot(self.worker) if changed else {}
        if state is None:
            return
        for operator in changed:
            parts = [each.tables.get(operator.index, {}) for each in arrived]
            for name in {name for part in parts for name in part}:
                found = [state[operator][name], *(part[name] for part in parts if name in part)]
                state[operator][name] = concatenated(operator.plan.name, name, found)
        rights = self._take_tokens(changed)
        carried: dict[Bookkeeping, list[Time]] = {
            book: [] for operator in came | set(changed) for book in operator.books
        }
        for each in arrived:
            for index, output, time in each.tokens:
                book = self.worker.operators[index].books[output]
                carried[book].append(time)
                self._carried.append((book, time))
        self._rebuild(changed, state, rights, carried)
        for operator in came:
            if _moves_in_place(operator):
                for each in arrived:
                    self._put_in(operator, each.tables.get(operator.index, {}), carried)
        mover.arrived = []
        mover.has_taken = True
        for siding in self.sidings:
            if siding.belongs_to(mover):
                siding.let_pass()

    def _put_in(
        self, operator: Operator, tables: Tables, carried: Mapping[Bookkeeping, Sequence[Time]]
    ) -> None:
        """Add state to an operator, with the tokens that came with it."""
        before = [book.held for book in operator.books]
        tokens = [
            grant(book, _least(carried[book]) if carried[book] else _first(book.kind, self.at))
            for book in operator.books
        ]
        self._learn(operator, tables)
        try:
            for name, table in tables.items():
                kept = operator.kept[name]
                kept.restore(table, [tokens[output] for output in kept.rights])
        except BaseException as error:
            operator.fail(error, "taking state over in a migration", self.worker.index)
        for token in tokens:
            token.drop()
        for book, count in zip(operator.books, before, strict=True):
            if book.held > count and not carried[book]:
                raise SnapshotError("its state needs a token that did not come with it").located(
                    operator=operator.plan.name, worker=self.worker.index
                )
        self.worker.built(operator)
        self.worker.activate(operator.index)

    def _learn(self, operator: Operator, tables: Tables) -> None:
        for siding in self.sidings:
            if siding.is_before(operator):
                for table in tables.values():
                    siding.learn(table)

    def _take_tokens(self, operators: Sequence[Operator]) -> dict[Bookkeeping, list[Time]]:
        """Take all tokens away from some operators, without a change of the counts."""
        books = [book for operator in operators for book in operator.books]
        rights: dict[Bookkeeping, list[Time]] = {book: [] for book in books}
        for book, token in tokens_for(books):
            rights[book].append(token.time)
            revoke(token)
        for book, times in rights.items():
            if len(times) != book.held:
                raise ProtocolError(
                    f"{book.held} tokens are held for {book!r}, but {len(times)} were found"
                )
        return rights

    def _rebuild(
        self,
        operators: Sequence[Operator],
        state: Mapping[Operator, Tables],
        rights: Mapping[Bookkeeping, Sequence[Time]],
        carried: Mapping[Bookkeeping, Sequence[Time]] | None = None,
    ) -> None:
        """Build operators anew, with their state and with the tokens that were theirs.

        Tokens that were ``carried`` here give rights, too, and stay as they are.
        """
        worker = self.worker
        for operator in operators:
            while operator.ends:
                operator.ends.pop()()
            for name in [n for n in operator.kept if not is_held_by_breakpoint(n)]:
                del operator.kept[name]
            operator.step = None
        worker.forget_shared({key for operator in operators for key in operator.shared})
        for operator in operators:
            operator.shared.clear()
            plan, tables = operator.plan, state[operator]
            self._learn(operator, tables)
            tokens, without = [], []
            for book in operator.books:
                held = rights[book]
                times = [*held, *(carried or {}).get(book, ())]
                tokens.append(grant(book, _least(times) if times else _first(plan.kind, self.at)))
                book.record_all((time, -1) for time in held)
                if not times:
                    without.append(book)
            info = worker.info_for(operator, tables.get)
            try:
                operator.step = plan.build(tokens, info)
                for output in operator.outputs:
                    output.flush()
            except BaseException as error:
                operator.fail(error, "building it anew for a migration", worker.index)
            del tokens
            if any(book.held > 0 for book in without):
                raise SnapshotError(
                    "it holds a token that it did not hold before its state moved"
                ).located(operator=plan.name, worker=worker.index)
            worker.built(operator)
            worker.activate(operator.index)


# Movers


def _moves_in_place(operator: Operator) -> bool:
    """Whether bins can be taken out of an operator, and added to it, as it is."""
    kept = [each.state for name, each in operator.kept.items() if not is_held_by_breakpoint(name)]
    total = operator.plan.kind.total
    return (
        total
        and bool(kept)
        and not operator.shared
        and all(isinstance(each, Movable) for each in kept)
    )


def movers_of(operators: Sequence[Operator]) -> list[Mover]:
    """The operators that keep state by bins, in groups that move together."""
    lead = {operator.index: operator.index for operator in operators if operator.inputs}

    def leader(index: int) -> int:
        while lead[index] != index:
            index = lead[index]
        return index

    def join(one: int, other: int) -> None:
        one, other = sorted((leader(one), leader(other)))
        lead[other] = one

    by_key: dict[Any, int] = {}
    for operator in operators:
        if not operator.inputs:
            continue
        for plan in operator.plan.inputs:
            if plan.pact.local and not plan.observes:
                for source in plan.sources:
                    if source.operator in lead:
                        join(operator.index, source.operator)
        for key in operator.shared:
            join(operator.index, by_key.setdefault(key, operator.index))
    groups: dict[int, list[Operator]] = {}
    for operator in operators:
        if operator.inputs:
            groups.setdefault(leader(operator.index), []).append(operator)
    return [
        Mover(number, group)
        for number, group in sorted(groups.items())
        if any(_is_by_bins(operator) for operator in group)
        and any(not is_held_by_breakpoint(name) for each in group for name in each.kept)
    ]


def _is_by_bins(operator: Operator) -> bool:
    return any(plan.pact.by_bins and not plan.observes for plan in operator.plan.inputs)


def require_movable(operators: Sequence[Operator]) -> None:
    """Refuse flows with records that do not follow bins, beside state that does."""
    for mover in movers_of(operators):
        for operator in mover.operators:
            for plan in operator.plan.inputs:
                pact = plan.pact
                known = pact.by_bins or pact.local or isinstance(pact, Broadcast)
                if not known and not plan.observes:
                    raise GraphError(
                        f"its records come by {pact!r}, which does not follow bins when they move: "
                        "use Exchange, or go on without migrations"
                    ).located(operator=operator.plan.name)


# Times


def _outermost(time: Time) -> int:
    outermost: int = time[0] if isinstance(time, Product) else time
    return outermost


def _first(kind: TimeKind, at: int) -> Time:
    """The least time inside a scope whose outermost part is a given one."""
    return Product.of((at, *([0] * kind.depth))) if kind.depth else at


def _least(times: Sequence[Time]) -> Time:
    """The least of some times; of those in loops, which have none, any will do."""
    return min(times) if not isinstance(times[0], Product) else times[0]


def _time(value: Any) -> Time:
    return Product.of(tuple(value)) if isinstance(value, list) else value


# Commands


@dataclass(frozen=True, kw_only=True)
class Prepare(Steer):
    """Hold a token at a time in every input, by default at one that is reached already."""

    kind = "prepare migration"
    at: int | None = None
    unit: str | None = None

    def do(self, agent: Agent) -> dict[str, Any]:
        """Hold it; returns the time."""
        worker, units = agent.worker, agent.worker.units
        if agent.breakpoints.at is not None:
            raise GraphError("the flow is paused: resume() before state can move")
        if worker.migration is not None:
            raise GraphError("state is moving already: wait until that migration is over")
        migration = Migration(worker, agent.breakpoints)
        at = None if self.at is None else in_flow_unit(self.at, self.unit, units)
        at = migration.prepare(at)
        worker.migration = migration
        return {"at": at, "unit": units.unit, "holds": agent.breakpoints.may_hold}


@dataclass(frozen=True, kw_only=True)
class Begin(Steer):
    """Stop records of bins that move, from a time on."""

    kind = "begin migration"
    at: int
    moves: list[tuple[int, int]]
    """Bins, and the workers that they go to."""

    def do(self, agent: Agent) -> dict[str, Any]:
        """Install the sidings."""
        _migration(agent).begin(self.at, dict(self.moves))
        return {}


@dataclass(frozen=True, kw_only=True)
class Reroute(Steer):
    """Route records by the new owners of bins."""

    kind = "reroute"

    def do(self, agent: Agent) -> dict[str, Any]:
        """Switch the routers."""
        _migration(agent).reroute()
        return {}


@dataclass(frozen=True, kw_only=True)
class Await(Steer):
    """A command that a worker answers later."""

    @abstractmethod
    def is_due(self, agent: Agent) -> bool:
        """Whether there is an answer."""

    def obey(self, agent: Agent) -> None:
        """Answer now, or look again whenever something has changed."""
        if self.is_due(agent):
            super().obey(agent)
        else:
            _migration(agent).when_changed.append(lambda: self.obey(agent))


@dataclass(frozen=True, kw_only=True)
class AwaitMoved(Await):
    """Answer once all state has moved."""

    kind = "await moved"

    def is_due(self, agent: Agent) -> bool:
        """Whether there is an answer."""
        return _migration(agent).is_confirmed

    def do(self, agent: Agent) -> dict[str, Any]:
        """Returns how many rows of state have left, and what the others have to hear."""
        migration = _migration(agent)
        return {
            "rows": migration.moved_rows,
            "sealed": agent.worker.sealed,
            "sent_on": migration.sent_on,
        }


@dataclass(frozen=True, kw_only=True)
class AwaitHeard(Await):
    """Answer once all progress until all state had moved has arrived, and all that was sent on."""

    kind = "await heard"
    sealed: list[int]
    """For each worker, how many progress batches it has sent."""
    sent_on: list[list[int]]
    """For each worker, how many messages it has sent on to each."""

    def is_due(self, agent: Agent) -> bool:
        """Whether all has arrived."""
        return _migration(agent).has_heard(self.sealed, self.sent_on)

    def do(self, agent: Agent) -> dict[str, Any]:
        """There is nothing else to say."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Release(Steer):
    """End a migration."""

    kind = "release"
    more: bool = False
    """Whether another migration comes at once."""

    def do(self, agent: Agent) -> dict[str, Any]:
        """Drop the tokens, and remove the sidings."""
        _migration(agent).release()
        agent.expects_command = self.more
        return {}


@dataclass(frozen=True, kw_only=True)
class Cancel(Steer):
    """Give a migration up that not all workers can begin."""

    kind = "cancel migration"

    def do(self, agent: Agent) -> dict[str, Any]:
        """Go on as before."""
        migration = agent.worker.migration
        if isinstance(migration, Migration):
            migration.cancel()
        return {}


def _migration(agent: Agent) -> Migration:
    found = agent.worker.migration
    assert isinstance(found, Migration), "all workers have prepared"
    return found


# Protocols


@dataclass(frozen=True)
class Moved:
    """The result of a migration."""

    moves: Mapping[int, int]
    rows: int
    """Rows of state that have moved."""


def migrating(moves: Mapping[int, int], time: Any = None, *, more: bool = False) -> Protocol[Moved]:
    """Move bins to other workers, for records at or after a time; ``more`` bins may follow."""
    at, unit = (None, None) if time is None else given(time)
    answers = yield Prepare(at=at, unit=unit)
    error = first_error(answers, f"state cannot move at {time}", "Move it")
    if error is None and not any(answer["holds"] for answer in answers):
        error = GraphError(ENDED)
    if error is not None:
        yield Cancel()
        raise error
    latest = max(answer["at"] for answer in answers)
    require_no_errors((yield Begin(at=latest, moves=list(moves.items()))))
    require_no_errors((yield Reroute()))
    answers = yield AwaitMoved()
    require_no_errors(answers)
    sealed, sent_on = ([answer[each] for answer in answers] for each in ("sealed", "sent_on"))
    require_no_errors((yield AwaitHeard(sealed=sealed, sent_on=sent_on)))
    require_no_errors((yield Release(more=more)))
    return Moved(moves, sum(answer["rows"] for answer in answers))


def in_steps(moves: Mapping[int, int], plan: str | int, time: Any = None) -> list[dict[int, int]]:
    """The migrations of a plan: all bins at once, one after the other, or some at a time.

    >>> in_steps({0: 1, 2: 1, 4: 1}, "fluid")
    [{0: 1}, {2: 1}, {4: 1}]
    >>> in_steps({0: 1, 2: 1, 4: 1}, 2)
    [{0: 1, 2: 1}, {4: 1}]
    >>> in_steps({0: 1, 2: 1, 4: 1}, "sudden")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: a plan is "all_at_once", "fluid", or how many bins move at...
    """
    sizes = {"all_at_once": len(moves), "fluid": 1}
    size = sizes.get(plan) if isinstance(plan, str) else plan
    if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and moves):
        raise GraphError(
            f'a plan is "all_at_once", "fluid", or how many bins move at a time, not {plan!r}'
        )
    if time is not None and size < len(moves):
        raise GraphError("a plan of several steps chooses its times itself: leave at= out")
    items = list(moves.items())
    return [dict(items[at : at + size]) for at in range(0, len(items), max(size, 1))]
