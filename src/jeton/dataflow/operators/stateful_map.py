"""stateful_map: a state for each key, moved on record by record by a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns import time_columns
from jeton.columns.batch import Batch
from jeton.columns.ordering import order_by
from jeton.columns.time_units import one_time
from jeton.core.errors import BatchError, TimeError
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
    keyed: KeyedStream, function: Transition, initial: Any, *, name: str
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


class States:
    """The state of each key, as Python values."""

    def __init__(
        self, key: Sequence[str], function: Transition, initial: Any, kind: TimeKind
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
        answers = _Answers(self._kind, batch, self._groups.key)
        for row, (slot, record) in enumerate(zip(slots.tolist(), rows_of(batch), strict=True)):
            state = states[slot]
            moved: Any = function(initial() if state is None else state, record)
            if not isinstance(moved, tuple) or len(moved) != 2:
                name = getattr(function, "__name__", "the function")
                raise BatchError(f"{name} must return (state, list of rows), not {moved!r}")
            states[slot], rows = moved
            if rows:
                answers.add(row, rows)
        self._groups.remove(np.unique([s for s in slots.tolist() if states[s] is None]).astype(int))
        return answers.batch()

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
            slots = self._slots(self._groups.load(state.drop_columns(["state"])))
            states = brought_back(state.column("state"))
            for slot, value in zip(slots.tolist(), states, strict=True):
                self._states[slot] = value


class _Answers:
    """Rows that the user's function returned, to become a batch."""

    def __init__(self, kind: TimeKind, batch: Batch, key: Sequence[str]) -> None:
        self._kind = kind
        self._batch = batch
        self._key = [name for name in key if name != batch.time_name]
        self._of: list[int] = []
        self._times: list[Time] = []
        self._rows: list[dict[str, Any]] = []

    def add(self, row: int, rows: Sequence[dict[str, Any]]) -> None:
        """Add the rows that a record led to."""
        time: Time = time_columns.one(self._batch.times, row)
        for answer in rows:
            if not isinstance(answer, dict):
                raise BatchError(f"stateful_map sends rows, as dictionaries, not {answer!r}")
            at = answer.get(self._batch.time_name, time)
            if at is not time:
                at = self._kind.check(one_time(at, self._batch.unit, "the time of a row"))
                if not time <= at:
                    raise TimeError(
                        f"stateful_map cannot send a row at {at}, before its record at {time}"
                    )
            self._of.append(row)
            self._times.append(at)
            self._rows.append(answer)

    def batch(self) -> Batch | None:
        """All rows together; where one lacks a column it has a null there."""
        if not self._rows:
            return None
        rows, time_name = self._rows, self._batch.time_name
        names = dict.fromkeys(name for row in rows for name in row)
        names.pop(time_name, None)
        of = np.array(self._of, dtype=np.intp)
        columns = {name: cols.take(self._batch.column(name), of) for name in self._key}
        for name in names:
            if name in columns:  # a key column, where an answer may name another key
                own = cols.to_arrow(columns[name]).to_pylist()
                found = [row.get(name, mine) for row, mine in zip(rows, own, strict=True)]
            else:
                found = [row.get(name) for row in rows]
            columns[name] = cols.as_column(found)
        return Batch(columns, self._times, time_name=time_name, kind=self._kind)
