"""Live migration: the state of some bins moves to other workers while records flow.

A migration has a time *t* of the flow's inputs. Records before *t* meet the state of a bin at its
old worker, later ones at the new worker. Without a time of the user's, *t* is where the frontiers
of inputs are, and state moves *at once*: records at or after *t* meet it wherever they find it, and
inputs hold nothing. All workers obey seven commands, each once all have obeyed the one before:

1. `Prepare`: every input holds a token at *t*, and holds back records at or after *t*. Frontiers
   become *wide*: they wait for the pointstamps of all workers, since some will move.
2. `Begin`: every operator with state by bins, a *mover*, gets a *siding* before each input that
   is routed by bins. It stops records at or after *t* of bins that arrive, and of those that leave,
   unless state moves at once.
3. `AwaitWide`: answered once no frontier behind state that moves is further here than it is for all
   workers together, which it may have been before `Prepare`.
4. `Reroute`: records at or after *t* are routed by the new owners of bins. A marker follows what
   was routed by the old ones. Sidings send records of bins that leave to the new owner. Inputs
   let records through, and keep their tokens.
5. `AwaitMoved`: answered once all state has moved here. A mover gives its bins away when the
   frontiers of all its inputs have reached *t*; if state moves at once, also after all markers. The
   new owner takes the state over when that of all givers has come; then its sidings let the records
   pass that waited.
6. `AwaitHeard`: answered once the progress batches of all workers until then have arrived here:
   by their numbers, or with relays once the marks that followed them have come.
7. `Release`: the tokens at *t* are dropped, the sidings removed, and frontiers are narrow again.

Why this is right:

- **One place.** At any moment the state of a bin is on one worker, or in one message. It leaves the
  giver and the message is sent in one act; it is taken over in one act.
- **Every record meets it.** A record before *t* can only be under way to the giver, which gives
  after all of these. A record at or after *t* that reaches the giver before `Begin`, because an
  operator has sent it early, is a part of the state that moves. So is every later one if state
  moves at once: the giver gives after all that were routed to it, and nothing is sent on, which
  would have to wait until `Release`. Otherwise one that reaches it later waits in a siding and is
  sent on, also if it was under way under the old routing when the state left.
  The marker on each channel shows that no more such records can come: sidings stay until all
  markers have arrived. At the new owner, which has begun before any worker reroutes, a record waits
  in a siding until the state is there.
- **No right from nothing.** A record that waits stays counted, at its own time. One that is sent on
  is consumed, and counted again at the same input and at its time or later, in one act: the message
  is the right to that. A token that state needs travels with it: the giver clones one that the
  operator holds, it stays counted at the operator's output while it travels, and the new owner
  holds it then. So state moves without any other right, also where a frontier has passed *t*.
- **No right from nowhere.** These are the only pointstamps that go from one worker to the same
  place of another. A worker's own frontier does not wait for them, a wide one does. It is wide on
  all workers, and no further than it is for all together, before anything moves.
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

`jeton.runtime.movers` finds the operators that move together, and `jeton.runtime.siding` has the
places where records wait. Operators are taken apart and built anew in general: their containers'
snapshots are divided by bin, and the operator is built as on a restart, with tokens that it already
held. An operator stays as it is if all its containers are `Movable`: bins are taken out of them,
and added to them.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.core.bookkeeping import Bookkeeping
from jeton.core.errors import GraphError, ProtocolError, SnapshotError
from jeton.core.times import Product, Time
from jeton.core.tokens import grant, revoke, tokens_for
from jeton.runtime.breakpoints import ENDED, Breakpoints, from_bytes, to_bytes
from jeton.runtime.movers import (
    Arrival,
    Mover,
    Tables,
    behind,
    first_time,
    least,
    movers_of,
    moves_in_place,
    require_movable,
)
from jeton.runtime.operator import Operator
from jeton.runtime.siding import Siding
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
    bin_numbers,
    concatenated,
    is_for_everyone,
    is_held_by_breakpoint,
    rows_where,
)

if TYPE_CHECKING:
    from jeton.runtime.agent import Agent
    from jeton.runtime.worker import Worker

_STATE: Final = "state"
_WHAT: Final = "a migration"
"""Its name in errors about times."""


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
        self._carried: list[tuple[int, Bookkeeping, Time]] = []
        """Tokens that came with state, and the workers that gave them: held for the same reason."""
        self._was_done = self.is_confirmed = False
        self._breakpoints = breakpoints
        self._in_loops = self._holds = False
        self._is_woken = False
        self._behind: list[int] = []
        """The locations that what moves may lead to."""
        self._state_location = len(worker.graph.steps)
        self.when_changed: list[Callable[[], None]] = []
        """Called whenever something has changed."""

    # Commands

    def prepare(self, at: int | None) -> int:
        """Hold a token at *t* in every input, by default at a time that is reached already."""
        require_movable(self.worker.operators)
        self.movers = movers_of(self.worker.operators)
        self._behind = behind(self.worker, self.movers)
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
            mover.at_once = bool(mover.to) and not self._holds
            for operator in mover.operators:
                for port, plan in enumerate(operator.plan.inputs):
                    if plan.pact.by_bins and not plan.observes:
                        self.sidings.append(Siding(self, mover, operator, port))
        self.wake()

    @property
    def is_wide(self) -> bool:
        """Whether frontiers behind state that moves wait for all workers by now."""
        return all(map(self.worker.tracker.has_caught_up, self._behind))

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
        worker = self.worker
        for giver, book, time in self._carried:
            # Posted, since a worker without work takes no step to tell the others.
            worker.post(partial(worker.counted_at, giver, (book.location, time), -1))
        for message in self._came_on:
            worker.receive_message(*message)

    def has_heard(self, sealed: Sequence[int], sent_on: Sequence[Sequence[int]]) -> bool:
        """Whether all has arrived here that workers have sealed, and sent on."""
        mine = sum(to[self.worker.index] for to in sent_on)
        return self.worker.has_heard(sealed) and len(self._came_on) == mine

    def send_on(self, to: int, location: int, time: Time, part: Batch) -> None:
        """Send records to the worker that owns their bins now."""
        self.sent_on[to] += 1
        self.worker.consumed((location, time), -1)
        self.worker.counted_at(to, (location, time), +1)
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
        worker.widen_frontiers(False)

    @property
    def is_done(self) -> bool:
        """Whether all state has moved here, and nothing routed by the old owners can come."""
        return self.has_rerouted and all(
            mover.is_done and self._is_last(mover) for mover in self.movers
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
        mover.arrived.append(Arrival(header["from"], tables, tokens))
        mover.missing.remove(header["from"])
        self.wake()
        return True

    def wake(self) -> None:
        """Look soon for what can be done: at the end of a step, which comes if one is posted."""
        if not self._is_woken:
            self._is_woken = True
            self.worker.post(lambda: None)

    def after_operators(self) -> None:
        """Give and take what is ready, once operators have answered the records that came."""
        woken, self._is_woken = self._is_woken, False
        if not woken:
            return
        if self.has_rerouted:
            self._give_and_take()
        calls, self.when_changed = self.when_changed, []
        for call in calls:
            call()

    def _give_and_take(self) -> None:
        leaving = (self.before.owners == self.worker.index) & (
            self.after.owners != self.worker.index
        )
        for mover in self.movers:
            # To find out whether it is ready, all tokens of the process are looked through.
            acts = self._may_give(mover) or mover.may_take
            if acts and mover.is_ready(self.worker, self.at, leaving):
                if self._may_give(mover):
                    self._give(mover)
                if mover.may_take:
                    self._take(mover)
        if self.is_done and not self.is_confirmed:
            # In the next step, what was done so far has been sealed.
            self.is_confirmed, self._was_done = self._was_done, True
            if not self.is_confirmed:
                self.wake()

    # Inside

    def _is_last(self, mover: Mover) -> bool:
        """Whether no more records that are routed by the old owners can come to a mover."""
        others = self.worker.workers - 1
        return all(each.markers == others for each in self.sidings if each.belongs_to(mover))

    def _may_give(self, mover: Mover) -> bool:
        """Whether it has state to give, and all has come that goes with it."""
        return bool(mover.to) and (not mover.at_once or self._is_last(mover))

    def _give(self, mover: Mover) -> None:
        """Send the state of the bins that leave to their new owners."""
        if mover.at_once:
            # An operator may have left records in its inputs: they are for the new owner.
            mover.at_once = False
            for siding in self.sidings:
                if siding.belongs_to(mover):
                    siding.sort_out()
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
            if moves_in_place(operator):
                rights |= self._take_out(operator, leaving)
        for other, given_away in leaving.items():
            tokens = []
            for operator in given_away:
                for book in operator.books:
                    if rights[book]:
                        time = least(rights[book])
                        # Counted here, held there.
                        self.worker.consumed((book.location, time), +1)
                        tokens.append((operator.index, book.output, time))
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
        held = [grant(book, least(times)) for book, times in rights.items() if times]
        for other, parts in leaving.items():
            mine = self.before.owners == here
            chosen = mine & (self.after.owners == other)
            with operator.guard:
                tables = {name: kept.take_bins(chosen) for name, kept in operator.kept.items()}
            if operator.spill is not None:
                operator.spill.left(chosen)
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
        changed = mover.sharing(each for each in came if not moves_in_place(each))
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
                self._carried.append((each.giver, book, time))
        self._rebuild(changed, state, rights, carried)
        for operator in came:
            if moves_in_place(operator):
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
            grant(book, least(carried[book]) if carried[book] else first_time(book.kind, self.at))
            for book in operator.books
        ]
        self._learn(operator, tables)
        try:
            with operator.guard:
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
                tokens.append(
                    grant(book, least(times) if times else first_time(plan.kind, self.at))
                )
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
        at = None if self.at is None else in_flow_unit(self.at, self.unit, units, _WHAT)
        at = migration.prepare(at)
        worker.migration = migration
        worker.widen_frontiers(True)
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
class AwaitWide(Await):
    """Answer once no frontier behind what moves is further than it is for all workers together."""

    kind = "await wide"

    def is_due(self, agent: Agent) -> bool:
        """Whether there is an answer."""
        return _migration(agent).is_wide

    def do(self, agent: Agent) -> dict[str, Any]:
        """There is nothing else to say."""
        return {}


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
        agent.worker.mark_progress()
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
    at, unit = (None, None) if time is None else given(time, _WHAT)
    answers = yield Prepare(at=at, unit=unit)
    error = first_error(answers, f"state cannot move at {time}", "Move it")
    if error is None and not any(answer["holds"] for answer in answers):
        error = GraphError(ENDED)
    if error is not None:
        yield Cancel()
        raise error
    latest = max(answer["at"] for answer in answers)
    require_no_errors((yield Begin(at=latest, moves=list(moves.items()))))
    require_no_errors((yield AwaitWide()))
    require_no_errors((yield Reroute()))
    answers = yield AwaitMoved()
    require_no_errors(answers)
    sealed, sent_on = ([answer[each] for answer in answers] for each in ("sealed", "sent_on"))
    require_no_errors((yield AwaitHeard(sealed=sealed, sent_on=sent_on)))
    require_no_errors((yield Release(more=more)))
    return Moved(moves, sum(answer["rows"] for answer in answers))


def require_plan(plan: Any) -> None:
    """Refuse what is not a plan of a migration."""
    counts = isinstance(plan, int | np.integer) and not isinstance(plan, bool) and plan >= 1
    if not counts and plan not in ("all_at_once", "fluid"):
        raise GraphError(
            f'a plan is "all_at_once", "fluid", or how many bins move at a time, not {plan!r}'
        )


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
    require_plan(plan)
    sizes = {"all_at_once": len(moves), "fluid": 1}
    size = sizes[plan] if isinstance(plan, str) else int(plan)
    if time is not None and size < len(moves):
        raise GraphError("a plan of several steps chooses its times itself: leave at= out")
    items = list(moves.items())
    return [dict(items[at : at + size]) for at in range(0, len(items), max(int(size), 1))]
