"""OpenWindows: windows with ends of their own, found by their key and a time in them.

A window is known by its slot, which is made elsewhere. Most keys have one window, so all that a
search asks of a key's first window is in the key's own row: a record looks at one line of memory
there. Keys that are integers are found in the same loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jeton.columns import compiled as nb
from jeton.columns.column import Column
from jeton.columns.time_arithmetic import LEAST, MOST
from jeton.columns.time_columns import Times
from jeton.state.hash_index import home_of
from jeton.state.key_slots import KeySlots
from jeton.state.slot_pool import Slots, grown

_START, _END = range(2)
"""The first columns of all rows: from when until when a window is."""
_PLACE, _WORD = 2, 3
"""Further columns of the row of a key, which has its first window: twice the slot of that, and one
more if there are others (-1: there is none yet); and the key's word, which is compared here, where
the row is read anyway."""
_AFTER, _BEFORE = 2, 3
"""Further columns of the row of a window: those of its key after and before it. A first window's
start and end are not kept up to date here."""
_COLUMNS: Final = 4
_PATIENCE: Final = 64
"""How many windows that a record does not fall into are looked at, for each record and window."""
_BLOCK: Final = 128
"""The records whose keys are found before their windows are looked at."""

OPERATORS: Final = {"lt": 1, "eq": 2, "le": 3, "gt": 4, "ge": 6, "ne": 10}
"""The codes of comparisons, by the names that Python's `operator` has for them.

Bits say whether one is true of a lesser, an equal and a greater number, and whether all that is to
be negated: NaN is none of these.
"""
SWAPPED: Final = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
"""The same comparisons with their sides swapped."""

NumberTest = tuple[int, npt.NDArray[Any], npt.NDArray[Any]]
"""The code of a comparison, and what is compared: a number of each window, and one of each record.

