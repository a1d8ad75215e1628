"""Breakpoints: a token held at a time in every input, so that the flow comes to rest there.

While a breakpoint holds, each output of an operator without inputs has a *gate*. It keeps records
at or after the breakpoint's time back, and holds a token there, which the right to send them later
comes from. Inputs behind a gate go on as if there were none: what is late, how far partitions are
and where sources are read does not depend on it. Outputs of the flow have gates too, since an
operator may send at later times than those of its records. Without a breakpoint there are no gates,
and records pass as if there was no such thing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.core.checks import described
from jeton.core.errors import GraphError, PredicateFailed, TimeError, summary
from jeton.core.source_lines import user_line
from jeton.core.times import END_OF_TIME, IntegerTimes, Time
from jeton.core.tokens import TimestampToken, held_tokens
from jeton.dataflow.inputs import InputHandle
from jeton.dataflow.operators.stateless import as_mask
from jeton.dataflow.ports import Input, Output
from jeton.runtime.operator import Operator
from jeton.state.snapshot import BIN, held_by_breakpoint
from jeton.state.tagged_state import Origin, TaggedState

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow
    from jeton.runtime.worker import Worker

MOST_HELD: Final = 1 << 20
"""Records that a worker holds back, from which on it reads no more."""
ENDED: Final = "all inputs have ended, so that there is nothing left to pause or to move"

Predicate = Callable[[Batch], Any]
"""Takes a batch of an output; returns a mask of its rows, or whether it matches as a whole."""


@dataclass(frozen=True, slots=True)
class Match:
    """The reason to pause that a predicate gave: rows of an output, or its own error."""

    output: str
    rows: pa.Table | None = None
    error: PredicateFailed | None = None

    @property
    def reason(self) -> str:
        """It as the end of a sentence."""
        if self.error is not None:
            return self.error.message
        return f"rows of output {self.output!r} match (pause_when)"


class HeldRecords:
    """Records that a gate holds back, in the order in which they came."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.batches: list[Batch] = []
        self.rows = 0

    def add(self, batch: Batch) -> None:
        """Hold records back."""
        self.batches.append(batch)
        self.rows += len(batch)

    def take(self, before: int | None) -> list[Batch]:
        """Take the records before a time out, or all of them."""
        batches, self.batches, self.rows = self.batches, [], 0
        if before is None:
            return batches
        ready = []
        for batch in batches:
            early, late = _split(batch, before)
            if early is not None:
                ready.append(early)
            if late is not None:
                self.add(late)
        return ready

    def times(self) -> Iterator[npt.NDArray[np.int64]]:
        """The times of each batch."""
        return (batch.times for batch in self.batches)

    def snapshot(self) -> pa.Table:
        """The batches, each as it is: they need not have the same columns."""
        worker = self._worker
        # Any bin of this worker will do; without one, another worker goes on with them.
        mine = next(iter(worker.placement.bins_of(worker.index)), 0)
        return pa.table(
            {
                BIN: np.full(len(self.batches), mine, np.uint16),
                "worker": np.full(len(self.batches), worker.index, np.int64),
                "batch": pa.array([to_bytes(b.to_arrow()) for b in self.batches], pa.binary()),
            }
        )

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """Hold the records of a snapshot back."""
        for data in state.column("batch").to_pylist():
            table = from_bytes(data)
            self.add(Batch.from_arrow(table, time=table.column_names[0]))


