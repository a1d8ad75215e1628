"""tumbling, sliding, until, each_time: groups by key and window, emitted when it is complete."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import time_columns
from jeton.columns.batch import Batch
from jeton.columns.calendars import CalendarGrid
from jeton.columns.column import Column, plain
from jeton.columns.durations import Calendar
from jeton.columns.keys import Hashes
from jeton.columns.time_arithmetic import (
    LEAST,
    MOST,
    before_the_start,
    earlier,
    sliding_ends,
    window_ends,
    within,
)
from jeton.columns.time_columns import Times
from jeton.columns.time_units import column_times, zone_of
from jeton.core.antichain import Antichain
from jeton.core.errors import GraphError, SnapshotError, TimeError
from jeton.core.times import TimeKind
from jeton.core.token_set import TokenSet
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.column_use import group_use
from jeton.dataflow.operators.collecting import add_collecting
from jeton.dataflow.ports import Output
from jeton.state.aggregates import Aggregate
from jeton.state.changes import Cut, Guard
from jeton.state.dense_index import Grid
from jeton.state.due_slots import DueSlots
from jeton.state.groups import Groups
from jeton.state.shapes import shape_of
from jeton.state.slot_pool import Slots
from jeton.state.snapshot import BIN

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream

Rows = npt.NDArray[np.intp]

BOUNDS = ("window_start", "window_end")
"""The columns of results with the bounds of their windows, on request."""


class Assigner(ABC):
    """The windows that records belong to, each known by the time at which it is emitted."""

    inclusive = True
    """Whether a window is complete once all times before its end are."""
    columns: tuple[str, ...] = ()
    """The columns that decide, besides the time."""
    grid: Grid | None = None
    """The windows, if they follow each other and are of equal size."""

    @abstractmethod
    def assign(self, batch: Batch) -> tuple[Times, Rows | None]:
        """The ends of the windows, and for which rows they are (``None``: one for each row)."""

    def assign_shortly(self, batch: Batch) -> tuple[Times, Rows | None]:
        """The same, but a single end if all rows belong to the same window."""
        return self.assign(batch)


class BoundedAssigner(Assigner):
    """Windows whose starts follow from their ends, so that results can carry both."""

    @abstractmethod
    def starts(self, ends: Times) -> Times:
        """Where the windows with these ends start."""


class EachTime(Assigner):
    """A group for each time, emitted once that time is complete."""

    inclusive = False

    def assign(self, batch: Batch) -> tuple[Times, Rows | None]:
        """The records' own times."""
        return batch.times, None

    def __str__(self) -> str:
        return "each time"


class Tumbling(BoundedAssigner):
    """Windows ``[start, start + size)``, one after the other."""

    def __init__(self, size: int, offset: int) -> None:
        if not 1 <= size <= MOST:
            raise GraphError(f"a window must be from 1 to {MOST} long, not {size}")
        self._size = size
        self._offset = offset % size
        self.grid = Grid(self._size, self._offset)

    def assign(self, batch: Batch) -> tuple[Times, Rows | None]:
        """The end of the window that each record is in."""
        return window_ends(plain(batch.times), self._size, self._offset), None

    def assign_shortly(self, batch: Batch) -> tuple[Times, Rows | None]:
        """Most batches lie in one window, which is cheap to find out."""
        if len(batch) == 0:
            return batch.times, None
        # In Python's integers, which do not wrap.
        start = (int(batch.times[0]) - self._offset) // self._size * self._size + self._offset
        end = start + self._size
        if end <= MOST and within(plain(batch.times), max(start, LEAST), end):
            return np.array([end]), None
        return self.assign(batch)

    def starts(self, ends: Times) -> Times:
        """The ends less the size."""
        return earlier(ends, self._size, f"its window of {self._size}")

    def __str__(self) -> str:
        return f"tumbling {self._size}, offset {self._offset}"


