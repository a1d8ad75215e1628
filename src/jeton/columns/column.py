"""Columns: NumPy arrays for fixed-width values without nulls, Arrow arrays for the rest."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.core.errors import BatchError, JetonError

Column: TypeAlias = "npt.NDArray[Any] | pa.Array"
"""One value for each record."""

_NUMPY_KINDS = "biufmM"

_FEW: Final = 64
"""The number of plain values up to which a column is made sooner without Arrow, which also yields
the interpreter: another thread may take it for a while, and single records wait."""

_PLAIN: Final[dict[type, type[np.generic]]] = {int: np.int64, float: np.float64, bool: np.bool_}


class Wrapped:
    """A column with more around it, such as a `Series`; the array is in ``values``."""

    __slots__ = ()

    values: Column


def bare(value: Any) -> Any:
    """The array of a wrapped column; any other value as it is."""
    return value.values if isinstance(value, Wrapped) else value


def as_column(values: Any) -> Column:
    """A column from an array, a list, an Arrow array or a pandas series.

    >>> as_column([1, 2, 3])
    array([1, 2, 3])
    >>> as_column(["a", None]).null_count
    1
    """
    if type(values) is np.ndarray and values.ndim == 1 and values.dtype.kind in "biuf":
        return values
    values = bare(values)
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise BatchError(f"a column has one dimension, not {values.ndim}")
        if values.dtype.kind not in _NUMPY_KINDS:
            return from_arrow(pa.array(values))
        if values.dtype.kind in "mM" and np.isnat(values).any():
            return from_arrow(pa.array(values))  # NaT is NumPy's null
        return values
    if isinstance(values, pa.ChunkedArray):
        if without_views(values.type) != values.type:
            return join(
                [from_arrow(chunk) for chunk in values.chunks] or [pa.nulls(0, values.type)]
            )
        return from_arrow(
            values.chunk(0)
            if values.num_chunks == 1
            else pa.concat_arrays(values.chunks)
            if values.num_chunks
            else pa.array([], type=values.type)
        )
    if isinstance(values, pa.Array):
        return from_arrow(values)
    if not hasattr(values, "__iter__") and not hasattr(values, "__arrow_array__"):
        raise BatchError(
            f"{values!r} is not a column: a column has one value for each record, as an array or a "
            "list"
        )
    try:
        if isinstance(values, list) and len(values) <= _FEW:
            kinds = set(map(type, values))
            if len(kinds) == 1 and (plain_type := _PLAIN.get(kinds.pop())) is not None:
                return np.array(values, plain_type)
        return from_arrow(_with_nanoseconds(values, pa.array(values)))
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise BatchError(f"these values do not make a column: {error}") from error


def _with_nanoseconds(values: Any, made: pa.Array) -> pa.Array:
    """Arrow takes pandas' values in a list for Python's, which end at microseconds."""
    kind = made.type
    if kind == pa.duration("us"):
        exact, part = pa.duration("ns"), "nanoseconds"
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        exact, part = pa.timestamp("ns", kind.tz), "nanosecond"
    else:
        return made
    if not isinstance(values, list | tuple) or not any(getattr(v, part, 0) for v in values):
        return made
    return pa.array(values, exact)


def as_key(values: Any) -> Column:
    """A key column: an array as it is, or a column made of what `as_column` takes.

    >>> as_key(pa.chunked_array([["a"], ["b"]])).to_pylist()
    ['a', 'b']
    """
    if isinstance(values, np.ndarray):
        usual = values.ndim == 1 and values.dtype.kind in _NUMPY_KINDS
        return values if usual else as_column(values)
    return values if isinstance(values, pa.Array) else as_column(values)


def from_arrow(array: pa.Array) -> Column:
    """An Arrow array as a column: fixed-width values without nulls become NumPy, uncopied."""
    kind = array.type
    wanted = without_views(kind)
    if wanted != kind:
        return from_arrow(_cast(array, wanted))
    if array.null_count == 0 and is_plain_type(kind):
        converted: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return converted
    if isinstance(array, pa.ExtensionArray):
        return from_arrow(array.storage)
    return array


def is_plain_type(kind: pa.DataType) -> bool:
    """Whether NumPy has arrays for values of a type: numbers, and times without a zone."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_duration(kind)
        or (pa.types.is_timestamp(kind) and kind.tz is None)
    )


@functools.lru_cache(maxsize=1024)
def without_views(kind: pa.DataType) -> pa.DataType:
    """The type that columns have whose values come as views, which Arrow can hardly work with.

    Polars hands over text and binary values like that. Here they are what it calls large.

    >>> without_views(pa.list_(pa.string_view()))
    ListType(list<item: large_string>)
    """
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind):
        values = without_views(kind.value_type)
        same = values == kind.value_type
        return kind if same else pa.dictionary(kind.index_type, values, kind.ordered)
    if types.is_struct(kind):
        return pa.struct([field.with_type(without_views(field.type)) for field in kind])
    for is_list, make in _LISTS.items():
        if is_list(kind):
            field = kind.value_field.with_type(without_views(kind.value_type))
            return (
                make(field, kind.list_size) if is_list is types.is_fixed_size_list else make(field)
            )
    return kind


