"""distinct: each key once, at the time of its first record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import time_columns
from jeton.columns.batch import Batch
from jeton.columns.time_columns import Times
from jeton.core.antichain import Antichain
from jeton.core.errors import GraphError, SnapshotError
from jeton.core.times import END_OF_TIME, Time, TimeKind
from jeton.core.token_set import TokenSet
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.column_use import group_use
from jeton.dataflow.operators.collecting import add_collecting
from jeton.dataflow.ports import Output
from jeton.state.accumulators import roomy
from jeton.state.changes import Cut, Guard
from jeton.state.due_slots import DueSlots
from jeton.state.groups import Groups
from jeton.state.shapes import shape_of
from jeton.state.slot_pool import Slots

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def add_distinct(keyed: KeyedStream) -> Stream:
    """Add the operator of `KeyedStream.distinct`."""
    if not keyed.key:
        raise GraphError("distinct needs key columns: key_by() names some")
    stream, key = keyed.stream, keyed.key
    schema = stream.schema
    if schema is not None:
        stream.require_columns(*key, operator="distinct")
        schema = pa.schema([schema.field(name) for name in key if name != stream.time_name])
    seen = Seen if stream.kind.total else SeenInLoop
    shape = shape_of("distinct", key)
    return add_collecting(
        keyed,
        lambda kind: seen(key, kind),
        name="distinct",
        shape=shape,
        schema=schema,
        use=group_use(key, {}),
    )


class Seen:
    """Keys by the least time at which each was seen, emitted once that time is complete."""

    def __init__(self, key: Sequence[str], kind: TimeKind) -> None:
        self._kind = kind
        self._groups = Groups(key, {})
        self._due = DueSlots.of(kind)
        self._tokens = TokenSet()
        self._first = np.zeros(0, dtype=np.int64)
        """The least time of each key so far, by slot."""
        self._emitted = np.zeros(0, dtype=bool)

    def add(self, right: TokenRef | TimestampToken, batch: Batch) -> None:
        """Let keys wait for their times."""
        if len(batch) == 0:
            return
        slots, new = self._groups.find(batch)
        rows = self._worth(slots, new, batch.times)
        if len(rows):
            times = batch.times[rows]
            self._due.add(times, slots[rows])
            self._hold(right, times)

    def emit(self, frontier: Antichain, output: Output) -> None:
        """Send the keys whose first time is complete."""
        times, slots = self._due.due(frontier, inclusive=False)
        if len(slots) == 0:
            return
        rows = self._firsts(times, slots)
        if len(rows):
            self._send(times[rows], slots[rows], output)
        self._tokens.settle(self._due.pending())

    def _hold(self, right: TokenRef | TimestampToken, times: Times) -> None:
        self._tokens.hold(right, int(times.min()))

    def _worth(self, slots: Slots, new: Slots, times: Times) -> npt.NDArray[np.intp]:
        """The records that may be the first of their keys."""
        size = int(slots.max()) + 1
        self._first, self._emitted = roomy(self._first, size), roomy(self._emitted, size)
        # New keys start behind all times, so that whatever comes is before.
        self._first[slots[new]] = END_OF_TIME
        maybe = ~self._emitted[slots] & (times < self._first[slots])
        maybe[new] = True
        rows = np.flatnonzero(maybe)
        self._groups.changes.touch(slots[rows])
        np.minimum.at(self._first, slots[rows], times[rows])
        least: npt.NDArray[np.intp] = rows[times[rows] == self._first[slots[rows]]]
        return least

    def _firsts(self, times: Times, slots: Slots) -> npt.NDArray[np.intp]:
        """Those among complete records, in order of time, that are the first of their keys."""
        _, rows = np.unique(slots, return_index=True)
        rows = np.sort(rows[~self._emitted[slots[rows]]])
        self._groups.changes.touch(slots[rows])
        self._emitted[slots[rows]] = True
        return rows

    def _send(self, times: Times, slots: Slots, output: Output) -> None:
        batch = self._batch(times, slots, output.time_name)
        output.session(self._tokens.token_for(int(times[0]))).give(batch)

    def _batch(self, times: Times, slots: Slots, time_name: str) -> Batch:
        columns = self._groups.columns(slots)
        columns.pop(time_name, None)
        return Batch.trusted(columns, times, time_name)

    def snapshot(self) -> pa.Table:
        """All keys ever seen, with their first times so far and whether they are emitted."""
        return self._table(self._groups.live())

    def cut(self, after: str | None, guard: Guard) -> Cut:
        """The keys that are new, seen earlier than before, or emitted."""
        return self._groups.changed(after, guard, self._table)

    def restored(self, token: str, ids: Slots | None) -> None:
        """Go on from a stored state."""
        self._groups.changes.restored(token, ids)

    def _table(self, slots: Slots) -> pa.Table:
        table = self._groups.save(slots)
        if len(slots) == 0:
            return table
        table = table.append_column("first", pa.array(self._first[slots]))
        return table.append_column("emitted", pa.array(self._emitted[slots]))

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The keys of some bins, which are forgotten."""
        if not self._kind.total:
            raise SnapshotError("keys inside a loop move as a whole")
        slots = self._groups.in_bins(chosen)
        table = self._table(slots)
        self._due.remove(slots)
        self._groups.remove(slots)
        self._emitted[slots] = False
        self._tokens.settle(self._due.pending())
        return table

    def memory_bytes(self) -> int:
        """About how many bytes of memory all keys take."""
        return self._groups.memory(self._table)

    def due(self, state: pa.Table) -> int | None:
        """The first time of a key that is not emitted yet."""
        if not state.num_rows:
            return None
        first = state.column("first").filter(pc.invert(state.column("emitted")))
        least: int | None = pc.min(first).as_py()
        return least

    def stay_compact(self) -> None:
        """Take no more memory than the keys need that are there."""
        self._groups.stay_compact()

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The keys again."""
        if state.num_rows == 0:
            return
        slots = self._groups.load(state.drop_columns(["first", "emitted"]))
        first, emitted = (state.column(name).to_numpy() for name in ("first", "emitted"))
        size = int(slots.max()) + 1
        self._first, self._emitted = roomy(self._first, size), roomy(self._emitted, size)
        self._first[slots], self._emitted[slots] = first, emitted
        if not emitted.all():
            self._due.add(first[~emitted], slots[~emitted])
            self._hold(tokens[0], first[~emitted])


class SeenInLoop(Seen):
    """The same with partially ordered times, of which a key may have several least ones."""

    def __init__(self, key: Sequence[str], kind: TimeKind) -> None:
        super().__init__(key, kind)
        self._latest: Times = time_columns.as_times(kind, [])
        """The time at which each key was last emitted, by slot."""
        self._times: dict[int, list[Time]] = {}
        """All such times of the slots that have more than one."""

    def _hold(self, right: TokenRef | TimestampToken, times: Times) -> None:
        for time, _ in time_columns.groups(times):
            self._tokens.hold(right, time)

    def _worth(self, slots: Slots, new: Slots, times: Times) -> npt.NDArray[np.intp]:
        self._grow(int(slots.max()) + 1)
        return np.flatnonzero(~self._covered(slots, times))

    def _firsts(self, times: Times, slots: Slots) -> npt.NDArray[np.intp]:
        found = []
        # In order, so that what should cover a time is emitted before it.
        for time, among in time_columns.groups(times):
            rows = np.arange(len(times))[among]
            rows = rows[np.unique(slots[rows], return_index=True)[1]]
            rows = rows[~self._covered(slots[rows], times[rows])]
            self._note(slots[rows], time)
            found.append(rows)
        return np.concatenate(found)

    def _covered(self, slots: Slots, times: Times) -> npt.NDArray[np.bool_]:
        """Which keys were emitted at these times or before."""
        emitted: npt.NDArray[np.bool_] = self._emitted[slots]
        if times.ndim == 2:
            covered = emitted & (self._latest[slots] <= times).all(axis=1)
        else:
            covered = np.zeros(len(slots), dtype=bool)
            for row in np.flatnonzero(emitted).tolist():
                covered[row] = self._latest[slots[row]] <= times[row]
        if self._times:
            for row in np.flatnonzero(emitted & ~covered).tolist():
                others = self._times.get(int(slots[row]), ())
                covered[row] = any(other <= time_columns.one(times, row) for other in others)
        return covered

    def _note(self, slots: Slots, time: Time) -> None:
        """Remember that keys are emitted at a time."""
        self._groups.changes.touch(slots)
        for slot in slots[self._emitted[slots]].tolist():
            before = time_columns.one(self._latest, slot)
            self._times.setdefault(slot, [before]).append(time)
        self._emitted[slots] = True
        self._latest[slots] = time_columns.constant(self._kind, time, len(slots))

    def _grow(self, size: int) -> None:
        if size > len(self._emitted):
            self._emitted = roomy(self._emitted, size)
            more = len(self._emitted) - len(self._latest)
            blank = time_columns.constant(self._kind, self._kind.minimum, more)
            self._latest = np.concatenate([self._latest, blank])

    def _send(self, times: Times, slots: Slots, output: Output) -> None:
        for time, batch in self._batch(times, slots, output.time_name).by_time():
            output.session(self._tokens.token_for(time)).give(batch)

    def snapshot(self) -> pa.Table:
        """All keys that were emitted, with all times at which they were."""
        self._require_rest()
        return self._table(self._groups.live())

    def cut(self, after: str | None, guard: Guard) -> Cut:
        """The keys that were emitted."""
        self._require_rest()
        return self._groups.changed(after, guard, self._table)

    def _require_rest(self) -> None:
        if any(True for _ in self._due.pending()):
            raise SnapshotError("keys inside a loop wait: a snapshot needs loops at rest")
        if len(self._groups) and self._latest.ndim != 2:
            raise SnapshotError("snapshots need integer times")

    def _table(self, slots: Slots) -> pa.Table:
        table = self._groups.save(slots)
        if len(slots) == 0:
            return table
        times = [
            self._times.get(slot) or [time_columns.one(self._latest, slot)]
            for slot in slots.tolist()
        ]
        return table.append_column("times", pa.array([[list(t) for t in some] for some in times]))

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The keys again."""
        if state.num_rows == 0:
            return
        slots = self._groups.load(state.drop_columns(["times"]))
        self._grow(int(slots.max()) + 1)
        for slot, times in zip(slots, state.column("times").to_pylist(), strict=True):
            for time in times:
                self._note(np.array([slot]), self._kind.check(tuple(time)))
