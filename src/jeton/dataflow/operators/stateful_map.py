"""stateful_map: a state for each key, moved on record by record by a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import column as cols
from jeton.columns import time_columns
from jeton.columns.batch import Batch
from jeton.columns.column import Column
from jeton.columns.durations import is_number
from jeton.columns.ordering import order_by
from jeton.columns.schema import SchemaLike, as_schema
from jeton.columns.time_units import INTEGER, is_timestamp, one_time, time_text
from jeton.core.errors import BatchError, SnapshotError, TimeError
from jeton.core.times import Time, TimeKind
from jeton.core.tokens import TimestampToken
from jeton.dataflow.operators.map_rows import rows_of
from jeton.dataflow.operators.unary import add_unary
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.aggregates import maker
from jeton.state.changes import Cut, Guard
from jeton.state.groups import Groups
from jeton.state.python_values import StateCodec, brought_back, stored
from jeton.state.record_queue import RecordQueue
from jeton.state.shapes import shape_of
from jeton.state.slot_pool import Slots
from jeton.state.snapshot import BIN, for_everyone

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

Transition: TypeAlias = Callable[[Any, dict[str, Any]], "tuple[Any, Sequence[dict[str, Any]]]"]


def add_stateful_map(
    keyed: KeyedStream,
    function: Callable[..., Any],
    initial: Any,
    *,
    schema: SchemaLike | None,
    codec: StateCodec,
    name: str,
) -> Stream:
    """Add the operator of `KeyedStream.stateful_map`."""
    key = keyed.key
    known = schema_with_key(keyed, schema)

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        states = PlainStates(key, function, initial, info, known, codec)
        waiting = states.waiting
        info.keep(waiting, token, name="waiting", shape=shape_of("records", key), lazy=True)
        info.keep(states, shape=shape_of("states", key), lazy=True)
        states.reached.keep()
        token.drop()

        def step(input: Input, output: Output) -> None:
            for ref, batch in input:
                waiting.push(ref, batch)
            for time, batch in waiting.pop(input.frontier):
                answers = states.follow(batch.named(output.time_name))
                if answers is not None:
                    output.session(waiting.right_for(time)).give(answers)
            waiting.settle()

        return step

    return add_unary(keyed.stream, build, name=name, notify="held", pact=keyed.pact, schema=known)


def schema_with_key(keyed: KeyedStream, declared: SchemaLike | None) -> pa.Schema | None:
    """The columns of the rows, if they are declared: the key's before the others."""
    if declared is None:
        return None
    time_name, known = keyed.stream.time_name, keyed.stream.schema
    types = {
        name: pa.null() if known is None else known.field(name).type
        for name in keyed.key
        if name != time_name
    }
    types |= {field.name: field.type for field in as_schema(declared, time_name)}
    return pa.schema(types)


TOUCHED: Final = "touched"
TIMERS: Final = ("timers", "processing")
"""Columns of a snapshot that only operators with a time-to-live, or with timers, have."""


def count_timers(state: pa.Table) -> pa.ChunkedArray:
    """The number of timers of each key in a snapshot."""
    found = [pc.list_value_length(state.column(name)) for name in TIMERS]
    return pc.add(*found)


def require_answer(function: Callable[..., Any], answer: Any) -> None:
    """Refuse what a function has returned if that is not a state and rows."""
    pair = isinstance(answer, tuple) and len(answer) == 2
    if pair and isinstance(answer[1], list | tuple):
        return
    name, hint = getattr(function, "__name__", "the function"), ""
    if pair and answer[1] is None:
        hint = ": without rows, return an empty list"
    elif pair and isinstance(answer[1], dict):
        hint = ": put the row into a list"
    raise BatchError(f"{name} must return (state, list of rows), not {answer!r}{hint}")


