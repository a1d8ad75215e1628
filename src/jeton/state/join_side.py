"""JoinSide: the records of one side of a join, found by key and time.

Records lie in *runs*, each sorted by key and then by time, so that a whole batch finds its partners
by walking through a run once. Runs of similar size are merged: there are never more than a few, and
a record is moved no more often than the logarithm of their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns import compiled as nb
from jeton.columns import time_columns
from jeton.columns.batch import Batch, concat
from jeton.columns.column import Column
from jeton.columns.time_arithmetic import LEAST, MOST, Integers, distance
from jeton.columns.time_columns import Times
from jeton.columns.time_units import unit_of
from jeton.core.antichain import Antichain
from jeton.core.errors import SnapshotError
from jeton.core.times import Time, TimeKind
from jeton.core.tokens import TimestampToken
from jeton.state.changes import BlockChanges, Cut, Guard
from jeton.state.key_ids import KeyIds, KeyTypes, without_nulls
from jeton.state.snapshot import BIN, bins_of
from jeton.state.sorted_runs import merge_from, merge_order, sort_order

MOST_PAIRS = 1 << 20
"""The approximate number of pairs made at a time, so that a hot key does not fill the memory."""

Expiry = Callable[[Integers, Integers], Integers]
"""From a run's ids and positions to the last position of the other side that each row serves."""

_ROW = "row."
_STAMP = "stamp."
"""The times under their name and in their unit, where they are part of the key."""
_COPIES: Final = 2
"""Rows are copied when runs are merged."""


class Clock:
    """Positions in time as integers: the times, or numbers for times that are not integers."""

    def __init__(self, kind: TimeKind) -> None:
        self.kind = kind
        self._numbers: dict[Time, int] = {}
        self._next = 0

    def at(self, times: Times) -> Integers:
        """The position of each time; equal times have equal ones."""
        if self.kind.total:
            return cols.plain(times)
        numbers = np.empty(len(times), dtype=np.int64)
        for time, rows in time_columns.groups(times):
            if time not in self._numbers:
                self._numbers[time] = self._next
                self._next += 1
            numbers[rows] = self._numbers[time]
        return numbers

    def over(self, *frontiers: Antichain) -> Integers:
        """The numbers of times that all frontiers have passed; they are forgotten."""
        done = [t for t in self._numbers if all(frontier.passed(t) for frontier in frontiers)]
        return np.array([self._numbers.pop(time) for time in done], dtype=np.int64)


class JoinRun:
    """Rows sorted by key id, then by position."""

    __slots__ = ("at", "batch", "half_life", "ids")

    def __init__(self, ids: Integers, at: Integers, batch: Batch) -> None:
        self.ids = ids
        self.at = at
        self.batch = batch
        self.half_life = MOST
        """The limit from which on half of the rows have expired."""

    def filter(self, mask: npt.NDArray[np.bool_]) -> JoinRun:
        """The rows for which ``mask`` is true."""
        return JoinRun(self.ids[mask], self.at[mask], self.batch.filter(mask))

    def __len__(self) -> int:
        return len(self.ids)