class CalendarWindows(BoundedAssigner):
    """Days, weeks or months of a calendar, one after the other."""

    def __init__(self, calendar: Calendar, unit: str, zone: str | None) -> None:
        self._name = f"calendar {calendar}, {zone or 'no zone'}"
        self._zone = zone
        self._grid = CalendarGrid(calendar, unit, zone)
        self._last = (0, 0)

    def assign(self, batch: Batch) -> tuple[Times, Rows | None]:
        """The end of the window that each record is in."""
        _require_zone(batch, self._zone)
        return self._grid.around(batch.times)[1], None

    def assign_shortly(self, batch: Batch) -> tuple[Times, Rows | None]:
        """Most batches lie in the window of the one before."""
        start, end = self._last
        if len(batch) and not within(plain(batch.times), start, end):
            ends, rows = self.assign(batch)
            end = int(ends[-1])
            self._last = int(self.starts(ends[-1:])[0]), end
            return ends, rows
        return (np.array([end]) if len(batch) else batch.times), None

    def starts(self, ends: Times) -> Times:
        """The starts of the windows that the instants before the ends are in."""
        return self._grid.around(ends - 1)[0]

    def __str__(self) -> str:
        return self._name


class SlidingCalendar(BoundedAssigner):
    """Windows of ``count`` parts of a calendar, one for each part, which is the last of it."""

    def __init__(self, step: Calendar, count: int, unit: str, zone: str | None) -> None:
        self._name = f"sliding calendar {count} x {step}, {zone or 'no zone'}"
        self._zone = zone
        self._count = count
        self._grid = CalendarGrid(step, unit, zone)

    def assign(self, batch: Batch) -> tuple[Times, Rows | None]:
        """The ends of all windows that each record is in."""
        _require_zone(batch, self._zone)
        ends = self._grid.next_ends(batch.times, self._count)
        return ends.ravel(), np.repeat(np.arange(len(batch)), self._count)

    def starts(self, ends: Times) -> Times:
        """As many parts of the calendar earlier."""
        return self._grid.starts_before(ends, self._count)

    def __str__(self) -> str:
        return self._name


def _require_zone(batch: Batch, zone: str | None) -> None:
    """Refuse windows of a zone for times that are not instants."""
    if zone is not None and zone_of(batch.unit or "") is None:
        raise TimeError(
            f"windows in the zone {zone} need times with a time zone, which these do not have: "
            "leave zone= out, or give the time column a zone"
        )


class Sliding(BoundedAssigner):
    """Windows ``[end - size, end)`` for every multiple of ``every``."""

    def __init__(self, size: int, every: int, offset: int) -> None:
        if not 1 <= every <= size <= MOST:
            raise GraphError(f"windows of {size} cannot slide by {every}")
        self.size = size
        self.every = every
        self._offset = offset % every

    @property
    def steps(self) -> int | None:
        """The number of steps that a window consists of; none if that is not a whole number."""
        return None if self.size % self.every else self.size // self.every

    @property
    def panes(self) -> Tumbling:
        """Windows as long as a step, each of which ends with a window."""
        return Tumbling(self.every, self._offset)

    def assign(self, batch: Batch) -> tuple[Times, Rows | None]:
        """The ends of all windows that each record is in."""
        return sliding_ends(plain(batch.times), self.size, self.every, self._offset)

    def starts(self, ends: Times) -> Times:
        """The ends less the size."""
        return earlier(ends, self.size, f"its window of {self.size}")

    def __str__(self) -> str:
        return f"sliding {self.size}, every {self.every}, offset {self._offset}"


class Until(Assigner):
    """Windows whose end a column gives, record by record."""

    # A record may come at the end itself: so the window is open until that is over.
    inclusive = False

    def __init__(self, column: str) -> None:
        self._column = column
        self.columns = (column,)

    def assign(self, batch: Batch) -> tuple[Times, Rows | None]:
        """The times in the column."""
        name = f"column {self._column!r}, which ends windows"
        ends = column_times(batch.column(self._column), batch.unit, name)
        early = np.flatnonzero(ends < batch.times)
        if len(early):
            raise TimeError(
                f"column {self._column!r} ends a window at {ends[early[0]]}, before its record's "
                f"time {batch.times[early[0]]}: filter such records out first"
            )
        return ends, None

    def __str__(self) -> str:
        return f"until {self._column}"


