"""Earliest and latest values of each group, by the times of their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from jeton.columns import compiled as nb
from jeton.columns.batch import Batch
from jeton.columns.column import Column, as_column, from_arrow, join, plain, take, to_arrow
from jeton.columns.keys import is_bytes, is_float, one_form
from jeton.columns.ordering import tie_breakers
from jeton.state.accumulators import Accumulator, Values, filled, roomy, valid_mask
from jeton.state.key_columns import SlotColumn
from jeton.state.slot_bytes import encoded
from jeton.state.slot_pool import Slots


class ByTime(Accumulator):
    """The value that is not null at the least time, or at the greatest if ``latest``.

    Of several values at that time it is the least, or the greatest: it does not depend on which
    record came first.
    """

    def __init__(self, *, latest: bool) -> None:
        self._latest = latest
        self._seen = np.zeros(0, dtype=bool)
        self._time = np.zeros(0, dtype=np.int64)
        self._values = SlotColumn()
        self._kind: pa.DataType = pa.null()
        self._dictionary: pa.DataType | None = None
        """The type of results, if the column has a dictionary."""
        self._times: Values | None = None
        self._place = np.zeros(0, dtype=np.int64)
        """Room to number the groups of a batch; zeros between calls."""

    def note_times(self, times: Values) -> None:
        """Keep the times until their records come."""
        self._times = times

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Keep values that are earlier or later than those there."""
        self._choose(slots, column, size)

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """The same; returns the result after each record."""
        candidates, chosen = self._choose(slots, column, size)
        known = chosen >= 0
        if not len(candidates):
            return self._typed(pa.nulls(len(slots), self._kind))
        values = take(candidates, np.maximum(chosen, 0))
        return self._typed(values if known.all() else _with_nulls(values, known))

    def result(self, slots: Slots) -> Column:
        """The values."""
        return self._typed(self._get(slots))

    def clear(self, slots: Slots) -> None:
        """Forget the values of some groups."""
        self._seen[slots] = False
        self._tidy()

    def save(self, slots: Slots) -> dict[str, Column]:
        """The values and their times."""
        return {
            "value": self.result(slots),
            "time": self._time[slots],
            "seen": self._seen[slots].astype(np.int64),
        }

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The same again."""
        self._grow(size)
        time, seen = (
            column if isinstance(column, np.ndarray) else filled(column)
            for column in (saved["time"], saved["seen"])
        )
        self._time[slots] = time
        self._seen[slots] = seen
        known = np.flatnonzero(self._seen[slots])
        column = self._plain(saved["value"])
        self._learn(column)
        self._put(slots[known], as_column(take(column, known)), size)

    def merge(self, into: Slots, others: Slots) -> None:
        """The earlier or the later of two, pair by pair."""
        known = self._seen[others]
        into, others = into[known], others[known]
        self._times = self._time[others]
        self._choose(into, self._get(others), len(self._seen))

    def _choose(self, slots: Slots, column: Column | None, size: int) -> tuple[Column, Slots]:
        """Keep the best values; returns all candidates and the best after each record, or -1."""
        assert column is not None, "values by time name a column"
        assert self._times is not None, "the times of records come first"
        self._grow(size)
        column = self._plain(column)
        self._learn(column)
        groups, places = _numbered(slots, self._place)
        there = np.flatnonzero(self._seen[groups])
        old = groups[there]
        valid = valid_mask(column)
        rows = np.flatnonzero(valid) if len(valid) else np.arange(len(slots))
        values = as_column(take(column, rows)) if len(valid) else column
        # Those there first, then those of the records.
        candidates = join([part for part in (self._get(old), values) if len(part)] or [values])
        times = np.concatenate([self._time[old], self._times[rows]])
        best = np.full(len(groups), -1, dtype=np.int64)
        best[there] = np.arange(len(old))
        number = np.full(len(slots), -1, dtype=np.int64)
        number[rows] = np.arange(len(old), len(old) + len(rows))
        chosen = _best(places, number, times, _words(candidates), best, self._latest)
        changed = best >= len(old)
        self._seen[groups[changed]] = True
        self._time[groups[changed]] = times[best[changed]]
        self._put(groups[changed], take(candidates, best[changed]), size)
        self._tidy()
        return candidates, chosen

    def _put(self, slots: Slots, values: Column, size: int) -> None:
        if not len(slots):
            return
        kind = to_arrow(values[:0]).type
        if is_bytes(kind):
            assert isinstance(values, pa.Array)
            self._values.put(slots, values.cast(pa.large_binary()), size, kind=kind)
        else:
            self._values.put(slots, values, size)

    def _get(self, slots: Slots) -> Column:
        """The values of groups, null where there are none."""
        known = self._seen[slots]
        if not known.any():
            return from_arrow(pa.nulls(len(slots), self._kind))
        if known.all():
            return self._values.get(slots)
        values = self._values.get(slots[known])
        place = np.cumsum(known) - 1
        return _with_nulls(take(values, np.maximum(place, 0)), known)

    def _plain(self, column: Column) -> Column:
        """A column without a dictionary, and with one form of zero and NaN."""
        if not isinstance(column, np.ndarray) and pa.types.is_dictionary(column.type):
            self._dictionary = column.type
            column = column.dictionary_decode()
        return one_form(column) if is_float(column) else column

    def _typed(self, column: Column) -> Column:
        kind = self._dictionary
        return column if kind is None else encoded(to_arrow(column), kind)

    def _learn(self, column: Column) -> None:
        kind = to_arrow(column[:0]).type
        if not pa.types.is_null(kind):
            self._kind = kind

    def _grow(self, size: int) -> None:
        self._seen, self._time, self._place = (
            roomy(kept, size) for kept in (self._seen, self._time, self._place)
        )

    def _tidy(self) -> None:
        if self._values.is_wasteful(int(self._seen.sum())):
            self._values.compact(np.flatnonzero(self._seen).astype(np.int64))


def _with_nulls(values: Column, known: Any) -> pa.Array:
    """Values, null where they are not known."""
    places = pa.array(np.arange(len(known)), mask=~known)
    return to_arrow(values).take(places)


def _words(column: Column) -> Values:
    """Integers with a sign that sort like the values of a column."""
    if not len(column):
        return np.zeros(0, dtype=np.int64)
    # Values are of one form each: the first key tells them apart.
    keys = tie_breakers(Batch.trusted({"value": column}, np.zeros(0, dtype=np.int64)))[0]
    if keys.dtype == np.uint64:
        keys = (keys ^ np.uint64(1 << 63)).view(np.int64)
    return plain(keys.astype(np.int64, copy=False))


@nb.njit(cache=True)
def _numbered(slots, place):  # type: ignore[no-untyped-def]
    """The different slots in order of appearance, and for each record the place of its slot."""
    groups = np.empty(len(slots), np.int64)
    places = np.empty(len(slots), np.int64)
    found = 0
    for i in range(len(slots)):
        slot = slots[i]
        if place[slot] == 0:
            groups[found] = slot
            found += 1
            place[slot] = found
        places[i] = place[slot] - 1
    for i in range(found):
        place[groups[i]] = 0
    return groups[:found].copy(), places


@nb.njit(cache=True)
def _best(places, number, times, words, best, latest):  # type: ignore[no-untyped-def]
    """The best candidate of each record's group, once the record has come; -1 for none."""
    chosen = np.empty(len(places), np.int64)
    for i in range(len(places)):
        group, new = places[i], number[i]
        if new >= 0:
            old = best[group]
            if old < 0:
                best[group] = new
            elif times[new] == times[old]:
                if words[new] > words[old] if latest else words[new] < words[old]:
                    best[group] = new
            elif (times[new] > times[old]) == latest:
                best[group] = new
        chosen[i] = best[group]
    return chosen
