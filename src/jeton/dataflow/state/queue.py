"""RecordQueue: records that wait until their times are complete, with the tokens to answer them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from jeton.core.antichain import Antichain
from jeton.core.errors import SnapshotError
from jeton.core.times import Time, TimeKind
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow import columns as cols
from jeton.dataflow import time_columns
from jeton.dataflow.batch import Batch, concat
from jeton.dataflow.state.held import Held
from jeton.dataflow.state.runs import merge_from
from jeton.dataflow.state.snapshot import BIN, bins_of


class RecordQueue:
    """Whole batches in, whole batches out, in order of time, once a frontier has passed.

    However many distinct times wait, the queue holds only the least tokens. `push` what must
    wait, `pop` what is complete, answer it with ``right_for(time)``, and `settle`.

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
        key: Sequence[str] = (),
        *,
        output: int = 0,
        shrink: Callable[[Batch], Batch] | None = None,
    ) -> None:
        self._kind = kind
        self._shrink = shrink or (lambda batch: batch)
        self._key = tuple(key)
        self._held = Held(output)
        self._runs: list[Batch] = []

    def push(self, right: TokenRef | TimestampToken, batch: Batch) -> None:
        """Let a batch wait, holding the rights to answer it."""
        if len(batch) == 0:
            return
        if self._kind.total:
            batch = _sorted(batch)
            self._held.hold(right, int(batch.times[0]))
        else:
            for time, _ in time_columns.groups(batch.times):
                self._held.hold(right, time)
        self._runs.append(batch)
        start = merge_from([len(run) for run in self._runs])
        if start is not None:
            # What is not needed any more goes now and then, keeping the order of the rest.
            self._runs[start:] = [self._shrink(self._join(self._runs[start:]))]

    def pop(self, frontier: Antichain, *, inclusive: bool = False) -> Iterator[tuple[Time, Batch]]:
        """Take out what is complete: batches in order of time, each with its least time.

        With integer times that is a single batch. With ``inclusive``, records at the frontier
        itself count as complete.
        """
        done, left = [], []
        for run in self._runs:
            passed, waiting = self._split(run, frontier, inclusive)
            if len(passed):
                done.append(passed)
            if len(waiting):
                left.append(waiting)
        self._runs = left
        if not done:
            return
        together = self._join(done)
        if self._kind.total:
            yield int(together.times[0]), together
        else:
            yield from together.by_time()

    def right_for(self, time: Time) -> TimestampToken:
        """The held token with which to answer records at ``time``."""
        return self._held.right_for(time)

    def settle(self) -> None:
        """Hold no more than what is needed for the records that still wait."""
        if self._kind.total:
            self._held.settle([min(int(run.times[0]) for run in self._runs)] if self._runs else [])
        else:
            times = (time for run in self._runs for time, _ in time_columns.groups(run.times))
            self._held.settle(times)

    def __len__(self) -> int:
        """How many records wait."""
        return sum(map(len, self._runs))

    def snapshot(self) -> pa.Table:
        """The waiting records, with the bins of their keys."""
        if not self._runs:
            return pa.table({BIN: pa.array([], pa.uint16())})
        if not self._kind.total:
            raise SnapshotError("records inside a loop wait: a snapshot needs loops at rest")
        whole = self._join(self._runs)
        keys = [whole[name] for name in self._key] or [np.zeros(len(whole), dtype=np.int64)]
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
            self.push(tokens[self._held.output], batch)

    def _split(self, run: Batch, frontier: Antichain, inclusive: bool) -> tuple[Batch, Batch]:
        if self._kind.total:
            limit = frontier.only
            if limit is None:
                return run, run.slice(0, 0)
            cut = int(np.searchsorted(run.times, limit, side="right" if inclusive else "left"))
            return run.slice(0, cut), run.slice(cut, len(run))
        done = time_columns.passed(run.times, frontier, inclusive=inclusive)
        return run.filter(done), run.filter(~done)

    def _join(self, runs: list[Batch]) -> Batch:
        whole = concat([run.named(runs[0].time_name) for run in runs])
        return _sorted(whole) if self._kind.total else whole


def _sorted(batch: Batch) -> Batch:
    times = batch.times
    if (times[1:] >= times[:-1]).all():
        return batch
    return batch.take(np.argsort(times, kind="stable"))
