"""top_k: the greatest records of each group, whole, with their ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import compiled as nb
from jeton.columns.batch import Batch
from jeton.columns.column import Column, plain, take
from jeton.columns.keys import hash_columns
from jeton.columns.ordering import order_by, require_sortable, stable_order, time_keys
from jeton.columns.schema import EVENT_TIME
from jeton.columns.time_units import stamped
from jeton.core.antichain import Antichain
from jeton.core.errors import BatchError, GraphError
from jeton.core.tokens import TimestampToken
from jeton.dataflow.operators.unary import add_unary
from jeton.dataflow.operators.windows import Assigner, LastTimes
from jeton.dataflow.pacts import Pipeline
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.key_columns import exact_words, is_exact
from jeton.state.key_slots import KeySlots
from jeton.state.record_queue import RecordQueue
from jeton.state.shapes import shape_of

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def add_top_k(
    keyed: KeyedStream,
    assigner: Assigner,
    k: int,
    by: str,
    *,
    ascending: bool,
    ties: bool,
    name: str,
) -> Stream:
    """Add the operator of `Windows.top_k`.

    Where all records form one group, there are two: each worker chooses the best of its own
    records first, so that next to nothing travels.
    """
    given: object = k
    if not isinstance(given, int) or k < 1:
        raise GraphError(f"top_k needs an integer, at least one, not {k!r}")
    stream = keyed.stream
    stream.require_columns(*keyed.key, by, operator="top_k")
    if name in (stream.time_name, EVENT_TIME if assigner.inclusive else None):
        raise GraphError(
            f"top_k cannot put ranks into the column {name!r}, which has times: give them another "
            "name=…"
        ).located(operator="top_k")
    best = Best(keyed.key, k, by, ascending, name, ties=ties, own_times=assigner.inclusive)
    schema = stream.schema
    if schema is not None:
        best.require_free(schema.names)
        types = {EVENT_TIME: stream.flow.domain.type}
        added = (pa.field(one, types.get(one, pa.int64())) for one in best.added)
        schema = pa.schema([*schema, *added])
    order = "least" if ascending else "greatest"
    with_ties = ", with ties" if ties else ""
    shape = shape_of(f"{k} with the {order} {by}{with_ties}, {assigner}", keyed.key)
    beyond = 0
    if not keyed.key:
        beyond = int(assigner.inclusive)
        stream = _add_best_here(stream, assigner, best, shape)

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        waiting = RecordQueue(info.kind, keyed.key, shrink=best.only)
        waiting.time_columns = (f"value.{EVENT_TIME}",) if assigner.inclusive else ()
        info.keep(waiting, token, shape=shape, lazy=True)
        token.drop()

        def step(input: Input, output: Output) -> None:
            for ref, batch in input:
                if keyed.key:
                    waiting.push(ref, best.assigned(assigner, batch))
                else:
                    # They have been chosen and come at the last times of their windows.
                    waiting.push(ref, batch.at(batch.times + beyond) if beyond else batch)
            for time, batch in waiting.pop(input.frontier, inclusive=assigner.inclusive):
                output.session(waiting.right_for(time)).give(best.ranked(batch))
            waiting.settle()

        return step

    return add_unary(stream, build, name="top_k", notify="held", pact=keyed.pact, schema=schema)


def _add_best_here(stream: Stream, assigner: Assigner, best: Best, shape: str) -> Stream:
    """Add the operator that chooses the best records of each worker, at the windows' last times."""
    last_times = LastTimes(assigner)
    own = stream.next_name

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        waiting = RecordQueue(info.kind, (), shrink=best.only)
        bars = Bars(best) if info.kind.total else None
        waiting.time_columns = (f"value.{EVENT_TIME}",) if assigner.inclusive else ()
        info.keep(waiting, token, shape=f"of each worker: {shape}", lazy=True)
        token.drop()

        def step(input: Input, output: Output) -> None:
            for ref, batch in input:
                if bars is None:
                    records: Batch | None = best.assigned(last_times, batch)
                else:
                    records = bars.passing(last_times, batch)
                if records is not None:
                    waiting.push(ref, records)
            for time, batch in waiting.pop(input.frontier):
                output.session(waiting.right_for(time)).give(best.only(batch))
            waiting.settle()
            if bars is not None:
                bars.forget(input.frontier)

        return step

    if own is not None:
        stream = stream.named(f"{own}-here")
    pact = Pipeline(local_frontier=True)
    chosen = add_unary(stream, build, name="top_k-here", notify="held", pact=pact)
    return chosen if own is None else chosen.named(own)


_PIECE: Final = 16
"""The number of records from which on it is worth comparing those of a window by themselves."""


