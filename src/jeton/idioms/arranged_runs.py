"""Runs of an arrangement: immutable records sorted by key and time, and their meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import jeton as jt
from jeton.errors import SnapshotError
from jeton.idioms.grouping import Integers, grouping_by_value, order_of, plain, same_rows
from jeton.idioms.intervals import compared, diffs_of, time_keys

Times: TypeAlias = npt.NDArray[Any]

Keys: TypeAlias = dict[str, Any]
"""The values of keys that are asked for, by the names that their columns have in the runs."""


@dataclass(frozen=True, slots=True)
class ArrangedRun:
    """Records sorted by the hashes of their keys, then by time.

    Keys and values whose hashes are equal are compared before they count as equal.

    Beside the records there are arrays: ``words`` are the hashes of keys, ``diffs`` say how often a
    record is added, ``row_words`` are the hashes of its values. Where there are those, equal
    records come together: the order is by key, values, time.
    """

    batch: jt.Batch
    arrays: dict[str, Integers]
    fresh: int = 0
    """The number of records that were too late for their history to be forgotten."""
    latest: Any = None
    """A time at or after those of all records."""

    @property
    def words(self) -> Integers:
        """The hashes of the keys, in ascending order."""
        return self.arrays["words"]

    def __len__(self) -> int:
        return len(self.batch)

    def slice(self, start: int, stop: int) -> ArrangedRun:
        """The records from ``start`` up to ``stop``, uncopied."""
        arrays = {name: array[start:stop] for name, array in self.arrays.items()}
        return ArrangedRun(self.batch.slice(start, stop), arrays)

    def take(self, rows: npt.NDArray[np.intp]) -> ArrangedRun:
        """Some of the records, in that order."""
        arrays = {name: array[rows] for name, array in self.arrays.items()}
        return ArrangedRun(self.batch.take(rows), arrays)

    def settled(self, since: jt.Antichain) -> ArrangedRun:
        """The same, with the number of records that are new to readers at ``since``."""
        times = self.batch.times
        seen = np.zeros(len(self), dtype=bool)
        for least in since:
            seen |= not_later(times, np.array(least))
        latest = times.max(axis=0) if len(self) else None
        return ArrangedRun(self.batch, self.arrays, int(np.count_nonzero(~seen)), latest)

    def is_stale(self, since: jt.Antichain) -> bool:
        """Whether much of its history could be forgotten that could not be before."""
        return 2 * self.fresh > len(self) and any(
            (self.latest <= np.array(least)).all() for least in since
        )

    @property
    def in_order(self) -> bool:
        """Whether the records of a key are in the order of their times."""
        return self.batch.times.ndim == 1 and "row_words" not in self.arrays

    def find(self, words: Integers, at: Times) -> tuple[Integers, Integers]:
        """From where to where the records with each hash are; if `in_order`, those until ``at``."""
        if not self.in_order:
            return (
                np.searchsorted(self.words, words, "left"),
                np.searchsorted(self.words, words, "right"),
            )
        first, stop = _find(plain(self.words), plain(self.batch.times), plain(words), plain(at))
        return first, stop

    def same(self, keys: Keys, rows: Integers, asking: Integers) -> npt.NDArray[np.bool_]:
        """Which of some records have the keys of the asking rows, and not only their hashes."""
        same = np.ones(len(rows), dtype=bool)
        for name, column in keys.items():
            same &= same_rows(self.batch.column(name), rows, column, asking)
        return same


class Content:
    """The meaning of an arrangement's records: all of them, those not removed, or the latest."""

    def __init__(self, key: Sequence[str], diff: str | None, upsert: bool) -> None:
        self.key = tuple(key)
        self.diff = diff
        self.upsert = upsert
        self.counts = diff is not None and not upsert
        """Whether a record counts as often as it has been added more than removed."""
        self.forgets = self.counts or upsert
        """Whether there is history that can be forgotten."""

    @property
    def shape(self) -> str:
        """The shape of the state: see `jt.OperatorInfo.keep`."""
        what = "latest" if self.upsert else "records"
        counted = "" if self.diff is None else f" with {self.diff}"
        return f"{what}{counted} by {', '.join(self.key)}"

    def run(self, batch: jt.Batch) -> ArrangedRun:
        """A sealed batch as a run."""
        diffs = None if self.diff is None else diffs_of(batch, self.diff)
        if diffs is None and self.forgets:
            diffs = np.ones(len(batch), dtype=np.int64)
        batch = batch.select(*(name for name in batch.names if name != self.diff))
        arrays = {"words": hashes([batch.column(name) for name in self.key])}
        if diffs is not None:
            arrays["diffs"] = diffs
        if self.counts:
            values = compared(batch, [name for name in batch.names if name not in self.key])
            zeros = np.zeros(len(batch), dtype=np.int64)
            arrays["row_words"] = hashes(values) if values else zeros
        run = ArrangedRun(batch, arrays)
        if self.upsert:
            run = self._without_equals(run)
        return self.compacted(run, None, None, oldest=False)

    def compacted(
        self, run: ArrangedRun, split: int | None, since: jt.Antichain | None, oldest: bool
    ) -> ArrangedRun:
        """In order, and without records that no reader from ``since`` on can see.

        Records before ``split`` are in order already, and so are those from there on. ``oldest``
        states that no earlier record of these keys is anywhere else.
        """
        if self.counts and since is not None:
            run = ArrangedRun(run.batch.at(advanced(run.batch.times, since)), run.arrays)
        arrays, times = run.arrays, run.batch.times
        keys = [arrays["words"], *([arrays["row_words"]] if self.counts else []), *time_keys(times)]
        # Products that have been moved on may have changed their places.
        merges = split is not None and times.ndim == 1
        order = jt.state.merge_order(keys, split or 0) if merges else order_of(keys)
        if not self.counts:
            run = run.take(order)
            return self._latest(run, since, oldest) if self.upsert and since is not None else run
        values = [run.batch.column(name) for name in run.batch.names]
        order, starts = grouping_by_value(keys, values, order)
        if not len(starts):
            return run
        sums = np.add.reduceat(arrays["diffs"][order], starts)
        kept = sums != 0
        run = run.take(order[starts[kept]])
        return ArrangedRun(run.batch, run.arrays | {"diffs": sums[kept]})

    def with_diffs(self, run: ArrangedRun) -> jt.Batch:
        """The records of a run as they came, with their ``diff``."""
        if self.diff is None:
            return run.batch
        return run.batch.with_columns({self.diff: run.arrays["diffs"]})

    def _latest(self, run: ArrangedRun, since: jt.Antichain, oldest: bool) -> ArrangedRun:
        """Without records that later ones had replaced before any reader looks."""
        [limit] = since
        words = run.words
        old = run.batch.times <= limit
        gone = np.zeros(len(run), dtype=bool)
        equal = np.flatnonzero(words[1:] == words[:-1])
        same = run.same({name: run.batch.column(name) for name in self.key}, equal, equal + 1)
        gone[equal[same]] = old[equal[same] + 1]
        if oldest and same.all():
            # A removal need not be kept if there is nothing that it removes.
            gone |= old & (run.arrays["diffs"] <= 0)
        return run.take(np.flatnonzero(~gone)) if gone.any() else run

    def _without_equals(self, run: ArrangedRun) -> ArrangedRun:
        """Of records with equal key and time the greatest, column by column; removals are least."""
        keys = [run.words, run.batch.times]
        order, starts = grouping_by_value(keys, [run.batch.column(name) for name in self.key])
        if len(starts) == len(run):
            return run
        group = np.empty(len(run), dtype=np.int64)
        group[order] = np.repeat(np.arange(len(starts)), np.diff([*starts, len(run)]))
        columns = {"group": group, "added": run.arrays["diffs"] > 0}
        for at, column in enumerate(run.batch.columns.values()):
            if isinstance(column, np.ndarray) or not pa.types.is_nested(column.type):
                columns[f"value {at}"] = column
        # From the greatest down, since nulls then come last.
        order = pc.sort_indices(
            pa.table(columns), sort_keys=[(name, "descending") for name in columns]
        ).to_numpy()
        first = np.flatnonzero(np.diff(group[order], prepend=-1))
        return run.take(order[first].astype(np.intp, copy=False))

    def snapshot(self, run: ArrangedRun) -> pa.Table:
        """The records of a run as a table with the bins of their keys."""
        if run.batch.times.ndim != 1:
            raise SnapshotError("an arrangement inside a loop cannot be kept: empty it before")
        records = jt.state.RecordQueue(jt.IntegerTimes(), self.key)
        records.push(None, self.with_diffs(run))
        return records.snapshot()

    def restored(self, state: pa.Table) -> ArrangedRun:
        """The run that such a table was made of; it has one or more records."""
        records = jt.state.RecordQueue(jt.IntegerTimes(), self.key)
        records.restore(state, ())
        [(_, batch)] = records.pop(jt.Antichain())
        return self.run(batch)