All are of one type of 64 bits.
"""
_NO_NUMBERS: Final = np.empty(0, np.int64)
NO_TEST: Final[NumberTest] = (0, _NO_NUMBERS, _NO_NUMBERS)
_NO_TABLE: Final = np.empty(0, np.int32)


class OpenWindows:
    """Windows by the keys that they are of, and which of them have records.

    >>> windows = OpenWindows(1)
    >>> slots, order = np.array([0, 1]), np.array([0, 1])
    >>> windows.open([np.array([7, 8])], slots, np.array([0, 5]), np.array([9, 9]), order)
    >>> keys, times = [np.array([8, 7, 7, 6, 7])], np.array([4, 4, 9, 4, 5])
    >>> windows.search(keys, times, live=lambda: slots)
    (array([1, 4]), array([0, 0]))
    >>> greater = (OPERATORS["lt"], np.array([3, 5]), np.array([4, 3, 4, 4, 4]))
    >>> windows.search(keys, times, greater, live=lambda: slots)
    (array([4]), array([0]))
    >>> windows.close(slots)
    """

    def __init__(self, key_columns: int) -> None:
        # Compact: keys such as ids grow indefinitely, but few are open at a time.
        self._keys = KeySlots(key_columns, compact=True)
        self._heads = _rows_of_keys(64)
        """A row for each key, with its first window: the last one that was opened."""
        self._chains = np.zeros((0, _COLUMNS), np.int64)
        """A row for each window, once a key has several."""
        self._key_of = np.zeros(64, np.int64)
        self._order = np.zeros(64, np.int64)
        self.hit = np.zeros(64, np.uint8)
        """Whether each window has records, as `mark` has noted."""
        self._count = 0
        self._room = np.empty((2, 1), np.int64)

    @property
    def size(self) -> int:
        """The length of arrays by window that have room for all."""
        return len(self._key_of)

    def open(
        self,
        key: Sequence[Column],
        windows: Slots,
        starts: Times,
        ends: Times,
        order: Slots,
    ) -> None:
        """Open windows, which have no records yet, with their places in the order of opening."""
        keys, new = self._keys.find(key, len(windows))
        if self._keys.slots_made >= len(self._heads):
            heads = self._heads
            self._heads = _rows_of_keys(2 * self._keys.slots_made)
            self._heads[: len(heads) - 1] = heads[:-1]
        size = int(windows.max()) + 1
        if size > len(self._key_of):
            self._key_of, self._order = grown(self._key_of, size), grown(self._order, size)
            self.hit = grown(self.hit, len(self._key_of))
        if len(new) < len(keys):
            self._chains = grown(self._chains, len(self._key_of))
        self._count += len(windows)
        words = self._keys.index.words(keys)[-1].view(np.int64)
        self._heads[keys[new], _PLACE] = -1
        self._key_of[windows], self._order[windows] = keys, order
        self.hit[windows] = 0
        _link(self._heads, self._chains, words, windows, keys, starts, ends)

    def close(self, windows: Slots) -> None:
        """Forget windows."""
        self._count -= len(windows)
        gone = np.empty(len(windows), np.int64)
        count = _unlink(self._heads, self._chains, self._key_of[windows], windows, gone)
        self._keys.remove(gone[:count])

    def spans(self, windows: Slots) -> tuple[Times, Times]:
        """The starts and ends of windows."""
        heads = self._heads[self._key_of[windows]]
        starts, ends = heads[:, _START], heads[:, _END]
        others = np.flatnonzero(heads[:, _PLACE] >> 1 != windows)
        if len(others):
            rows = self._chains[windows[others]]
            starts[others], ends[others] = rows[:, _START], rows[:, _END]
        return starts, ends

    def mark(self, windows: Slots) -> None:
        """Note that windows have records."""
        _mark(self.hit, windows)

    def search(
        self,
        key: Sequence[Column],
        times: Times,
        test: NumberTest = NO_TEST,
        *,
        since: int = 0,
        live: Callable[[], Slots],
    ) -> tuple[Slots, Slots]:
        """The pairs of records and open windows of their keys that pass a test.

        Only windows from a place ``since`` in the order of opening on are found; ``live`` returns
        all windows, which is seldom needed. The rows of records and the slots of windows are valid
        until the next search.
        """
        count = len(times)
        quick = self._keys.table_for(key)
        if quick is None:
            table, keys = _NO_TABLE, self._keys.lookup(key, count)
        else:
            table, keys = quick
        if self._room.shape[1] <= count:
            self._room = np.empty((2, 2 * count), np.int64)
        state = self._heads, self._chains, self._order, since, *test
        patience = _PATIENCE * (count + self._count)
        rows, windows = self._room
        found = _match(table, keys, times, *state, rows, windows, patience)
        if found >= len(rows):
            rows, windows = self._make_room(found)
            _match(table, keys, times, *state, rows, windows, MOST)
        elif found < 0:
            # A key has many windows, of which most are not open at the times of these records.
            keys = self._keys.lookup(key, count) if quick else keys
            ordered = (*self._by_start(live()), self._order, since, *test)
            found = _match_ordered(keys, times, *ordered, rows, windows)
            if found > len(rows):
                rows, windows = self._make_room(found)
                _match_ordered(keys, times, *ordered, rows, windows)
        return rows[:found], windows[:found]

    def _by_start(self, windows: Slots) -> tuple[Slots, Times, Times, Times, Slots]:
        """The keys, starts, ends and slots of windows by key and start.

        Before the slots is, for each window, the last end of those of its key up to it.
        """
        keys = self._key_of[windows]
        starts, ends = self.spans(windows)
        order = np.lexsort((starts, keys))
        keys, ends = keys[order], ends[order]
        return keys, starts[order], ends, _last_ends(keys, ends), windows[order]

    def _make_room(self, pairs: int) -> npt.NDArray[np.int64]:
        self._room = np.empty((2, 2 * pairs), np.int64)
        return self._room


def _rows_of_keys(rows: int) -> npt.NDArray[np.int64]:
    """Rows with anything in them, each in one line of memory; no time is in the last one's window.

    The last one is that of the slot -1, which stands for keys that are not there.
    """
    room = np.empty((rows + 1) * _COLUMNS, np.int64)
    first = -(room.ctypes.data // room.itemsize) % _COLUMNS
    made = room[first : first + rows * _COLUMNS].reshape(rows, _COLUMNS)
    made[-1] = MOST, LEAST, 0, 0
    return made


# None calls a function with arrays, nor makes a view of a row: Numba would count references to them
# for each window, which costs more than all the rest.


@nb.njit(cache=True)
def _link(heads, chains, words, windows, keys, starts, ends):  # type: ignore[no-untyped-def]
    """Put windows in front of those of their keys."""
    for i in range(len(windows)):
        window, key = windows[i], keys[i]
        after = heads[key, _PLACE] >> 1
        if after >= 0:
            chains[after, _START] = heads[key, _START]
            chains[after, _END] = heads[key, _END]
            chains[after, _BEFORE] = window
            if not heads[key, _PLACE] & 1:
                chains[after, _AFTER] = -1
            chains[window, _AFTER] = after
        heads[key, _START] = starts[i]
        heads[key, _END] = ends[i]
        heads[key, _PLACE] = 2 * window + (after >= 0)
        heads[key, _WORD] = words[i]


@nb.njit(cache=True)
def _unlink(heads, chains, keys, windows, gone):  # type: ignore[no-untyped-def]
    """Take windows out; writes the keys that have none any more, and returns their number."""
    count = 0
    for i in range(len(windows)):
        window, key = windows[i], keys[i]
        place = heads[key, _PLACE]
        if place == 2 * window:
            gone[count] = key
            count += 1
            continue
        after = chains[window, _AFTER]
        if place >> 1 == window:
            heads[key, _START] = chains[after, _START]
            heads[key, _END] = chains[after, _END]
            heads[key, _PLACE] = 2 * after + (chains[after, _AFTER] >= 0)
            continue
        before = chains[window, _BEFORE]
        chains[before, _AFTER] = after
        if after >= 0:
            chains[after, _BEFORE] = before
        elif place >> 1 == before:
            heads[key, _PLACE] = 2 * before
    return count


@nb.njit(cache=True)
def _mark(hit, windows):  # type: ignore[no-untyped-def]
    for i in range(len(windows)):
        hit[windows[i]] = 1


@nb.njit(cache=True, inline="always")
def _holds(operator, left, right):  # type: ignore[no-untyped-def]
    """Whether a comparison is true: see `OPERATORS`."""
    less = (operator & 1 != 0) & (left < right)
    equal = (operator & 2 != 0) & (left == right)
    greater = (operator & 4 != 0) & (left > right)
    return (less | equal | greater) != (operator & 8 != 0)


@nb.njit(cache=True)
def _match(  # type: ignore[no-untyped-def]
    table, keys, times, heads, chains, order, since, operator, left, right, rows, windows, patience
):
    """Write the pairs of records and windows that go together, if there is room; count them.

    There must be room for one more. Keys are words if there is a table, else slots. Gives up, with
    -1, after so many windows that a record does not fall into.
    """
    count = 0
    last = len(rows) - 1
    mask = np.uint64(len(table) - 1)
    hashed = len(table) > 0
    tests = operator != 0
    found, words = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    for first in range(0, len(keys), _BLOCK):
        block = min(_BLOCK, len(keys) - first)
        for j in range(block):
            key = keys[first + j]
            found[j] = table[home_of(np.uint64(key), mask)] if hashed else key
        # The rows of all are asked for before one is needed: memory answers many at a time.
        for j in range(block):
            words[j] = heads[found[j], _WORD]
        if hashed:
            for j in range(block):
                word, key = keys[first + j], found[j]
                if key >= 0 and words[j] != word:
                    at = home_of(np.uint64(word), mask)
                    while key >= 0 and heads[key, _WORD] != word:
                        at = (at + np.uint64(1)) & mask
                        key = np.int64(table[at])
                    found[j] = key
        # Without branches on what differs from record to record, which are often guessed wrong:
        # also a pair that is none is written, where the next one will be.
        for j in range(block):
            i = first + j
            key = found[j]
            time = times[i]
            place = heads[key, _PLACE]
            window = place >> 1
            inside = (heads[key, _START] <= time) & (time < heads[key, _END])
            if since:
                inside &= order[window] >= since
            patience -= not inside
            if tests:
                inside &= _holds(operator, left[window], right[i])
            at_most = min(count, last)
            rows[at_most] = i
            windows[at_most] = window
            count += inside
            if place & 1:
                window = chains[window, _AFTER]
                while window >= 0:
                    if (
                        chains[window, _START] <= time
                        and time < chains[window, _END]
                        and order[window] >= since
                    ):
                        if not tests or _holds(operator, left[window], right[i]):
                            at_most = min(count, last)
                            rows[at_most] = i
                            windows[at_most] = window
                            count += 1
                    else:
                        patience -= 1
                    if patience < 0:
                        return -1
                    window = chains[window, _AFTER]
    return count


@nb.njit(cache=True)
def _last_ends(keys, ends):  # type: ignore[no-untyped-def]
    last = ends.copy()
    for i in range(1, len(ends)):
        if keys[i - 1] == keys[i]:
            last[i] = max(last[i], last[i - 1])
    return last


@nb.njit(cache=True)
def _match_ordered(  # type: ignore[no-untyped-def]
    keys, times, keys_of, starts, ends, last_ends, slots, order, since, operator, left, right,
    rows, windows,
):  # fmt: skip
    """The same as `_match`, of windows by key and start: see `OpenWindows._by_start`."""
    count = 0
    room = len(rows)
    tests = operator != 0
    for i in range(len(keys)):
        key, time = keys[i], times[i]
        if key < 0:
            continue
        low, high = 0, len(slots)
        while low < high:
            middle = (low + high) // 2
            here = keys_of[middle]
            if here < key or (here == key and starts[middle] <= time):
                low = middle + 1
            else:
                high = middle
        at = low - 1
        while at >= 0 and keys_of[at] == key and last_ends[at] > time:
            window = slots[at]
            if (
                ends[at] > time
                and order[window] >= since
                and (not tests or _holds(operator, left[window], right[i]))
            ):
                if count < room:
                    rows[count] = i
                    windows[count] = window
                count += 1
            at -= 1
    return count
