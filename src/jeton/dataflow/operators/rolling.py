"""rolling: for each record, aggregates over the last records of its key, by time or by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns.batch import Batch
from jeton.columns.column import Column
from jeton.columns.durations import Length
from jeton.columns.ordering import order_by, stable_order
from jeton.columns.time_arithmetic import FARTHEST, MOST, Integers
from jeton.core.antichain import Antichain
from jeton.core.errors import BatchError, GraphError
from jeton.core.times import TimeKind
from jeton.core.tokens import TimestampToken
from jeton.dataflow.operators.interval_join import moved
from jeton.dataflow.operators.unary import add_unary
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.accumulators import Unrepresentable
from jeton.state.aggregates import Aggregate
from jeton.state.join_side import Clock, JoinRun, JoinSide, find_last, gathered
from jeton.state.key_ids import KeyIds, KeyTypes
from jeton.state.key_slots import KeySlots
from jeton.state.record_queue import RecordQueue
from jeton.state.shapes import shape_of
from jeton.state.slot_pool import Slots
from jeton.state.sorted_runs import sort_order

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def checked_size(keyed: KeyedStream, size: Length | None, rows: int | None) -> tuple[int, bool]:
    """The size of moving windows, and whether it is a number of records."""
    if not keyed.stream.kind.total:
        raise GraphError("moving windows need integer times: inside a loop, use each_time()")
    if (size is None) == (rows is None):
        raise GraphError("rolling() takes a length of time, or a number of records as rows=…")
    if rows is not None:
        given: object = rows
        if not isinstance(given, int) or not 1 <= rows <= MOST:
            raise GraphError(f"rolling(rows=…) needs an integer, at least one, not {rows!r}")
        return rows, True
    length = keyed.stream.flow.domain.length(size, "rolling({})", "size")
    if not 1 <= length <= MOST:
        raise GraphError(f"the size of a moving window is greater than zero, not {size!r}")
    return length, False


def add_rolling(
    keyed: KeyedStream,
    size: int,
    aggregates: Mapping[str, Aggregate],
    *,
    by_rows: bool,
    name: str,
    results: pa.Schema | None,
) -> Stream:
    """Add the operator of `KeyedStream.rolling`; ``results`` has the keys and aggregates."""
    key, stream = keyed.key, keyed.stream
    schema = None
    if stream.schema is not None:
        try:
            _require_free(stream.schema.names, aggregates)
        except BatchError as error:
            raise GraphError(error.message).located(operator=name) from None
    if results is not None and stream.schema is not None:
        schema = pa.schema([*stream.schema, *(results.field(result) for result in aggregates)])

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        waiting = RecordQueue(info.kind, key)
        recent = (LastRows if by_rows else Recent)(key, size, aggregates, info.kind)
        info.keep(waiting, token, name="waiting", shape=shape_of("records", key), lazy=True)
        over = f"the last {size} records" if by_rows else f"records of the last {size}"
        info.keep(recent.side, name="recent", shape=shape_of(over, key, aggregates), lazy=True)
        token.drop()

        def step(input: Input, output: Output) -> None:
            for ref, batch in input:
                waiting.push(ref, batch)
            for time, batch in waiting.pop(input.frontier):
                output.session(waiting.right_for(time)).give(recent.answered(batch))
            waiting.settle()
            recent.expire(input.frontier)

        return step

    return add_unary(stream, build, name=name, notify="held", pact=keyed.pact, schema=schema)


class Recent:
    """The records that windows of records to come may still include: the last ``size`` of time."""

    def __init__(
        self, key: Sequence[str], size: int, aggregates: Mapping[str, Aggregate], kind: TimeKind
    ) -> None:
        self._key = tuple(key)
        self._size = size
        self._aggregates = aggregates
        self._values = list(dict.fromkeys(a.column for a in aggregates.values() if a.column))
        """The columns that aggregates need."""
        self._ids = GroupIds()
        self.side = self._side(Clock(kind))

    def _side(self, clock: Clock) -> JoinSide:
        return JoinSide(self._key, KeyTypes(), self._ids, clock, moved(self._size - 1))

    def answered(self, batch: Batch) -> Batch:
        """Complete records, in order of time, with the results of their windows."""
        _require_free(batch.names, self._aggregates)
        run = self._numbered(batch)
        # The times stay readable under their name, whatever the positions in the run are.
        kept = {name: run.batch.column(name) for name in (*self._key, *self._values)}
        own = JoinRun(run.ids, run.at, Batch.trusted(kept, run.at, ""))
        # As it is: a window may include more of its rows than will be needed later.
        self.side.runs.append(own)
        parts: list[dict[str, Column]] = []
        done = 0
        for asked, partners in self.side.pairs(own, 1 - self._size, 0):
            # Each record is in its own window, so that no row is without a result.
            start, done = done, int(asked.max()) + 1
            values = gathered(partners, self._values)
            if len(partners) > 1:
                order = sort_order([asked, values.times])
                if order is not None:
                    asked, values = asked[order], values.take(order)
            parts.append(self._results(asked - start, values, run.batch.slice(start, done)))
        self.side.runs.pop()
        self.side.add(own)
        results = {name: cols.join([part[name] for part in parts]) for name in self._aggregates}
        order = stable_order(run.batch.times)
        return run.batch.with_columns(results).take(order)

    def _numbered(self, batch: Batch) -> JoinRun:
        """Records as a run, at the positions by which windows are made."""
        return self.side.run(batch)

    def _results(self, groups: Slots, values: Batch, records: Batch) -> dict[str, Column]:
        """The aggregates of each group: the window of each of some records."""
        results = {}
        every = np.arange(len(records))
        for name, aggregate in self._aggregates.items():
            column = None if aggregate.column is None else values.column(aggregate.column)
            memory = aggregate.make(column)
            if aggregate.by_time:
                memory.note_times(values.times)
            try:
                memory.add(groups, column, len(records))
                results[name] = memory.result(every)
            except Unrepresentable as error:
                keys = {key: records.column(key) for key in self._key}
                raise error.of_group(name, keys, records.times) from None
        return results

    def expire(self, frontier: Antichain) -> None:
        """Drop records that are in no window of those to come."""
        self.side.expire(frontier.only)
        self._ids.sweep((run.ids for run in self.side.runs), len(self.side))


class LastRows(Recent):
    """The last records of each key, at positions that number them in the order of their times."""

    def _side(self, clock: Clock) -> JoinSide:
        # At least one, which has the number of the key's last record.
        last = partial(_last, count=max(self._size - 1, 1))
        side = JoinSide(self._key, KeyTypes(), self._ids, clock, moved(MOST), unify=last)
        side.time_columns = ()  # their numbers are in the place of times
        return side

    def _numbered(self, batch: Batch) -> JoinRun:
        ids = self._ids.of([batch.column(name) for name in self._key], len(batch))
        order = order_by(batch, ids)
        ids = ids[order]
        first = np.ones(len(ids), dtype=bool)
        first[1:] = ids[1:] != ids[:-1]
        starts = np.flatnonzero(first)
        numbers = np.arange(len(ids)) + (self._next(ids[starts]) - starts)[np.cumsum(first) - 1]
        return JoinRun(ids, numbers, batch.take(order))

    def _next(self, keys: Slots) -> Integers:
        """The number of the next record of some keys, which are in order."""
        latest = np.full(len(keys), -1)
        end = np.full(len(keys), MOST)
        for run in self.side.runs:
            found, numbers = find_last(run.ids, run.at, keys, end, np.uint64(FARTHEST))
            latest = np.maximum(latest, np.where(found < 0, -1, numbers))
        return latest + 1

    def expire(self, frontier: Antichain) -> None:
        """Drop all records once no more can come: until then, each key keeps its last ones."""
        if frontier.is_empty:
            self.side.expire(None)


class GroupIds(KeyIds):
    """Integers for keys of groups, of which nulls are equal to each other."""

    def of(self, columns: Sequence[Column], rows: int) -> Slots:
        """The id of each key."""
        if not columns:
            return np.zeros(rows, dtype=np.int64)
        if self._table is None:
            self._table = KeySlots(len(columns))
        return self._table.find(columns, rows)[0].copy()


def _last(run: JoinRun, count: int) -> JoinRun:
    """The last rows of each key."""
    ids = run.ids
    ends = np.flatnonzero(np.append(ids[1:] != ids[:-1], True))
    after = np.repeat(ends, np.diff(ends, prepend=-1)) - np.arange(len(ids))
    recent = after < count
    return run if recent.all() else run.filter(recent)


def _require_free(names: Sequence[str], aggregates: Mapping[str, Aggregate]) -> None:
    """Refuse records that have a column which results add."""
    for name in aggregates:
        if name in names:
            raise BatchError(
                f"rolling adds a column {name!r}, but there is one already: give the aggregate "
                "another name=…"
            )
