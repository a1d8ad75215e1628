"""KeyIds: one integer for each key, the same on both sides of a join."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from jeton.columns import column as cols
from jeton.columns.column import Column
from jeton.columns.keys import key_family
from jeton.core.errors import BatchError
from jeton.state.key_columns import exact_words, is_exact
from jeton.state.key_slots import KeySlots
from jeton.state.slot_pool import Slots


class KeyIds:
    """Integers for keys: a single integer is its own, other keys are numbered.

    Keys must have no nulls. Numbers that nothing refers to any more are used again after a
    `sweep`.

    >>> ids = KeyIds()
    >>> ids.of([pa.array(["b", "a", "b"])], 3)
    array([0, 1, 0])
    """

    def __init__(self) -> None:
        self._table: KeySlots | None = None
        self._negative = False
        self._greatest = 0
        """The greatest key beyond int64 so far."""

    def of(self, columns: Sequence[Column], rows: int) -> Slots:
        """The id of each key."""
        if not columns:
            return np.zeros(rows, dtype=np.int64)
        columns = [_decoded(column) for column in columns]
        if is_exact(columns):
            words = exact_words(columns[0]).view(np.int64)
            self._require_one_sign(columns[0].dtype, words)
            return words
        if self._table is None:
            self._table = KeySlots(len(columns))
        return self._table.find(columns, rows)[0]

    def sweep(self, used: Iterable[Slots], rows: int) -> None:
        """Forget the keys that are not used, once they are many more than the ``rows`` there are.

        ``used`` are all ids that are still stored somewhere.
        """
        if self._table is not None and len(self._table) > 2 * rows + 4096:
            live = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *used]))
            self._table.remove(np.setdiff1d(self._table.live(), live, assume_unique=True))

    @property
    def slots_made(self) -> int:
        """One more than the greatest number that a key has."""
        return 0 if self._table is None else self._table.slots_made

    def __len__(self) -> int:
        """How many keys are numbered."""
        return 0 if self._table is None else len(self._table)

    def _require_one_sign(self, dtype: np.dtype[Any], words: Slots) -> None:
        """Refuse keys beyond int64 beside negative ones, which have the same words."""
        if not len(words) or (dtype.kind == "u" and dtype.itemsize < 8):
            return
        least = int(words.min())
        if least >= 0:
            return
        if dtype.kind == "u":
            self._greatest = least + 2**64
        else:
            self._negative = True
        if self._negative and self._greatest:
            raise BatchError(
                f"the key {self._greatest} of one side is beyond int64, and the other side has "
                "negative keys: cast both sides to decimals"
            )


class KeyTypes:
    """The types of the keys that two sides bring, so that keys which are never equal are refused.

    >>> types = KeyTypes()
    >>> types.learn("left", ["seller"], [np.array([7])])
    >>> types.learn("right", ["id"], [np.array([7.5])])
    Traceback (most recent call last):
        ...
    jeton.core.errors.BatchError: the keys 'id' (double) and 'seller' (int64) are never equal: ...
    """

    __slots__ = ("_known", "_seen")

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()
        self._known: dict[object, list[tuple[str, pa.DataType]]] = {}

    def learn(self, side: object, names: Sequence[str], columns: Sequence[Column]) -> None:
        """Take note of a side's key columns; raises if they never equal those of the other one."""
        seen = (side, *(c.dtype if isinstance(c, np.ndarray) else c.type for c in columns))
        if seen in self._seen:
            return
        typed = [(name, _type_of(column)) for name, column in zip(names, columns, strict=True)]
        # With those that this side brought before, too.
        for keys in self._known.values():
            for (name, kind), (its_name, its_kind) in zip(typed, keys, strict=True):
                require_comparable(name, kind, its_name, its_kind)
        before = self._known.get(side, typed)
        # Nothing but nulls says nothing about the type.
        self._known[side] = [
            new if pa.types.is_null(old[1]) else old for old, new in zip(before, typed, strict=True)
        ]
        self._seen.add(seen)


def require_comparable(name: str, kind: pa.DataType, other: str, its: pa.DataType) -> None:
    """Refuse two key columns whose values are never equal; nulls without a type fit everything."""
    if not (pa.types.is_null(kind) or pa.types.is_null(its)) and key_family(kind) != key_family(
        its
    ):
        raise BatchError(
            f"the keys {name!r} ({kind}) and {other!r} ({its}) are never equal: cast one of them"
        )


def _decoded(column: Column) -> Column:
    """A column without a dictionary: its values are keys, not their places in it."""
    if isinstance(column, np.ndarray) or not pa.types.is_dictionary(column.type):
        return column
    return cols.from_arrow(column.dictionary_decode())


def without_nulls(column: Column) -> Column:
    """A column whose nulls have been filtered out, in its plainest form."""
    return column if isinstance(column, np.ndarray) else cols.from_arrow(column)


def _type_of(column: Column) -> pa.DataType:
    return pa.from_numpy_dtype(column.dtype) if isinstance(column, np.ndarray) else column.type
