"""running: an updated value for each record, by key."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns.batch import Batch
from jeton.columns.ordering import order_by
from jeton.core.errors import BatchError, GraphError
from jeton.core.tokens import TimestampToken
from jeton.dataflow.column_use import group_use
from jeton.dataflow.operators.unary import add_unary
from jeton.dataflow.plan import Notify, OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.aggregates import Aggregate
from jeton.state.changes import Cut, Guard
from jeton.state.groups import Groups
from jeton.state.record_queue import RecordQueue
from jeton.state.shapes import shape_of
from jeton.state.slot_pool import Slots
from jeton.state.sorted_runs import sort_order

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def add_running(
    keyed: KeyedStream,
    aggregates: Mapping[str, Aggregate],
    *,
    ordered: bool,
    name: str,
    results: pa.Schema | None,
) -> Stream:
    """Add the operator of `KeyedStream.running`; ``results`` has the keys and aggregates."""
    key = keyed.key
    known = keyed.stream.schema
    if known is not None and not aggregates.keys().isdisjoint(known.names):
        raise GraphError(_taken(aggregates, known.names)).located(operator=name)

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        groups = RunningGroups(key, aggregates)
        info.keep(groups, shape=shape_of("running", key, aggregates), lazy=True)
        if not ordered:
            token.drop()
            return partial(_as_it_comes, groups)
        waiting = RecordQueue(info.kind, key)
        info.keep(waiting, token, name="waiting", shape=shape_of("records", key), lazy=True)
        token.drop()
        return lambda input, output: _in_order(groups, waiting, input, output)

    schema = None
    if results is not None and known is not None:
        schema = pa.schema([*known, *(results.field(result) for result in aggregates)])
    notify: Notify = "held" if ordered else "never"
    # Records of one key and time are put in order by all their columns.
    use = None if ordered else group_use(key, aggregates, passes=True)
    return add_unary(
        keyed.stream, build, name=name, notify=notify, pact=keyed.pact, schema=schema, use=use
    )


class RunningGroups(Groups):
    """Groups of records, all times together."""

    def rolled(self, batch: Batch) -> Batch:
        """A batch with the results after each of its records."""
        self._require_free(batch)
        return self._with_results(batch)

    def _with_results(self, batch: Batch) -> Batch:
        done, first = self.roll_up(batch)
        if done and done == len(batch) and batch.time_name not in self.aggregates:
            return batch.plus(first)
        rest = batch.slice(done, len(batch)) if done else batch
        slots, _ = self.find(rest)
        rolled = self.roll(slots, rest)
        if done:
            rolled = {name: cols.join([first[name], part]) for name, part in rolled.items()}
        return batch.with_columns(rolled)

    def rolled_in_order(self, batch: Batch) -> Batch:
        """The same for records in order of time, where those of one key and time are put in order.

        The answer must not depend on which of them came first.
        """
        self._require_free(batch)
        times = batch.times
        plain = times.ndim == 1 and times.dtype != object
        if plain and not (times[1:] == times[:-1]).any():
            return self._with_results(batch)
        slots, _ = self.find(batch)
        if plain:
            order = sort_order([times, slots])
            if order is not None:
                batch, slots = batch.take(order), slots[order]
            times = batch.times
            if ((times[1:] == times[:-1]) & (slots[1:] == slots[:-1])).any():
                order = order_by(batch, times, slots)
                batch, slots = batch.take(order), slots[order]
        else:
            order = order_by(batch, slots)
            batch, slots = batch.take(order), slots[order]
        return batch.with_columns(self.roll(slots, batch))

    def _require_free(self, batch: Batch) -> None:
        if not self.aggregates.keys().isdisjoint(batch.columns):
            raise BatchError(_taken(self.aggregates, batch.columns))

    def snapshot(self) -> pa.Table:
        """All groups."""
        return self.save(self.live())

    def cut(self, after: str | None, guard: Guard) -> Cut:
        """The groups that have changed."""
        return self.changed(after, guard, self.save)

    def restored(self, token: str, ids: Slots | None) -> None:
        """Go on from a stored state."""
        self.changes.restored(token, ids)

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The groups of some bins, which are forgotten."""
        slots = self.in_bins(chosen)
        table = self.save(slots)
        self.remove(slots)
        return table

    def memory_bytes(self) -> int:
        """About how many bytes of memory all groups take."""
        return self.memory(self.save)

    def due(self, state: pa.Table) -> None:
        """No token is needed for groups: there is an answer whenever records come."""

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The groups again."""
        if state.num_rows:
            self.load(state)


def _taken(aggregates: Iterable[str], names: Container[str]) -> str:
    """The message about a result that would take the place of a column of the records."""
    name = next(name for name in aggregates if name in names)
    return (
        f"running() adds a column {name!r}, but there is one already: give the aggregate another "
        "name, or drop() the column first"
    )


def _as_it_comes(groups: RunningGroups, input: Input, output: Output) -> None:
    for ref, batch in input:
        output.session(ref).give(groups.rolled(batch))


def _in_order(groups: RunningGroups, waiting: RecordQueue, input: Input, output: Output) -> None:
    for ref, batch in input:
        waiting.push(ref, batch)
    for time, batch in waiting.pop(input.frontier):
        output.session(waiting.right_for(time)).give(groups.rolled_in_order(batch))
    waiting.settle()