_LISTS: Final[dict[Any, Any]] = {
    pa.types.is_list: pa.list_,
    pa.types.is_large_list: pa.large_list,
    pa.types.is_fixed_size_list: pa.list_,
    pa.types.is_list_view: pa.list_,
    pa.types.is_large_list_view: pa.large_list,
}


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        values = array.dictionary.cast(kind.value_type)
        return pa.DictionaryArray.from_arrays(array.indices, values, ordered=kind.ordered)
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        return _without_list_view(array).cast(kind)
    return array.cast(kind)


def _without_list_view(array: pa.Array) -> pa.Array:
    """A list view as a list; Arrow's own cast takes the values for being in order."""
    sizes = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    mask = array.is_null() if array.null_count else None
    return pa.LargeListArray.from_arrays(pa.array(offsets), array.flatten(), mask=mask)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are text."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def to_arrow(column: Column) -> pa.Array:
    """A column as an Arrow array, uncopied where Arrow allows it."""
    return pa.array(column) if isinstance(column, np.ndarray) else column


def take(column: Column, indices: npt.NDArray[np.intp]) -> Column:
    """The values at ``indices``, in that order."""
    if isinstance(column, np.ndarray):
        return column.take(indices)
    return column.take(pa.array(indices))


def cut(column: Column, start: int, stop: int) -> Column:
    """The values from ``start`` up to ``stop``, uncopied."""
    if isinstance(column, np.ndarray):
        return column[start:stop]
    return column.slice(start, stop - start)


def join(columns: Sequence[Column], what: str = "a column") -> Column:
    """Columns one after the other; ``what`` names them in errors.

    Columns of different types become one only if each value stays what it is.

    >>> join([np.array([1, 2], np.int8), np.array([0.5])])
    array([1. , 2. , 0.5])
    >>> join([np.array([True]), np.array([5])], "column 'n'")
    Traceback (most recent call last):
        ...
    jeton.core.errors.BatchError: column 'n' is of type bool in one batch and int64 in another: ...
    """
    first = columns[0]
    if len(columns) == 1:
        return first
    if isinstance(first, np.ndarray):
        dtype = first.dtype
        for column in columns:
            if not isinstance(column, np.ndarray) or (
                column.dtype is not dtype and column.dtype != dtype
            ):
                break
        else:
            joined: npt.NDArray[Any] = np.concatenate(columns)
            return joined
    arrays = [to_arrow(column) for column in columns]
    if any(array.type != arrays[0].type for array in arrays):
        arrays = _of_one_type(arrays, what)
    return from_arrow(pa.concat_arrays(arrays))


def _of_one_type(arrays: list[pa.Array], what: str) -> list[pa.Array]:
    arrays = [a.dictionary_decode() if pa.types.is_dictionary(a.type) else a for a in arrays]
    # No values are of any type: the arrays that have some decide.
    telling = [a for a in arrays if len(a) and not pa.types.is_null(a.type)] or arrays
    kinds = sorted({array.type for array in telling}, key=str)
    common = pa.null()
    for kind in kinds:
        wider = common_type(common, kind)
        if wider is None:
            raise BatchError(
                f"{what} is of type {common} in one batch and {kind} in another: cast it to one "
                "type, or give the input a schema=…"
            )
        common = wider
    try:
        return [array.cast(common) for array in arrays if len(array)] or [pa.nulls(0, common)]
    except pa.ArrowException as error:
        both = " and ".join(map(str, kinds))
        raise BatchError(
            f"{what} is of types {both} in different batches, and not all values fit {common} "
            f"({error}): cast it to one type, or give the input a schema=…"
        ) from error


