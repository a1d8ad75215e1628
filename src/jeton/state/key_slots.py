"""KeySlots: from keys to slots, such that two keys share one only if their values are equal.

A single integer is a word of its own. Other keys are looked up by a 64-bit hash, and their values
are compared with those found. Two keys with the same hash, which occur only if an attacker searches
for them, are distinguished: each gets a word of its own in place of the hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from secrets import randbits
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns.column import Column, as_key
from jeton.columns.keys import (
    Hashes,
    hash_columns,
    is_bytes,
    is_float,
    key_family,
    one_form,
    require_rows,
    rows_in_bins,
)
from jeton.core.errors import BatchError
from jeton.state.dense_index import DirectIndex, PanedIndex
from jeton.state.hash_index import HashIndex
from jeton.state.key_columns import SlotColumn, exact_words, is_exact
from jeton.state.slot_pool import (
    SlotPool,
    Slots,
    UniqueIndex,
    are_made,
    as_slots,
    require_in_use,
)

_WORDS: Final = np.dtype(np.uint64)
_Index: TypeAlias = HashIndex | DirectIndex | PanedIndex | UniqueIndex


class KeySlots:
    """A hash table from keys to *slots*, small numbers from 0 on, a whole batch at a time.

    Keep the values of keys in arrays that are indexed by slot, and let these grow with `slots_made`
    (see `grown`). A key is a row of ``columns`` columns of any types; nulls are equal to each
    other. With ``timed``, there is a word before each key, such as the end of its window. Slots of
    removed keys are used again.

    Small integers are their own slots, which is fastest. With ``compact``, they are not: then there
    are never more slots than there were keys at a time. With ``unique``, and no columns, each time
    comes once, and gets a slot without being looked up.

    >>> import jeton as jt
    >>> keys, counts = jt.state.KeySlots(1), np.zeros(0, dtype=np.int64)
    >>> for words in (["b", "a", "b"], ["c", "b"]):
    ...     slots, new = keys.find([pa.array(words)], len(words))
    ...     counts = jt.state.grown(counts, keys.slots_made)
    ...     np.add.at(counts, slots, 1)
    >>> live = keys.live()
    >>> dict(zip(keys.values(live)[0].to_pylist(), counts[live].tolist(), strict=True))
    {'b': 3, 'a': 1, 'c': 1}
    >>> keys.lookup([pa.array(["c", "d"])], 2)
    array([ 2, -1])
    """

    def __init__(
        self, columns: int, *, timed: bool = False, compact: bool = False, unique: bool = False
    ) -> None:
        if unique and (columns or not timed):
            raise BatchError("only KeySlots(0, timed=True) can be unique=True")
        self._timed = timed
        self._compact = compact
        self._exact: bool | None = None
        self.index: _Index = UniqueIndex() if unique else HashIndex(1)
        """The index that keys are found in at the moment."""
        self._columns = [SlotColumn() for _ in range(columns)]
        self._typed = False
        """Whether the columns' types are known: a batch has come, which may have been empty."""
        self._twins = Twins()
        self._seen: set[tuple[object, ...]] = set()
        self._compared: set[tuple[object, ...]] = set()
        """The types of keys that were looked up and fit all those there are."""
        self._kinds = KeyColumnTypes(columns)
        self._usual: np.dtype[Any] | None = None
        """The type of a single column of integers, once it is known to fit."""

    def find(
        self, columns: Sequence[Column], rows: int, times: Hashes | None = None
    ) -> tuple[Slots, Slots]:
        """The slot of each key, and the rows at which a new key came.

        A single time is that of all keys. The slots are valid until the next call.
        """
        before = self._before(columns, rows, times)
        if not columns:
            return self._find_or_add((_one_key(rows, before),))
        first = columns[0]
        if isinstance(first, np.ndarray) and first.dtype is self._usual and first.shape == (rows,):
            slots, new = self._find_or_add((*before, exact_words(first)))
            return slots, new
        columns = _checked(columns, rows)
        self._learn_types(columns)
        # As they are hashed and compared, once for both; they are kept as they came.
        plain = [_plain(column) for column in columns]
        hashes = self._learn_words(plain, len(before))
        slots, new = self._find_or_add((*before, hashes))
        if self._exact:
            [first] = plain
            assert isinstance(first, np.ndarray)
            if len(new) or not self._typed:
                self._typed = True
                self._columns[0].learn(first[new])
            # A wider type has to be learnt with the first key that is new in it.
            kept = self._columns[0].plain
            fits = rows and kept is not None and np.can_cast(first.dtype, kept.dtype)
            self._usual = first.dtype if fits else None
        else:
            if len(new) or not self._typed:
                self._typed = True
                self._put(slots[new], plain, new, columns)
            wrong = self._wrong(slots, plain)
            if len(wrong):
                new = self._separate(plain, columns, before, slots, new, wrong)
        return slots, new

    def quick_words(self, column: Column | None) -> Hashes | None:
        """The words of keys for fused loops, if they are integers like those before."""
        if type(column) is np.ndarray and column.dtype is self._usual:
            return exact_words(column)
        return None

    def table_for(self, columns: Sequence[Column]) -> tuple[npt.NDArray[Any], Slots] | None:
        """The hash table, and the words of keys, for loops that search it: see `HashIndex`.

        There is none but for single integers like those before.
        """
        index = self.index
        if len(columns) != 1 or self._timed or type(index) is not HashIndex:
            return None
        words = self.quick_words(columns[0])
        return None if words is None else (index.table, words.view(np.int64))

    def lookup(self, columns: Sequence[Column], rows: int, times: Hashes | None = None) -> Slots:
        """The slot of each key, -1 for keys that are not there.

        A table that is only looked up does not change: several runs may share it.
        """
        before = self._before(columns, rows, times)
        if not columns:
            return self.index.find((_one_key(rows, before),))
        first = columns[0]
        if isinstance(first, np.ndarray) and first.dtype is self._usual and first.shape == (rows,):
            return self.index.find((*before, exact_words(first)))
        columns = _checked(columns, rows)
        if self._exact is None:
            return np.full(rows, -1, dtype=np.int64)
        self._require_types(columns)
        plain = [_plain(column) for column in columns]
        if self._exact:
            return self._lookup_exact(plain[0], before)
        words = self._twins.known_words(hash_columns(plain), plain)
        slots = self.index.find((*before, words))
        known = np.flatnonzero(slots >= 0)
        some = [cols.take(column, known) for column in plain]
        slots[known[self._wrong(slots[known], some)]] = -1
        return slots

    def _lookup_exact(self, column: Column, before: tuple[Hashes, ...]) -> Slots:
        """The slots where all keys are integers: a null among those looked up is not there."""
        if isinstance(column, np.ndarray):
            return self.index.find((*before, exact_words(column)))
        slots = np.full(len(column), -1, dtype=np.int64)
        rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        if len(rows):
            some = cols.from_arrow(column.drop_null())
            times = tuple(word if len(word) == 1 else word[rows] for word in before)
            slots[rows] = self.index.find((*times, exact_words(some)))
        return slots

    def _before(
        self, columns: Sequence[Column], rows: int, times: Hashes | None
    ) -> tuple[Hashes, ...]:
        """The words before keys, if there are any; keys of another shape are refused."""
        if len(columns) != len(self._columns):
            raise BatchError(
                f"keys of {len(columns)} columns do not fit KeySlots({len(self._columns)})"
            )
        if times is None:
            if self._timed:
                raise BatchError("KeySlots with timed=True needs a time for each key")
            return ()
        if not self._timed:
            raise BatchError("only KeySlots with timed=True take times")
        words = _as_words(times)
        if len(words) != rows and len(words) != 1:
            raise BatchError(
                f"there are {len(words)} times for {rows} keys: give one for each key, or a single "
                "one for all"
            )
        return (words,)

    def _learn_types(self, columns: Sequence[Column]) -> None:
        """Refuse keys of types between which none is equal, or which would be taken for others."""
        seen = tuple(c.dtype if isinstance(c, np.ndarray) else c.type for c in columns)
        if seen in self._seen:
            return
        for at, column in enumerate(columns):
            if len(column):
                self._kinds.learn(at, cols.to_arrow(column[:0]).type)
        if all(map(len, columns)):
            self._seen.add(seen)
            self._compared.clear()

    def _require_types(self, columns: Sequence[Column]) -> None:
        """Refuse to look up keys of types that none of the keys can have."""
        seen = tuple(c.dtype if isinstance(c, np.ndarray) else c.type for c in columns)
        if seen in self._compared:
            return
        for at, column in enumerate(columns):
            if len(column):
                self._kinds.require(at, cols.to_arrow(column[:0]).type)
        if all(map(len, columns)):
            self._compared.add(seen)

    def values(self, slots: Slots) -> list[Column]:
        """The key columns of some slots."""
        slots = self._made(slots)
        if self._exact:
            # Their words are all there is to know of them.
            return [self._columns[0].of_words(self.index.key_words(slots))]
        return [column.get(slots) for column in self._columns]

    def times(self, slots: Slots) -> Hashes:
        """The words before the keys of some slots."""
        return self.index.words(self._made(slots))[0]

    def remove(self, slots: Slots) -> None:
        """Remove keys; their slots will be used for others.

        Each slot must be in use, and named once.
        """
        slots = as_slots(slots)
        require_in_use(are_made(slots, self.slots_made))
        self.index.remove(slots)
        for column in self._columns:
            if column.is_wasteful(len(self.index)):
                column.compact(self.index.live())

    def live(self) -> Slots:
        """All slots in use, in ascending order."""
        return self.index.live()

    def are_free(self) -> npt.NDArray[np.bool_]:
        """Whether each slot is free, up to `slots_made`."""
        return self.index.are_free()

    def in_bins(self, chosen: npt.NDArray[np.bool_]) -> Slots:
        """The slots in use of keys in some bins: ``chosen`` has a value for each bin.

        >>> import jeton as jt
        >>> keys = jt.state.KeySlots(1)
        >>> _ = keys.find([np.arange(1000)], 1000)
        >>> chosen = np.arange(256) == jt.state.bins_of([np.array([7])])[0] % 256
        >>> slots = keys.in_bins(chosen)
        >>> 7 in keys.values(slots)[0], len(slots) < 20
        (True, True)
        """
        index = self.index
        if isinstance(index, SlotPool) and self._exact is not None and not self._twins.exist:
            # Without a list of all that are in use, which takes longer than to look for some.
            words = index.stored[-1][: index.slots_made]
            return index.used_of(rows_in_bins(words, chosen, mixed=not self._exact))
        live = index.live()
        if not self._columns:
            return live if chosen[0] else live[:0]
        if self._exact is None:
            return live[:0]
        if self._twins.exist:
            rows = rows_in_bins(hash_columns(self.values(live)), chosen, mixed=True)
        else:
            rows = rows_in_bins(index.words(live)[-1], chosen, mixed=not self._exact)
        slots: Slots = live[rows]
        return slots

    def stay_compact(self) -> None:
        """Have no more slots than keys, also of small integers: before there are any keys."""
        self._compact = True

    def some(self, most: int) -> Slots:
        """A few slots in use."""
        if isinstance(self.index, SlotPool):
            first = self.index.used_of(np.arange(min(self.slots_made, 16 * most)))
            if len(first):
                return first[:most]
        return self.live()[:most]

    @property
    def slots_made(self) -> int:
        """The length of arrays of values: one more than the greatest slot there may be."""
        return self.index.slots_made

    def __len__(self) -> int:
        """The number of keys."""
        return len(self.index)

    def _made(self, slots: Slots) -> Slots:
        slots = as_slots(slots)
        if not are_made(slots, self.slots_made):
            raise BatchError(
                f"slots are below {self.slots_made}, but {slots.min()} to {slots.max()} were given:"
                " -1 stands for a key that lookup() did not find"
            )
        return slots

    def _find_or_add(self, words: tuple[Hashes, ...]) -> tuple[Slots, Slots]:
        found = self.index.find_or_add(words)
        if found is None:
            # Not small integers any more: from now on they are hashed.
            live = self.index.live()
            self.index = HashIndex.adopt(live, self.index.words(live))
            found = self.index.find_or_add(words)
        return found

    def _learn_words(self, columns: Sequence[Column], before: int) -> Hashes:
        """The words of keys, after which the index is one for such keys."""
        exact = is_exact(columns)
        if self._exact is None:
            self._exact = exact
            if exact and not self._compact:
                self.index = PanedIndex() if before else DirectIndex()
            else:
                self.index = HashIndex(1 + before)
        elif self._exact and not exact:
            # A null among integers: from now on keys are looked up by their hashes.
            live = self.index.live()
            [values] = self.values(live)
            self._columns[0].put(live, values, self.index.slots_made)
            self._exact, self._usual = False, None
            self._rekey()
        if self._exact:
            return exact_words(columns[0])
        return self._twins.words(hash_columns(columns), columns)

    def _rekey(self) -> None:
        """Look keys up by their hashes, or by the words of twins, from now on."""
        live = self.index.live()
        values = [_plain(column) for column in self.values(live)]
        words: tuple[Hashes, ...] = (self._twins.words(hash_columns(values), values),)
        if self._timed:
            words = (self.index.words(live)[0], *words)
        self.index = HashIndex.adopt(live, words)

    def _put(
        self, slots: Slots, plain: Sequence[Column], rows: Slots, columns: Sequence[Column]
    ) -> None:
        size = self.index.slots_made
        for store, values, column in zip(self._columns, plain, columns, strict=True):
            kind = categories = None
            if not isinstance(column, np.ndarray):
                kind = column.type
                if pa.types.is_dictionary(kind) and kind.ordered:
                    categories = column.dictionary
            if is_float(values):
                # Independent of which form of zero or NaN came first.
                store.put(slots, one_form(cols.take(values, rows)), size, kind=kind)
            else:
                store.put(slots, values, size, rows=rows, kind=kind, categories=categories)

    def _wrong(self, slots: Slots, columns: Sequence[Column]) -> npt.NDArray[np.intp]:
        """The rows whose slot is another key's."""
        same: npt.NDArray[np.bool_] | None = None
        for store, column in zip(self._columns, columns, strict=True):
            here = store.matches(slots, column)
            same = here if same is None else same & here
        assert same is not None
        return np.empty(0, dtype=np.intp) if same.all() else np.flatnonzero(~same)

    def _separate(
        self,
        plain: Sequence[Column],
        columns: Sequence[Column],
        before: tuple[Hashes, ...],
        slots: Slots,
        new: Slots,
        wrong: npt.NDArray[np.intp],
    ) -> Slots:
        """Give rows that were mistaken for another key slots of their own; returns all new rows."""
        some = [cols.take(column, wrong) for column in plain]
        hashes = hash_columns(some)
        self._twins.add(hashes)
        self._rekey()
        times = (word if len(word) == 1 else word[wrong] for word in before)
        words = (*times, self._twins.words(hashes, some))
        found, opened = self._find_or_add(words)
        self._put(found[opened], some, opened, columns)
        slots[wrong] = found
        return np.concatenate([new, wrong[opened]])