class LastTimes(Assigner):
    """Windows known by their last times, so that they are complete before their ends."""

    inclusive = False

    def __init__(self, windows: Assigner) -> None:
        self._windows = windows
        self._beyond = int(windows.inclusive)
        """How far the end of a window is from its last time."""
        if windows.grid is not None:
            self.grid = windows.grid._replace(beyond=self._beyond)

    def assign(self, batch: Batch) -> tuple[Times, Rows | None]:
        """The last times of the windows that records are in."""
        return self._before(*self._windows.assign(batch))

    def assign_shortly(self, batch: Batch) -> tuple[Times, Rows | None]:
        """The same, but a single one if all rows belong to the same window."""
        return self._before(*self._windows.assign_shortly(batch))

    def _before(self, ends: Times, rows: Rows | None) -> tuple[Times, Rows | None]:
        return (ends - self._beyond if self._beyond else ends), rows


def add_windows(
    keyed: KeyedStream,
    assigner: Assigner,
    aggregates: Mapping[str, Aggregate],
    *,
    name: str,
    schema: pa.Schema | None,
    bounds: BoundedAssigner | None = None,
) -> Stream:
    """Add the operator of `KeyedStream.tumbling` and the other windows.

    ``bounds`` is the assigner once more if results carry the bounds of their windows.
    """
    key = keyed.key
    return add_collecting(
        keyed,
        lambda kind: OpenWindows(key, aggregates, assigner, kind, bounds),
        name=name,
        shape=shape_of(str(assigner), key, aggregates),
        schema=schema if bounds is None else with_bounds(schema, keyed),
        use=group_use(key, aggregates, *assigner.columns),
    )


def with_bounds(schema: pa.Schema | None, keyed: KeyedStream) -> pa.Schema | None:
    """A schema of results with the bounds of windows after the key."""
    if schema is not None:
        for bound in reversed(BOUNDS):
            schema = schema.insert(len(keyed.key), pa.field(bound, keyed.stream.flow.domain.type))
    return schema