def joined(runs: Sequence[ArrangedRun]) -> ArrangedRun:
    """Runs one behind the other: sorted only if no key of a later one comes before."""
    first = runs[0]
    arrays = {name: np.concatenate([run.arrays[name] for run in runs]) for name in first.arrays}
    return ArrangedRun(jt.concat([run.batch for run in runs]), arrays)


def advanced(times: Times, since: jt.Antichain) -> Times:
    """Times moved on as far as no reader from ``since`` on can see.

    >>> advanced(np.array([3, 12]), jt.Antichain([10]))
    array([10, 12])
    """
    moved = [np.maximum(times, np.array(least)) for least in since]
    least: Times = np.minimum.reduce(moved)
    return least


def not_later(times: Times, at: Times) -> npt.NDArray[np.bool_]:
    """Which of some times are ``<=`` others.

    >>> not_later(np.array([[1, 5], [1, 5]]), np.array([[2, 5], [2, 4]]))
    array([ True, False])
    """
    below: npt.NDArray[np.bool_] = times <= at
    return np.all(below, axis=1) if below.ndim == 2 else below


def expand(first: Integers, stop: Integers) -> tuple[Integers, Integers]:
    """All pairs of asking rows with the records in their ranges.

    >>> [part.tolist() for part in expand(np.array([5, 0]), np.array([7, 1]))]
    [[0, 0, 1], [5, 6, 0]]
    """
    counts = stop - first
    asking = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return asking, np.arange(len(asking)) + np.repeat(first - before, counts)


def hashes(columns: Sequence[Any]) -> Integers:
    """The hash of each row of some columns, with a sign."""
    return jt.state.hash_columns(columns).view(np.int64)


@jt.njit(cache=True)
def _find(words, times, asked, at) -> Any:  # type: ignore[no-untyped-def]
    first = np.searchsorted(words, asked, "left")
    stop = np.searchsorted(words, asked, "right")
    for i in range(len(asked)):
        stop[i] = first[i] + np.searchsorted(times[first[i] : stop[i]], at[i], "right")
    return first, stop
