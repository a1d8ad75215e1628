"""group_join: for each record, the records of another stream with its key, until an end.

Each left record opens a window from its own time until the time in one of its columns. Records of
the other stream fall into the windows of their key that are open at their time. Everything that is
known of a window is indexed by its slot: a record that comes costs a lookup of its key, and no pair
of records is made but for those columns that a condition reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns import compiled as nb
from jeton.columns.batch import Batch, concat
from jeton.columns.column import Column, plain
from jeton.columns.expressions import columns_read, comparison_of
from jeton.columns.ordering import order_by, require_sortable
from jeton.columns.schema import EVENT_TIME
from jeton.columns.time_arithmetic import MOST
from jeton.columns.time_columns import Times
from jeton.columns.time_units import column_times, stamped, unit_of
from jeton.core.antichain import Antichain
from jeton.core.times import IntegerTimes
from jeton.core.token_set import TokenSet
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.operators.binary import add_binary
from jeton.dataflow.operators.joined import pacts, split_known
from jeton.dataflow.operators.stateless import as_mask
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.aggregates import Aggregate
from jeton.state.due_slots import DueSlots
from jeton.state.groups import Groups
from jeton.state.key_ids import KeyTypes
from jeton.state.open_windows import NO_TEST, OPERATORS, SWAPPED, NumberTest, OpenWindows
from jeton.state.shapes import shape_of
from jeton.state.slot_pool import Slots, grown
from jeton.state.slot_rows import SlotRows
from jeton.state.snapshot import BIN, bins_of

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

_NONE: Final = np.empty(0, np.int64)
_NUMBERS: Final = (np.dtype(np.int64), np.dtype(np.float64))
"""The types of columns that are compared while windows are searched."""
_ROW, _BEST = "row.", "best."
_NAMED: Final = "named."
"""Before the name of the time column, which has the times in their unit."""


class Matching:
    """The terms of a join: keys, the end of windows, a condition, and the names of the results."""

    def __init__(
        self,
        left: KeyedStream,
        right: KeyedStream,
        until: str,
        where: Callable[[Batch], Any] | None,
        suffix: str,
    ) -> None:
        self.left_key, self.right_key = left.key, right.key
        self.until = until
        self.suffix = suffix
        self.where = where
        self.reads = None if where is None else columns_read(where)
        """The columns that the condition reads, if that is known."""
        self.compares = comparison_of(where)
        """The columns that it compares, if that is all that it does."""

    def value_names(self, left: Sequence[str], right: Sequence[str]) -> dict[str, str]:
        """The right columns that are not keys, and their names beside the left ones."""
        names = {}
        for name in right:
            if name not in self.right_key:
                names[name] = f"{name}{self.suffix}" if name in left else name
        return names


def add_group_join(
    left: KeyedStream,
    right: KeyedStream,
    matching: Matching,
    aggregates: Mapping[str, Aggregate],
    *,
    best: tuple[str, bool] | None = None,
    name: str,
    schema: pa.Schema | None,
) -> Stream:
    """Add the operator of `KeyedStream.group_join`.

    ``best`` is the column by which to choose one record, and whether the least is chosen.
    """
    mine, others = pacts(left, right, name)

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Input, Output], None]:
        chosen = None if best is None else BestRecords(*best, matching.right_key)
        windows = OpenIntervals(matching, aggregates, chosen)
        recent = RecentRecords(matching.right_key)
        chooses = "" if best is None else f", {'least' if best[1] else 'greatest'} {best[0]}"
        shape = shape_of(f"until {matching.until}{chooses}", matching.left_key, aggregates)
        info.keep(windows, token, shape=shape)
        info.keep(recent, name="recent", shape=shape_of("records", matching.right_key))
        token.drop()

        def step(left: Input, right: Input, output: Output) -> None:
            for ref, batch in left:
                windows.open(ref, batch, recent)
            for _, batch in right:
                records = windows.known(batch)
                windows.add(records)
                recent.add(records)
            recent.forget(left.frontier)
            windows.emit(right.frontier, output)

        return step

    return add_binary(
        left.stream,
        right.stream,
        build,
        pact=mine,
        other_pact=others,
        name=name,
        notify="always",
        schema=schema,
    )


class RecentRecords:
    """Right records for whose times windows may still be opened."""

    def __init__(self, key: Sequence[str]) -> None:
        self._key = tuple(key)
        self._batches: list[tuple[int, int, Batch]] = []
        """Each with the times of its first and last records."""

    def add(self, batch: Batch) -> None:
        """Keep records, which are not copied."""
        if len(batch):
            self._batches.append((*batch.extent(), batch))

    def within(self, start: int, end: int) -> list[Batch]:
        """The batches that may have a record from a start until an end."""
        return [batch for first, last, batch in self._batches if last >= start and first < end]

    def forget(self, frontier: Antichain) -> None:
        """Forget records at times at which no window is opened any more."""
        limit = frontier.only
        if self._batches:
            kept = [] if limit is None else [some for some in self._batches if some[1] >= limit]
            self._batches = kept

    def snapshot(self) -> pa.Table:
        """All records, with the bins of their keys."""
        return self._table([batch for _, _, batch in self._batches])

    def _table(self, batches: Sequence[Batch]) -> pa.Table:
        if not batches:
            return pa.table({BIN: pa.array([], pa.uint16())})
        whole = concat(batches)
        bins = _bins_of([whole.column(name) for name in self._key], len(whole))
        rows = {f"{_ROW}{name}": cols.to_arrow(c) for name, c in whole.columns.items()}
        times = {"time": pa.array(whole.times)}
        times[f"{_NAMED}{whole.time_name}"] = cols.to_arrow(stamped(whole.times, whole.unit))
        return pa.table({BIN: bins, **times, **rows})

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The records again."""
        if state.num_rows:
            names = state.column_names
            columns = {
                name[len(_ROW) :]: cols.as_column(state.column(name))
                for name in names
                if name.startswith(_ROW)
            }
            named = next(name for name in names if name.startswith(_NAMED))
            times = state.column("time").to_numpy()
            unit = unit_of(state.column(named).type)
            self.add(Batch.trusted(columns, times, named[len(_NAMED) :], unit=unit))

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The records of some bins, which are forgotten."""
        mask = np.uint16(len(chosen) - 1)
        taken: list[Batch] = []
        left: list[Batch] = []
        for _, _, batch in self._batches:
            columns = [batch.column(name) for name in self._key]
            leaves = chosen[_bins_of(columns, len(batch)) & mask]
            taken.append(batch.filter(leaves))
            left.append(batch.filter(~leaves))
        self._batches = []
        for batch in left:
            self.add(batch)
        return self._table([batch for batch in taken if len(batch)])


class OpenIntervals:
    """Windows that left records have opened, with what is known of the records in them."""

    def __init__(
        self, matching: Matching, aggregates: Mapping[str, Aggregate], best: BestRecords | None
    ) -> None:
        self._matching = matching
        self._best = best
        self._types = KeyTypes()
        self._windows = OpenWindows(len(matching.left_key))
        """Windows by key, and whether they have records: only these have a place in aggregates."""
        self._by_time = any(aggregate.by_time for aggregate in aggregates.values())
        self._groups = Groups((), aggregates, timed=True, unique=True)
        """The slots of windows, known by their numbers, and their aggregates."""
        self._rows = SlotRows()
        self._names: tuple[str, ...] = ()
        """The left columns."""
        self._due = DueSlots.of(IntegerTimes())
        self._tokens = TokenSet()
        self._opened = 0
        self._unit: str | None = None
        """The unit of times, which records that were stored do not have."""

    def open(self, right: TokenRef, batch: Batch, recent: RecentRecords) -> None:
        """Open the windows of left records, and add records to them that are there already."""
        key = self._matching.left_key
        self._types.learn("left", key, [batch.column(name) for name in key])
        until = self._matching.until
        ends = column_times(
            batch.column(until), batch.unit, f"column {until!r}, which ends windows"
        )
        opens = ends > batch.times
        known = cols.known_rows([batch.column(name) for name in key])
        if known is not None:
            opens &= known
        if not opens.all():
            batch, ends = batch.filter(opens), ends[opens]
        if len(batch) == 0:
            return
        self._unit = batch.unit
        since = self._opened
        self._insert(batch, plain(batch.times), plain(ends))
        self._tokens.hold(right, int(ends.min()))
        for records in recent.within(int(batch.times.min()), int(ends.max())):
            self.add(records, since)

    def _insert(
        self,
        batch: Batch,
        starts: Times,
        ends: Times,
        saved: pa.Table | None = None,
        of: Slots = _NONE,
    ) -> Slots:
        """Make windows, with what was saved of the groups ``of`` some; returns their slots."""
        key = [batch.column(name) for name in self._matching.left_key]
        count = len(batch)
        numbers = np.arange(self._opened, self._opened + count)
        self._opened += count
        windows, _ = self._groups.find(batch, numbers.view(np.uint64))
        if saved is not None and len(of):
            self._groups.fill(windows[of], saved.take(of))
        self._windows.open(key, windows, starts, ends, numbers)
        self._names = batch.names
        self._rows.put(windows, batch.columns, self._windows.size)
        self._due.add(ends, windows)
        return windows

    def known(self, batch: Batch) -> Batch:
        """Right records whose keys have no nulls."""
        key = self._matching.right_key
        self._types.learn("right", key, [batch.column(name) for name in key])
        self._unit = batch.unit
        return split_known(batch, key)[0]

    def add(self, batch: Batch, since: int = 0) -> None:
        """Add right records to the windows of their keys that were opened from a number on."""
        count = len(batch)
        if count == 0 or not len(self._groups):
            return
        keys = [batch.column(name) for name in self._matching.right_key]
        test = self._test(batch)
        rows, windows = self._windows.search(
            keys, plain(batch.times), test or NO_TEST, since=since, live=self._groups.live
        )
        if test is None and len(rows):
            held = np.flatnonzero(self._holds(batch, rows, windows))
            if len(held) < len(rows):
                rows, windows = rows.take(held), windows.take(held)
        if not len(rows):
            return
        self._windows.mark(windows)
        if self._best is not None:
            self._best.add(windows, batch, rows, self._windows.size)
            return
        names = [a.column for a in self._groups.aggregates.values() if a.column is not None]
        columns = {name: cols.take(batch.column(name), rows) for name in dict.fromkeys(names)}
        times = batch.times[rows] if self._by_time else windows
        values = Batch.trusted(columns, times, batch.time_name)
        self._groups.add(windows, values)

    def _test(self, batch: Batch) -> NumberTest | None:
        """The condition as a test that the search of windows makes, if it compares numbers."""
        compares = self._matching.compares
        if compares is None:
            return NO_TEST if self._matching.where is None else None
        one, operator, other = compares
        names = self._matching.value_names(self._names, batch.names)
        right = {shown: name for name, shown in names.items()}
        if one in right:
            one, operator, other = other, SWAPPED[operator], one
        if one in right or one == batch.time_name or other not in right:
            return None
        known, values = self._rows.plain(one), batch.column(right[other])
        if known is None or not isinstance(values, np.ndarray) or values.dtype != known.dtype:
            return None
        if values.dtype not in _NUMBERS:
            return None
        return OPERATORS[operator], known, plain(values)

    def _holds(self, batch: Batch, rows: Slots, windows: Slots) -> npt.NDArray[np.bool_]:
        """For which pairs of a record and a window the condition is true."""
        matching = self._matching
        assert matching.where is not None
        names = matching.value_names(self._names, batch.names)
        needed = matching.reads
        left = [name for name in self._names if needed is None or name in needed]
        right = {
            shown: cols.take(batch.column(name), rows)
            for name, shown in names.items()
            if needed is None or shown in needed
        }
        columns = (self._rows.get(windows, *left) if left else {}) | right
        times = batch.times[rows] if needed is None or batch.time_name in needed else windows
        pairs = Batch.trusted(columns, times, batch.time_name, unit=self._unit)
        return as_mask(matching.where(pairs), "where")

    def emit(self, frontier: Antichain, output: Output) -> None:
        """Send the windows that are complete and have records, and forget all that are complete."""
        times, windows = self._due.due(frontier, inclusive=True)
        if len(windows) == 0:
            return
        won = np.flatnonzero(self._windows.hit.take(windows))
        if len(won):
            ends, some = times[won], windows[won]
            columns = self._rows.get(some) | self._groups.columns(some, ends)
            if self._best is not None:
                names = self._matching.value_names(self._names, self._best.names)
                records, own = self._best.get(some)
                columns |= {names[name]: column for name, column in records.items()}
                columns[EVENT_TIME] = output.stamped(own)
            batch = Batch.trusted(columns, ends, output.time_name)
            output.session(self._tokens.token_for(int(ends[0]))).give(batch)
        self._remove(windows, windows if len(won) == len(windows) else windows[won])
        self._tokens.settle(self._due.pending())

    def _remove(self, windows: Slots, hit: Slots) -> None:
        """Forget windows, of which some are ``hit``."""
        self._windows.close(windows)
        self._groups.remove(windows, hit)
        count = len(self._groups)
        if self._best is not None:
            self._best.clear(windows, count)
        self._rows.compact(count, self._groups.live)

    def snapshot(self) -> pa.Table:
        """All open windows: their records, and what is known of those in them."""
        return self._table(self._groups.live())

    def _table(self, windows: Slots) -> pa.Table:
        if not len(windows):
            return pa.table({BIN: pa.array([], pa.uint16())})
        rows = self._rows.get(windows)
        starts, ends = self._windows.spans(windows)
        bins = _bins_of([rows[name] for name in self._matching.left_key], len(windows))
        hit = self._windows.hit[windows] > 0
        # Null where there is no record yet.
        places = pa.array(np.cumsum(hit) - 1, mask=~hit)
        table = self._groups.save(windows[hit]).drop_columns([BIN]).take(places)
        saved: dict[str, Any] = {"start": starts, "end": ends}
        saved["hits"] = hit.astype(np.int64)
        saved |= {f"{_ROW}{name}": cols.to_arrow(column) for name, column in rows.items()}
        saved |= {name: table.column(name) for name in table.column_names}
        saved |= self._groups.stored_types(len(windows))
        if self._best is not None and self._best.names:
            records, own = self._best.get(windows[hit])
            for name, column in {**records, "": own}.items():
                saved[f"{_BEST}{name}"] = cols.to_arrow(column).take(places)
        return pa.table({BIN: bins, **saved})

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """Open the windows again."""
        if not state.num_rows:
            return
        names = state.column_names

        def prefixed(prefix: str) -> dict[str, Column]:
            return {
                name[len(prefix) :]: cols.as_column(state.column(name))
                for name in names
                if name.startswith(prefix)
            }

        starts, ends, hits = (
            plain(state.column(name).to_numpy()) for name in ("start", "end", "hits")
        )
        own = state.select([BIN, *(name for name in names if name.startswith("of."))])
        types = [name for name in names if name.startswith("type.")]
        self._groups.learn_stored_types({n: cols.as_column(state.column(n)) for n in types})
        hit = np.flatnonzero(hits)
        windows = self._insert(Batch.trusted(prefixed(_ROW), starts, ""), starts, ends, own, hit)
        self._windows.mark(windows[hit])
        self._tokens.hold(tokens[0], int(ends.min()))
        if self._best is not None and len(hit):
            records = {
                name: cols.as_column(cols.take(column, hit))
                for name, column in prefixed(_BEST).items()
            }
            times = plain(np.asarray(records.pop("")))
            by_time = self._best.by if self._best.by not in records else ""
            batch = Batch.trusted(records, times, by_time)
            self._best.add(windows[hit], batch, np.arange(len(hit)), self._windows.size)

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The windows of some bins, which are forgotten."""
        live = self._groups.live()
        if not len(live):
            return self._table(live)
        key = self._matching.left_key
        rows = self._rows.get(live, *key) if key else {}
        bins = _bins_of([rows[name] for name in key], len(live))
        windows = live[chosen[bins & np.uint16(len(chosen) - 1)]]
        table = self._table(windows)
        self._due.remove(windows)
        self._remove(windows, windows[self._windows.hit[windows] > 0])
        self._tokens.settle(self._due.pending())
        return table


