"""top_k: the greatest records of each group, whole, with their ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.column import Column, plain
from jeton.columns.keys import hash_columns
from jeton.columns.ordering import order_by, require_sortable
from jeton.columns.schema import EVENT_TIME
from jeton.columns.time_units import stamped
from jeton.core.errors import BatchError, GraphError
from jeton.core.tokens import TimestampToken
from jeton.dataflow.operators.unary import add_unary
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.key_columns import exact_words, is_exact
from jeton.state.key_slots import KeySlots
from jeton.state.record_queue import RecordQueue
from jeton.state.shapes import shape_of

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.operators.windows import Assigner
    from jeton.dataflow.stream import Stream


def add_top_k(
    keyed: KeyedStream, assigner: Assigner, k: int, by: str, *, ascending: bool, name: str
) -> Stream:
    """Add the operator of `Windows.top_k`."""
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
    best = Best(keyed.key, k, by, ascending, name, own_times=assigner.inclusive)
    schema = stream.schema
    if schema is not None:
        best.require_free(schema.names)
        types = {EVENT_TIME: stream.flow.domain.type}
        added = (pa.field(one, types.get(one, pa.int64())) for one in best.added)
        schema = pa.schema([*schema, *added])

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Output], None]:
        waiting = RecordQueue(info.kind, keyed.key, shrink=best.only)
        order = "least" if ascending else "greatest"
        shape = shape_of(f"{k} with the {order} {by}, {assigner}", keyed.key)
        info.keep(waiting, token, shape=shape)
        token.drop()

        def step(input: Input, output: Output) -> None:
            for ref, batch in input:
                ends, rows = assigner.assign(batch)
                records = best.prepared(batch)
                waiting.push(ref, (records if rows is None else records.take(rows)).at(ends))
            for time, batch in waiting.pop(input.frontier, inclusive=assigner.inclusive):
                output.session(waiting.right_for(time)).give(best.ranked(batch))
            waiting.settle()

        return step

    return add_unary(stream, build, name="top_k", notify="held", pact=keyed.pact, schema=schema)


class Best:
    """Chooses the best records of each group: those of one key and one time (a window's end)."""

    def __init__(
        self, key: tuple[str, ...], k: int, by: str, ascending: bool, rank: str, *, own_times: bool
    ) -> None:
        self._key = key
        self._k = k
        self._by = by
        self._ascending = ascending
        self._rank = rank
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

    def prepared(self, batch: Batch) -> Batch:
        """Records that keep their own times beside the windows' ends."""
        self.require_free(batch)
        return batch.with_columns({EVENT_TIME: batch.times}) if self._own_times else batch

    def ranked(self, batch: Batch) -> Batch:
        """The best of each group, group by group, with their ranks."""
        order, ranks = self._order(batch)
        found = ranks <= self._k
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
        return batch.take(np.sort(order[ranks <= self._k]))

    def _order(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        columns = [batch.column(name) for name in self._key]
        times = batch.times
        groups = [] if times.dtype == object else list(times.reshape(len(times), -1).T)
        groups += _groups_of(columns, len(batch))
        own = [batch.columns[EVENT_TIME]] if self._own_times else []
        # Records of a window have its end as their time: by time means by their own.
        values = own[0] if own and self._by == batch.time_name else batch.column(self._by)
        by = require_sortable(values, self._by, descending=not self._ascending)
        order = order_by(batch, *groups, by, *own)
        first = np.zeros(len(order), dtype=bool)
        first[:1] = True
        for values in groups:
            ordered = values[order]
            first[1:] |= ordered[1:] != ordered[:-1]
        starts = np.flatnonzero(first)
        places = np.arange(len(order))
        return order, places - starts[np.cumsum(first) - 1] + 1


def _groups_of(columns: list[Column], rows: int) -> list[np.ndarray]:
    """Arrays that are equal for records of equal keys, and for no others."""
    if not columns:
        return []
    if is_exact(columns):
        return [exact_words(columns[0])]
    # By hashes first, so that the order of groups does not depend on which came first.
    return [hash_columns(columns), KeySlots(len(columns)).find(columns, rows)[0]]