class Reached:
    """The time up to which the records of an operator have come, the same on all workers.

    Workers of a flow at rest have the same frontier, also those that were not notified of it.
    """

    def __init__(self, info: OperatorInfo, keys: Sized, waiting: RecordQueue) -> None:
        self._info = info
        self._keys = keys
        self._waiting = waiting
        self.time: int | None = None
        """The time in the snapshot that the flow goes on from."""
        self.last: int | None = None
        """The greatest time of the records that waited there."""
        self._was_divided = False
        """Whether keys have been taken out, which are elsewhere now."""

    def keep(self) -> None:
        """Make it a part of snapshots."""
        if self._info.kind.total:
            self._info.keep(self, name="reached", lazy=True)

    def snapshot(self) -> pa.Table:
        """The times, if there are keys or records for which they matter."""
        now, least = self._info.inputs[0].frontier.only, self._info.kind.minimum
        known = [time for time in (now, self.time) if time is not None and time != least]
        last = max(self._waiting.times, default=None)
        rows = 1 if len(self._keys) or last is not None or self._was_divided else 0
        columns = {
            BIN: np.zeros(rows, np.uint16),
            "time": pa.array([max(known, default=None)] * rows, pa.int64()),
            "last": pa.array([last] * rows, pa.int64()),
        }
        return for_everyone(pa.table(columns))

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The greatest times that any worker had."""
        if not state.num_rows:
            return
        self.time = pc.max(state.column("time")).as_py()
        self.last = pc.max(state.column("last")).as_py()

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """Nothing: times are not of bins, and stay."""
        self._was_divided = True
        return pa.table({BIN: np.array([], np.uint16)})

    def memory_bytes(self) -> int:
        """Next to nothing."""
        return 0

    def due(self, state: pa.Table) -> None:
        """No token is needed."""


class States:
    """The state of each key, as Python values."""

    _fires = False
    """Whether it has timers."""

    def __init__(
        self,
        key: Sequence[str],
        function: Callable[..., Any],
        initial: Any,
        info: OperatorInfo,
        schema: pa.Schema | None,
        codec: StateCodec,
    ) -> None:
        self._codec = codec
        self._groups = Groups(key, {})
        self._function = function
        self._initial = maker(initial)
        self._kind = info.kind
        self._schema = schema
        self.waiting = RecordQueue(info.kind, key)
        self.reached = Reached(info, self, self.waiting)
        self._states: list[Any] = []
        """By slot; ``None`` for keys that are not known (any more)."""

    def follow(self, batch: Batch) -> Batch | None:
        """Move states on by complete records; returns the rows to send."""
        batch = batch.take(order_by(batch))
        slots = self._slots(self._groups.find(batch)[0])
        self._groups.changes.touch(slots)
        states, function, initial = self._states, self._function, self._initial
        answers = Answers(self._kind, batch.time_name, batch.unit, self._schema)
        for row, (slot, record) in enumerate(zip(slots.tolist(), rows_of(batch), strict=True)):
            state = states[slot]
            moved: Any = function(initial() if state is None else state, record)
            if type(moved) is not tuple or len(moved) != 2 or type(moved[1]) is not list:
                require_answer(function, moved)
            states[slot], rows = moved
            if rows:
                answers.add(row, time_columns.one(batch.times, row), rows)
        self._groups.remove(np.unique([s for s in slots.tolist() if states[s] is None]).astype(int))
        key = [name for name in self._groups.key if name != batch.time_name]
        return answers.batch(lambda of: {name: cols.take(batch.column(name), of) for name in key})

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._groups)

    def _slots(self, slots: np.ndarray) -> np.ndarray:
        if len(slots):
            self._states.extend([None] * (int(slots.max()) + 1 - len(self._states)))
        return slots

    def snapshot(self) -> pa.Table:
        """All keys with their states."""
        return self._table(self._groups.live())

    def cut(self, after: str | None, guard: Guard) -> Cut:
        """The keys whose function was called, or that were forgotten.

        They are read at once, since the user's functions change states where they are.
        """
        return self._groups.changes.cut(after, guard, self._table).read_now()

    def restored(self, token: str, ids: Slots | None) -> None:
        """Go on from a stored state."""
        self._groups.changes.restored(token, ids)

    def _table(self, slots: Slots) -> pa.Table:
        states = stored((self._states[slot] for slot in slots.tolist()), codec=self._codec)
        return self._groups.save(slots).append_column("state", states)

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The states again."""
        if state.num_rows:
            self._load(state)

    def _load(self, state: pa.Table) -> list[int]:
        """The states again, and their slots."""
        waiting = TIMERS[0] in state.column_names and not self._fires
        if waiting and pc.any(pc.greater(count_timers(state), 0)).as_py():
            raise SnapshotError(
                "the snapshot has timers of stateful_map, which has no on_timer= now: give it one "
                "again, or let the state go (snapshot.without(…) in process)"
            )
        extra = [name for name in ("state", TOUCHED, *TIMERS) if name in state.column_names]
        slots = self._slots(self._groups.load(state.drop_columns(extra))).tolist()
        states = brought_back(state.column("state"), codec=self._codec)
        for slot, value in zip(slots, states, strict=True):
            self._states[slot] = value
        found: list[int] = slots
        return found


