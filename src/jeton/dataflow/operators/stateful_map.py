"""stateful_map: a state for each key, moved on record by record by a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import column as cols
from jeton.columns import time_columns
from jeton.columns.batch import Batch
from jeton.columns.column import Column
from jeton.columns.ordering import order_by
from jeton.columns.time_units import one_time
from jeton.core.errors import BatchError, SnapshotError, TimeError
from jeton.core.times import Time, TimeKind
from jeton.core.tokens import TimestampToken
from jeton.dataflow.operators.map_rows import rows_of
from jeton.dataflow.operators.unary import add_unary
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.aggregates import maker
from jeton.state.groups import Groups
from jeton.state.python_values import brought_back, stored
from jeton.state.record_queue import RecordQueue
from jeton.state.shapes import shape_of

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

Transition: TypeAlias = Callable[[Any, dict[str, Any]], "tuple[Any, Sequence[dict[str, Any]]]"]


def add_stateful_map(
    keyed: KeyedStream, function: Callable[..., Any], initial: Any, *, name: str
) -> Stream:
    """Add the operator of `KeyedStream.stateful_map`."""
    key = keyed.key

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        waiting = RecordQueue(info.kind, key)
        states = States(key, function, initial, info.kind)
        info.keep(waiting, token, name="waiting", shape=shape_of("records", key))
        info.keep(states, shape=shape_of("states", key))
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

    return add_unary(keyed.stream, build, name=name, notify="held", pact=keyed.pact)


TOUCHED: Final = "touched"
TIMERS: Final = ("timers", "processing", "reached")
"""Columns of a snapshot that only operators with a time-to-live, or with timers, have."""


def count_timers(state: pa.Table) -> pa.ChunkedArray:
    """The number of timers of each key in a snapshot."""
    found = [pc.list_value_length(state.column(name)) for name in TIMERS[:2]]
    return pc.add(*found)


def wrong_answer(function: Callable[..., Any], answer: object) -> BatchError:
    """The error for a function that does not return a state and rows."""
    name = getattr(function, "__name__", "the function")
    return BatchError(f"{name} must return (state, list of rows), not {answer!r}")


class States:
    """The state of each key, as Python values."""

    _fires = False
    """Whether it has timers."""

    def __init__(
        self, key: Sequence[str], function: Callable[..., Any], initial: Any, kind: TimeKind
    ) -> None:
        self._groups = Groups(key, {})
        self._function = function
        self._initial = maker(initial)
        self._kind = kind
        self._states: list[Any] = []
        """By slot; ``None`` for keys that are not known (any more)."""

    def follow(self, batch: Batch) -> Batch | None:
        """Move states on by complete records; returns the rows to send."""
        batch = batch.take(order_by(batch))
        slots = self._slots(self._groups.find(batch)[0])
        states, function, initial = self._states, self._function, self._initial
        answers = Answers(self._kind, batch.time_name, batch.unit)
        for row, (slot, record) in enumerate(zip(slots.tolist(), rows_of(batch), strict=True)):
            state = states[slot]
            moved: Any = function(initial() if state is None else state, record)
            if not isinstance(moved, tuple) or len(moved) != 2:
                raise wrong_answer(function, moved)
            states[slot], rows = moved
            if rows:
                answers.add(row, time_columns.one(batch.times, row), rows)
        self._groups.remove(np.unique([s for s in slots.tolist() if states[s] is None]).astype(int))
        key = [name for name in self._groups.key if name != batch.time_name]
        return answers.batch(lambda of: {name: cols.take(batch.column(name), of) for name in key})

    def _slots(self, slots: np.ndarray) -> np.ndarray:
        if len(slots):
            self._states.extend([None] * (int(slots.max()) + 1 - len(self._states)))
        return slots

    def snapshot(self) -> pa.Table:
        """All keys with their states."""
        slots = self._groups.live()
        states = stored(self._states[slot] for slot in slots.tolist())
        return self._groups.save(slots).append_column("state", states)

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The states again."""
        if state.num_rows:
            self._load(state)

    def _load(self, state: pa.Table) -> list[int]:
        """The states again, and their slots."""
        waiting = [name for name in TIMERS if name in state.column_names]
        if waiting and not self._fires and pc.any(pc.greater(count_timers(state), 0)).as_py():
            raise SnapshotError(
                "the snapshot has timers of stateful_map, which has no on_timer= now: give it one "
                "again, or let the state go (snapshot.without(…) in process)"
            )
        extra = [name for name in ("state", TOUCHED, *TIMERS) if name in state.column_names]
        slots = self._slots(self._groups.load(state.drop_columns(extra))).tolist()
        states = brought_back(state.column("state"))
        for slot, value in zip(slots, states, strict=True):
            self._states[slot] = value
        found: list[int] = slots
        return found


class Answers:
    """Rows that the user's functions returned, to become a batch."""

    def __init__(self, kind: TimeKind, time_name: str, unit: str | None) -> None:
        self._kind = kind
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
                at = self._kind.check(one_time(at, self._unit, "the time of a row"))
                if not time <= at:
                    raise TimeError(
                        f"stateful_map cannot send a row at {at}, before its {cause} at {time}"
                    )
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
        names = dict.fromkeys(name for row in rows for name in row)
        names.pop(time_name, None)
        columns = keys(np.array(self._of, dtype=np.intp))
        for name in names:
            if name in columns:  # a key column, where an answer may name another key
                own = cols.to_arrow(columns[name]).to_pylist()
                found = [row.get(name, mine) for row, mine in zip(rows, own, strict=True)]
            else:
                found = [row.get(name) for row in rows]
            columns[name] = cols.as_column(found)
        return Batch(columns, self._times, time_name=time_name, kind=self._kind)