class KeyColumnTypes:
    """The types that key columns have had; one with which no key is equal is refused.

    >>> types = KeyColumnTypes(1)
    >>> types.learn(0, pa.int64())
    >>> types.learn(0, pa.float64())
    Traceback (most recent call last):
        ...
    jeton.core.errors.BatchError: a key column is of type double, but it was int64 before: ...
    """

    __slots__ = ("_known",)

    def __init__(self, columns: int) -> None:
        self._known: list[list[pa.DataType]] = [[] for _ in range(columns)]

    def learn(self, column: int, kind: pa.DataType) -> None:
        """Record a type of one of the columns; nulls without a type fit everything."""
        self.require(column, kind)
        known = self._known[column]
        if not pa.types.is_null(kind) and kind not in known:
            known.append(kind)

    def require(self, column: int, kind: pa.DataType) -> None:
        """Refuse a type with which no key of one of the columns is equal."""
        known = self._known[column]
        if pa.types.is_null(kind) or kind in known:
            return
        for before in known:
            if key_family(kind) != key_family(before) or _beyond(kind, before):
                raise BatchError(
                    f"a key column is of type {kind}, but it was {before} before: cast it to one "
                    "type, or give the input a schema=…"
                )


def _checked(columns: Sequence[Column], rows: int) -> list[Column]:
    """Key columns as arrays, each with a value for every key.

    Arrow's integers without nulls, such as part of a column with some, become NumPy's.
    """
    checked = [as_key(column) for column in columns]
    only = checked[0] if len(checked) == 1 else None
    if isinstance(only, pa.Array) and cols.is_plain_type(only.type) and not only.null_count:
        checked = [cols.from_arrow(only)]
    for column in checked:
        require_rows(rows, len(column))
    return checked


