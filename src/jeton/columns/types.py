"""Types of columns: Arrow's, and the NumPy and Python types that stand for them."""

from __future__ import annotations

import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa

from jeton.columns.column import without_views
from jeton.core.errors import GraphError

_PYTHON_TYPES: Final[dict[Any, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us"),
    datetime.date: pa.date32(),
    datetime.timedelta: pa.duration("us"),
}


def as_type(kind: Any) -> pa.DataType:
    """The Arrow type that an Arrow, NumPy or Python type stands for."""
    if isinstance(kind, pa.DataType):
        return without_views(kind)
    if kind in _PYTHON_TYPES:
        return _PYTHON_TYPES[kind]
    try:
        return pa.from_numpy_dtype(np.dtype(kind))
    except (TypeError, pa.ArrowNotImplementedError):
        known = ", ".join(python.__name__ for python in _PYTHON_TYPES)
        raise GraphError(
            f"{kind!r} is not a type of a column: use a pyarrow or NumPy type, or one of {known}"
        ) from None
