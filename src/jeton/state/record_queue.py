"""RecordQueue: records that wait until their times are complete, with the tokens to answer them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns import time_columns
from jeton.columns.batch import Batch, concat
from jeton.columns.column import Column, plain
from jeton.core.antichain import Antichain
from jeton.core.errors import SnapshotError
from jeton.core.times import Time, TimeKind
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.state.held_tokens import Held
from jeton.state.run_kernels import span
from jeton.state.snapshot import BIN, bins_of
from jeton.state.sorted_runs import merge_from


class _Run(NamedTuple):
    """Records that wait together; if times are totally ordered, in order of time."""

    first: int
    last: int
    batch: Batch


class Placement(Protocol):
    """A rule that brings records to their workers: the pact of an operator's input."""

    def placement(self, batch: Batch) -> list[Column]:
        """The columns that decide which worker each record belongs to."""
        ...


class RecordQueue:
    """Whole batches in, whole batches out, in order of time, once a frontier has passed.

    However many distinct times wait, the queue holds only the least tokens. `push` what must
    wait, `pop` what is complete, answer it with ``right_for(time)``, and `settle`. Who keeps the
    rights to answer elsewhere pushes with ``None``.

    In snapshots, records belong to the worker that owns their ``key``, by default that of the
    operator's `Exchange`; records whose input is no `Exchange` belong to the first worker. Name
    the key's columns where that is not what you need: if an earlier operator has exchanged the
    records, if inputs are exchanged by different keys, or if what waits has other columns.

    >>> import jeton as jt
    >>> def in_order(token, info):  # sorts a stream by time
    ...     waiting = RecordQueue(info.kind)
    ...     info.keep(waiting, token)
    ...     token.drop()
    ...
    ...     def step(input, output):
    ...         for ref, batch in input:
    ...             waiting.push(ref, batch)
    ...         for time, batch in waiting.pop(input.frontier):
    ...             output.session(waiting.right_for(time)).give(batch)
    ...         waiting.settle()
    ...
    ...     return step
    >>> flow = jt.Flow("sorted")
    >>> flow.output("sorted", flow.input("n").unary_frontier(in_order))
    >>> flow.run({"n": {"time": [3, 1, 2], "n": [30, 10, 20]}})["sorted"]["n"].to_pylist()
    [10, 20, 30]
    """

    def __init__(
        self,
        kind: TimeKind,
        key: Sequence[str] | None = None,
        *,
        output: int = 0,
        shrink: Callable[[Batch], Batch] | None = None,
    ) -> None:
        self._kind = kind
        self._shrink = shrink or (lambda batch: batch)
        self._key = None if key is None else tuple(key)
        self._pacts: Sequence[Placement] | None = None
        self._held = Held(output)
        self._runs: list[_Run] = []

    def push(self, right: TokenRef | TimestampToken | None, batch: Batch) -> None:
        """Let a batch wait, holding the rights to answer it."""
        if len(batch) == 0:
            return
        if self._kind.total:
            run = _sorted(batch)
            if right is not None:
                self._held.hold(right, run.first)
        else:
            run = _Run(0, 0, batch)
            if right is not None:
                for time, _ in time_columns.groups(batch.times):
                    self._held.hold(right, time)
        self._runs.append(run)
        start = merge_from([len(run.batch) for run in self._runs])
        if start is not None:
            # What is not needed any more goes now and then, keeping the order of the rest.
            joined = self._shrink(self._join(self._runs[start:]))
            self._runs[start:] = [self._known_sorted(joined)] if len(joined) else []

    def pop(self, frontier: Antichain, *, inclusive: bool = False) -> Iterator[tuple[Time, Batch]]:
        """Take out what is complete: batches in order of time, each with its least time.

        With integer times that is a single batch. With ``inclusive``, records at the frontier
        itself count as complete.
        """
        if not self._runs:
            return
        if not self._kind.total:
            yield from self._pop_partial(frontier, inclusive)
            return
        limit = frontier.only
        done, left = [], []
        for run in self._runs:
            first, last, batch = run
            if limit is None or last < limit or (inclusive and last == limit):
                done.append(run)
            elif first > limit or (first == limit and not inclusive):
                left.append(run)
            else:
                times = batch.times
                cut = int(times.searchsorted(limit, "right" if inclusive else "left"))
                done.append(_Run(first, int(times[cut - 1]), batch.slice(0, cut)))
                left.append(_Run(int(times[cut]), last, batch.slice(cut, len(batch))))
        self._runs = left
        if done:
            together = self._join(done)
            first = int(together.times[0])
            # Said here, so that whoever sends it need not look for its least time.
            yield first, together.at(together.times, first)

    def _pop_partial(self, frontier: Antichain, inclusive: bool) -> Iterator[tuple[Time, Batch]]:
        done, left = [], []
        for run in self._runs:
            passed = time_columns.passed(run.batch.times, frontier, inclusive=inclusive)
            if passed.any():
                done.append(_Run(0, 0, run.batch.filter(passed)))
            if not passed.all():
                left.append(_Run(0, 0, run.batch.filter(~passed)))
        self._runs = left
        if done:
            yield from self._join(done).by_time()

    def right_for(self, time: Time) -> TimestampToken:
        """The held token with which to answer records at ``time``."""
        return self._held.right_for(time)

    @property
    def least(self) -> int | None:
        """The least time of what waits, if anything does; times must be integers."""
        return min([run.first for run in self._runs]) if self._runs else None

    @property
    def times(self) -> list[int]:
        """The distinct times of what waits, in order; times must be integers."""
        found = {int(time) for run in self._runs for time in np.unique(run.batch.times)}
        return sorted(found)

    def settle(self) -> None:
        """Hold no more than what is needed for the records that still wait."""
        if self._kind.total:
            self._held.settle_at(self.least)
        else:
            times = (time for run in self._runs for time, _ in time_columns.groups(run.batch.times))
            self._held.settle(times)

    def __len__(self) -> int:
        """How many records wait."""
        return sum(len(run.batch) for run in self._runs)

    def placed_by(self, pacts: Sequence[Placement]) -> None:
        """Say how records come to their workers: `keep` does, for queues without a key."""
        self._pacts = pacts

    def snapshot(self) -> pa.Table:
        """The waiting records, with the bins of their keys."""
        if not self._runs:
            return pa.table({BIN: pa.array([], pa.uint16())})
        if not self._kind.total:
            raise SnapshotError("records inside a loop wait: a snapshot needs loops at rest")
        whole = self._join(self._runs)
        keys = self._keys(whole) or [np.zeros(len(whole), dtype=np.int64)]
        # Prefixed, since a column of the user's may well be called "bin".
        values = {f"value.{name}": cols.to_arrow(c) for name, c in whole.columns.items()}
        times = {f"time.{whole.time_name}": pa.array(whole.times)}
        return pa.table({BIN: pa.array(bins_of(keys)), **times, **values})

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """Let the records wait again."""
        if state.num_rows:
            _, times, *values = state.column_names
            columns = {name[len("value.") :]: cols.as_column(state.column(name)) for name in values}
            stamps = state.column(times).to_numpy()
            batch = Batch.trusted(columns, stamps, times[len("time.") :])
            self.push(tokens[self._held.output] if tokens else None, batch)

    def _keys(self, whole: Batch) -> list[Column]:
        """The key columns of what waits: of the key, or of the pact that brought it here."""
        if self._key is not None:
            return [whole.column(name) for name in self._key]
        pacts = {repr(pact): pact for pact in self._pacts or ()}
        if len(pacts) == 1:
            [pact] = pacts.values()
            try:
                return pact.placement(whole)
            except SnapshotError as error:
                why = error.message
        elif pacts:
            why = f"the operator's inputs come by {', '.join(pacts)}"
        else:
            why = "the queue was not itself given to info.keep()"
        raise SnapshotError(
            f"which worker {len(whole)} waiting records belong to is not known, since {why}: name "
            "the columns that say so, RecordQueue(info.kind, [key, …]) (or [], if all of them "
            "belong to the first worker)"
        )

    def _join(self, runs: list[_Run]) -> Batch:
        """The records of some runs in one batch, in order of time as far as that has one."""
        if len(runs) == 1:
            return runs[0].batch
        name = runs[0].batch.time_name
        whole = concat([run.batch.named(name) for run in runs])
        if not self._kind.total or all(a.last <= b.first for a, b in pairwise(runs)):
            return whole
        return whole.take(np.argsort(whole.times, kind="stable"))

    def _known_sorted(self, batch: Batch) -> _Run:
        total = self._kind.total
        return (
            _Run(int(batch.times[0]), int(batch.times[-1]), batch) if total else _Run(0, 0, batch)
        )


def _sorted(batch: Batch) -> _Run:
    in_order, first, last = span(plain(batch.times))
    if not in_order:
        batch = batch.take(np.argsort(batch.times, kind="stable"))
    return _Run(first, last, batch)
