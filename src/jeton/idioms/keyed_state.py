"""Keyed state for the programs of this package: a column's values as words, counts by key.

Open addressing in compiled loops over whole batches, the same for all mechanisms, so that what
differs between them is the mechanism alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.errors import BatchError

Words: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_FIRST_SIZE = 1024


class KeyWords:
    """One column's values as words, and back: integers are their own, others get numbers.

    Nulls have no words, since all of them may be taken: whoever has such a key counts it apart.
    A number is used again once it has been released as often as it was held.

    >>> words = KeyWords("word")
    >>> words.of(pa.array(["to", "be", None, "to"]))
    (array([0, 1, 0]), array([ True,  True, False,  True]))
    >>> words.back(np.array([1]), nulls=1).to_pylist()
    ['be', None]
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._type: pa.DataType | None = None
        # Set for integers, which are their own words.
        self._dtype: np.dtype[Any] | None = None
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []
        self._free: list[int] = []
        self._uses = np.zeros(64, np.int64)

    def of(self, column: npt.NDArray[Any] | pa.Array) -> tuple[Words, Mask | None]:
        """A word for each value that is not null, and which those are: ``None`` if all are."""
        own = self._dtype
        if own is not None and isinstance(column, np.ndarray) and column.dtype == own:
            return plain(column), None
        array = column if isinstance(column, pa.Array) else pa.array(column)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        self._learn(array.type)
        known = None
        if array.null_count:
            known = array.is_valid().to_numpy(zero_copy_only=False)
            array = array.drop_null()
        if not len(array):
            return np.empty(0, np.int64), known
        if self._dtype is not None:
            return plain(array.to_numpy()), known
        encoded = array.dictionary_encode()
        numbers = self._numbers
        values = encoded.dictionary.to_pylist()
        found = [numbers[v] if v in numbers else self._number(v) for v in values]
        return np.array(found, dtype=np.int64).take(encoded.indices.to_numpy()), known

    def back(self, words: Words, nulls: int = 0) -> npt.NDArray[Any] | pa.Array:
        """The values that words stand for, and so many nulls behind them."""
        values: npt.NDArray[Any] | pa.Array
        if self._dtype is not None:
            values = words.astype(self._dtype, copy=False)
        else:
            distinct, which = np.unique(words, return_inverse=True)
            named = [self._values[word] for word in distinct.tolist()]
            values = pa.array(named, self._type).take(pa.array(which))
        if not nulls:
            return values
        return pa.concat_arrays([pa.array(values, self._type), pa.nulls(nulls, self._type)])

    def hold(self, words: Words) -> None:
        """Keep the values of these words, once more for each time that a word is among them."""
        if self._dtype is None and len(words):
            if len(self._values) > len(self._uses):
                self._uses = np.append(self._uses, np.zeros(len(self._values), np.int64))
            np.add.at(self._uses, words, 1)

    def release(self, words: Words) -> None:
        """Undo what `hold` did; values that nobody holds any more are forgotten."""
        if self._dtype is None:
            np.subtract.at(self._uses, words, 1)
            for word in np.unique(words[self._uses[words] == 0]).tolist():
                del self._numbers[self._values[word]]
                self._values[word] = None
                self._free.append(word)

    def __len__(self) -> int:
        """How many values have numbers."""
        return len(self._numbers)

    def _number(self, value: Any) -> int:
        if self._free:
            number = self._free.pop()
            self._values[number] = value
        else:
            number = len(self._values)
            self._values.append(value)
        self._numbers[value] = number
        return number

    def _learn(self, kind: pa.DataType) -> None:
        """Remember the type of the values; refuse one that does not go with those before."""
        known = self._type
        if kind == known or pa.types.is_null(kind):
            return
        if pa.types.is_floating(kind) or pa.types.is_nested(kind):
            raise BatchError(f"key column {self._name!r} is of type {kind}: no key here")
        if known is not None:
            kind = self._common(known, kind)
        self._type = kind
        self._dtype = np.dtype(kind.to_pandas_dtype()) if pa.types.is_integer(kind) else None

    def _common(self, known: pa.DataType, kind: pa.DataType) -> pa.DataType:
        if _is_text(known) and _is_text(kind):
            return known
        if pa.types.is_integer(known) and pa.types.is_integer(kind):
            wide = np.promote_types(known.to_pandas_dtype(), kind.to_pandas_dtype())
            if wide.kind in "iu":
                return pa.from_numpy_dtype(wide)
        raise BatchError(
            f"key column {self._name!r} is of type {kind}, but was of type {known} before: "
            "cast it, so that all batches have the same"
        )