class OpenWindows:
    """The windows that have records and are not emitted yet, and the least tokens to send them."""

    def __init__(
        self,
        key: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        assigner: Assigner,
        kind: TimeKind,
        bounds: BoundedAssigner | None,
    ) -> None:
        self._assigner = assigner
        self._grid = assigner.grid if kind.total else None
        self._kind = kind
        self._bounds = bounds
        self._groups = Groups(key, aggregates, timed=True)
        self._due = DueSlots.of(kind)
        self._tokens = TokenSet()
        # Times that are not plain integers get numbers, so that they can be a part of a key.
        self._numbers: dict[Any, int] = {}
        self._numbered = 0

    def add(self, right: TokenRef, batch: Batch) -> None:
        """Fold records into their windows, opening new ones."""
        if self._grid is not None:
            done, opened, until = self._groups.fold_in_windows(batch, self._grid)
            if len(opened):
                self._open(right, until, opened)
            if done == len(batch):
                return
            if done:
                batch = batch.slice(done, len(batch))
        ends, rows = self._assigner.assign_shortly(batch)
        if rows is not None:
            batch = batch.take(rows)
        slots, new = self._groups.find(batch, self._words(ends))
        self._groups.add(slots, batch)
        if len(new):
            until = ends[new] if len(ends) == len(batch) else np.repeat(ends, len(new))
            self._open(right, until, slots[new])

    def _open(self, right: TokenRef | TimestampToken, ends: Times, slots: Any) -> None:
        if len(slots) == 0:
            return
        self._due.add(ends, slots)
        if self._kind.total:
            self._tokens.hold(right, int(ends.min()))
        else:
            for time, _ in time_columns.groups(ends):
                self._tokens.hold(right, time)

    def emit(self, frontier: Antichain, output: Output) -> None:
        """Send the results of all windows that are complete, and forget them."""
        times, slots = self._due.due(frontier, inclusive=self._assigner.inclusive)
        if len(slots) == 0:
            return
        # Integers are in order.
        first = int(times[0]) if self._kind.total else None
        columns = self._columns(slots, times, output)
        batch = Batch.trusted(columns, times, output.time_name, first)
        if first is not None:
            output.session(self._tokens.token_for(first)).give(batch)
        else:
            for time, part in batch.by_time():
                output.session(self._tokens.token_for(time)).give(part)
                del self._numbers[time]
        self._groups.remove(slots)
        self._tokens.settle(self._due.pending())

    def _columns(self, slots: Slots, times: Times, output: Output) -> dict[str, Column]:
        """The columns of complete windows: keys, bounds if wanted, and results."""
        columns = self._groups.columns(slots, times)
        if self._bounds is None:
            return columns
        starts = self._bounds.starts(times)
        if output.has_stamps and starts.min() == LEAST:
            # This integer is the null among timestamps.
            raise before_the_start(times[starts.argmin()], "its window")
        found = zip(BOUNDS, (starts, times), strict=True)
        key = {name: columns.pop(name) for name in self._groups.key}
        return {**key, **{n: output.stamped(at) for n, at in found}, **columns}

    def _words(self, ends: Times) -> Hashes:
        if self._kind.total:
            return plain(ends.astype(np.int64, copy=False)).view(np.uint64)
        words = np.empty(len(ends), dtype=np.uint64)
        for time, rows in time_columns.groups(ends):
            if time not in self._numbers:
                self._numbers[time] = self._numbered
                self._numbered += 1
            words[rows] = self._numbers[time]
        return words

    def snapshot(self) -> pa.Table:
        """All open windows: their ends, keys and accumulated values."""
        if not self._kind.total:
            if len(self._groups):
                raise SnapshotError("groups inside a loop wait: a snapshot needs loops at rest")
            return pa.table({BIN: pa.array([], pa.uint16())})
        return self._table(self._groups.live())

    def _table(self, slots: Slots) -> pa.Table:
        ends = self._groups.times(slots).view(np.int64)
        return self._groups.save(slots).append_column("end", pa.array(ends))

    def cut(self, after: str | None, guard: Guard) -> Cut:
        """The windows that were opened, changed or emitted."""
        if not self._kind.total and len(self._groups):
            raise SnapshotError("groups inside a loop wait: a snapshot needs loops at rest")
        return self._groups.changed(after, guard, self._table)

    def restored(self, token: str, ids: Slots | None) -> None:
        """Go on from a stored state."""
        self._groups.changes.restored(token, ids)

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The open windows of some bins, which are forgotten."""
        if not self._kind.total:
            raise SnapshotError("groups inside a loop move as a whole")
        slots = self._groups.in_bins(chosen)
        table = self._table(slots)
        self._due.remove(slots)
        self._groups.remove(slots)
        self._tokens.settle(self._due.pending())
        return table

    def memory_bytes(self) -> int:
        """About how many bytes of memory all open windows take."""
        return self._groups.memory(self._table)

    def due(self, state: pa.Table) -> int | None:
        """The end of the first window."""
        ends = pc.min(state.column("end")).as_py() if state.num_rows else None
        return None if ends is None else int(ends)

    def stay_compact(self) -> None:
        """Take no more memory than the windows need that are open."""
        self._groups.stay_compact()

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """Open the windows again."""
        if state.num_rows:
            ends = state.column("end").to_numpy()
            slots = self._groups.load(state.drop_columns(["end"]), self._words(ends))
            self._open(tokens[0], ends, slots)