class BestRecords:
    """One record for each slot: the one with the greatest value of a column, or the least.

    Nulls come after everything else. Of equal values the earlier record is chosen, then the one
    with lesser values in its columns, from the first to the last.
    """

    def __init__(self, by: str, ascending: bool, key: Sequence[str]) -> None:
        self.by = by
        self._ascending = ascending
        self._key = frozenset(key)
        self._records = SlotRows()
        self._times = np.zeros(0, np.int64)
        self._known = np.zeros(0, np.int64)
        """Whether a slot has a record."""
        self._bars = np.zeros((0, 3), np.int64)
        """For each slot the word of its record's value, and the batches that have last brought
        a better one, and one as good."""
        self._batches = 0
        self._has_words = True
        self._type: np.dtype[Any] | None = None
        """The type of the values that were compared by words."""
        self.names: tuple[str, ...] = ()
        """The columns of records that are not keys."""

    def add(self, slots: Slots, batch: Batch, rows: Slots, size: int) -> None:
        """Choose between some rows and the records of their slots; there are ``size`` slots."""
        if size > len(self._times):
            old = len(self._times)
            self._times, self._known = grown(self._times, size), grown(self._known, size)
            self._bars = grown(self._bars, size)
            self._bars[old:, 0] = MOST
        self.names = tuple(name for name in batch.names if name not in self._key)
        words = self._words(batch)
        if words is None:
            self._choose(slots, batch.take(rows), size)
            return
        self._batches += 1
        found = np.empty(len(slots), np.int64)
        count, clashes = _better(self._bars, self._known, slots, rows, words, self._batches, found)
        if count:
            found = found[:count]
            (self._choose if clashes else self._put)(slots[found], batch.take(rows[found]), size)

    def _words(self, batch: Batch) -> npt.NDArray[np.int64] | None:
        """Integers of which the least is the best; none if values of batches do not compare."""
        values = batch.column(self.by)
        if not isinstance(values, np.ndarray) or values.dtype == np.uint64:
            self._has_words = False
        elif self._type is None:
            self._type = values.dtype
        elif self._type != values.dtype:
            # The words of one type mean nothing beside those of another.
            self._has_words = False
        if not self._has_words:
            return None
        words = require_sortable(values, self.by, descending=not self._ascending)
        return plain(words.astype(np.int64, copy=False))

    def _choose(self, slots: Slots, batch: Batch, size: int) -> None:
        """Compare records in all their columns, with those of the slots that have one."""
        there = np.unique(slots)
        there = there[self._known[there] != 0]
        if len(there):
            records, times = self.get(there)
            same = batch.select(*self.names)
            old = Batch.trusted(records, times, batch.time_name)
            batch, slots = concat([old, same]), np.concatenate([there, slots])
        by = require_sortable(batch.column(self.by), self.by, descending=not self._ascending)
        order = order_by(batch, slots, by)
        ordered = slots[order]
        first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        self._put(ordered[first], batch.take(order[first]), size)

    def _put(self, slots: Slots, batch: Batch, size: int) -> None:
        self._records.put(slots, {name: batch.column(name) for name in self.names}, size)
        self._times[slots] = batch.times
        self._known[slots] = 1

    def get(self, slots: Slots) -> tuple[dict[str, Column], Times]:
        """The records of some slots, and their times."""
        return self._records.get(slots, *self.names), self._times[slots]

    def clear(self, slots: Slots, left: int) -> None:
        """Forget the records of some slots; there are at most ``left`` others."""
        slots = slots[slots < len(self._known)]
        self._known[slots] = 0
        self._bars[slots, 0] = MOST
        self._records.compact(left, lambda: np.flatnonzero(self._known).astype(np.int64))


def _bins_of(columns: Sequence[Column], rows: int) -> npt.NDArray[np.uint16]:
    return bins_of(columns or [np.zeros(rows, np.int64)])


@nb.njit(cache=True)
def _better(bars, known, slots, rows, words, batch, found):  # type: ignore[no-untyped-def]
    """Write the places of rows that may be their slots' best, and whether some are as good."""
    for i in range(len(slots)):
        slot, word = slots[i], words[rows[i]]
        if word < bars[slot, 0]:
            bars[slot, 0] = word
            bars[slot, 1] = batch
    count = 0
    clashes = False
    for i in range(len(slots)):
        slot = slots[i]
        if words[rows[i]] == bars[slot, 0]:
            # As good as another one of this batch, or as the one that is there.
            clashes |= bars[slot, 2] == batch or (known[slot] != 0 and bars[slot, 1] != batch)
            bars[slot, 2] = batch
            found[count] = i
            count += 1
    return count, clashes