class SourceGate:
    """The gate at one output of an operator without inputs, and the token that it holds."""

    def __init__(self, worker: Worker, operator: Operator, output: Output) -> None:
        self.at: int | None = None
        self.passes = False
        """Whether only the token is held, and all records pass."""
        self.held = HeldRecords(worker)
        self.token: int | None = None
        """The time of the breakpoint's token, if it holds one."""
        self.operator = operator
        self.port = output.index
        self._worker = worker
        self._output = output
        self._book = operator.books[output.index]
        handle = worker.handles.get(operator.index)
        self._handle = handle if isinstance(handle, InputHandle) else None
        self._floor: int | None = None
        """The least time for which there was a right when the gate was closed."""
        self.is_closed = False
        """Whether it holds back records, or is about to let them go."""

    def restore(self, state: pa.Table) -> None:
        """Begin with the records of a snapshot, before any token of the input has moved on."""
        self.held.restore(state, ())
        # From the input's first token: the input may yet read records that are earlier than those
        # held so far, and these are held by the same token.
        self.token = IntegerTimes().minimum
        self._install(self.token)
        self._book.record(self.token, +1)

    def close(self, at: int) -> None:
        """Hold back what is at or after a time; the rest of what was held goes on."""
        if not self.is_closed:
            self._install(self.least_token())
        self._go_to(at)

    def hold(self, at: int, floor: int | None) -> None:
        """The same at once, in a step: ``floor`` is the least time for which there is a right."""
        if not self.is_closed:
            self._install(floor)
        self._go_to(at)
        self._settle()

    def let_through(self) -> None:
        """Let all records through, and hold the token only, in a step."""
        self.passes = True
        if self._handle is not None:
            self._handle.held_from = None
        self._settle()

    def open(self) -> None:
        """Let everything through again."""
        self.passes = False
        self._go_to(None)

    @property
    def has_right(self) -> bool:
        """Whether the input had not ended when the gate was closed."""
        return self.is_closed and self._floor is not None

    def push(self, time: Time, batch: Batch) -> None:
        """Send the records before the breakpoint, and hold the others back."""
        early: Batch | None = batch
        late = None
        if not self.passes:
            early, late = (None, batch) if self.at is None else _split(batch, self.at)
        if early is not None:
            for edge in self._output.edges:
                edge.push(time, early)
        if late is not None:
            self.held.add(late)

    def has_passed(self, at: int) -> bool:
        """Whether an input has nothing before a time to read any more."""
        handle = self._handle
        return handle is None or handle.closed or handle.time >= at

    @property
    def what(self) -> str:
        """The kind of operator that it is at, for people."""
        return "input" if self.operator.index in self._worker.handles else "source"

    def least_token(self) -> int | None:
        """The least time for which this operator has a right now, if it has any."""
        handle = self._handle
        if handle is not None:
            return None if handle.closed else handle.time
        return min(self._held_times(), default=None)

    def furthest(self) -> int | None:
        """The greatest time of a record that went in, as far as it is known."""
        return self._output.furthest if self._handle is None else self._handle.furthest

    def _held_times(self) -> list[int]:
        """The times of the tokens that user code holds, wherever it has put them."""
        return [int(token.time) for token in held_tokens() if token.book is self._book]

    def _go_to(self, at: int | None) -> None:
        self.at = at
        if self._handle is not None:
            self._handle.held_from = at
            # Partitions that were not read meanwhile are not idle for that.
            for partition in self._handle.partitions:
                if partition.heard_at > -math.inf:
                    partition.heard_at = self._worker.now()
        self._worker.post(self._settle)

    def _install(self, floor: int | None) -> None:
        self._floor = floor
        self.is_closed = True
        self._output.divert(self)
        _keep(self.operator, self.port, self.held)

    def _settle(self) -> None:
        if not self.is_closed:
            return
        for batch in self.held.take(None if self.passes else self.at):
            bound, most = batch.extent()
            if self._handle is not None:
                known = self._handle.furthest
                self._handle.furthest = most if known is None else max(known, most)
            for edge in self._output.edges:
                edge.push(bound, batch)
        at, floor = self.at, self._floor
        token = None if at is None or floor is None else max(at, floor)
        if token != self.token:
            if token is not None:
                self._book.record(token, +1)
            if self.token is not None:
                self._book.record(self.token, -1)
            self.token = token
        if at is None:
            self._output.divert(None)
            self.is_closed = False
            _forget(self.operator, self.port)