class Bars:
    """For each window, a value that a record needs at least to be among the best of it.

    Most records are then left out by one comparison. Any record that may be among the best
    passes; some others do too.
    """

    def __init__(self, best: Best) -> None:
        self._best = best
        self._bars: dict[int, Any] = {}

    def passing(self, assigner: Assigner, batch: Batch) -> Batch | None:
        """The records of a batch that may be among the best, at the times of their windows."""
        ends, rows = assigner.assign_shortly(batch)
        values = batch.columns.get(self._best.by)
        if rows is not None or not _is_number(values) or not len(batch):
            return self._best.assigned(assigner, batch)
        assert isinstance(values, np.ndarray)
        if len(ends) == 1:
            chosen = self._raise(int(ends[0]), values)
            ends = np.repeat(ends, len(chosen))
        else:
            # Where a batch has several windows, they come one after the other, each in one piece.
            cuts = [0, *(np.flatnonzero(ends[1:] != ends[:-1]) + 1).tolist(), len(ends)]
            if len(cuts) * _PIECE > len(ends):
                return self._best.assigned(assigner, batch)
            chosen = np.concatenate(
                [start + self._raise(int(ends[start]), values[start:stop])
                 for start, stop in pairwise(cuts)]
            )  # fmt: skip
            ends = ends[chosen]
        if not len(chosen):
            return None
        records = batch if len(chosen) == len(batch) else batch.take(chosen)
        return self._best.prepared(records).at(ends)

    def _raise(self, end: int, values: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """The rows that pass; the bar is raised to the least of the best of them."""
        k, least = self._best.k, self._best.ascending
        bar = self._bars.get(end)
        chosen = np.arange(len(values)) if bar is None else _reach(values, bar, least)
        if len(chosen) < k:
            return chosen
        some = values if len(chosen) == len(values) else values[chosen]
        place = k - 1 if least else len(some) - k
        worst = np.partition(some, place)[place] if k > 1 else some.min() if least else some.max()
        if bar is None or (worst < bar if least else worst > bar):
            self._bars[end] = worst
            chosen = chosen[_reach(some, worst, least)]
        return chosen

    def forget(self, frontier: Antichain) -> None:
        """Forget the bars of windows that are complete."""
        limit = frontier.only
        for end in [end for end in self._bars if limit is None or end < limit]:
            del self._bars[end]


def _reach(values: npt.NDArray[Any], bar: Any, least: bool) -> npt.NDArray[np.intp]:
    """The rows that are as good as the bar or better, and those with NaN."""
    return np.flatnonzero(~(values > bar) if least else ~(values < bar))


def _is_number(values: Column | None) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "iuf"


class Best:
    """Chooses the best records of each group: those of one key and one time (a window's end)."""

    def __init__(
        self,
        key: tuple[str, ...],
        k: int,
        by: str,
        ascending: bool,
        rank: str,
        *,
        ties: bool,
        own_times: bool,
    ) -> None:
        self._key = key
        self.k = k
        self.by = by
        self.ascending = ascending
        self._rank = rank
        self._ties = ties
        self._own_times = own_times
        self.added = (EVENT_TIME, rank) if own_times else (rank,)
        """The columns that results have beyond those of the records."""

    def require_free(self, names: object) -> None:
        """Refuse records that have a column which results add."""
        for name in self.added:
            if name in names:  # type: ignore[operator]
                raise BatchError(
                    f"top_k adds a column {name!r}, but there is one already: give ranks another "
                    "name=… or select() the columns that you need"
                )

    def assigned(self, assigner: Assigner, batch: Batch) -> Batch:
        """Records at the times of their windows."""
        ends, rows = assigner.assign(batch)
        records = self.prepared(batch)
        return (records if rows is None else records.take(rows)).at(ends)

    def prepared(self, batch: Batch) -> Batch:
        """Records that keep their own times beside the windows' ends."""
        self.require_free(batch)
        return batch.with_columns({EVENT_TIME: batch.times}) if self._own_times else batch

    def ranked(self, batch: Batch) -> Batch:
        """The best of each group, group by group, with their ranks."""
        order, ranks = self._order(batch)
        found = ranks <= self.k
        chosen = batch.take(order[found])
        own = {}
        if self._own_times:
            own = {EVENT_TIME: stamped(plain(chosen.columns[EVENT_TIME]), batch.unit)}
        return chosen.with_columns({**own, self._rank: ranks[found]})

    def only(self, batch: Batch) -> Batch:
        """The best of each group, in the order in which they were."""
        if batch.times.dtype == object:
            return batch
        order, ranks = self._order(batch)
        best = np.zeros(len(batch), dtype=bool)
        best[order[ranks <= self.k]] = True
        return batch.filter(best)

    def _order(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        columns = [batch.column(name) for name in self._key]
        groups = [*time_keys(batch), *_groups_of(columns, len(batch))]
        own = [batch.columns[EVENT_TIME]] if self._own_times else []
        # Records of a window have its end as their time: by time means by their own.
        values = own[0] if own and self.by == batch.time_name else batch.column(self.by)
        by = require_sortable(values, self.by, descending=not self.ascending)
        order = order_by(batch, *groups, by, *own)
        words = tuple(map(_words, groups))
        return order, _ranks(order, words, _words(by if self._ties else by[:0]))


def _words(values: np.ndarray) -> npt.NDArray[np.int64]:
    """Integers as compiled loops compare them: equal ones stay equal, others stay different."""
    return plain(values.astype(np.int64, copy=False))


@nb.njit(cache=True)
def _ranks(order, groups, values):  # type: ignore[no-untyped-def]
    """The rank of each row among those of its group, in some order of all.

    Rows of equal values have the same rank, if there are any values.
    """
    ranks = np.empty(len(order), np.int64)
    start = 0
    for i in range(len(order)):
        row, before = order[i], order[max(i - 1, 0)]
        new = i == 0
        for group in groups:
            if group[row] != group[before]:
                new = True
        if new:
            start = i
        if not new and len(values) and values[row] == values[before]:
            ranks[i] = ranks[i - 1]
        else:
            ranks[i] = i - start + 1
    return ranks


def _groups_of(columns: list[Column], rows: int) -> list[np.ndarray]:
    """An array that is equal for records of equal keys, and for no others; none without a key."""
    if not columns:
        return []
    if is_exact(columns):
        return [exact_words(columns[0])]
    slots, new = KeySlots(len(columns), compact=True).find(columns, rows)
    # In the order of hashes, so that the order of groups does not depend on which came first.
    hashes = np.empty(len(new), dtype=np.uint64)
    hashes[slots[new]] = hash_columns([take(column, new) for column in columns])
    number = np.empty(len(new), dtype=np.int64)
    number[stable_order(hashes)] = np.arange(len(new))
    return [number[slots]]
