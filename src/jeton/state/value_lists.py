"""ValueLists: all values of each group, for results that need them all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import compiled as nb
from jeton.columns.batch import Batch
from jeton.columns.column import Column, as_column, from_arrow, take, to_arrow
from jeton.columns.keys import is_bytes
from jeton.columns.ordering import tie_breakers
from jeton.state.accumulators import Accumulator, Values, require_plain, valid_mask
from jeton.state.distinct_values import lists_of, unlisted
from jeton.state.key_columns import SlotColumn
from jeton.state.slot_chains import SlotChains
from jeton.state.slot_pool import Slots, grown


class ValueLists(Accumulator):
    """The values of each group that are not null, in order of time, those of one time by value."""

    def __init__(self) -> None:
        self._of = SlotChains()
        """The rows of each group."""
        self._values = SlotColumn()
        self._row_times = np.zeros(0, dtype=np.int64)
        self._kind: pa.DataType = pa.null()
        self._free = np.zeros(0, dtype=np.int64)
        """Rows of groups that are gone."""
        self._rows = 0
        self._times: Values | None = None

    def note_times(self, times: Values) -> None:
        """Keep the times until their records come."""
        self._times = times

    def add(self, slots: Slots, column: Column | None, size: int) -> None:
        """Append the values."""
        values, known = self._known(column)
        times = self._times if self._times is not None else np.zeros(len(slots), dtype=np.int64)
        self._append(slots[known], values, times[known])

    def roll(self, slots: Slots, column: Column | None, size: int) -> Column:
        """Append the values; returns the result after each record."""
        groups, places = np.unique(slots, return_inverse=True)
        before = np.diff(self._of.rows(groups)[1])
        self.add(slots, column, size)
        rows, offsets = self._of.rows(groups)
        # The chain of a group has the values from before, then those of its records in order.
        arrival = np.arange(len(rows)) - np.repeat(offsets[:-1] + before, np.diff(offsets))
        values = self._get(rows)
        order = self._order(np.repeat(np.arange(len(groups)), np.diff(offsets)), rows, values)
        _, known = self._known(column)
        adds = np.zeros(len(slots), dtype=np.int64)
        adds[known] = 1
        ends, chosen = _so_far(places, adds, offsets, arrival[order], before)
        return self._finish(ends, take(values, order[chosen]))

    def result(self, slots: Slots) -> Column:
        """The result of each group."""
        return self._finish(*self._lists(slots)[:2])

    def clear(self, slots: Slots) -> None:
        """Forget the values of some groups."""
        rows, _ = self._of.rows(slots)
        self._free = np.concatenate([self._free, rows])
        self._of.clear(slots)
        live = self._rows - len(self._free)
        if self._values.is_wasteful(live):
            used = np.ones(self._rows, dtype=bool)
            used[self._free] = False
            self._values.compact(np.flatnonzero(used).astype(np.int64))

    def save(self, slots: Slots) -> dict[str, Column]:
        """The values and times of each group, as lists."""
        offsets, values, times = self._lists(slots)
        return {"value": lists_of(offsets, values), "time": lists_of(offsets, times)}

    def load(self, slots: Slots, saved: Mapping[str, Column], size: int) -> None:
        """The same again."""
        values, counts = unlisted(saved["value"])
        times, _ = unlisted(saved["time"])
        assert isinstance(times, np.ndarray)
        self._learn(values)
        self._append(np.repeat(slots, counts), values, times)

    def merge(self, into: Slots, others: Slots) -> None:
        """The values of both."""
        self._of.join(into, others)

    def _finish(self, offsets: Slots, values: Column) -> Column:
        """Results of lists of values."""
        lists = lists_of(offsets, values)
        return lists.cast(pa.list_(lists.type.value_type))

    def _order(self, groups: Slots, rows: Slots, values: Column) -> Slots:
        """The order of values in the lists of their groups."""
        within = tie_breakers(Batch.trusted({"value": values}, self._row_times[rows]))
        order: Slots = np.lexsort([*within[::-1], self._row_times[rows], groups])
        return order

    def _lists(self, slots: Slots) -> tuple[Slots, Column, Values]:
        rows, offsets = self._of.rows(slots)
        values = self._get(rows)
        order = self._order(np.repeat(np.arange(len(slots)), np.diff(offsets)), rows, values)
        return offsets, take(values, order), self._row_times[rows][order]

    def _known(self, column: Column | None) -> tuple[Column, Slots]:
        """The values that are not null, and their records."""
        assert column is not None, "lists of values name a column"
        if isinstance(column, pa.Array) and pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        self._learn(column)
        valid = valid_mask(column)
        if not len(valid):
            return column, np.arange(len(column))
        known = np.flatnonzero(valid)
        return as_column(take(column, known)), known

    def _learn(self, column: Column) -> None:
        kind = to_arrow(column[:0]).type
        if not pa.types.is_null(kind):
            self._kind = kind

    def _append(self, slots: Slots, values: Column, times: Values) -> None:
        if not len(slots):
            return
        reused = self._free[len(self._free) - min(len(slots), len(self._free)) :]
        self._free = self._free[: len(self._free) - len(reused)]
        made = len(slots) - len(reused)
        rows = np.concatenate([reused, np.arange(self._rows, self._rows + made)])
        self._rows += made
        self._row_times = grown(self._row_times, self._rows)
        self._row_times[rows] = times
        kind = to_arrow(values[:0]).type
        if is_bytes(kind):
            assert isinstance(values, pa.Array)
            self._values.put(rows, values.cast(pa.large_binary()), self._rows, kind=kind)
        else:
            self._values.put(rows, values, self._rows)
        self._of.append(slots, rows)

    def _get(self, rows: Slots) -> Column:
        return self._values.get(rows) if len(rows) else from_arrow(pa.array([], self._kind))


class Quantile(ValueLists):
    """The value below which a part ``q`` of a group's numbers is, interpolated between two."""

    def __init__(self, q: float) -> None:
        super().__init__()
        self._q = q

    def _finish(self, offsets: Slots, values: Column) -> Column:
        """The quantiles of lists of numbers in ascending order; NaN is the greatest."""
        numbers = np.asarray(values, dtype=np.float64)
        counts = np.diff(offsets)
        seen = counts > 0
        place = (counts[seen] - 1) * self._q
        # 100 * 0.29 is a little less than 29.
        whole = np.rint(place)
        place = np.where(np.isclose(place, whole, rtol=1e-12, atol=0.0), whole, place)
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, counts[seen] - 1)
        left, right = numbers[offsets[:-1][seen] + below], numbers[offsets[:-1][seen] + above]
        found = np.zeros(len(counts))
        share = place - below
        with np.errstate(invalid="ignore"):
            between = left * (1 - share) + right * share
        # Infinite and NaN neighbours do not count where the place is a value's own.
        found[seen] = np.where((share == 0) | (left == right), left, between)
        return found if seen.all() else pa.array(found, mask=~seen)

    def _known(self, column: Column | None) -> tuple[Column, Slots]:
        """Numbers: decimals as floating-point ones."""
        if isinstance(column, pa.Array):
            require_plain(column)
            if pa.types.is_decimal(column.type):
                column = pc.cast(column, pa.float64())
        return super()._known(column)

    def _order(self, groups: Slots, rows: Slots, values: Column) -> Slots:
        within = tie_breakers(Batch.trusted({"value": values}, self._row_times[rows]))
        order: Slots = np.lexsort([*within[::-1], groups])
        return order


@nb.njit(cache=True)
def _so_far(places, adds, offsets, arrival, seen):  # type: ignore[no-untyped-def]
    """For each record, the rows of its group that were there once it had come."""
    ends = np.zeros(len(places) + 1, np.int64)
    count = seen.copy()
    for i in range(len(places)):
        count[places[i]] += adds[i]
        ends[i + 1] = ends[i] + count[places[i]]
    chosen = np.empty(ends[-1], np.int64)
    count[:] = 0
    for i in range(len(places)):
        group = places[i]
        count[group] += adds[i]
        at = ends[i]
        for row in range(offsets[group], offsets[group + 1]):
            if arrival[row] < count[group]:
                chosen[at] = row
                at += 1
    return ends, chosen
