"""Priority: work that operators put off to times of their own choice, under one token.

An operator may have millions of things to do at as many different times, which it learns from its
data: auctions close, loans fall due. The system need not know them. It knows one token, at the
least of these times; the order among them is the operator's own affair.

Two agendas with the same methods: `HeapAgenda` is the classic, a heap of times, one entry for each
record. `Agenda` keeps whole columns in sorted runs, which costs a tenth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton.errors import GraphError, TimeError

Right = jt.TokenRef | jt.TimestampToken


class HeapAgenda:
    """Records that wait for their times, in a heap; for integer times. It can be kept.

    >>> import jeton as jt
    >>> def remind(token, info):
    ...     agenda = HeapAgenda(info.kind)
    ...     token.drop()
    ...
    ...     def step(input, output):
    ...         for ref, batch in input:
    ...             agenda.push(ref, batch, batch["due"])
    ...         for token, batch in agenda.pop_before(input.frontier):
    ...             output.session(token).give(batch.select("book"))
    ...
    ...     return step
    >>> flow = jt.Flow("loans")
    >>> flow.output("due", flow.input("loans").unary_frontier(remind))
    >>> loans = {"time": [1, 2], "book": ["Emma", "Ulysses"], "due": [30, 15]}
    >>> flow.run({"loans": loans})["due"].to_pylist()
    [{'time': 15, 'book': 'Ulysses'}, {'time': 30, 'book': 'Emma'}]
    """

    def __init__(self, kind: Any, key: Sequence[str] | None = None, *, output: int = 0) -> None:
        if not kind.total:
            raise TimeError("a heap needs totally ordered times: use Agenda inside loops")
        self._kind = kind
        self._key = key
        self._pacts: Sequence[jt.Pact] = ()
        self._heap: list[tuple[int, int, dict[str, Any]]] = []
        self._tokens = jt.state.TokenSet(output=output)
        """The token at the least time that waits, if any."""
        self._pushed = count()
        self._time_name = "time"

    def push(self, right: Right, batch: jt.Batch, times: Any = None) -> None:
        """Let records wait for ``times``, one for each, or for their own."""
        batch = _at(batch, times, self._kind)
        self._time_name = batch.time_name
        for row in batch.rows():
            # The number keeps records of equal times in order, and rows from being compared.
            heappush(self._heap, (row.pop(batch.time_name), next(self._pushed), row))
        if self._heap:
            self._tokens.hold(right, self._heap[0][0])

    def pop_before(
        self, frontier: jt.Antichain, *, inclusive: bool = False
    ) -> Iterator[tuple[jt.TimestampToken, jt.Batch]]:
        """Take out what a frontier has passed, in order of time, with the token to speak of it."""
        waits = frontier.less_than if inclusive else frontier.less_equal
        heap = self._heap
        try:
            while heap and not waits(heap[0][0]):
                times: list[int] = []
                rows: list[dict[str, Any]] = []
                while heap and not waits(heap[0][0]):
                    time, _, row = heappop(heap)
                    times.append(time)
                    rows.append(row)
                yield self._tokens.token_for(times[0]), self._batch(times, rows)
        finally:
            self._tokens.downgrade([heap[0][0]] if heap else ())

    def _batch(self, times: list[int], rows: list[dict[str, Any]]) -> jt.Batch:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return jt.Batch(columns, times, time_name=self._time_name)

    def __len__(self) -> int:
        """The number of waiting records."""
        return len(self._heap)

    def placed_by(self, pacts: Sequence[jt.Pact]) -> None:
        """State how records come to their workers: see `jt.state.RecordQueue`."""
        self._pacts = pacts

    def kept_with(self, tokens: Sequence[jt.TimestampToken]) -> None:
        """Refuse to be kept without the token that is needed to hold rights again."""
        self._tokens.require_initial(tokens)

    def snapshot(self) -> pa.Table:
        """The waiting records, with the bins of their keys."""
        queue = jt.state.RecordQueue(self._kind, self._key)
        queue.placed_by(self._pacts)
        if self._heap:
            entries = sorted(self._heap, key=lambda entry: entry[:2])
            times, rows = [time for time, _, _ in entries], [row for _, _, row in entries]
            queue.push(None, self._batch(times, rows))
        return queue.snapshot()

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Let the records wait again."""
        queue = jt.state.RecordQueue(self._kind)
        queue.restore(state, ())
        for _, batch in queue.pop(jt.Antichain()):
            self.push(tokens[self._tokens.output], batch)