class KeyedCounts:
    """How often each key has occurred.

    >>> counts = KeyedCounts("word")
    >>> counts.counted(jt.Batch({"word": ["a", "b", "a"]}, times=[0, 1, 2]))["count"]
    array([1, 1, 2])
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._words = KeyWords(key)
        # Rows of key and count, so that both come with one access to memory; count 0: empty.
        self._table = np.zeros((_FIRST_SIZE, 2), np.int64)
        self._used = 0
        self._nulls = 0

    def counted(self, batch: jt.Batch) -> jt.Batch:
        """The batch with the count of each record's key, that record included."""
        words, known = self._words.of(batch.column(self._key))
        counts = self._counts(words)
        if known is not None:
            whole = np.empty(len(batch), np.int64)
            whole[known] = counts
            nulls = len(batch) - len(words)
            whole[~known] = np.arange(self._nulls + 1, self._nulls + 1 + nulls)
            self._nulls += nulls
            counts = whole
        return batch.with_columns({"count": counts})

    def _counts(self, words: Words) -> npt.NDArray[np.int64]:
        table = self._table
        if self._used + len(words) > len(table) // 2:
            table = self._table = _grown(table, self._used + len(words))
        out = np.empty(len(words), np.int64)
        self._used = _count(table, words, out, self._used)
        return out

    def snapshot(self) -> pa.Table:
        """All keys with their counts."""
        if not self._used and not self._nulls:
            return pa.table({"bin": pa.array([], pa.uint16())})
        rows = self._table[self._table[:, 1] > 0]
        nulls = [self._nulls] if self._nulls else []
        keys = self._words.back(np.ascontiguousarray(rows[:, 0]), len(nulls))
        counts = np.append(rows[:, 1], np.array(nulls, np.int64))
        return pa.table({"bin": jt.state.bins_of([keys]), "key": keys, "count": counts})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """The counts again."""
        if state.num_rows:
            batch = jt.Batch.from_arrow(state, time="count")
            words, known = self._words.of(batch.column("key"))
            counts = plain(batch.times)
            if known is not None:
                self._nulls = int(counts[~known].sum())
                counts = counts[known]
            self._table = _grown(self._table, len(words))
            self._used = _put(self._table, words, counts)


def plain(array: Any, dtype: type[np.number[Any]] = np.int64) -> npt.NDArray[Any]:
    """Contiguous and writable, as Arrow's are not: a compiled loop then has one version.

    >>> plain(pa.array([1, 2]).to_numpy()).flags.writeable
    True
    """
    made: npt.NDArray[Any] = np.require(array, dtype, ["C", "W"])
    return made


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _grown(table: npt.NDArray[np.int64], keys: int) -> npt.NDArray[np.int64]:
    size = len(table)
    while keys > size // 2:
        size *= 2
    if size == len(table):
        return table
    grown = np.zeros((size, 2), np.int64)
    rows = table[table[:, 1] > 0]
    _put(grown, np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1]))
    return grown


@jt.njit(cache=True, inline="always")
def scatter(word):  # type: ignore[no-untyped-def]
    """Spread a word's bits, so that neighbours do not collide."""
    mixed = np.uint64(word) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))


@jt.njit(cache=True)
def _count(table, words, out, used):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(table) - 1)
    for i in range(len(words)):
        word = words[i]
        at = scatter(word) & mask
        while table[at, 1] != 0 and table[at, 0] != word:
            at = (at + np.uint64(1)) & mask
        if table[at, 1] == 0:
            table[at, 0] = word
            used += 1
        table[at, 1] += 1
        out[i] = table[at, 1]
    return used


@jt.njit(cache=True)
def _put(table, words, counts):  # type: ignore[no-untyped-def]
    """Fill a table with keys that are all different; returns how many there are."""
    mask = np.uint64(len(table) - 1)
    for i in range(len(words)):
        at = scatter(words[i]) & mask
        while table[at, 1] != 0:
            at = (at + np.uint64(1)) & mask
        table[at, 0] = words[i]
        table[at, 1] = counts[i]
    return len(words)
