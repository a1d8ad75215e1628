"""Changes: the rows of a container that have changed since the last checkpoint.

A checkpoint takes a *cut* of each container: a promise of the rows as they are now, which another
thread reads later, while the flow goes on. Taking it costs next to nothing, whatever the size of
the container. Rows are known by their slots. A container marks a slot before it changes its row.
The first time that happens after a cut that has not been read yet, the row is put aside as it is.
So the reader takes rows from the container itself, between two invocations of its operator, and
prefers those that were put aside.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns import compiled as nb
from jeton.columns.batch import Batch
from jeton.state.slot_pool import Slots, grown
from jeton.state.snapshot import joined

Marks = npt.NDArray[np.bool_]
Rows = Callable[[Slots], pa.Table]

NONE: Final[Slots] = np.empty(0, dtype=np.int64)
PIECE: Final = 1 << 14
"""Rows that are read at a time, for which an operator may have to wait."""
_STRETCH: Final = 1 << 20
_SAMPLE: Final = 256
_SMALL: Final = 4096
"""So few rows need not be saved."""
_SPARSE: Final = 4
"""Where there would be more numbers than this for each slot, a container begins anew."""


@runtime_checkable
class Incremental(Protocol):
    """A container that gives its changes to checkpoints, rather than all of its state.

    Each state of it that was stored has a *token*, a text that no other state has.
    """

    def cut(self, after: str | None, guard: Guard) -> Cut | None:
        """The changes since the state with the token ``after``, or all rows if that is not known.

        The rows are read later, under ``guard`` if they are in the container itself. Nothing, if
        the container does not know its changes: then a checkpoint has its snapshot.
        """
        ...

    def restored(self, token: str, ids: Slots | None) -> None:
        """Say that `restore` has put in the state with that token, whose rows have these numbers.

        A container may ignore it: then its next cut has all rows.
        """
        ...


class Guard:
    """Keeps an operator and the thread that reads its state from using it at the same time.

    They take turns: neither gets it twice while the other waits.

    >>> guard = Guard()
    >>> with guard:
    ...     guard.open
    0
    """

    __slots__ = ("_lock", "_queue", "open")

    def __init__(self) -> None:
        self._queue = threading.Lock()
        self._lock = threading.Lock()
        self.open = 0
        """Cuts that have not been read yet; while there are none, an operator need not wait."""

    def __enter__(self) -> Guard:
        with self._queue:
            self._lock.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@dataclass(frozen=True, slots=True)
class Delta:
    """Changes of a container: rows that are new or differ, and those that have gone.

    >>> first = Delta(pa.table({"n": [10, 20, 30]}), ids=np.arange(3))
    >>> then = Delta(pa.table({"n": [21]}), ids=np.array([1]), removed=np.array([2]))
    >>> Delta.merged([first, then], whole=True).rows["n"].to_pylist()
    [10, 21]
    """

    rows: pa.Table
    ids: Slots | None = None
    """A number for each row; a row with the same number takes its place. Without numbers, rows
    are only added."""
    removed: Slots = field(default_factory=lambda: NONE)
    """The numbers of rows that have gone."""
    before: int | None = None
    """Rows of earlier deltas have gone whose time, in the column `order`, is less than this."""
    order: str | None = None

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes."""
        numbers = 0 if self.ids is None else 4 * len(self.ids)
        return int(self.rows.nbytes) + numbers + 4 * len(self.removed)

    @staticmethod
    def merged(deltas: Sequence[Delta], *, whole: bool) -> Delta:
        """One delta for several in a row; ``whole`` if nothing is before them."""
        if len(deltas) == 1:
            one = deltas[0]
            return replace(one, removed=NONE, before=None) if whole else one
        newest = deltas[-1]
        found: list[tuple[pa.Table, Slots | None]] = []
        gone = _Numbers(deltas)
        before: int | None = None
        for delta in reversed(deltas):
            stays = gone.are_missing(delta.ids)
            # One without rows may know the column from others, and not have it.
            if before is not None and delta.order is not None and delta.rows.num_rows:
                late = pc.greater_equal(delta.rows.column(delta.order).cast(pa.int64()), before)
                late = late.to_numpy(zero_copy_only=False)
                stays = late if stays is None else stays & late
            rows, ids = delta.rows, delta.ids
            if stays is not None and not stays.all():
                rows = rows.filter(pa.array(stays))
                ids = None if ids is None else ids[stays]
            found.append((rows, ids))
            gone.add(delta)
            if delta.before is not None:
                before = delta.before if before is None else max(before, delta.before)
        found.reverse()
        # The newest says how all are labelled; empty ones may have no types yet.
        tables = [rows for rows, _ in found if rows.num_rows] or [newest.rows]
        rows = joined([table.replace_schema_metadata(None) for table in tables])
        numbers = [ids for _, ids in found if ids is not None]
        return Delta(
            rows.replace_schema_metadata(newest.rows.schema.metadata),
            np.concatenate(numbers) if numbers else None,
            NONE if whole else gone.removed(),
            None if whole else before,
            # One without rows does not know it.
            next((delta.order for delta in reversed(deltas) if delta.order is not None), None),
        )


