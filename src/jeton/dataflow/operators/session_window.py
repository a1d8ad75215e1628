"""session_window: windows that last as long as a key's records follow each other closely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import compiled as nb
from jeton.columns.batch import Batch
from jeton.columns.column import as_column
from jeton.columns.durations import Length
from jeton.columns.time_arithmetic import MOST, Integers, later, past_the_end
from jeton.columns.time_units import column_lengths
from jeton.core.antichain import Antichain
from jeton.core.errors import GraphError, TimeError
from jeton.core.times import TimeKind
from jeton.core.token_set import TokenSet
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.column_use import group_use
from jeton.dataflow.operators.collecting import add_collecting
from jeton.dataflow.operators.stateless import require_type
from jeton.dataflow.ports import Output
from jeton.state.aggregates import Aggregate
from jeton.state.changes import Cut, Guard
from jeton.state.due_slots import DueSlots
from jeton.state.groups import Groups
from jeton.state.session_chains import Nodes, SessionChains
from jeton.state.shapes import shape_of
from jeton.state.slot_pool import grown

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

START = "start"
"""The column of results with the time of a session's first record."""


def checked_gap(keyed: KeyedStream, gap: Length | None, column: str | None) -> int | str:
    """The gap between sessions or the column that has it, if sessions can be made by it."""
    if not keyed.stream.kind.total:
        raise GraphError("sessions need integer times: inside a loop, use each_time()")
    if (gap is None) == (column is None):
        raise GraphError("session_window() takes a gap, or the column that has it as gap_column=…")
    if START in keyed.key:
        raise GraphError(f"sessions add a column {START!r}: rename the key column of that name")
    if keyed.stream.time_name == START:
        raise GraphError(
            f"sessions add a column {START!r}: give the time column of the input another name"
        )
    if column is not None:
        require_type(keyed.stream, column, _is_gap, "integers or durations", "session_window")
        return column
    length = keyed.stream.flow.domain.length(gap, "session_window({})", "gap")
    if not 1 <= length <= MOST:
        raise GraphError(f"the gap between sessions is greater than zero, not {gap!r}")
    return length


def add_session_window(
    keyed: KeyedStream,
    gap: int | str,
    aggregates: Mapping[str, Aggregate],
    *,
    name: str,
    results: pa.Schema | None,
) -> Stream:
    """Add the operator of `KeyedStream.session_window`; ``results`` has keys and aggregates."""
    key = keyed.key
    if START in aggregates:
        raise GraphError(f"sessions add a column {START!r}: give the aggregate another name")
    for label, aggregate in aggregates.items():
        if not aggregate.merges:
            raise GraphError(
                f"{label!r} cannot be computed for sessions, since two of them may turn out to be "
                "one: give fold() a merge function"
            )
    times = keyed.stream.flow.domain.type
    schema = None if results is None else results.insert(len(key), pa.field(START, times))
    return add_collecting(
        keyed,
        lambda kind: OpenSessions(key, aggregates, kind, gap),
        name=name,
        shape=shape_of(
            f"session by {gap}" if isinstance(gap, str) else f"session {gap}", key, aggregates
        ),
        schema=schema,
        use=group_use(key, aggregates, *([gap] if isinstance(gap, str) else [])),
    )


