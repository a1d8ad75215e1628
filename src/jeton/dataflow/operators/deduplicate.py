"""deduplicate: the first record of each key, and the next one after some time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns import compiled as nb
from jeton.columns.batch import Batch
from jeton.columns.durations import Length
from jeton.columns.ordering import order_by
from jeton.columns.time_arithmetic import FARTHEST, distance, shifted
from jeton.core.antichain import Antichain
from jeton.core.errors import GraphError
from jeton.core.times import TimeKind
from jeton.core.tokens import TimestampToken
from jeton.dataflow.operators.unary import add_unary
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.accumulators import roomy
from jeton.state.changes import Cut, Guard
from jeton.state.due_slots import DueSlots
from jeton.state.groups import Groups
from jeton.state.record_queue import RecordQueue
from jeton.state.shapes import shape_of
from jeton.state.slot_pool import Slots

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def add_deduplicate(keyed: KeyedStream, within: Length | None) -> Stream:
    """Add the operator of `KeyedStream.deduplicate`."""
    if not keyed.key:
        raise GraphError("deduplicate needs key columns: key_by() names some")
    if not keyed.stream.kind.total:
        raise GraphError("deduplicate needs integer times: inside a loop, use distinct()")
    length = None
    if within is not None:
        length = keyed.stream.flow.domain.length(within, "deduplicate(within={})", "length")
        if length < 0:
            raise GraphError(f"records cannot be duplicates within {within!r}, a negative time")
    key, stream = keyed.key, keyed.stream
    stream.require_columns(*key, operator="deduplicate")

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        waiting = RecordQueue(info.kind, key)
        firsts = Firsts(key, length, info.kind)
        info.keep(waiting, token, name="waiting", shape=shape_of("records", key), lazy=True)
        info.keep(firsts, shape=shape_of(f"first within {length}", key), lazy=True)
        token.drop()

        def step(input: Input, output: Output) -> None:
            for ref, batch in input:
                waiting.push(ref, batch)
            for time, batch in waiting.pop(input.frontier):
                chosen = firsts.choose(batch)
                if len(chosen):
                    output.session(waiting.right_for(time)).give(chosen)
            waiting.settle()
            firsts.expire(input.frontier)

        return step

    return add_unary(
        stream, build, name="deduplicate", notify="held", pact=keyed.pact, schema=stream.schema
    )


class Firsts:
    """The time of the record of each key that was kept last, for as long as it has duplicates."""

    def __init__(self, key: Sequence[str], within: int | None, kind: TimeKind) -> None:
        self._within = FARTHEST if within is None else min(within, FARTHEST)
        self._expires = within is not None
        self._groups = Groups(key, {})
        self._kept = np.zeros(0, dtype=np.int64)
        """By slot."""
        self._due = DueSlots.of(kind)
        """The last time at which each key still has duplicates."""

    def choose(self, batch: Batch) -> Batch:
        """Those of complete records, in order of time, that are not duplicates."""
        slots, new = self._groups.find(batch)
        self._grow(slots)
        slots, times = cols.plain(slots), cols.plain(batch.times)
        opens = np.zeros(len(batch), dtype=bool)
        opens[new] = True
        changes = self._groups.changes
        if changes.is_open:
            changes.touch(slots)
        first, equal = _first(slots, times, opens, self._kept, np.uint64(self._within))
        if equal:
            # Of records of one key and time, the least by their values.
            rows = np.flatnonzero(first)
            order = rows[order_by(batch.take(rows), slots[rows])]
            one = np.ones(len(order), dtype=bool)
            one[1:] = slots[order[1:]] != slots[order[:-1]]
            one[1:] |= times[order[1:]] != times[order[:-1]]
            rows = np.sort(order[one])
        else:
            rows = np.flatnonzero(first)
        changes.touch(slots[rows])
        if self._expires and len(rows):
            self._due.add(shifted(times[rows], self._within), slots[rows])
        return batch.take(rows)

    def expire(self, frontier: Antichain) -> None:
        """Forget keys of which every record to come is a new one."""
        _, slots = self._due.due(frontier, inclusive=False)
        if len(slots) == 0:
            return
        slots = np.unique(slots)
        limit = frontier.only
        if limit is not None:
            # A key that was kept again has a later time than the one that is due.
            slots = slots[shifted(self._kept[slots], self._within) < limit]
        self._groups.remove(slots)

    def _grow(self, slots: Slots) -> None:
        self._kept = roomy(self._kept, int(slots.max()) + 1)

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._groups)

    time_columns = ("kept",)

    def snapshot(self) -> pa.Table:
        """All keys, with the times of the records that were kept."""
        return self._table(self._groups.live())

    def cut(self, after: str | None, guard: Guard) -> Cut:
        """The keys of which a record was kept, and those that were forgotten."""
        return self._groups.changed(after, guard, self._table)

    def restored(self, token: str, ids: Slots | None) -> None:
        """Go on from a stored state."""
        self._groups.changes.restored(token, ids)

    def _table(self, slots: Slots) -> pa.Table:
        return self._groups.save(slots).append_column("kept", pa.array(self._kept[slots]))

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The keys of some bins, which are forgotten."""
        slots = self._groups.in_bins(chosen)
        table = self._table(slots)
        self._due.remove(slots)
        self._groups.remove(slots)
        return table

    def memory_bytes(self) -> int:
        """About how many bytes of memory all keys take."""
        return self._groups.memory(self._table)

    def due(self, state: pa.Table) -> None:
        """No token is needed for keys: there is an answer whenever records come."""

    def stay_compact(self) -> None:
        """Take no more memory than the keys need that are there."""
        self._groups.stay_compact()

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The keys again."""
        if state.num_rows == 0:
            return
        slots = self._groups.load(state.drop_columns(["kept"])).copy()
        self._grow(slots)
        kept = cols.plain(state.column("kept").to_numpy())
        self._kept[slots] = kept
        if self._expires:
            self._due.add(shifted(kept, self._within), slots)


@nb.njit(cache=True)
def _first(
    slots: Slots,
    times: npt.NDArray[np.int64],
    opens: npt.NDArray[np.bool_],
    kept: npt.NDArray[np.int64],
    within: np.uint64,
) -> tuple[npt.NDArray[np.bool_], bool]:
    """Which records are the first of their keys, or at the same time as the first.

    Records are in order of time. Returns also whether there are several of one key and time.
    """
    first = np.zeros(len(slots), np.bool_)
    equal = False
    for i in range(len(slots)):
        slot = slots[i]
        if opens[i] or distance(times[i], kept[slot]) > within:
            first[i] = True
            kept[slot] = times[i]
        elif times[i] == kept[slot]:
            first[i] = True
            equal = True
    return first, equal