class Agenda(jt.state.RecordQueue):
    """Records that wait for their times, as columns: whole blocks in, whole blocks out.

    It is a `jt.state.RecordQueue` whose records may wait for other times than their own. Records
    are sorted when they are pushed, in runs that are merged now and then, and a frontier cuts a
    slice off each. Where times are partially ordered, the least tokens are held instead of the
    one. It can be kept: ``info.keep(agenda, token)``.

    The example of `HeapAgenda` works with it too. Work may lead to more work, pushed with the
    token in the loop: it comes in a block of its own, after the one that it was found in.

    >>> import jeton as jt
    >>> def halve(token, info):  # until nothing is left, ten later each time
    ...     agenda = Agenda(info.kind)
    ...     token.drop()
    ...
    ...     def step(input, output):
    ...         for ref, batch in input:
    ...             agenda.push(ref, batch)
    ...         for token, batch in agenda.pop_before(input.frontier):
    ...             output.session(token).give(batch)
    ...             rest = batch.with_columns({"n": batch["n"] // 2}).filter(batch["n"] > 1)
    ...             agenda.push(token, rest, rest.times + 10)
    ...
    ...     return step
    >>> flow = jt.Flow("halves")
    >>> flow.output("halves", flow.input("n").unary_frontier(halve))
    >>> flow.run({"n": {"time": [3], "n": [5]}})["halves"].to_pylist()
    [{'time': 3, 'n': 5}, {'time': 13, 'n': 2}, {'time': 23, 'n': 1}]
    """

    def push(self, right: Right | None, batch: jt.Batch, times: Any = None) -> None:
        """Let records wait for ``times``, one for each, or for their own."""
        super().push(right, _at(batch, times, self.kind))

    def pop_before(
        self, frontier: jt.Antichain, *, inclusive: bool = False
    ) -> Iterator[tuple[jt.TimestampToken, jt.Batch]]:
        """Take out what a frontier has passed, in order of time, with the token to speak of it.

        With integer times that is one block, whatever the number of distinct times in it. With
        ``inclusive``, the frontier need only have passed all times before: what is due then need
        not wait for records at the very same time. After the loop is left early, the rest comes
        in the next step: ask for one with ``info.activator.activate()``.
        """
        blocks: deque[tuple[Any, jt.Batch]] = deque()
        try:
            while True:
                blocks.extend(() if blocks else self.pop(frontier, inclusive=inclusive))
                if not blocks:
                    return
                time, batch = blocks.popleft()
                yield self.right_for(time), batch
        finally:
            for time, batch in blocks:
                super().push(self.right_for(time), batch)
            self.settle()


def schedule(
    stream: jt.Stream,
    at: str | Callable[[jt.Batch], Any],
    *,
    key: Sequence[str] = (),
    inclusive: bool = False,
    name: str = "schedule",
) -> jt.Stream:
    """Each record at the time that it gives itself, in order of these times, once it has come.

    ``at`` is a column, or a function of a batch. With ``key``, records of equal keys go to one
    worker, which puts them in order among themselves. As for windows, ``inclusive`` lets a record
    go as soon as every time *before* its own is complete.

    >>> import jeton as jt
    >>> flow = jt.Flow("auctions")
    >>> auctions = flow.input("auctions", schema={"item": str, "closes": int})
    >>> flow.output("closed", schedule(auctions, at="closes"))
    >>> rows = {"time": [1, 2, 3], "item": ["vase", "chair", "ring"], "closes": [9, 5, 7]}
    >>> flow.run({"auctions": rows})["closed"].select(["time", "item"]).to_pylist()
    ... # doctest: +NORMALIZE_WHITESPACE
    [{'time': 5, 'item': 'chair'}, {'time': 7, 'item': 'ring'}, {'time': 9, 'item': 'vase'}]
    """
    if isinstance(at, str):
        stream.require_columns(at, operator=name)

    def due(batch: jt.Batch) -> jt.Batch:
        return _at(batch, batch.column(at) if isinstance(at, str) else at(batch), stream.kind)

    def build(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Output], None]:
        agenda = Agenda(info.kind, key)
        by = f" by {', '.join(key)}" if key else ""
        info.keep(agenda, token, shape=f"schedule{by}")
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                later = due(batch)
                back = np.flatnonzero(later.times < batch.times)
                if len(back):
                    raise TimeError(
                        f"a record of time {batch.times[back[0]]} is to wait for "
                        f"{later.times[back[0]]}, which is over: give it a time that is not"
                    )
                agenda.push(ref, later)
            for held, batch in agenda.pop_before(input.frontier, inclusive=inclusive):
                output.session(held).give(batch)

        return step

    if not stream.kind.total:
        raise GraphError(f"operator {name!r} needs integer times: it cannot be inside a loop")
    return stream.unary_frontier(
        build, pact=jt.Exchange(*key) if key else None, name=name, schema=stream.schema
    )


def _at(batch: jt.Batch, times: Any, kind: Any) -> jt.Batch:
    if times is None:
        return batch
    nulls = getattr(times, "null_count", 0)
    if nulls:
        raise TimeError(
            f"{nulls} of {len(batch)} records have no time to wait for, but null: fill these in, "
            "or filter such records out before"
        )
    wide = isinstance(times, np.ndarray) and times.dtype == np.uint64 and len(times)
    if wide and (most := int(times.max())) > jt.END_OF_TIME:
        raise TimeError(f"{most} is beyond the end of time, {jt.END_OF_TIME}")
    return jt.Batch(batch.columns, times, time_name=batch.time_name, kind=kind)
