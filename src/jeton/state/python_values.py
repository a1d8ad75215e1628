"""Values of users' own, as a column of a snapshot that gives back what was put in.

How a value was stored can be seen from its first byte, so that a checkpoint is read as it was
written, and a pickle only where the program says that it may be: unpickling runs code that the
bytes name, and whoever can write to a checkpoint could choose it.
"""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa

from jeton.core.errors import GraphError, SnapshotError, summary
from jeton.state import plain_codec

_FLOATS: Final = (float, np.floating)
_CUT: Final = (dt.datetime, dt.time, dt.timedelta)
"""Values that Arrow makes fit a type by leaving parts of them out."""
_PLAIN, _OWN, _PICKLED = 1, 2, 0x80
"""First bytes of stored values; every pickle has the last one itself."""


@runtime_checkable
class Codec(Protocol):
    """How values of a user's own are stored.

    >>> class Points:
    ...     def encode(self, value):
    ...         return f"{value.real} {value.imag}".encode()
    ...
    ...     def decode(self, data):
    ...         return complex(*map(float, data.split()))
    >>> isinstance(Points(), Codec)
    True
    """

    def encode(self, value: Any) -> bytes:
        """The bytes to store for a value; it is never called with ``None``."""

    def decode(self, data: bytes) -> Any:
        """The value of such bytes."""


StateCodec: TypeAlias = Literal["plain", "pickle"] | Codec
"""How values are stored: plain ones only; pickled if they are not plain; or by a `Codec`."""


def require_codec(codec: Any) -> StateCodec:
    """Refuse what is not a way to store values.

    >>> require_codec("pickles")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: state_codec= is "plain", "pickle" or an object with encode() ...
    """
    if codec in ("plain", "pickle") if isinstance(codec, str) else isinstance(codec, Codec):
        return codec  # type: ignore[no-any-return]
    raise GraphError(
        f'state_codec= is "plain", "pickle" or an object with encode() and decode(), not {codec!r}'
    )


def stored(
    values: Iterable[Any], kind: pa.DataType | None = None, codec: StateCodec = "plain"
) -> pa.Array:
    """A column that holds any values, or with a ``kind`` such as Arrow knows.

    Without one, each is stored by itself: Arrow would make one type for all of them, and
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
            return _unchanged(values, pa.array(values, kind))
        data = [None if value is None else encode_value(value, codec) for value in values]
        return pa.array(data, pa.large_binary())
    except SnapshotError:
        raise
    except Exception as error:
        raise SnapshotError(f"these values cannot be stored: {summary(error)}") from error


def _unchanged(values: list[Any], made: pa.Array) -> pa.Array:
    """The column, unless Arrow has cut values off: parts of seconds, zones or fractions."""
    cut = Decimal if pa.types.is_integer(made.type) else _CUT
    if not any(isinstance(value, cut) for value in values):
        return made
    for value, found in zip(values, made.to_pylist(), strict=True):
        if type(found) is dt.date and isinstance(value, dt.datetime):
            found = dt.datetime.combine(found, dt.time())
        if isinstance(value, cut) and found != value and value == value:
            raise SnapshotError(
                f"{value!r} cannot be stored as {made.type}, which would make it {found!r}"
            )
    return made


def brought_back(
    column: pa.Array | pa.ChunkedArray, kind: pa.DataType | None = None, codec: StateCodec = "plain"
) -> list[Any]:
    """The values of such a column; pickled ones only if the codec is ``"pickle"``."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_large_binary(column.type) and column.type != kind:
        return [None if value is None else decode_value(value, codec) for value in values]
    return values


def encode_value(value: Any, codec: StateCodec) -> bytes:
    """A value, stored as the codec says.

    >>> decode_value(encode_value((7, {"a"}), "plain"), "plain")
    (7, {'a'})
    """
    if not isinstance(codec, str):
        data = codec.encode(value)
        if not isinstance(data, bytes):
            raise SnapshotError(
                f"encode() of {type(codec).__name__} must return bytes, not {type(data).__name__}"
            )
        return bytes([_OWN]) + data
    try:
        return bytes([_PLAIN]) + plain_codec.encode(value)
    except SnapshotError:
        if codec == "pickle":
            return pickle.dumps(value, 5)
        raise


def decode_value(data: bytes, codec: StateCodec) -> Any:
    """The value again.

    >>> decode_value(pickle.dumps({"a": 1}), "plain")
    Traceback (most recent call last):
    jeton.core.errors.SnapshotError: the state has pickled values, which are not read ...
    """
    how = data[0] if data else None
    if how == _PLAIN:
        return plain_codec.decode(data[1:])
    if how == _PICKLED:
        if codec == "pickle":
            return pickle.loads(data)
        raise SnapshotError(
            "the state has pickled values, which are not read unless the program says so, since "
            "they can run any code. If nobody else can write to where it comes from, give the "
            'operator state_codec="pickle"'
        )
    if how == _OWN:
        if not isinstance(codec, str):
            return codec.decode(data[1:])
        raise SnapshotError(
            "the state has values that an encode() of the program's has stored: give the operator "
            "the same state_codec= as before"
        )
    raise SnapshotError(f"a stored value begins with {how!r}, which no version of Jeton writes")


def shown_value(data: bytes) -> str:
    """A stored value as Python shows it, of bytes that this process has made itself just now.

    >>> shown_value(encode_value({1, 2}, "plain"))
    '{1, 2}'
    """
    if data[0] == _OWN:
        return f"<{len(data) - 1} bytes of its state_codec>"
    return repr(decode_value(data, "pickle"))
