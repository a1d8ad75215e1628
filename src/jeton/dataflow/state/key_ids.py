"""KeyIds: one integer for each key, the same on both sides of a join."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.core.errors import BatchError
from jeton.dataflow import columns as cols
from jeton.dataflow.columns import Column
from jeton.dataflow.state.key_columns import exact_words, is_exact
from jeton.dataflow.state.key_slots import KeySlots
from jeton.dataflow.state.slot_pool import Slots


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
        self._families: tuple[object, ...] | None = None

    def of(self, columns: Sequence[Column], rows: int) -> Slots:
        """The id of each key."""
        if not columns:
            return np.zeros(rows, dtype=np.int64)
        self._check(columns)
        if is_exact(columns):
            return exact_words(columns[0]).view(np.int64)
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

    def __len__(self) -> int:
        """How many keys are numbered."""
        return 0 if self._table is None else len(self._table)

    def _check(self, columns: Sequence[Column]) -> None:
        """Keys of different types are never equal: say so rather than find nothing."""
        families = tuple(map(family_of, columns))
        if self._families is None:
            self._families = families
        require_same_families(self._families, families)


def key_family(kind: pa.DataType) -> object:
    """What keys must share to be comparable: all integers are, timestamps only of one unit.

    >>> key_family(pa.int8()) == key_family(pa.uint32())
    True
    >>> key_family(pa.int64()) == key_family(pa.float64())
    False
    """
    types = pa.types
    if types.is_dictionary(kind):
        return key_family(kind.value_type)
    if types.is_integer(kind) or types.is_boolean(kind):
        return "integers"
    if types.is_floating(kind):
        return "floating-point numbers"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "bytes"
    if types.is_decimal(kind):
        return f"decimals with {kind.scale} digits"
    return str(kind)


def known_keys(columns: Sequence[Column]) -> npt.NDArray[np.bool_] | None:
    """Which keys have no nulls; ``None`` if all are so.

    >>> known_keys([np.array([1, 2]), pa.array(["a", None])])
    array([ True, False])
    """
    known: npt.NDArray[np.bool_] | None = None
    for column in columns:
        if not isinstance(column, np.ndarray) and column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            known = valid if known is None else known & valid
    return known


def without_nulls(column: Column) -> Column:
    """A column whose nulls have been filtered out, in its plainest form."""
    return column if isinstance(column, np.ndarray) else cols.from_arrow(column)


def family_of(column: Column) -> object:
    """The family of a column's type."""
    return key_family(
        pa.from_numpy_dtype(column.dtype) if isinstance(column, np.ndarray) else column.type
    )


def require_same_families(left: Iterable[object], right: Iterable[object]) -> None:
    """Refuse keys that are never equal; columns of nothing but nulls fit everything."""
    for one, other in zip(left, right, strict=True):
        if one != other and "null" not in (one, other):
            raise BatchError(
                f"the keys are {one} on one side and {other} on the other: cast one of them, "
                "or nothing will match"
            )