class _Numbers:
    """The numbers of rows that later deltas have."""

    def __init__(self, deltas: Sequence[Delta]) -> None:
        most = -1
        for delta in deltas:
            for ids in (delta.ids, delta.removed):
                if ids is not None and len(ids):
                    most = max(most, int(ids.max()))
        self._there = np.zeros(most + 1, dtype=bool)
        self._removed: list[Slots] = []

    def are_missing(self, ids: Slots | None) -> Marks | None:
        return None if ids is None else ~self._there[ids]

    def add(self, delta: Delta) -> None:
        if len(delta.removed):
            self._removed.append(delta.removed[~self._there[delta.removed]])
            self._there[delta.removed] = True
        if delta.ids is not None:
            self._there[delta.ids] = True

    def removed(self) -> Slots:
        return np.concatenate([NONE, *self._removed])


_NUMBER: Final = "jeton.row"
_TOKEN: Final = b"jeton.token"


def with_numbers(delta: Delta, token: str) -> pa.Table:
    """All rows of a stored state, with their numbers and its token, for `without_numbers`."""
    labels = {**(delta.rows.schema.metadata or {}), _TOKEN: token.encode()}
    rows = delta.rows.replace_schema_metadata(labels)
    return rows if delta.ids is None else rows.append_column(_NUMBER, pa.array(delta.ids))


def without_numbers(table: pa.Table) -> tuple[pa.Table, str | None, Slots | None]:
    """A table of state as containers have it, its token if it is a stored state, and numbers.

    >>> table = with_numbers(Delta(pa.table({"n": [10, 20]}), ids=np.array([3, 5])), "a state")
    >>> rows, token, ids = without_numbers(table)
    >>> rows.column_names, token, ids
    (['n'], 'a state', array([3, 5]))
    """
    labels = dict(table.schema.metadata or {})
    token = labels.pop(_TOKEN, None)
    ids = None
    if _NUMBER in table.column_names:
        ids = table.column(_NUMBER).to_numpy()
        table = table.drop_columns([_NUMBER])
    if token is None:
        return table, None, ids
    return table.replace_schema_metadata(labels), token.decode(), ids