class JoinSide:
    """Records of one side, all with known keys; dropped once they have no partners any more."""

    def __init__(
        self,
        key: Sequence[str],
        types: KeyTypes,
        ids: KeyIds,
        clock: Clock,
        expiry: Expiry,
        *,
        unify: Callable[[JoinRun], JoinRun] | None = None,
    ) -> None:
        self._key = tuple(key)
        self._types = types
        self._ids = ids
        self._clock = clock
        self._expiry = expiry
        self._unify = unify
        self._limit = LEAST
        self.time_columns: tuple[str, ...] = ("time",)
        """The columns of its snapshots that have times, for people who look at them."""
        self.runs: list[JoinRun] = []
        self._changes = BlockChanges()
        self._stored = 0
        """The number of rows that were restored."""

    def learn(self, batch: Batch) -> None:
        """Refuse a batch whose keys are never equal to those of the other side; it may be empty."""
        self._types.learn(self, self._key, [batch.column(name) for name in self._key])

    def run(self, batch: Batch, times: Times | None = None) -> JoinRun:
        """A batch as a run, to ask the other side with or to be added to this one."""
        keys = [without_nulls(batch.column(name)) for name in self._key]
        ids = self._ids.of(keys, len(batch))
        at = self._clock.at(batch.times if times is None else times)
        order = sort_order([ids, at], stable=False)
        if order is None:
            return JoinRun(ids, at, batch)
        return JoinRun(ids[order], at[order], batch.take(order))

    def add(self, run: JoinRun) -> None:
        """Keep a run."""
        made = self._made(run)
        if len(made):
            self.runs.append(made)
            self._tidy()
            self._changes.added(made.batch, len(self))

    def pairs(
        self, asking: JoinRun, lower: int, upper: int
    ) -> Iterator[tuple[Integers, list[tuple[JoinRun, Integers]]]]:
        """All pairs of asking rows with rows here that lie ``lower`` to ``upper`` from them.

        In pieces: the asking rows, and for each run its rows that stand opposite.
        """
        found = []
        for run in self.runs:
            first, count, total = find_ranges(run.ids, run.at, asking.ids, asking.at, lower, upper)
            if total:
                found.append((run, first, count))
        if not found:
            return
        for start, stop in _pieces(sum(count for _, _, count in found)):
            asked, partners = [], []
            for run, first, count in found:
                rows, others = expand(first, count, start, stop)
                if len(rows):
                    asked.append(rows)
                    partners.append((run, others))
            if asked:
                yield (asked[0] if len(asked) == 1 else np.concatenate(asked)), partners

    def lonely(self, asking: JoinRun, lower: int, upper: int) -> npt.NDArray[np.bool_]:
        """Which asking rows have no partner here."""
        partners = np.zeros(len(asking), dtype=np.int64)
        for run in self.runs:
            partners += find_ranges(run.ids, run.at, asking.ids, asking.at, lower, upper)[1]
        alone: npt.NDArray[np.bool_] = partners == 0
        return alone

    def expire(self, limit: int | None) -> None:
        """Drop rows that serve only positions before ``limit`` (``None``: all).

        Not at once, but before they are the larger part of what is kept.
        """
        if limit is None:
            self._changes.lost()
            self.runs.clear()
            return
        self._limit = max(limit, self._limit)
        if any(limit > run.half_life for run in self.runs):
            made = (self._made(r) if limit > r.half_life else r for r in self.runs)
            self.runs = [run for run in made if len(run)]
            self._tidy()

    def forget(self, positions: Integers) -> None:
        """Drop all rows at some positions."""
        if len(positions):
            self._changes.lost()
            kept = (run.filter(~np.isin(run.at, positions)) for run in self.runs)
            self.runs = [run for run in kept if len(run)]
            self._tidy()

    def __len__(self) -> int:
        """The number of rows."""
        return sum(map(len, self.runs))

    def snapshot(self) -> pa.Table:
        """All rows, with the bins of their keys."""
        self._require_rest()
        return self._table(self._blocks())

    def _blocks(self) -> list[Batch]:
        """All rows, in batches that do not change."""
        return [run.batch for run in self.runs]

    def cut(self, after: str | None, guard: Guard) -> Cut:
        """The rows that were added; those that are no longer needed go when all are written."""
        self._require_rest()
        return self._changes.cut(after, self._blocks(), len(self), self._table)

    def restored(self, token: str, ids: Integers | None) -> None:
        """Go on from a stored state."""
        # With those that were not needed any more, so that files do not grow with each restart.
        self._changes.restored(token, self._stored)

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The rows of some bins, which are dropped here."""
        if not self._clock.kind.total:
            raise SnapshotError("records inside a loop move as a whole")
        left, taken = [], []
        for run in self.runs:
            leaves = self.in_bins(run.batch, chosen)
            if leaves.any():
                taken.append(run.batch.filter(leaves))
                half_life, run = run.half_life, run.filter(~leaves)
                run.half_life = half_life
            if len(run):
                left.append(run)
        if taken:
            self._changes.lost()
            self.runs = left
            self._tidy()
        return self._table(taken)

    def in_bins(self, batch: Batch, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which rows have keys in some bins."""
        leaves: npt.NDArray[np.bool_]
        leaves = chosen[bins_of(self._keys(batch)) & np.uint16(len(chosen) - 1)]
        return leaves

    def memory_bytes(self) -> int:
        """About how many bytes of memory all rows take."""
        size = sum(run.batch.nbytes + run.ids.nbytes + run.at.nbytes for run in self.runs)
        return _COPIES * size

    def due(self, state: pa.Table) -> None:
        """No token is needed for rows: the record of a pair that comes last has one."""

    def _require_rest(self) -> None:
        if self.runs and not self._clock.kind.total:
            raise SnapshotError("records inside a loop wait: a snapshot needs loops at rest")

    def _table(self, blocks: Sequence[Batch]) -> pa.Table:
        if not blocks:
            return pa.table({BIN: pa.array([], pa.uint16())})
        name = blocks[0].time_name
        whole = concat([block.named(name) for block in blocks])
        arrays = {BIN: bins_of(self._keys(whole)), "time": whole.times}
        arrays |= {_ROW + name: column for name, column in whole.columns.items()}
        if name in self._key:
            arrays[_STAMP + name] = whole.column(name)
        return pa.table({name: cols.to_arrow(column) for name, column in arrays.items()})

    def _keys(self, whole: Batch) -> list[Column]:
        keys = [whole.column(name) for name in self._key]
        return keys or [np.zeros(len(whole), dtype=np.int64)]

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The rows again."""
        if "time" not in state.column_names:
            return
        names = [name for name in state.column_names if name.startswith(_ROW)]
        rows = {name[len(_ROW) :]: state.column(name) for name in names}
        batch = Batch(rows, state.column("time").to_numpy(), time_name="")
        for name in state.column_names:
            if name.startswith(_STAMP):
                batch = batch.named(name[len(_STAMP) :])
                batch.unit = unit_of(state.column(name).type)
        self.learn(batch)
        self._stored = len(batch)
        if len(batch):
            # Records that come with these rows may ask for some that were over for those here.
            self._limit = LEAST
            self._put_back(batch)

    def _put_back(self, batch: Batch) -> None:
        """Keep rows that were stored."""
        self.add(self.run(batch))

    def _made(self, run: JoinRun) -> JoinRun:
        """A run without rows that have expired, and with its half-life."""
        if self._unify is not None:
            run = self._unify(run)
        if not self._clock.kind.total or not len(run):
            return run
        expiry = self._expiry(run.ids, run.at)
        alive = expiry >= self._limit
        if not alive.all():
            run, expiry = run.filter(alive), expiry[alive]
        if len(run):
            middle = len(run) // 2
            run.half_life = int(np.partition(expiry, middle)[middle])
        return run

    def _tidy(self) -> None:
        """Merge runs until each is more than twice as long as those after it.

        There are fewer than in other stores of runs, since each search goes through all of them.
        """
        runs = self.runs
        while (start := merge_from(list(map(len, runs)), most=1)) is not None:
            merged = runs.pop()
            while len(runs) > start:
                merged = self._made(_merged(runs.pop(), merged))
            if len(merged):
                runs.append(merged)


def gathered(partners: list[tuple[JoinRun, Integers]], names: Sequence[str] | None = None) -> Batch:
    """Rows of several runs as one batch; of the columns ``names`` if given."""
    parts = [
        (run.batch if names is None else run.batch.select(*names)).take(rows)
        for run, rows in partners
    ]
    return concat([part.named(parts[0].time_name) for part in parts])


def _pieces(counts: Integers) -> Iterator[tuple[int, int]]:
    """Stretches of asking rows with not many more than `MOST_PAIRS` partners each."""
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        before = int(ends[start - 1]) if start else 0
        if before == ends[-1]:
            return
        stop = max(start + 1, int(np.searchsorted(ends, before + MOST_PAIRS, side="right")))
        yield start, stop
        start = stop


def _merged(run: JoinRun, other: JoinRun) -> JoinRun:
    ids = np.concatenate([run.ids, other.ids])
    at = np.concatenate([run.at, other.at])
    order = merge_order([ids, at], len(run))
    batch = concat([run.batch, other.batch.named(run.batch.time_name)]).take(order)
    return JoinRun(ids[order], at[order], batch)


@nb.njit(cache=True, inline="always")
def _seek(ids, at, start, key, time, after):  # type: ignore[no-untyped-def]
    """The first row from ``start`` on that is not before (key, time); with ``after``, past it.

    Steps double until they overshoot: the target is usually near, since those who ask come in
    order too.
    """
    low = start
    high = start
    step = 1
    while high < len(ids) and (
        ids[high] < key or (ids[high] == key and (at[high] < time or (after and at[high] == time)))
    ):
        low = high + 1
        high += step
        step *= 2
    high = min(high, len(ids))
    while low < high:
        middle = (low + high) // 2
        if ids[middle] < key or (
            ids[middle] == key and (at[middle] < time or (after and at[middle] == time))
        ):
            low = middle + 1
        else:
            high = middle
    return low


@nb.njit(cache=True)
def find_ranges(
    run_ids: Integers, run_at: Integers, ids: Integers, at: Integers, lower: int, upper: int
) -> Any:
    """For each asking row, the rows of a run with its id and ``lower``…``upper`` away from it.

    Returns where those start, how many they are, and how many there are in all.
    """
    first = np.empty(len(ids), np.int64)
    count = np.empty(len(ids), np.int64)
    total = 0
    start = stop = 0
    for i in range(len(ids)):
        if (lower > 0 and at[i] > MOST - lower) or (upper < 0 and at[i] < LEAST - upper):
            # All of it lies beyond an end of time.
            first[i] = start
            count[i] = 0
            continue
        from_ = at[i] + lower if lower > 0 or at[i] >= LEAST - lower else np.int64(LEAST)
        to = at[i] + upper if upper < 0 or at[i] <= MOST - upper else np.int64(MOST)
        start = _seek(run_ids, run_at, start, ids[i], from_, False)
        stop = _seek(run_ids, run_at, max(start, stop), ids[i], to, True)
        first[i] = start
        count[i] = stop - start
        total += stop - start
    return first, count, total


@nb.njit(cache=True)
def expand(first: Integers, count: Integers, start: int, stop: int) -> tuple[Integers, Integers]:
    """All pairs of asking rows ``start``…``stop`` with the rows in their ranges."""
    total = 0
    for i in range(start, stop):
        total += count[i]
    asking = np.empty(total, np.int64)
    found = np.empty(total, np.int64)
    at = 0
    for i in range(start, stop):
        for k in range(count[i]):
            asking[at] = i
            found[at] = first[i] + k
            at += 1
    return asking, found


@nb.njit(cache=True)
def find_last(
    run_ids: Integers, run_at: Integers, ids: Integers, at: Integers, tolerance: np.uint64
) -> Any:
    """For each asking row, the last row of a run with its id that is not after it.

    Returns that row's number, or -1 if there is none within ``tolerance`` (an unsigned number),
    and its position.
    """
    found = np.empty(len(ids), np.int64)
    position = np.empty(len(ids), np.int64)
    past = 0
    for i in range(len(ids)):
        past = _seek(run_ids, run_at, past, ids[i], at[i], True)
        found[i] = -1
        position[i] = LEAST
        last = past - 1
        if last >= 0 and run_ids[last] == ids[i] and distance(at[i], run_at[last]) <= tolerance:
            found[i] = last
            position[i] = run_at[last]
    return found, position
