"""Values of users' own, as a column of a snapshot that gives back what was put in."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from jeton.core.errors import SnapshotError, summary

_FLOATS: Final = (float, np.floating)


def stored(values: Iterable[Any], kind: pa.DataType | None = None) -> pa.Array:
    """A column that holds any values, or with a ``kind`` such as Arrow knows.

    Without one they are pickled, each by itself: Arrow would make one type for all of them, and
    give back dictionaries with each other's keys, lists for tuples and sets, and floating-point
    numbers for integers.

    >>> brought_back(stored([{"a": 1}, {"b": 2.5}, {3}, None]))
    [{'a': 1}, {'b': 2.5}, {3}, None]
    >>> brought_back(stored([1, 2], pa.int8()))
    [1, 2]
    """
    try:
        if kind is not None:
            values = list(values)
            if pa.types.is_integer(kind) and any(isinstance(v, _FLOATS) for v in values):
                # Arrow would cut their fractions off, unasked.
                return pa.array(values, pa.float64()).cast(kind)
            return pa.array(values, kind)
        pickled = [None if value is None else pickle.dumps(value, 5) for value in values]
        return pa.array(pickled, pa.large_binary())
    except Exception as error:
        raise SnapshotError(f"these values cannot be stored: {summary(error)}") from error


def brought_back(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of such a column."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_large_binary(column.type):
        return [None if value is None else pickle.loads(value) for value in values]
    return values
