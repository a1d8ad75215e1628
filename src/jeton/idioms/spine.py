"""The spine of an arrangement: immutable sorted runs of records, merged in bounded pieces.

Each sealed interval becomes a run. Neighbouring runs of similar size are merged into one, so that
there are never more than a few beyond the logarithm of the number of records. Unlike in
`jt.state.SortedRuns`, a merge does a bounded piece of work at a time, and readers use its two
sources until it is done. History that makes no difference to any reader is forgotten on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton.idioms.arranged_runs import (
    ArrangedRun,
    Content,
    Keys,
    Times,
    expand,
    hashes,
    joined,
    not_later,
)
from jeton.idioms.grouping import Integers, grouping_by_value

_NOTHING = pa.table({"bin": pa.array([], pa.uint16())})
_NO_ROWS = np.empty(0, dtype=np.int64)


class Merge:
    """Two neighbouring runs on their way to become one, or one that is to forget its history."""

    __slots__ = ("_at", "_content", "_oldest", "_pieces", "_since", "runs")

    def __init__(self, content: Content, runs: Sequence[ArrangedRun], oldest: bool) -> None:
        self.runs = tuple(runs)
        self._content = content
        self._oldest = oldest
        self._at = [0] * len(runs)
        self._pieces: list[ArrangedRun] = []
        self._since = jt.Antichain()

    def work(self, fuel: int, since: jt.Antichain) -> None:
        """Move about ``fuel`` records; all of one key go together."""
        stops = self._stops(max(1, fuel // len(self.runs)))
        parts = [
            run.slice(start, stop)
            for run, start, stop in zip(self.runs, self._at, stops, strict=True)
        ]
        self._at = stops
        self._since = since
        self._pieces.append(
            self._content.compacted(joined(parts), len(parts[0]), since, self._oldest)
        )

    def _stops(self, most: int) -> list[int]:
        """Where this piece ends in each run: at the same key in all of them."""
        ends = [min(at + most, len(run)) for run, at in zip(self.runs, self._at, strict=True)]
        beyond = [
            run.words[end] for run, end in zip(self.runs, ends, strict=True) if end < len(run)
        ]
        if not beyond:
            return ends
        stops = [int(np.searchsorted(run.words, min(beyond), "left")) for run in self.runs]
        if stops == self._at:
            # One key has more than that.
            stops = [int(np.searchsorted(run.words, min(beyond), "right")) for run in self.runs]
        return stops

    @property
    def is_done(self) -> bool:
        """Whether all records have been moved."""
        return all(at == len(run) for run, at in zip(self.runs, self._at, strict=True))

    def result(self) -> ArrangedRun:
        """The one run that they have become."""
        return joined(self._pieces).settled(self._since)


class Spine:
    """The runs of an arrangement on one worker, from the oldest to the newest."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self._slots: list[ArrangedRun | Merge] = []

    def insert(self, run: ArrangedRun, since: jt.Antichain) -> None:
        """Add a sealed interval, which is later than all before; readers are at ``since``."""
        if len(run):
            self._slots.append(run.settled(since))

    @property
    def runs(self) -> Iterator[ArrangedRun]:
        """All runs, from the oldest to the newest; those that are being merged are still there."""
        for slot in self._slots:
            if isinstance(slot, Merge):
                yield from slot.runs
            else:
                yield slot

    def __len__(self) -> int:
        """The number of records."""
        return sum(map(len, self.runs))

    def work(self, fuel: int, since: jt.Antichain) -> bool:
        """Merge a piece, forgetting what no reader from ``since`` on can see; whether to go on."""
        if since.is_empty:
            # There are no readers any more.
            self._slots.clear()
            return False
        for at, slot in enumerate(self._slots):
            if isinstance(slot, Merge):
                slot.work(fuel, since)
                if slot.is_done:
                    self._slots[at] = slot.result()
        self._slots = [s for s in self._slots if isinstance(s, Merge) or len(s)]
        self._begin(since)
        return any(isinstance(slot, Merge) for slot in self._slots)

    def wants_work(self, since: jt.Antichain) -> bool:
        """Whether there is something to merge or to forget, once readers are at ``since``."""
        return bool(self._slots) and (
            since.is_empty
            or any(isinstance(s, Merge) or self._is_stale(s, since) for s in self._slots)
        )

    def _begin(self, since: jt.Antichain) -> None:
        """Start merges of neighbours of similar size, the newest first, and of stale runs."""
        at = len(self._slots) - 2
        while at >= 0:
            older, newer = self._slots[at : at + 2]
            if (
                isinstance(older, ArrangedRun)
                and isinstance(newer, ArrangedRun)
                and len(older) <= 2 * len(newer)
            ):
                self._slots[at : at + 2] = [Merge(self.content, [older, newer], at == 0)]
            at -= 1
        for at, slot in enumerate(self._slots):
            if isinstance(slot, ArrangedRun) and self._is_stale(slot, since):
                self._slots[at] = Merge(self.content, [slot], at == 0)

    def _is_stale(self, run: ArrangedRun, since: jt.Antichain) -> bool:
        """Whether it is worth going through a run to forget history."""
        return self.content.forgets and run.is_stale(since)

    def lookup(self, keys: Keys, at: Times) -> Found:
        """For each key the records that are there as of its time."""
        runs, words = tuple(self.runs), hashes(list(keys.values()))
        if self.content.upsert:
            return _latest(runs, keys, words, at)
        found = _all(runs, keys, words, at)
        if self.content.counts:
            return _accumulated(found, [n for n in found.names if n not in keys])
        return found.take(np.argsort(found.asking, kind="stable"))

    def snapshot(self) -> pa.Table:
        """All records, with the bins of their keys."""
        return self.content.snapshot(joined(list(self.runs))) if len(self) else _NOTHING

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Take the records over, as one run."""
        if state.num_rows:
            # All readers begin anew, so that none of it counts as seen.
            self._slots = [self.content.restored(state).settled(jt.Antichain())]


@dataclass(frozen=True, slots=True)
class Found:
    """Records that were found: for each, the asking row, the run and the row in it."""

    runs: tuple[ArrangedRun, ...]
    asking: Integers
    number: Integers
    rows: Integers

    def take(self, chosen: Integers) -> Found:
        """Only some of them."""
        return Found(self.runs, self.asking[chosen], self.number[chosen], self.rows[chosen])

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the records."""
        return self.runs[0].batch.names if self.runs else ()

    def of_each(self, name: str) -> Integers:
        """The values of one of the runs' arrays, for each record found."""
        out = np.empty(len(self.rows), dtype=np.int64)
        for number, run in enumerate(self.runs):
            mine = self.number == number
            out[mine] = run.arrays[name][self.rows[mine]]
        return out

    def batch(self) -> jt.Batch | None:
        """The records themselves; ``None`` if there is no run to take their columns from."""
        if not self.runs:
            return None
        order = np.argsort(self.number, kind="stable")
        parts = [
            run.batch.take(self.rows[self.number == number]) for number, run in enumerate(self.runs)
        ]
        back = np.empty(len(order), dtype=np.intp)
        back[order] = np.arange(len(order))
        return jt.concat(parts).take(back)