class Cut(ABC):
    """A container's changes up to now, to be read later in any thread."""

    is_large = False
    """Whether its rows may not fit into memory."""

    def __init__(self, token: str, after: str | None, rows: int, nbytes: int) -> None:
        self.token = token
        """The token of the state as it is now; the same as `after` if nothing has changed."""
        self.after = after
        """The token of the state that these are the changes of; ``None`` if they are all rows."""
        self.rows = rows
        """The number of rows of the container."""
        self.nbytes = nbytes
        """About how many bytes all of them take."""
        self.metadata: Mapping[bytes, bytes] = {}
        """Metadata for the table of rows."""
        self._reading = threading.Lock()
        self._found: Delta | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed."""
        return self.token == self.after

    def read(self) -> Delta:
        """The changes; from the second time on, the same object."""
        with self._reading:
            if self._found is None:
                found = self._read()
                labels = {**(found.rows.schema.metadata or {}), **self.metadata}
                self._found = replace(found, rows=found.rows.replace_schema_metadata(labels))
            return self._found

    @abstractmethod
    def _read(self) -> Delta: ...

    @abstractmethod
    def abandon(self) -> None:
        """Take it back, before anything else happens: the next cut has these changes too."""


class SlotIndex(Protocol):
    """What `Changes` needs to know of a `KeySlots`."""

    @property
    def slots_made(self) -> int:
        """One more than the greatest slot there may be."""
        ...

    def are_free(self) -> Marks:
        """Whether each slot is free, in an array of its own."""
        ...

    def __len__(self) -> int: ...


class Changes:
    """The slots of a `KeySlots` whose rows have changed since the last cut.

    Nothing is noted before the first cut, so flows without checkpoints do not pay for it; nor once
    half of the rows have changed, since then the next cut has all of them. Call `made` after slots
    were made, and `touch` or `removed` before rows change or go.

    >>> import jeton as jt
    >>> keys, counts = jt.state.KeySlots(1), np.zeros(1024, dtype=np.int64)
    >>> changes, rows = Changes(keys), lambda slots: pa.table({"n": counts[slots]})
    >>> def count(values):
    ...     slots, new = keys.find([np.array(values)], len(values))
    ...     changes.made(slots[new])
    ...     changes.touch(slots)
    ...     np.add.at(counts, slots, 1)
    >>> count([7, 8, 9])
    >>> first = changes.cut(None, Guard(), rows)
    >>> count([9, 9, 10])
    >>> first.read().rows["n"].to_pylist()  # as they were
    [1, 1, 1]
    >>> second = changes.cut(first.token, Guard(), rows).read()
    >>> second.rows["n"].to_pylist(), second.ids.tolist()
    ([3, 1], [9, 10])
    """

    def __init__(self, keys: SlotIndex) -> None:
        self._keys = keys
        self.token: str | None = None
        """The token of the state that was stored last."""
        self._dirty: Marks | None = None
        self._free: Marks = np.zeros(0, dtype=bool)
        self._changed = 0
        """How many slots are marked."""
        self._open: SlotCut | None = None
        self._loaded: Slots | None = None
        self._ids: Slots | None = None
        self._first_id = 0

    @property
    def are_noted(self) -> bool:
        """Whether there has been a cut."""
        return self._dirty is not None

    @property
    def is_open(self) -> bool:
        """Whether a cut has not been read yet: every row must be marked before it changes."""
        return self._open is not None

    def made(self, slots: Slots) -> None:
        """Mark slots that keys have just got."""
        if self._dirty is None or not len(slots):
            return
        size = self._keys.slots_made
        if size > len(self._dirty):
            self._dirty = grown(self._dirty, size)
        self._make_room(size)
        self._free[slots] = False
        if self._open is None:
            self._mark(self._dirty, slots)
        else:
            self._open.were_not_there(self._open.of_interest(self._dirty, slots))

    def touch(self, slots: Slots) -> None:
        """Mark slots whose rows are about to change."""
        if self._dirty is None or not len(slots):
            return
        if self._open is None:
            self._mark(self._dirty, slots)
        else:
            self._open.put_aside(self._open.of_interest(self._dirty, slots))

    def removed(self, slots: Slots) -> None:
        """Mark slots whose keys are about to be removed."""
        if self._dirty is not None and len(slots):
            self.touch(slots)
            if self._dirty is not None:
                self._free[slots] = True

    def loaded(self, slots: Slots | None) -> None:
        """Note the slots of rows that a restore has put in, in their order in the table."""
        self._loaded = slots

    def restored(self, token: str, ids: Slots | None) -> None:
        """Go on from a stored state: see `Incremental.restored`."""
        slots, self._loaded = self._loaded, None
        if slots is None or ids is None or not len(slots) == len(ids) == len(self._keys):
            return
        size = self._keys.slots_made
        first = int(ids.max(initial=-1)) + 1
        if first > _SPARSE * (size + PIECE):
            return
        self._first_id = first
        self._ids = np.full(size, -1, dtype=np.int64)
        self._ids[slots] = ids
        self._begin()
        self.token = token

    def cut(self, after: str | None, guard: Guard, rows: Rows) -> SlotCut:
        """The changes since the state ``after``: see `Incremental.cut`.

        ``rows`` makes a table of the rows at some slots.
        """
        if self._open is not None:
            self._open.read()
        old = self._dirty
        if old is None or after is None or after != self.token:
            # All rows, of which each has the number of its slot from now on.
            after = old = self._ids = None
            self._first_id = 0
            self._begin()
        elif not self._changed:
            return SlotCut(self, after, after, guard, old, 0, rows, changed=0)
        # An index of another kind may have fewer slots than there were.
        size = self._keys.slots_made if old is None else len(old)
        self._make_room(size)
        made = SlotCut(self, token_hex(8), after, guard, old, size, rows, changed=self._changed)
        self._dirty = np.zeros(len(self._free), dtype=bool)
        self._changed = 0
        self.token = made.token
        self._open = made
        with guard:
            guard.open += 1
        return made

    def numbering(self) -> Callable[[Slots], Slots]:
        """A function to the numbers by which files know the rows at slots, until all are new."""
        return partial(_numbers, known=self._ids, first=self._first_id)

    def size(self, rows: Rows) -> tuple[int, int]:
        """The number of rows, and about how many bytes they take."""
        count = len(self._keys)
        some = np.flatnonzero(~self._free[:PIECE])[:_SAMPLE]
        if not count or not len(some):
            return count, 0
        return count, int(rows(some).nbytes / len(some) * count)

    def _make_room(self, size: int) -> None:
        known = len(self._free)
        if size > known:
            self._free = grown(self._free, size)
            self._free[known:] = True

    def _begin(self) -> None:
        """Note changes from now on."""
        self._free = self._keys.are_free()
        self._dirty = np.zeros(self._keys.slots_made, dtype=bool)
        self._changed = 0

    def _mark(self, dirty: Marks, slots: Slots) -> None:
        self._changed += _set(dirty, slots)
        if 2 * self._changed > len(self._keys) + _SMALL:
            self.token = self._dirty = None

    def _close(self, cut: SlotCut) -> None:
        if self._open is cut:
            self._open = None

    def _take_back(self, cut: SlotCut, dirty: Marks | None) -> None:
        self.token = cut.after
        if dirty is not None:
            self._dirty, self._changed = dirty, cut.changed


class SlotCut(Cut):
    """The rows at slots that were marked, or at all slots in use."""

    def __init__(
        self,
        changes: Changes,
        token: str,
        after: str | None,
        guard: Guard,
        dirty: Marks | None,
        size: int,
        rows: Rows,
        *,
        changed: int,
    ) -> None:
        super().__init__(token, after, *changes.size(rows))
        self.changed = changed
        self._changes = changes
        self._rows = rows
        self._guard = guard
        self._dirty = None if after is None else dirty
        """The slots whose rows have changed; all of them if it is not there."""
        self._size = size
        self._is_closed = self.is_empty
        self._aside: list[tuple[Slots, pa.Table]] = []
        self._not_there: list[Slots] = [NONE]
        # While it is being read, another cut may give all rows new numbers.
        self._numbers = changes.numbering()

    def of_interest(self, dirty: Marks, slots: Slots) -> Slots:
        """Mark slots; returns those that were not marked since the cut, and belong to it."""
        among = np.empty(0, dtype=bool) if self._dirty is None else self._dirty
        new, marked = _set_new(dirty, slots, among, self._size)
        self._changes._changed += marked
        found: Slots = new
        return found

    def put_aside(self, slots: Slots) -> None:
        """Keep rows as they are."""
        if len(slots):
            self._aside.append((slots, self._rows(slots)))

    def were_not_there(self, slots: Slots) -> None:
        """Note that rows were made after the cut."""
        self._not_there.append(slots)

    def abandon(self) -> None:
        """Take it back."""
        if not self.is_empty:
            self._close()
            self._changes._take_back(self, self._dirty)

    def read_now(self) -> SlotCut:
        """Read it before the flow goes on: of Python objects, for which a copy is no copy."""
        try:
            self.read()
        except BaseException:
            self.abandon()
            raise
        return self

    def _close(self) -> None:
        with self._guard:
            if not self._is_closed:
                self._is_closed = True
                self._guard.open -= 1
                self._changes._close(self)

    def _read(self) -> Delta:
        tables: list[pa.Table] = []
        found: list[Slots] = []
        gone: list[Slots] = []
        changes = self._changes
        for start in range(0, self._size, _STRETCH):
            stop = min(start + _STRETCH, self._size)
            if self._dirty is None:
                chosen = np.arange(start, stop)
            else:
                chosen = np.flatnonzero(self._dirty[start:stop]) + start
            for at in range(0, len(chosen), PIECE):
                piece = chosen[at : at + PIECE]
                with self._guard:
                    free = changes._free[piece]
                    some = piece[~free] if free.any() else piece
                    if len(some):
                        tables.append(self._rows(some))
                        found.append(some)
                if len(some) < len(piece) and self._dirty is not None:
                    gone.append(piece[free])
        self._close()
        return self._corrected(tables, found, gone)

    def _corrected(self, tables: list[pa.Table], found: list[Slots], gone: list[Slots]) -> Delta:
        """The rows that were read, with those that were put aside in place of what came later."""
        later = np.concatenate([*self._not_there, *(slots for slots, _ in self._aside)])
        removed = np.concatenate([NONE, *gone])
        if len(later):
            over = np.zeros(self._size, dtype=bool)
            over[later] = True
            for number, slots in enumerate(found):
                stays = ~over[slots]
                if not stays.all():
                    tables[number] = tables[number].filter(pa.array(stays))
                    found[number] = slots[stays]
            tables += [table for _, table in self._aside]
            found += [slots for slots, _ in self._aside]
            removed = removed[~over[removed]]
            if self._dirty is not None:
                removed = np.concatenate([removed, *self._not_there])
        with_rows = [table for table in tables if table.num_rows]
        if with_rows:
            rows = joined(with_rows)
        else:
            with self._guard:
                rows = self._rows(NONE)
        slots = np.concatenate([NONE, *found])
        return Delta(rows, self._numbers(slots), self._numbers(removed))


def _numbers(slots: Slots, known: Slots | None, first: int) -> Slots:
    """The numbers of slots: those that are known, or others from ``first`` on."""
    if known is None:
        return slots
    found = slots + first
    old = np.flatnonzero(slots < len(known))
    had = known[slots[old]]
    found[old[had >= 0]] = had[had >= 0]
    return found


class BlockChanges:
    """Blocks of rows that were added to a container since the last cut, and how many were taken.

    Blocks do not change, so that a cut needs no more than references to them. Rows go in order
    of time, or unseen, when no partner can come for them any more. Where most of what was added
    has gone again, all rows are less than the changes: then nothing is noted until the next cut.

    >>> import jeton as jt
    >>> changes = BlockChanges()
    >>> first = changes.cut(None, [], 0, lambda blocks: pa.table({"n": [len(blocks)]}))
    >>> changes.added(jt.Batch({"n": [5, 6]}, times=[1, 2]), left=2)
    >>> changes.taken(2, left=1)
    >>> cut = changes.cut(first.token, [], 1, lambda b: pa.table({"n": b[0].column("n")}), "n")
    >>> delta = cut.read()
    >>> delta.rows["n"].to_pylist(), delta.before
    ([6], 2)
    """

    def __init__(self) -> None:
        self.token: str | None = None
        """The token of the state that was stored last, if all changes since are noted."""
        self._blocks: list[tuple[Batch, int | None]] = []
        """Each with the least time of rows that were not taken since."""
        self._rows = 0
        self._before: int | None = None
        self._stored = 0
        """The number of rows in files, those that have gone unseen included."""

    def added(self, block: Batch, left: int) -> None:
        """Note a block; there are ``left`` rows now."""
        if self.token is not None:
            self._blocks.append((block, None))
            self._rows += len(block)
            self._require_few(left)

    def taken(self, before: int, left: int) -> None:
        """Note that all rows before a time were taken out, so that ``left`` are left."""
        if self.token is not None:
            blocks = [(b, before if low is None else max(low, before)) for b, low in self._blocks]
            self._blocks = [(b, low) for b, low in blocks if int(b.times.max()) >= low]
            self._rows = sum(len(block) for block, _ in self._blocks)
            self._before = before if self._before is None else max(self._before, before)
            self._require_few(left)

    def lost(self) -> None:
        """Have the next cut contain all rows: something else has changed."""
        self.token = None
        self._blocks, self._rows, self._before = [], 0, None

    def restored(self, token: str, rows: int) -> None:
        """Go on from a stored state: see `Incremental.restored`."""
        self.lost()
        self.token, self._stored = token, rows

    def cut(
        self,
        after: str | None,
        blocks: Sequence[Batch],
        rows: int,
        table: Callable[[Sequence[Batch]], pa.Table],
        order: str | None = None,
    ) -> BlockCut:
        """The changes since the state ``after``; ``blocks`` are all rows.

        ``table`` makes a table of blocks; the column whose name begins with ``order`` has the times
        by which rows are taken.
        """
        nbytes = sum(int(c.nbytes) for block in blocks for c in block.columns.values())
        if after is None or after != self.token or self._stored + self._rows > 2 * rows + _SMALL:
            self._stored = 0
            found = [(block, None) for block in blocks]
            made = BlockCut(token_hex(8), None, rows, nbytes, found, None, table, order)
            self.restored(made.token, rows)
            made.on_abandon = self.lost
            return made
        if not self._blocks and self._before is None:
            return BlockCut(after, after, rows, nbytes, [], None, table, order)
        token, stored = token_hex(8), self._stored + self._rows
        made = BlockCut(token, after, rows, nbytes, self._blocks, self._before, table, order)
        self.restored(token, stored)
        made.on_abandon = self.lost
        return made

    def _require_few(self, left: int) -> None:
        if self._rows > 2 * left + _SMALL:
            self.lost()


class BlockCut(Cut):
    """Blocks of rows."""

    on_abandon: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        token: str,
        after: str | None,
        rows: int,
        nbytes: int,
        blocks: Sequence[tuple[Batch, int | None]],
        before: int | None,
        table: Callable[[Sequence[Batch]], pa.Table],
        order: str | None,
    ) -> None:
        super().__init__(token, after, rows, nbytes)
        self._blocks = blocks
        self._before = before
        self._table = table
        self._order = order

    def abandon(self) -> None:
        """Take it back: the next cut has all rows."""
        self.on_abandon()

    def _read(self) -> Delta:
        blocks = [
            block if low is None else block.filter(block.times >= low)
            for block, low in self._blocks
        ]
        rows = self._table([block for block in blocks if len(block)])
        order = None
        if self._order is not None:
            order = next((n for n in rows.column_names if n.startswith(self._order)), None)
        return Delta(rows, before=self._before, order=order)


@nb.njit(cache=True)
def _set(marks: Marks, slots: Slots) -> int:
    """Mark slots; how many were not marked."""
    new = 0
    for i in range(len(slots)):
        new += not marks[slots[i]]
        marks[slots[i]] = True
    return new


@nb.njit(cache=True)
def _set_new(marks: Marks, slots: Slots, among: Marks, size: int) -> tuple[Slots, int]:
    """Mark slots; those that were not marked and are among some, and how many were not marked."""
    new = np.empty(len(slots), np.int64)
    found = marked = 0
    for i in range(len(slots)):
        slot = slots[i]
        if not marks[slot]:
            marks[slot] = True
            marked += 1
            if slot < size and (len(among) == 0 or among[slot]):
                new[found] = slot
                found += 1
    return new[:found], marked
