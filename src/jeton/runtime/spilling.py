"""Spilling: the state of some bins waits on local disk while a worker has too little memory.

A worker with a memory budget watches what its operators keep. When that is too much, bins are taken
out of an operator's containers, as they are for a migration, and written to a file: a *part*.
Records of bins that are in a part are *held* at a gate before the operator's input, in memory and
then on disk. A part comes back when

- a window or another answer of it is due, since the frontiers of the operator's inputs have moved,
- so many records are held for it that bringing it back is worth while,
- or the worker has nothing else to do, or has to come to rest.

Why this is right:

- **A record that is held is a message that is still under way.** It stays counted at its input,
  at its time or earlier. So the operator cannot tell a held record from one that is slow to arrive,
  and every operator is right however slow its messages are. Records of one key keep their order.
- **State on disk keeps its rights.** A part holds a token at the least time for which any of its
  rows is due. The token goes back to the operator together with the rows.
- **State is in one place.** Bins are taken out only while no message waits in the operator's
  inputs, so that every record that passes the gate finds its state in memory.

Each record pays for no more than a constant number of rows that are moved, however many keys there
are: while there is anything else to do, a part that is not due comes back only for more records
than it has rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns.batch import Batch, concat
from jeton.core.errors import BudgetExceeded
from jeton.core.sizes import in_bytes
from jeton.core.times import Time
from jeton.core.tokens import TimestampToken, grant
from jeton.dataflow.pacts import Exchange
from jeton.dataflow.plan import OperatorPlan
from jeton.runtime.operator import Operator
from jeton.state.snapshot import bin_numbers, is_for_everyone, is_held_by_breakpoint
from jeton.state.spilled import OVERHEAD, Spillable, SpilledTable, on_disk
from jeton.state.tagged_state import TaggedState

if TYPE_CHECKING:
    from jeton.runtime.worker import Worker

Mask = npt.NDArray[np.bool_]

STATE: Final = 0.4
"""The share of the budget that state in memory may take; the rest is for what moves it."""
PARTS: Final = 8
"""A part takes about the budget, divided by this, in memory."""
HELD: Final = 0.08
"""The share of the budget that records may take which are held in memory."""
MESSAGE_ROWS: Final = 1 << 18
"""Records that were held go on in messages of so many."""
_WORTH: Final = 2
"""A part comes back once there are so many times as many records for it as it has rows."""
_OLDEST: Final = 4
"""After so many times as many records as a part has rows, one comes back just for its age."""


class MemoryBudget:
    """The memory that the state of one worker may take, and its operators that spill."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.spills: list[Spill] = []

    @property
    def state(self) -> int:
        """How many bytes state in memory may take."""
        return int(STATE * self.size)

    @property
    def part(self) -> int:
        """About how many bytes of memory a part takes when it comes back."""
        return max(self.size // PARTS, 1)

    @property
    def held(self) -> int:
        """How many bytes the records that one operator holds in memory may take."""
        return int(HELD * self.size / max(len(self.spills), 1))

    def exceeded_by(self, more: int = 0) -> int:
        """By how much state is beyond its share, if ``more`` bytes come."""
        return sum(spill.memory for spill in self.spills) + more - self.state

    @property
    def largest(self) -> Spill:
        """The operator whose state takes most memory."""
        return max(self.spills, key=lambda spill: spill.memory)


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Records of one batch, in memory or on disk."""

    table: pa.Table
    time_name: str
    unit: str | None
    in_memory: bool = True

    @staticmethod
    def of(batch: Batch) -> HeldRows:
        """The records of a batch."""
        columns = {"time": pa.array(batch.times)}
        columns |= {f"value.{name}": cols.to_arrow(c) for name, c in batch.columns.items()}
        return HeldRows(pa.table(columns), batch.time_name, batch.unit)

    def batch(self) -> Batch:
        """The records again."""
        times, *values = self.table.columns
        names = [name[len("value.") :] for name in self.table.column_names[1:]]
        columns = {n: cols.as_column(c) for n, c in zip(names, values, strict=True)}
        return Batch.trusted(columns, times.to_numpy(), self.time_name, unit=self.unit)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The properties that rows of one table have in common."""
        return (self.time_name, self.unit, self.table.schema)

    def slices(self, lengths: Sequence[int]) -> Iterator[HeldRows]:
        """The records in pieces of these lengths."""
        start = 0
        for rows in lengths:
            piece = self.table.slice(start, rows)
            yield HeldRows(piece, self.time_name, self.unit, self.in_memory)
            start += rows

    @staticmethod
    def joined(some: Sequence[HeldRows], *, to_disk: bool = False) -> HeldRows:
        """Rows of one shape, one after the other."""
        first = some[0]
        table = pa.concat_tables([each.table for each in some]) if len(some) > 1 else first.table
        if to_disk:
            table = on_disk(table.combine_chunks())
        return HeldRows(table, first.time_name, first.unit, in_memory=not to_disk)


@dataclass(eq=False)
class Waiting:
    """Records that are held for one part at one gate, counted as one message."""

    rows: list[HeldRows] = field(default_factory=list)
    bound: int | None = None
    """The time at which they are counted."""


@dataclass(eq=False)
class Part:
    """The state of some bins of an operator, on disk, and the records that wait for it."""

    number: int
    bins: Mask
    memory: int
    """About how many bytes it takes in memory."""
    waiting: list[Waiting]
    """For each gate."""
    tables: dict[str, SpilledTable] = field(default_factory=dict)
    """For each container."""
    tokens: dict[int, TimestampToken] = field(default_factory=dict)
    """For each output for which rows need one."""
    seen: Sequence[tuple[Time, ...]] = ()
    """The frontiers that the operator had seen when it gave this part away."""
    held: int = 0
    """Records that wait."""

    @property
    def rows(self) -> int:
        """Rows of state."""
        return sum(map(len, self.tables.values()))

    @property
    def bound(self) -> int:
        """A time that no record that waits is before."""
        return min(each.bound for each in self.waiting if each.bound is not None)


class Gate:
    """The place before an input where records of bins on disk are held."""

    def __init__(self, spill: Spill, port: int) -> None:
        self._spill = spill
        self._worker = spill.worker
        self._port = spill.operator.inputs[port]
        pact = spill.operator.plan.inputs[port].pact
        assert isinstance(pact, Exchange)
        self._pact = pact
        self.location = self._port.location
        self._pending: list[Batch] = []
        """Records that are not dealt to parts yet."""
        self.bound: int | None = None
        """The time at which these are counted."""
        self.rows = self.nbytes = 0

    def deliver(self, time: Time, batch: Batch) -> None:
        """A message has arrived: let records pass whose state is in memory, hold the others."""
        spill = self._spill
        spill.arrived += len(batch)
        if not spill.parts:
            self._port.deliver(time, batch)
            return
        places, starts = self._pact.scatter(batch, 2, spill.is_away)
        here = int(starts[1])
        if here == len(batch):
            self._port.deliver(time, batch)
            return
        if here:
            batch = batch.scattered(places, starts)
            self._port.deliver(time, batch.slice(0, here))
            batch = batch.slice(here, len(batch))
        self.bound = self._count(self.bound, time)
        if not here:
            self._worker.consumed((self.location, time), -1)
        self._pending.append(batch)
        self.rows += len(batch)
        self.nbytes += batch.nbytes

    def _count(self, bound: int | None, time: int) -> int:
        """Count records at ``time`` together with those that are counted at ``bound``."""
        if bound is not None and bound <= time:
            return bound
        self._worker.consumed((self.location, time), +1)
        if bound is not None:
            self._worker.consumed((self.location, bound), -1)
        return time

    def deal(self, index: int, parts: dict[int, Part], to: npt.NDArray[np.uint16]) -> None:
        """Give the records to the parts for which they wait."""
        pending, self._pending = self._pending, []
        self.rows = self.nbytes = 0
        for _, some in groupby(pending, lambda batch: HeldRows.of(batch.slice(0, 0)).shape):
            whole = concat(list(some))
            places, starts = self._pact.scatter(whole, max(parts) + 1, to)
            bounds = starts.tolist()
            whole = whole.scattered(places, starts)
            rows = HeldRows.of(whole)
            for number, part in parts.items():
                start, stop = bounds[number], bounds[number + 1]
                if start < stop:
                    waiting = part.waiting[index]
                    least = int(whole.times[start:stop].min())
                    waiting.bound = self._count(waiting.bound, least)
                    piece = rows.table.slice(start, stop - start)
                    waiting.rows.append(HeldRows(piece, rows.time_name, rows.unit))
                    part.held += stop - start
        if self.bound is not None:
            self._worker.consumed((self.location, self.bound), -1)
            self.bound = None

    def let_pass(self, waiting: Waiting) -> None:
        """Send records on that were held for a part."""
        messages: list[Batch] = []
        for _, some in groupby(waiting.rows, lambda rows: rows.shape):
            whole = HeldRows.joined(list(some))
            for start in range(0, whole.table.num_rows, MESSAGE_ROWS):
                piece = whole.table.slice(start, MESSAGE_ROWS)
                messages.append(HeldRows(piece, whole.time_name, whole.unit).batch())
        if messages:
            assert waiting.bound is not None
            if len(messages) > 1:
                self._worker.consumed((self.location, waiting.bound), len(messages) - 1)
            for batch in messages:
                self._port.deliver(waiting.bound, batch)


class Spill:
    """The state of one operator on one worker, some bins of which may be on disk."""

    def __init__(self, budget: MemoryBudget, worker: Worker, operator: Operator) -> None:
        self.worker = worker
        self.operator = operator
        self.parts: dict[int, Part] = {}
        """By their numbers, which are greater than zero."""
        self.memory = 0
        """About how many bytes of memory the state takes."""
        self.brought_back = 0
        self.arrived = 0
        """Records that have come to the gates since a part came back just for its age."""
        self._budget = budget
        self._to = np.zeros(worker.bins, dtype=np.uint16)
        """For each bin the number of its part; zero if it is in memory."""
        self.is_away = self._to
        """For each bin 1 if it is in a part."""
        self._gates: list[Gate] = []
        self._order: deque[int] = deque(range(worker.bins))
        """Bins, those first that have been in memory for longest."""
        self._is_idle = False
        self._begins_in_memory = False
        """Whether all state that it begins with has to be in memory."""
        self._restored: int | None = None
        """About how many bytes of memory the state takes that it begins with."""
        self._wanted: Mask | None = None
        """The bins for which no records may be held, since they leave."""

    # Facts

    @property
    def bins(self) -> int:
        """How many bins are on disk."""
        return int(self.is_away.sum())

    @property
    def nbytes(self) -> int:
        """How many bytes of state are on disk."""
        tables = (table for part in self.parts.values() for table in part.tables.values())
        return sum(table.nbytes for table in tables)

    @property
    def held(self) -> int:
        """How many records wait for state that is on disk."""
        dealt = sum(part.held for part in self.parts.values())
        return dealt + sum(gate.rows for gate in self._gates)

    def waits(self) -> list[tuple[int, list[int], int]]:
        """For each input the times at which held records are counted, and how many there are."""
        found = []
        for index, gate in enumerate(self._gates):
            held = [part.waiting[index] for part in self.parts.values()]
            bounds = [gate.bound, *(each.bound for each in held)]
            times = [bound for bound in bounds if bound is not None]
            if times:
                rows = sum(rows.table.num_rows for each in held for rows in each.rows)
                found.append((gate.location, times, gate.rows + rows))
        return found

    @property
    def takes_part(self) -> bool:
        """Whether all of the operator's state can wait on disk."""
        kept = [each for name, each in self._kept()]
        return bool(kept) and not self.operator.shared and all(map(_is_spillable, kept))

    def _kept(self) -> list[tuple[str, TaggedState]]:
        kept = self.operator.kept.items()
        return [(name, each) for name, each in kept if not is_held_by_breakpoint(name)]

    # Building

    def restore(
        self,
        kept: TaggedState,
        name: str,
        state: pa.Table,
        tokens: Sequence[TimestampToken],
        *,
        lazy: bool,
    ) -> None:
        """Begin with state, which goes to disk at once if there is much of it."""
        if self._restored is None:
            self._restored = self.worker.restored_bytes(self.operator.plan.name) * OVERHEAD
        size = self._restored
        if not lazy or not _is_spillable(kept):
            # From now on, whatever it needs is in memory.
            self.give_up()
            self._begins_in_memory = True
        small = size <= self._budget.state // 2
        if small or self._begins_in_memory or is_for_everyone(state):
            kept.restore(state, tokens)
            return
        container = kept.state
        assert isinstance(container, Spillable)
        rows, _, _ = kept.checked(state)
        if not self.parts:
            owned = self.worker.placement.bins_of(self.worker.index)
            count = min(-(-size // self._budget.part), len(owned))
            for bins in np.array_split(np.array(owned), count):
                chosen = np.zeros(self.worker.bins, dtype=bool)
                chosen[bins] = True
                self._add(Part(self._number(), chosen, 0, self._no_records()))
        numbers = self._to[bin_numbers(rows, self.worker.bins)]
        for part in self.parts.values():
            some = rows.filter(pa.array(numbers == part.number))
            self._put(part, name, kept, some)
            part.memory += some.nbytes * OVERHEAD
            least = container.due(some)
            if least is not None and kept.rights:
                token = tokens[0].clone()
                token.downgrade(least)
                self._hold(part, kept.rights[0], token)

    def install(self) -> None:
        """Begin to watch the operator: it has been built."""
        operator, worker = self.operator, self.worker
        self._gates = [Gate(self, port) for port in range(len(operator.inputs))]
        for gate in self._gates:
            worker.redirect(gate.location, gate, worker.guard_of(gate.location))
        inner = operator.step
        assert inner is not None

        def step(inputs: Any, outputs: Any) -> None:
            inner(inputs, outputs)
            self._after_step()

        operator.step = step
        self._budget.spills.append(self)

    def give_up(self) -> None:
        """Bring everything back: the operator turned out to keep state that cannot be on disk."""
        for part in list(self.parts.values()):
            self._bring_back(part)

    # Called by the worker and by migrations

    def catch_up(self) -> bool:
        """Bring a part back for which records wait, since there is nothing else to do."""
        if not self.held:
            return False
        self._is_idle = True
        self.worker.activate(self.operator.index)
        return True

    def is_free_of(self, leaving: Mask) -> bool:
        """Whether no record of bins that leave is held; if not, it will be so soon."""
        self._deal()
        waits = any(part.held and (part.bins & leaving).any() for part in self.parts.values())
        self._wanted = leaving if waits else None
        if waits:
            self.worker.activate(self.operator.index)
        return not waits

    def left(self, bins: Mask) -> None:
        """Forget bins whose state has been taken away, in memory and on disk."""
        self._to[bins] = 0
        self._note()
        for part in self.parts.values():
            part.bins &= ~bins

    # Inside

    def _after_step(self) -> None:
        if self.worker.migration is not None:
            self.worker.migration.wake()
        self._measure()
        if any(self.operator.inputs):
            return
        budget = self._budget
        if budget.exceeded_by() > 0:
            largest = budget.largest
            if largest is self:
                self._make_room()
            else:
                self.worker.activate(largest.operator.index)
        if sum(gate.nbytes for gate in self._gates) > budget.held // 2:
            self._deal()
            self._write_held()
        part = self._next()
        if part is not None:
            self._deal()
            self._make_room(part.memory)
            self._bring_back(part)
            self.brought_back += 1
            self.worker.activate(self.operator.index)

    def _next(self) -> Part | None:
        """The part that has to come back now, if one has."""
        if not self.parts:
            return None
        frontiers = self._frontiers()
        parts = self.parts.values()
        for part in parts:
            if self._is_due(part, frontiers):
                return part
        if not self.held:
            self._is_idle = False
            return None
        idle, self._is_idle = self._is_idle, False
        wanted = self._wanted
        if idle or wanted is not None:
            self._deal()
        held = [part for part in parts if part.held]
        if wanted is not None:
            leaving = [part for part in held if (part.bins & wanted).any()]
            if leaving:
                return leaving[0]
            self._wanted = None
        if held and idle:
            return min(held, key=lambda part: part.bound)
        for part in held:
            if part.held >= _WORTH * part.rows and part.held * PARTS >= self._row_share():
                return part
        if held:
            oldest = min(held, key=lambda part: part.bound)
            if self.arrived >= _OLDEST * max(oldest.rows, self._row_share() // PARTS):
                self.arrived = 0
                return oldest
        return None

    def _row_share(self) -> int:
        """About how many rows of state the budget has room for, by what is on disk."""
        rows = sum(part.rows for part in self.parts.values())
        memory = sum(part.memory for part in self.parts.values())
        return self._budget.state * rows // max(memory, 1)

    def _is_due(self, part: Part, frontiers: Sequence[tuple[Time, ...]]) -> bool:
        if not part.tokens or part.seen == frontiers:
            return False
        least = min(int(token.time) for token in part.tokens.values())
        return all(time >= least for frontier in frontiers for time in frontier)

    def _frontiers(self) -> list[tuple[Time, ...]]:
        return [tuple(port.frontier) for port in self.operator.inputs]

    def _measure(self) -> None:
        self.memory = sum(
            kept.state.memory_bytes()
            for _, kept in self._kept()
            if isinstance(kept.state, Spillable)
        )

    def _make_room(self, more: int = 0) -> None:
        """Have bins go to disk until state is within its share, if ``more`` bytes come."""
        budget = self._budget
        while self.memory and budget.exceeded_by(more) > 0 and self._spill():
            pass

    def _spill(self) -> bool:
        """Write about as many bins to disk as a part should have; whether there were any."""
        here = self.worker.placement.owners == self.worker.index
        candidates = [bin for bin in self._order if here[bin] and not self._to[bin]]
        if not candidates:
            return False
        count = max(1, len(candidates) * self._budget.part // max(self.memory, 1))
        chosen = np.zeros(self.worker.bins, dtype=bool)
        chosen[candidates[:count]] = True
        part = Part(self._number(), chosen, 0, self._no_records(), seen=self._frontiers())
        before = self.memory
        for name, kept in self._kept():
            container = kept.state
            assert isinstance(container, Spillable)
            rows = container.take_bins(chosen)
            self._put(part, name, kept, rows)
            least = container.due(rows)
            if least is not None:
                for output in kept.rights[:1]:
                    self._hold(part, output, grant(self.operator.books[output], least))
        self._measure()
        part.memory = max(before - self.memory, 0)
        if count == 1 and part.memory > self._budget.state:
            raise BudgetExceeded(
                f"the state of one bin takes about {in_bytes(part.memory)}, more than the memory "
                f"budget of {in_bytes(self._budget.size)} allows: raise memory_budget=, or have "
                f"more bins, Flow(…, bins={min(2 * self.worker.bins, 65536)}), if it has many keys"
            )
        self._add(part)
        return True

    def _put(self, part: Part, name: str, kept: TaggedState, rows: pa.Table) -> None:
        table = part.tables[name] = SpilledTable(rows)
        kept.spilled.append(table)

    def _hold(self, part: Part, output: int, token: TimestampToken) -> None:
        """Keep the lesser of two tokens for a part."""
        other = part.tokens.get(output)
        if other is not None and other.time <= token.time:
            token.drop()
            return
        if other is not None:
            other.drop()
        part.tokens[output] = token

    def _number(self) -> int:
        return next(n for n in range(1, len(self.parts) + 2) if n not in self.parts)

    def _no_records(self) -> list[Waiting]:
        return [Waiting() for _ in self.operator.inputs]

    def _add(self, part: Part) -> None:
        self.parts[part.number] = part
        self._to[part.bins] = part.number
        self._note()

    def _note(self) -> None:
        self.is_away = (self._to > 0).astype(np.uint16)

    def _bring_back(self, part: Part) -> None:
        """Put state back into the containers, and let the records pass that waited for it."""
        del self.parts[part.number]
        self._to[self._to == part.number] = 0
        self._note()
        back = np.flatnonzero(part.bins).tolist()
        came = set(back)
        self._order = deque(bin for bin in self._order if bin not in came)
        self._order.extend(back)
        for name, kept in self._kept():
            table = part.tables.pop(name, None)
            if table is None:
                continue  # restored as a whole, since it cannot be on disk
            kept.spilled.remove(table)
            rows = table.read()
            if rows.num_rows:
                tokens = [part.tokens[output] for output in kept.rights if output in part.tokens]
                kept.state.restore(rows, tokens)
        for token in part.tokens.values():
            token.drop()
        self._measure()
        for gate, waiting in zip(self._gates, part.waiting, strict=False):
            gate.let_pass(waiting)

    def _deal(self) -> None:
        for index, gate in enumerate(self._gates):
            if gate.rows:
                gate.deal(index, self.parts, self._to)

    def _write_held(self) -> None:
        """Write the records to disk that are held in memory, if they take too much of it."""
        for index in range(len(self._gates)):
            held = [part.waiting[index] for part in self.parts.values()]
            in_memory = [
                (waiting, [rows for rows in waiting.rows if rows.in_memory]) for waiting in held
            ]
            size = sum(rows.table.nbytes for _, some in in_memory for rows in some)
            if size <= self._budget.held // 2:
                continue
            for waiting, some in in_memory:
                waiting.rows = waiting.rows[: len(waiting.rows) - len(some)]
            shapes: list[tuple[Any, list[tuple[Waiting, HeldRows]]]] = []
            for waiting, some in in_memory:
                for _, same in groupby(some, lambda rows: rows.shape):
                    rows = HeldRows.joined(list(same))
                    if not shapes or shapes[-1][0] != rows.shape:
                        shapes.append((rows.shape, []))
                    shapes[-1][1].append((waiting, rows))
            for _, pairs in shapes:
                whole = HeldRows.joined([rows for _, rows in pairs], to_disk=True)
                pieces = whole.slices([rows.table.num_rows for _, rows in pairs])
                for (waiting, _), piece in zip(pairs, pieces, strict=True):
                    waiting.rows.append(piece)


def may_spill(plan: OperatorPlan) -> bool:
    """Whether records come to an operator in such a way that its state can wait on disk."""
    return (
        plan.kind.total
        and bool(plan.inputs)
        and all(
            isinstance(port.pact, Exchange) and port.pact.by_bins and not port.observes
            for port in plan.inputs
        )
    )


def _is_spillable(kept: TaggedState) -> bool:
    return isinstance(kept.state, Spillable)
