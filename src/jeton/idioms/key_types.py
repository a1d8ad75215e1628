"""Key types: which keys can be equal, so that a lookup that can find nothing is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import jeton as jt


def type_of(column: Any) -> pa.DataType:
    """The Arrow type of a column.

    >>> type_of(np.array([1.5])), type_of(pa.array(["a"]))
    (DataType(double), DataType(string))
    """
    if isinstance(column, np.ndarray):
        return pa.from_numpy_dtype(column.dtype)
    return column.type


def comparable(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether keys of these types can be equal: nulls, whose type says nothing, go with all.

    >>> comparable(pa.int8(), pa.uint64()), comparable(pa.int64(), pa.float64())
    (True, False)
    """
    if pa.types.is_null(one) or pa.types.is_null(other):
        return True
    return jt.key_family(one) == jt.key_family(other)


def require_comparable(
    names: Sequence[str], types: Sequence[pa.DataType], others: Sequence[pa.DataType]
) -> None:
    """Refuse keys that are never equal to those they are compared with.

    >>> require_comparable(["k"], [pa.float64()], [pa.int64()])
    Traceback (most recent call last):
        ...
    jeton.core.errors.BatchError: the key 'k' is double here, but int64 in the arrangement...
    """
    for name, one, other in zip(names, types, others, strict=True):
        if not comparable(one, other):
            raise jt.BatchError(
                f"the key {name!r} is {one} here, but {other} in the arrangement: cast one of "
                "them, or nothing will be found"
            )