def _all(runs: tuple[ArrangedRun, ...], keys: Keys, words: Integers, at: Times) -> Found:
    """Of each key all records that are not later than its time, run by run."""
    asking, number, rows = [_NO_ROWS], [_NO_ROWS], [_NO_ROWS]
    for index, run in enumerate(runs):
        mine, found = expand(*run.find(words, at))
        if not run.in_order:
            there = not_later(run.batch.times[found], at[mine])
            mine, found = mine[there], found[there]
        same = run.same(keys, found, mine)
        if not same.all():
            mine, found = mine[same], found[same]
        asking.append(mine)
        number.append(np.full(len(found), index))
        rows.append(found)
    return Found(runs, np.concatenate(asking), np.concatenate(number), np.concatenate(rows))


def _latest(runs: tuple[ArrangedRun, ...], keys: Keys, words: Integers, at: Times) -> Found:
    """Of each key the latest record, unless that removes it."""
    number = np.full(len(at), -1)
    rows = np.full(len(at), -1)
    for index, run in enumerate(runs):
        first, stop = run.find(words, at)
        # Runs go from the oldest to the newest: what a later one has is later.
        asking = np.flatnonzero(stop > first)
        last = stop[asking] - 1
        if not run.same(keys, last, asking).all():
            # Records of another key with the same hash are among them.
            mine, others = expand(first, stop)
            same = run.same(keys, others, mine)
            asking, places = np.unique(mine[same][::-1], return_index=True)
            last = others[same][::-1][places]
        number[asking] = index
        rows[asking] = last
    found = Found(runs, np.arange(len(at)), number, rows).take(np.flatnonzero(rows >= 0))
    return found.take(np.flatnonzero(found.of_each("diffs") > 0))


def _accumulated(found: Found, names: Sequence[str]) -> Found:
    """Equal records as one, as often as they have been added more than removed."""
    if not len(found.rows):
        return found
    keys = [found.asking, found.of_each("row_words")]
    rows = found.batch()
    assert rows is not None, "what was found is in some run"
    order, starts = grouping_by_value(keys, [rows.column(name) for name in names])
    sums = np.add.reduceat(found.of_each("diffs")[order], starts)
    there = np.flatnonzero(sums > 0)
    return found.take(np.repeat(order[starts[there]], sums[there]))