class PlainStates(States):
    """The same without timers: the states of some bins can be taken out."""

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The states of some bins, which are forgotten."""
        slots = self._groups.in_bins(chosen)
        table = self._table(slots)
        self._groups.remove(slots)
        for slot in slots.tolist():
            self._states[slot] = None
        return table

    def memory_bytes(self) -> int:
        """About how many bytes of memory all states take."""
        return self._groups.memory(self._table)

    def due(self, state: pa.Table) -> None:
        """No token is needed for states: there is an answer whenever records come."""

    def stay_compact(self) -> None:
        """Take no more memory than the keys need that are there."""
        self._groups.stay_compact()


class Answers:
    """Rows that the user's functions returned, to become a batch."""

    def __init__(
        self, kind: TimeKind, time_name: str, unit: str | None, schema: pa.Schema | None
    ) -> None:
        self._kind = kind
        self._schema = schema
        self._time_name = time_name
        self._unit = unit
        self._of: list[int] = []
        self._times: list[Time] = []
        self._rows: list[dict[str, Any]] = []

    def add(
        self, of: int, time: Time, rows: Sequence[dict[str, Any]], cause: str = "record"
    ) -> None:
        """Add the rows that a record or a timer led to; ``of`` is a number that has its key."""
        for answer in rows:
            if not isinstance(answer, dict):
                raise BatchError(f"stateful_map sends rows, as dictionaries, not {answer!r}")
            at = answer.get(self._time_name, time)
            if at is not time:
                at = self._checked(at, time, cause)
            self._of.append(of)
            self._times.append(at)
            self._rows.append(answer)

    def batch(self, keys: Callable[[npt.NDArray[np.intp]], dict[str, Column]]) -> Batch | None:
        """All rows together; where one lacks a column it has a null there.

        ``keys`` returns the key columns of the numbers that rows were added with.
        """
        if not self._rows:
            return None
        rows, time_name = self._rows, self._time_name
        if self._schema is None:
            names = list(dict.fromkeys(name for row in rows for name in row))
        else:
            names = self._schema.names
            known = {*names, time_name}
            for row in rows:
                if not row.keys() <= known:
                    unknown = sorted(map(str, row.keys() - known))
                    raise BatchError(f"stateful_map has columns {unknown} that schema= lacks")
        columns = keys(np.array(self._of, dtype=np.intp))
        for name in names:
            if name == time_name:
                continue
            if name in columns:  # a key column, where an answer may name another key
                own = cols.to_arrow(columns[name])
                if self._has_type(name, own.type) and not any(name in row for row in rows):
                    continue
                found = [
                    row.get(name, mine) for row, mine in zip(rows, own.to_pylist(), strict=True)
                ]
            else:
                found = [row.get(name) for row in rows]
            columns[name] = self._column(name, found)
        return Batch(columns, self._times, time_name=time_name, kind=self._kind)

    def _has_type(self, name: str, kind: pa.DataType) -> bool:
        """Whether that is the type of a column, or any would do."""
        return self._schema is None or self._schema.field(name).type in (kind, pa.null())

    def _column(self, name: str, values: list[Any]) -> Column:
        if self._has_type(name, pa.null()):
            return cols.as_column(values)
        assert self._schema is not None
        kind = self._schema.field(name).type
        try:
            return cols.from_arrow(pa.array(values, kind))
        except (pa.ArrowException, TypeError, OverflowError, ValueError) as error:
            raise BatchError(
                f"stateful_map has values for {name!r} that are not {kind}, as schema= says: "
                f"{error}"
            ) from error

    def _checked(self, at: Any, time: Time, cause: str) -> Time:
        """The time that a row names, which must not be before its cause."""
        if self._kind.integers and not is_number(at) and not is_timestamp(at):
            wanted = "an integer" if self._unit in (None, INTEGER) else "a timestamp"
            raise TimeError(
                f"stateful_map cannot send a row at {at!r}, which is not {wanted}: leave out "
                f"{self._time_name!r}, or name a time as rows have it"
            )
        at = self._kind.check(one_time(at, self._unit, "the time of a row"))
        if not time <= at:
            unit = self._unit if self._kind.integers else None
            raise TimeError(
                f"stateful_map cannot send a row at {time_text(at, unit)}, before its {cause} at "
                f"{time_text(time, unit)}"
            )
        return at