@functools.lru_cache(maxsize=1024)
def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type of values of either type; ``None`` if they do not mean the same.

    A cast to it either keeps a value or fails.

    >>> common_type(pa.int8(), pa.float32()), common_type(pa.bool_(), pa.int64())
    (DataType(float), None)
    """
    types = pa.types
    if left == right or types.is_null(right):
        return left
    if types.is_null(left):
        return right
    if types.is_nested(left) and types.is_nested(right):
        return _common_nested(left, right)
    if family(left) != family(right):
        return None
    decimals = [types.is_decimal(kind) for kind in (left, right)]
    if any(decimals):
        if types.is_floating(left) or types.is_floating(right):
            return None  # of most decimals, floating-point numbers have only the first digits
        return _common_decimal(left, right)
    if types.is_integer(left) and types.is_integer(right) and pa.uint64() in (left, right):
        if types.is_signed_integer(left) or types.is_signed_integer(right):
            return pa.int64()
        return pa.uint64()
    if types.is_fixed_size_binary(left) or types.is_fixed_size_binary(right):
        return pa.large_binary()
    return _unified(left, right)


def _unified(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    try:
        fields = [pa.schema({"column": kind}) for kind in (left, right)]
        return pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


def _common_nested(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The common type of lists or structures, if there is one for the values in them."""
    common = _unified(left, right)
    if common is None:
        return None
    if pa.types.is_struct(left):
        parts = [
            (left.field(f.name).type, right.field(f.name).type)
            for f in left
            if right.get_field_index(f.name) >= 0
        ]
    elif pa.types.is_map(left):
        parts = [(left.key_type, right.key_type), (left.item_type, right.item_type)]
    else:
        parts = [(left.value_type, right.value_type)]
    return None if any(common_type(*part) is None for part in parts) else common


_DIGITS: Final = 20
"""The digits of the longest integer of 64 bits."""


def _common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """A decimal with all digits of two types, at least one of which is of decimals."""
    whole, scale, wide = 0, 0, False
    for kind in (left, right):
        if pa.types.is_decimal(kind):
            whole, scale = max(whole, kind.precision - kind.scale), max(scale, kind.scale)
            wide = wide or kind.precision > 38
        else:
            whole = max(whole, _DIGITS)
    digits = whole + scale
    if digits > 38 and wide:
        return pa.decimal256(min(digits, 76), scale)
    return pa.decimal128(min(digits, 38), scale)


def conform(column: Column, field: pa.Field, what: str) -> Column:
    """A column of the type that a schema says; refused if a cast would change its meaning."""
    kind = field.type
    have = pa.from_numpy_dtype(column.dtype) if isinstance(column, np.ndarray) else column.type
    if have == kind or pa.types.is_null(kind):
        return column
    if family(have) == family(kind) or pa.types.is_null(have):
        try:
            return from_arrow(cast_within(to_arrow(column), kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise BatchError(
                f"{what}: column {field.name!r} is of type {have} and does not fit {kind}: {error}"
            ) from error
    raise BatchError(
        f"{what}: column {field.name!r} is of type {have}, its schema says {kind}: cast it first"
    )


def cast_within(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Arrow's cast, which makes infinities of numbers beyond narrower types: they do not fit.

    >>> cast_within(pa.array([1e300]), pa.float32())
    Traceback (most recent call last):
        ...
    pyarrow.lib.ArrowInvalid: 1e+300 is beyond float
    """
    made = array.cast(kind)
    if pa.types.is_float32(kind) or pa.types.is_float16(kind):
        beyond = pc.and_(pc.is_inf(made), pc.invert(_is_infinite(array)))
        if pc.any(beyond).as_py():
            value = array.filter(beyond)[0]
            raise pa.ArrowInvalid(f"{value} is beyond {kind}")
    return made


def _is_infinite(array: pa.Array) -> Any:
    if pa.types.is_floating(array.type):
        return pc.is_inf(array)
    return pa.array(np.zeros(len(array), dtype=bool))


def family(kind: pa.DataType) -> object:
    """Types between which a cast keeps the meaning: Arrow would also turn text into numbers."""
    types = pa.types
    if types.is_dictionary(kind):
        return family(kind.value_type)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if is_text(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "bytes"
    if types.is_fixed_size_binary(kind):
        return "bytes"
    if types.is_date(kind):
        return "date"
    if types.is_time(kind):
        return "time of day"
    if types.is_timestamp(kind):
        # An instant and what a clock shows are different things, between which a zone decides.
        return "instant" if kind.tz is not None else "clock"
    return kind.id


def plain(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array as compiled loops want it: contiguous and writable, so that each has one version.

    Arrays that belong to Arrow are read-only; copying a batch's column costs a microsecond or two,
    compiling a loop once more for them half a second.
    """
    return array if array.flags.carray else array.copy()


def known_rows(columns: Sequence[Column]) -> npt.NDArray[np.bool_] | None:
    """Which rows have no null in any of some columns; ``None`` if none has.

    >>> known_rows([np.array([1, 2]), pa.array(["a", None])])
    array([ True, False])
    """
    known: npt.NDArray[np.bool_] | None = None
    for column in columns:
        if not isinstance(column, np.ndarray) and column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            known = valid if known is None else known & valid
    return known


def require_unique(names: Sequence[str], what: str, error: type[JetonError] = BatchError) -> None:
    """Refuse columns of the same name, which would be ambiguous."""
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if list(names).count(name) > 1})
        raise error(
            f"{what} has several columns called {', '.join(map(repr, twice))}: rename them, or "
            "leave out all but one"
        )