def _as_words(times: Any) -> Hashes:
    """Times as words of 64 bits, contiguous and writable as compiled loops take them."""
    if not isinstance(times, np.ndarray) or times.dtype is not _WORDS:
        times = np.asarray(times)
        if times.dtype.kind not in "iumM":
            raise BatchError(f"times before keys are integers, not of type {times.dtype}")
        if times.dtype.itemsize < 8:
            times = times.astype(np.int64)
        times = times.view(np.uint64)
    if times.ndim != 1:
        raise BatchError(f"times before keys have one dimension, not {times.ndim}")
    return cols.plain(times)


def _one_key(rows: int, before: tuple[Hashes, ...]) -> Hashes:
    """The words of keys without columns: their times, or the same for all."""
    one = before[0] if before else np.zeros(1, dtype=np.uint64)
    return one if len(one) == rows else np.repeat(one, rows)


class Twins:
    """Words for keys that share their hash with another key: each has one of its own.

    >>> twins = Twins()
    >>> hashes, names = np.array([7, 7, 8], dtype=np.uint64), [pa.array(["a", "b", "c"])]
    >>> twins.words(hashes, names)
    array([7, 7, 8], dtype=uint64)
    >>> twins.add(hashes[:1])
    >>> one, other, third = twins.words(hashes, names).tolist()
    >>> one != other, third
    (True, 8)
    """

    __slots__ = ("_hashes", "_words")

    def __init__(self) -> None:
        self._hashes = np.empty(0, dtype=np.uint64)
        self._words: dict[tuple[Any, ...], int] = {}

    @property
    def exist(self) -> bool:
        """Whether there are any."""
        return len(self._hashes) > 0

    def words(self, hashes: Hashes, columns: Sequence[Column]) -> Hashes:
        """The words by which keys are looked up: their hashes, but for twins."""
        if not len(self._hashes):
            return hashes
        rows = np.flatnonzero(np.isin(hashes, self._hashes))
        if len(rows):
            hashes = hashes.copy()
            for row, key in zip(rows.tolist(), _values(columns, rows), strict=True):
                # At random, so that an attacker cannot choose a key with that hash.
                hashes[row] = self._words.setdefault(key, randbits(64))
        return hashes

    def known_words(self, hashes: Hashes, columns: Sequence[Column]) -> Hashes:
        """The same words, of which twins that have none yet get one that nothing has."""
        if not len(self._hashes):
            return hashes
        rows = np.flatnonzero(np.isin(hashes, self._hashes))
        if len(rows):
            hashes = hashes.copy()
            keys = _values(columns, rows)
            hashes[rows] = [self._words.get(key) or randbits(64) for key in keys]
        return hashes

    def add(self, hashes: Hashes) -> None:
        """Record that different keys have these hashes."""
        self._hashes = np.union1d(self._hashes, hashes)


def _beyond(kind: pa.DataType, other: pa.DataType) -> bool:
    """Whether one of two types of integers has values beyond those of the other, with a sign."""
    pair = (kind, other)
    return pa.uint64() in pair and any(map(pa.types.is_signed_integer, pair))


def _values(columns: Sequence[Column], rows: npt.NDArray[np.intp]) -> list[tuple[Any, ...]]:
    """Keys as Python values that are equal where the keys are."""
    return list(zip(*(_plain_values(cols.take(column, rows)) for column in columns), strict=True))


def _plain(column: Column) -> Column:
    """A column without dictionary, and text and binary values as bytes."""
    if isinstance(column, np.ndarray):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.large_binary()) if is_bytes(column.type) else column


def _plain_values(column: Column) -> list[Any]:
    array = cols.to_arrow(_plain(column))
    kind = array.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        array = array.cast(pa.int32())
    elif pa.types.is_temporal(kind):
        array = array.cast(pa.int64())
    return ["NaN" if value != value else value for value in array.to_pylist()]