class OpenSessions:
    """The sessions that may still grow, and the least token to send them.

    A session is a group known by its key and its node in the key's chain. Its node waits
    in `DueSlots` for its end or an earlier time: one that comes due too early is put off.

    If a column has the gap, a record stands for all times up to the last one that is less than its
    gap away, and sessions are those of such stretches that leave no time between them.
    """

    def __init__(
        self,
        key: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        kind: TimeKind,
        gap: int | str,
    ) -> None:
        self._column = gap if isinstance(gap, str) else None
        self._gap = 1 if isinstance(gap, str) else gap
        self._keys = Groups(key, {})
        self._groups = Groups(key, aggregates, timed=True)
        self._chains = SessionChains(self._gap)
        self._slots = np.zeros(0, dtype=np.int64)
        """The group of each node; -1 for those not in use."""
        self._due = DueSlots.of(kind)
        self._tokens = TokenSet()

    def add(self, right: TokenRef | TimestampToken, batch: Batch) -> None:
        """Fold records into their sessions, opening, prolonging and joining them."""
        if len(batch) == 0:
            return
        # Refused before anything has changed: each would end a session past the end of time.
        covered = batch.times if self._column is None else _covered(batch, self._column)
        later(covered, self._gap, "its session")
        keys, _ = self._keys.find(batch)
        order = np.lexsort((batch.times, keys))
        keys, times = keys[order], batch.times[order]
        if self._column is None:
            first = np.ones(len(order), dtype=bool)
            apart = np.diff(times.view(np.uint64)) >= np.uint64(self._gap)
            first[1:] = (keys[1:] != keys[:-1]) | apart
            starts = np.flatnonzero(first)
            lasts = times[np.append(starts[1:], len(order)) - 1]
        else:
            covered = covered[order]
            first = _opens(keys, times, covered)
            starts = np.flatnonzero(first)
            lasts = np.maximum.reduceat(covered, starts)
        stretch = np.cumsum(first) - 1
        if self._groups.changes.is_open:
            # Sessions that records may prolong, before they do.
            self._groups.changes.touch(self._slots[self._chains.of(np.unique(keys))])
        nodes, new, kept, gone = self._chains.insert(keys[starts], times[starts], lasts)
        joined = self._slots[kept], self._slots[gone]
        self._slots[gone] = -1
        self._open(right, nodes[new], batch.take(order[starts[new]]))
        slots = np.empty(len(order), dtype=np.int64)
        slots[order] = self._slots[nodes][stretch]
        self._groups.add(slots, batch)
        if len(gone):
            self._groups.merge(*joined)
            self._groups.remove(joined[1])

    def emit(self, frontier: Antichain, output: Output) -> None:
        """Send the results of all sessions that nothing can prolong any more."""
        _, found = self._due.due(frontier, inclusive=True)
        if len(found) == 0:
            return
        nodes = np.unique(found)
        nodes = nodes[self._slots[nodes] >= 0]
        ends = self._ends(nodes)
        limit = frontier.only
        if limit is not None:
            over = ends <= limit
            self._due.add(ends[~over], nodes[~over])
            ends, nodes = ends[over], nodes[over]
        if len(nodes):
            order = np.argsort(ends, kind="stable")
            self._emit(ends[order], nodes[order], output)
        self._tokens.settle(self._due.pending())

    def _emit(self, ends: Nodes, nodes: Nodes, output: Output) -> None:
        slots = self._slots[nodes]
        results = self._groups.columns(slots, ends)
        key = {name: results.pop(name) for name in self._groups.key}
        columns = {**key, START: output.stamped(self._chains.starts(nodes)), **results}
        right = self._tokens.token_for(int(ends[0]))
        output.session(right).give(Batch.trusted(columns, ends, output.time_name))
        self._groups.remove(slots)
        self._slots[nodes] = -1
        self._keys.remove(self._chains.remove(nodes))

    def _open(self, right: TokenRef | TimestampToken, nodes: Nodes, firsts: Batch) -> None:
        """Make groups for new sessions; ``firsts`` has a record of each."""
        if len(nodes):
            self._number(nodes, self._groups.find(firsts, nodes.view(np.uint64))[0])
            ends = self._ends(nodes)
            self._tokens.hold(right, int(ends.min()))
            self._due.add(ends, nodes)

    def _number(self, nodes: Nodes, slots: npt.NDArray[np.int64]) -> None:
        if len(self._slots) < self._chains.size:
            known = len(self._slots)
            self._slots = grown(self._slots, self._chains.size)
            self._slots[known:] = -1
        self._slots[nodes] = slots

    def _ends(self, nodes: Nodes) -> Nodes:
        return self._later(self._chains.lasts(nodes))

    def _later(self, lasts: Nodes) -> Nodes:
        return later(lasts, self._gap, "its session")

    def snapshot(self) -> pa.Table:
        """All open sessions: their first and last times, keys and accumulated values."""
        return self._table(self._groups.live())

    def cut(self, after: str | None, guard: Guard) -> Cut:
        """The sessions that were opened, prolonged, joined or emitted."""
        return self._groups.changed(after, guard, self._table)

    def restored(self, token: str, ids: npt.NDArray[np.int64] | None) -> None:
        """Go on from a stored state."""
        self._groups.changes.restored(token, ids)

    def _table(self, slots: npt.NDArray[np.int64]) -> pa.Table:
        nodes = self._groups.times(slots).view(np.int64)
        return (
            self._groups.save(slots)
            .append_column("first", pa.array(self._chains.starts(nodes)))
            .append_column("last", pa.array(self._chains.lasts(nodes)))
        )

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The open sessions of some bins, which are forgotten."""
        slots = self._groups.in_bins(chosen)
        table = self._table(slots)
        nodes = self._groups.times(slots).view(np.int64)
        self._due.remove(nodes)
        self._groups.remove(slots)
        self._slots[nodes] = -1
        self._keys.remove(self._chains.remove(nodes))
        self._tokens.settle(self._due.pending())
        return table

    def memory_bytes(self) -> int:
        """About how many bytes of memory all open sessions take."""
        return self._groups.memory(self._table)

    def due(self, state: pa.Table) -> int | None:
        """The first end of a session, as far as it has come."""
        if not state.num_rows:
            return None
        return int(self._later(np.array([pc.min(state.column("last")).as_py()]))[0])

    def stay_compact(self) -> None:
        """Take no more memory than the sessions need that are open."""
        self._keys.stay_compact()
        self._groups.stay_compact()

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """Open the sessions again."""
        if state.num_rows == 0:
            return
        starts, lasts = state.column("first").to_numpy(), state.column("last").to_numpy()
        columns = {name: as_column(state.column(f"key.{name}")) for name in self._groups.key}
        keys, _ = self._keys.find(Batch.trusted(columns, starts, ""))
        order = np.lexsort((starts, keys))
        nodes, *_ = self._chains.insert(keys[order], starts[order], lasts[order])
        groups = state.drop_columns(["first", "last"]).take(pa.array(order))
        slots = self._groups.load(groups, nodes.view(np.uint64))
        in_table = np.empty(len(slots), dtype=np.int64)
        in_table[order] = slots
        self._groups.changes.loaded(in_table)
        self._number(nodes, slots)
        ends = self._ends(nodes)
        self._tokens.hold(tokens[0], int(ends.min()))
        self._due.add(ends, nodes)


def _is_gap(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_duration(kind))


def _covered(batch: Batch, name: str) -> Integers:
    """The last time that each record covers: the one before its session ends."""
    gaps = column_lengths(batch.column(name), batch.unit, f"column {name!r}, the gap of sessions")
    wrong = np.flatnonzero(gaps < 1)
    if len(wrong):
        raise TimeError(
            f"column {name!r} has a gap of {gaps[wrong[0]]} for the record at "
            f"{batch.times[wrong[0]]}: sessions need gaps of at least 1, filter such records out"
        )
    late = np.flatnonzero(batch.times > MOST - gaps)
    if len(late):
        raise past_the_end(batch.times[late[0]], "its session")
    covered: Integers = batch.times + (gaps - 1)
    return covered


@nb.njit(cache=True)
def _opens(keys, times, covered):  # type: ignore[no-untyped-def]
    """Which records, in order of key and time, no earlier one of their key reaches."""
    first = np.ones(len(keys), np.bool_)
    reach = np.int64(0)
    for i in range(len(keys)):
        if i and keys[i] == keys[i - 1] and times[i] <= reach:
            first[i] = False
            reach = max(reach, covered[i])
        else:
            reach = covered[i]
    return first