class OutputGate:
    """The gate at an output of the flow, which also looks for rows that match a predicate."""

    def __init__(self, worker: Worker, operator: Operator, name: str) -> None:
        self.at: int | None = None
        self.held = HeldRecords(worker)
        self.operator = operator
        self.port = 0
        self.name = name
        self.predicate: Predicate | None = None
        self.match: Match | None = None
        """The first rows that matched, or the first for which the predicate failed."""
        self._worker = worker
        self._step = operator.step
        self.is_closed = False
        """Whether it holds back records, or is about to let them go."""

    def restore(self, state: pa.Table) -> None:
        """Begin with the records of a snapshot."""
        self.held.restore(state, ())
        self._install()

    def close(self, at: int) -> None:
        """Hold back what is at or after a time; the rest of what was held goes on."""
        self.at = at
        self._install()
        self._worker.post(self._settle)

    def open(self) -> None:
        """Let everything through again."""
        self.at = None
        self._worker.post(self._settle)

    def watch(self, predicate: Predicate | None) -> None:
        """Look for the first rows that match from now on, or no longer."""
        self.predicate, self.match = predicate, None
        self._worker.post(self._settle)

    def _install(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            _keep(self.operator, self.port, self.held)
            self.operator.step = self._collect

    def _settle(self) -> None:
        for batch in self.held.take(self.at):
            self._pass_on(batch)
        if self.at is None and self.is_closed:
            self.is_closed = False
            _forget(self.operator, self.port)
        used = self.is_closed or self.predicate is not None
        self.operator.step = self._collect if used else self._step

    def _collect(self, inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
        for _, batch in inputs[0]:
            if self.is_closed:
                early, late = (None, batch) if self.at is None else _split(batch, self.at)
                if late is not None:
                    self.held.add(late)
                if early is None:
                    continue
                batch = early
            self._pass_on(batch)

    def _pass_on(self, batch: Batch) -> None:
        self._worker.handles[self.operator.index].append(batch)
        if self.predicate is not None and self.match is None:
            self.match = self._matching(self.predicate, batch)

    def _matching(self, predicate: Predicate, batch: Batch) -> Match | None:
        """The rows that match, or the error of the predicate, which must not end the flow."""
        try:
            found = _matching(predicate, batch)
        except (Exception, SystemExit) as error:
            message = f"the predicate of pause_when({self.name!r}, …) failed: {summary(error)}"
            time = int(batch.times.min())
            failed = PredicateFailed(message).located(
                operator=self.operator.plan.name,
                worker=self._worker.index,
                time=time,
                moment=self._worker.in_words(time),
                line=user_line(error),
            )
            failed.__cause__ = error
            return Match(self.name, error=failed)
        return Match(self.name, found.to_arrow()) if len(found) else None


Gate = SourceGate | OutputGate


class Breakpoints:
    """The breakpoint of one worker: where it is, and the gates that hold records back.

    >>> import jeton as jt
    >>> from jeton.runtime.agent import Agent
    >>> flow = jt.Flow("echo")
    >>> flow.output("out", flow.input("in"))
    >>> agent = Agent(flow)
    >>> agent.breakpoints.pause(5)
    5
    >>> agent.breakpoints.at, agent.breakpoints.held_inputs
    (5, {'in': 5})
    >>> agent.worker.handles[flow.handle("input", "in")].send({"time": [3, 7], "n": [1, 2]})
    >>> while agent.turn():
    ...     pass
    >>> agent.breakpoints.held_rows, agent.breakpoints.next_held()
    (1, 7)
    >>> agent.close()
    """

    def __init__(self, worker: Worker, flow: Flow) -> None:
        self.at: int | None = None
        """The time of the breakpoint, if one is set."""
        self.reason = ""
        """The reason why it was set, if not because a user asked for this time."""
        self.given_unit: str | None = None
        """The unit of its time as a user gave it, which is shown until records have come."""
        self.watches = False
        """Whether it looks for rows of an output that match."""
        self._worker = worker
        self._flow = flow
        self._sources: list[SourceGate] = []
        self._outputs: dict[str, OutputGate] = {}
        if worker.restores:
            self._restore()

    # Facts

    @property
    def unit(self) -> str | None:
        """The unit of the breakpoint's time, as far as it is known."""
        return self._worker.units.unit or self.given_unit

    @property
    def held_rows(self) -> int:
        """The number of records that are held back."""
        return sum(gate.held.rows for gate in self.gates)

    @property
    def holds(self) -> bool:
        """Whether a breakpoint is set, or records that it held back are still to go on."""
        return self.at is not None or any(gate.is_closed for gate in self.gates)

    @property
    def has_token(self) -> bool:
        """Whether it holds a token, or is about to; inputs that have ended give no right to one."""
        return any(gate.has_right for gate in self._sources)

    @property
    def sources(self) -> list[SourceGate]:
        """The gates of inputs and sources, if there are any."""
        return self._sources

    @property
    def gates(self) -> list[Gate]:
        """The gates, if there are any: those of inputs first."""
        return [*self._sources, *self._outputs.values()]

    @property
    def held_inputs(self) -> dict[str, int]:
        """For each input or source where a breakpoint holds a token, or is about to, its time."""
        at = self.at
        if at is None:
            return {}
        return {
            gate.operator.plan.name: at if gate.token is None else max(at, gate.token)
            for gate in self._sources
            if gate.has_right
        }

    @property
    def stops_reading(self) -> bool:
        """Whether inputs have passed the breakpoint, or enough is held back."""
        at = self.at
        if at is None:
            return False
        if self.is_full:
            return True
        return all(gate.has_passed(at) for gate in self._sources)

    @property
    def is_full(self) -> bool:
        """Whether enough is held back for sources not to go on."""
        return self.at is not None and self.held_rows >= MOST_HELD

    def next_held(self) -> int | None:
        """The least time after the breakpoint of a record that is held back."""
        at = self.require_paused()
        times = [times for gate in self.gates for times in gate.held.times()]
        later = [int(found.min()) for each in times if len(found := each[each > at])]
        return min(later, default=None)

    def holds_now(self) -> bool:
        """Whether a record is held back at the very time of the breakpoint."""
        return any((t == self.at).any() for gate in self.gates for t in gate.held.times())

    def furthest(self) -> tuple[int, str] | None:
        """The greatest time that is no longer ahead, and the input or source that has passed it."""
        found = []
        for gate in self._source_gates():
            name = f"{gate.what} {gate.operator.plan.name!r}"
            sent = gate.furthest()
            if sent is not None:
                found.append((sent, name))
            # Times before the frontier are complete, and results at them may be out.
            location = self._worker.graph.nodes[gate.operator.index].outputs[gate.port]
            tracker = self._worker.tracker
            for least in (tracker.least(location), tracker.least_anywhere(location)):
                if least and least[0] > gate.operator.plan.kind.minimum:
                    found.append((least[0] - 1, name))
        return max(found, default=None)

    # Acts

    def pause(self, at: int | None, reason: str = "") -> int:
        """Set a breakpoint, by default at the least time after all that went in here."""
        if self.at is not None:
            raise GraphError("the flow is paused already: step(until=…), or resume() first")
        if self._worker.migration is not None:
            raise GraphError("state moves between workers: pause once the migration is over")
        at = self.first_time(at)
        self._set(at)
        self.reason = reason
        return at

    def first_time(self, at: int | None) -> int:
        """A time that is still ahead here: by default the least; an error if it has passed."""
        self.require_integers()
        if self._have_ended():
            raise GraphError(ENDED)
        passed = self.furthest()
        if at is None and (passed is None or passed[0] < END_OF_TIME):
            at = IntegerTimes().minimum if passed is None else passed[0] + 1
        elif passed is not None and (at is None or at <= passed[0]):
            raise TimePassed(*passed)
        assert at is not None
        return at

    def reached(self) -> int:
        """The time up to which all inputs that have not ended are complete, as known here."""
        self.require_integers()
        if self._have_ended():
            raise GraphError(ENDED)
        nodes, tracker = self._worker.graph.nodes, self._worker.tracker
        places = [at for o in self._without_inputs() for at in nodes[o.index].outputs]
        return min(int(least[0]) for at in places if (least := tracker.least_anywhere(at)))

    def pause_again(self, at: int) -> None:
        """Set the breakpoint that the flow had before a restart."""
        self._set(at)

    def move(self, to: int) -> None:
        """Move the breakpoint to a later time."""
        at = self.require_paused()
        if to > at:
            self.reason = ""
        self._set(max(to, at))

    def resume(self) -> None:
        """Remove the breakpoint: everything that was held back goes on."""
        if self.at is None:
            return
        self.at, self.reason = None, ""
        for gate in self.gates:
            gate.open()
        self._worker.hold_sources(False)

    def hold(self, at: int) -> None:
        """Hold a token, and records at or after a time, in every input; outputs go on."""
        # In order with what was sent before, which passes: it may be at or after the time.
        for gate in self._source_gates():
            self._worker.post(partial(gate.hold, at, gate.least_token()))

    def let_through(self) -> None:
        """Let the records through that `hold` holds, and hold the tokens only."""
        for gate in self._source_gates():
            self._worker.post(gate.let_through)

    def let_go(self) -> None:
        """End what `hold` began."""
        for gate in self._source_gates():
            self._worker.post(gate.open)

    @property
    def may_hold(self) -> bool:
        """Whether an input of this worker has not ended."""
        return any(gate.least_token() is not None for gate in self._source_gates())

    def watch(self, output: str | None = None, predicate: Predicate | None = None) -> None:
        """Look for the first rows of an output that match, or no longer."""
        for gate in map(self._output, self._flow.outputs):
            gate.watch(predicate if gate.name == output else None)
        self.watches = predicate is not None

    def matched(self) -> Match | None:
        """The first match; once, then it no longer looks for any."""
        for gate in self._outputs.values():
            if gate.match is not None:
                found = gate.match
                self.watch()
                return found
        return None

    def require_paused(self) -> int:
        """The time of the breakpoint; an error if there is none."""
        if self.at is None:
            raise GraphError("the flow is not paused: pause_at(…) first")
        return self.at

    def require_integers(self) -> None:
        """Refuse flows whose inputs have times of another kind."""
        for operator in self._without_inputs():
            if not isinstance(operator.plan.kind, IntegerTimes):
                raise GraphError(
                    f"breakpoints need integers or timestamps as times, and those of "
                    f"{operator.plan.name!r} are {type(operator.plan.kind).__name__}"
                )

    # Inside

    def _set(self, at: int) -> None:
        self.at = at
        for gate in self._all_gates():
            gate.close(at)
        self._worker.hold_sources(False)

    def _have_ended(self) -> bool:
        """Whether no input of any worker can send anything more, as far as this one knows."""
        nodes, tracker = self._worker.graph.nodes, self._worker.tracker
        places = [at for o in self._without_inputs() for at in nodes[o.index].outputs]
        return not any(tracker.least_anywhere(location) for location in places)

    def _all_gates(self) -> list[Gate]:
        return [*self._source_gates(), *(self._output(name) for name in self._flow.outputs)]

    def _source_gates(self) -> list[SourceGate]:
        if not self._sources:
            self._sources = [
                SourceGate(self._worker, operator, output)
                for operator in self._without_inputs()
                for output in operator.outputs
            ]
        return self._sources

    def _without_inputs(self) -> list[Operator]:
        # The times of a sequencer are not those of records.
        own = {
            self._flow.handle(what, name)
            for what, name in self._flow.handles()
            if what == "sequencer"
        }
        return [
            each for each in self._worker.operators if not each.inputs and each.index not in own
        ]

    def _output(self, name: str) -> OutputGate:
        if name not in self._outputs:
            operator = self._worker.operators[self._flow.handle("output", name)]
            self._outputs[name] = OutputGate(self._worker, operator, name)
        return self._outputs[name]

    def _restore(self) -> None:
        """Hold the records of a snapshot back until the first step, unless it is paused then."""
        for gate in self._all_gates():
            name = held_by_breakpoint(gate.port)
            found = self._worker.restored(gate.operator.plan.name, name)
            if found is not None and found.num_rows:
                gate.restore(found)
                gate.open()


class TimePassed(TimeError):
    """A breakpoint was asked for at a time that an input has passed."""

    def __init__(self, furthest: int, name: str) -> None:
        """``name`` says which input or source."""
        super().__init__(f"{name} has passed this time")
        self.furthest = furthest
        self.name = name


def require_predicate(predicate: object) -> None:
    """Refuse a predicate that cannot be called with a batch."""
    if not callable(predicate):
        raise GraphError(
            "pause_when needs a function from a batch to a mask of its rows, such as "
            f"lambda batch: batch['n'] > 1, not {described(predicate)}"
        )


def to_bytes(table: pa.Table) -> bytes:
    """A table as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def from_bytes(data: bytes) -> pa.Table:
    """The table that some bytes stand for."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def _split(batch: Batch, at: int) -> tuple[Batch | None, Batch | None]:
    """The records before a time, and those at or after it."""
    later = batch.times >= at
    if not later.any():
        return batch, None
    if later.all():
        return None, batch
    return batch.filter(~later), batch.filter(later)


def _matching(predicate: Predicate, batch: Batch) -> Batch:
    mask = predicate(batch)
    if isinstance(mask, bool | np.bool_):
        return batch if mask else batch.slice(0, 0)
    if isinstance(mask, str) or not hasattr(mask, "__len__"):
        raise TypeError(
            f"it returned {described(mask)}, not a mask of the rows or a bool: compare a column "
            "with something, as in batch['n'] > 1"
        )
    return batch.filter(as_mask(mask, "its mask"))


def _keep(operator: Operator, port: int, held: HeldRecords) -> None:
    """Have snapshots of an operator include what its gate holds."""
    name = held_by_breakpoint(port)
    operator.kept[name] = TaggedState(held, Origin(operator.plan.name, True), name)


def _forget(operator: Operator, port: int) -> None:
    operator.kept.pop(held_by_breakpoint(port), None)
