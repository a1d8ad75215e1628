"""RecordQueue: records that wait until their times are complete, with the tokens to answer them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import column as cols
from jeton.columns import time_columns
from jeton.columns.batch import Batch, concat
from jeton.columns.column import Column
from jeton.columns.time_arithmetic import MOST
from jeton.columns.time_units import stamped, unit_of
from jeton.core.antichain import Antichain
from jeton.core.errors import SnapshotError
from jeton.core.times import Time, TimeKind
from jeton.core.token_set import TokenSet, missing_token
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.state.changes import BlockChanges, Cut, Guard
from jeton.state.snapshot import BIN, bins_of
from jeton.state.sorted_runs import SortedRuns, merge_from

_TIME, _VALUE = "time.", "value."
_COPIES: Final = 2
"""Records are copied when runs are merged."""


class Placement(Protocol):
    """A rule that brings records to their workers: the pact of an operator's input."""

    def placement(self, batch: Batch) -> list[Column]:
        """The columns by which each record is assigned to a worker."""
        ...


class RecordQueue:
    """Whole batches in, whole batches out, in order of time, once a frontier has passed.

    However many distinct times wait, the queue holds only the least tokens. `push` records,
    `pop` those that are complete, answer them with ``right_for(time)``, and `settle`. Push with
    ``None`` if the rights to answer are kept elsewhere; otherwise `keep` needs the operator's
    initial token too.

    In snapshots, records belong to the worker that owns their ``key``, by default that of the
    operator's `Exchange`; records whose input is not an `Exchange` belong to the first worker. Name
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
        self.kind = kind
        self.time_columns: tuple[str, ...] = ()
        """The columns of its snapshots that have times as integers, beside those of records."""
        self._shrink = shrink or (lambda batch: batch)
        self._may_shrink = shrink is not None
        self._key = None if key is None else tuple(key)
        self._pacts: Sequence[Placement] | None = None
        self._tokens = TokenSet(output=output)
        self._restorable = True
        """Whether rights are held again after a restore."""
        self._runs = SortedRuns(_joined, shrink=shrink)
        self._partial: list[Batch] = []
        """The records instead where times are partially ordered."""
        self._changes = BlockChanges()
        self._time_name: str | None = None

    def push(self, right: TokenRef | TimestampToken | None, batch: Batch) -> None:
        """Let a batch wait, holding the rights to answer it."""
        if len(batch) == 0:
            return
        if right is not None and not self._restorable:
            raise missing_token(self._tokens.output)
        if self._time_name not in (None, batch.time_name):
            # An input's time column has another name since a restart: not within one chain.
            self._changes.lost()
        self._time_name = batch.time_name
        if self.kind.total:
            first = self._runs.add(batch)
            self._changes.added(batch, len(self._runs))
            if right is not None:
                self._tokens.hold(right, first)
            return
        if right is not None:
            for time, _ in time_columns.groups(batch.times):
                self._tokens.hold(right, time)
        self._partial.append(batch)
        start = merge_from(list(map(len, self._partial)))
        if start is not None:
            joined = self._shrink(_joined(self._partial[start:]))
            self._partial[start:] = [joined] if len(joined) else []

    def pop(self, frontier: Antichain, *, inclusive: bool = False) -> Iterator[tuple[Time, Batch]]:
        """Take out the records that are complete: batches in order of time, each with its least.

        With integer times that is a single batch. With ``inclusive``, records at the frontier
        itself count as complete.
        """
        if not self.kind.total:
            yield from self._pop_partial(frontier, inclusive)
            return
        batch = self.take(frontier.only, inclusive=inclusive)
        if batch is not None:
            yield int(batch.times[0]), batch

    def take(self, limit: int | None, *, inclusive: bool = False) -> Batch | None:
        """Take out the records before ``limit``, in order of time; all if it is ``None``.

        With ``inclusive``, those at ``limit`` too. Times must be integers.

        >>> import jeton as jt
        >>> waiting = RecordQueue(jt.IntegerTimes())
        >>> waiting.push(None, jt.Batch({"n": [50, 10]}, times=[5, 1]))
        >>> waiting.take(5)["n"].to_list(), waiting.take(None)["n"].to_list(), waiting.take(None)
        ([10], [50], None)
        """
        batch = self._runs.take(limit, inclusive=inclusive)
        if batch is not None:
            if limit is None or limit >= MOST:
                self._changes.lost()
            else:
                self._changes.taken(limit + inclusive, len(self._runs))
        # The least time is stated, so that the sender need not search for it.
        return None if batch is None else batch.at(batch.times, int(batch.times[0]))

    def _pop_partial(self, frontier: Antichain, inclusive: bool) -> Iterator[tuple[Time, Batch]]:
        done, left = [], []
        for batch in self._partial:
            passed = time_columns.passed(batch.times, frontier, inclusive=inclusive)
            if passed.any():
                done.append(batch.filter(passed))
            if not passed.all():
                left.append(batch.filter(~passed))
        self._partial = left
        if done:
            yield from _joined(done).by_time()

    def right_for(self, time: Time) -> TimestampToken:
        """The held token with which to answer records at ``time``."""
        return self._tokens.token_for(time)

    @property
    def least(self) -> int | None:
        """The least time of the waiting records, if there are any; times must be integers."""
        return self._runs.least

    @property
    def times(self) -> list[int]:
        """The distinct times of the waiting records, in order; times must be integers."""
        return self._runs.times

    def settle(self) -> None:
        """Hold no more than what is needed for the records that still wait."""
        if self.kind.total:
            self._tokens.downgrade(() if self.least is None else (self.least,))
        else:
            batches = self._partial
            pending = (time for b in batches for time, _ in time_columns.groups(b.times))
            self._tokens.settle(pending)

    def __len__(self) -> int:
        """The number of waiting records."""
        return len(self._runs) + sum(map(len, self._partial))

    def placed_by(self, pacts: Sequence[Placement]) -> None:
        """Say how records come to their workers: `keep` does, for queues without a key."""
        self._pacts = pacts

    def kept_with(self, tokens: Sequence[TimestampToken]) -> None:
        """Note whether `keep` has the token that is needed to hold rights again."""
        self._restorable = len(tokens) > self._tokens.output

    def snapshot(self) -> pa.Table:
        """The waiting records, with the bins of their keys."""
        if self._partial:
            raise SnapshotError("records inside a loop wait: a snapshot needs loops at rest")
        whole = self._runs.whole
        if whole is None:
            return pa.table({BIN: pa.array([], pa.uint16())})
        return self._table(whole)

    def cut(self, after: str | None, guard: Guard) -> Cut | None:
        """The records that were added and still wait, and up to where others were taken."""
        if self._partial:
            raise SnapshotError("records inside a loop wait: a snapshot needs loops at rest")
        if self._may_shrink or not self.kind.total:
            return None
        blocks = list(self._runs)
        if blocks:
            # Whether it is known where they belong.
            self._bins(blocks[0].slice(0, 1))
        return self._changes.cut(after, blocks, len(self._runs), self._blocks_table, _TIME)

    def restored(self, token: str, ids: npt.NDArray[np.int64] | None) -> None:
        """Go on from a stored state."""
        self._changes.restored(token, len(self))

    def _blocks_table(self, blocks: Sequence[Batch]) -> pa.Table:
        if not blocks:
            return pa.table({BIN: pa.array([], pa.uint16())})
        return self._table(_joined(blocks))

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The waiting records of some bins, which no longer wait."""
        if self._partial:
            raise SnapshotError("records inside a loop move as a whole")
        whole = self._runs.whole
        if whole is None:
            return pa.table({BIN: pa.array([], pa.uint16())})
        mask = np.uint16(len(chosen) - 1)
        self._changes.lost()
        self._runs.keep(lambda rows: ~chosen[self._bins(rows) & mask])
        if len(self._tokens):
            # Records that are pushed with None have their rights elsewhere.
            self.settle()
        return self._table(whole.filter(chosen[self._bins(whole) & mask]))

    def memory_bytes(self) -> int:
        """About how many bytes of memory the waiting records take."""
        return _COPIES * sum(batch.nbytes for batch in self._runs)

    def due(self, state: pa.Table) -> int | None:
        """The first time for which records wait."""
        if not state.num_rows:
            return None
        first: int = pc.min(state.column(state.column_names[1]).cast(pa.int64())).as_py()
        return first

    def _bins(self, whole: Batch) -> npt.NDArray[np.uint16]:
        return bins_of(self._keys(whole) or [np.zeros(len(whole), dtype=np.int64)])

    def _table(self, whole: Batch) -> pa.Table:
        # Prefixed, since a column of the user's may well be called "bin".
        values = {f"{_VALUE}{name}": cols.to_arrow(c) for name, c in whole.columns.items()}
        stamps = cols.to_arrow(stamped(whole.times, whole.unit))
        times = {f"{_TIME}{self._time_name}": stamps}
        return pa.table({BIN: pa.array(self._bins(whole)), **times, **values})

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """Let the records wait again."""
        if state.num_rows:
            names = state.column_names
            columns = {
                name[len(_VALUE) :]: cols.as_column(state.column(name))
                for name in names
                if name.startswith(_VALUE)
            }
            # Several, if workers have different names for it.
            times = [name for name in names if name.startswith(_TIME)]
            stamps = pc.coalesce(*(state.column(name) for name in times))
            unit = unit_of(stamps.type)
            whole = stamps.cast(pa.int64()).to_numpy()
            batch = Batch.trusted(columns, whole, times[-1][len(_TIME) :], unit=unit)
            self.push(tokens[self._tokens.output] if tokens else None, batch)

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


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    name = batches[0].time_name
    return concat([batch.named(name) for batch in batches])
