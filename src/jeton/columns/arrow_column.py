"""Arrow columns in users' functions: they compare and compute like NumPy's, with nulls.

Arrow's own arrays answer ``==`` with a single False, and divide integers to integers. A column may
be one of them because of a single null, so what a function means must not depend on that.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.core.errors import BatchError

_COMPUTE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
    "add": lambda left, right: pc.binary_join_element_wise(left, right, ""),
}
"""Arrow's functions for values that NumPy has no arrays for, such as text."""

_LOGIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "and_": pc.and_kleene,
    "or_": pc.or_kleene,
    "xor": pc.xor,
}
"""Logic with nulls: the result is known where the other side decides it alone."""

_UFUNCS: Final[dict[Any, str]] = {
    np.equal: "eq",
    np.not_equal: "ne",
    np.less: "lt",
    np.less_equal: "le",
    np.greater: "gt",
    np.greater_equal: "ge",
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.true_divide: "truediv",
    np.floor_divide: "floordiv",
    np.remainder: "mod",
    np.power: "pow",
    np.bitwise_and: "and_",
    np.bitwise_or: "or_",
    np.bitwise_xor: "xor",
    np.logical_and: "and_",
    np.logical_or: "or_",
    np.logical_xor: "xor",
}


class ArrowColumn(list):  # type: ignore[type-arg]
    """An Arrow array with the operators of NumPy's; a null makes null, as in SQL.

    It has the methods of the array, which `arrow` is, and goes wherever Arrow's own functions
    take one: they take lists, and ask them for their ``__arrow_array__``.

    >>> words = ArrowColumn(pa.array(["to", "be", "to"]))
    >>> (words == "to") & (np.array([1, 2, 3]) > 1)
    array([False, False,  True])
    >>> (ArrowColumn(pa.array([1, None])) + 1).to_pylist()
    [2, None]
    >>> pc.utf8_upper(words).to_pylist()
    ['TO', 'BE', 'TO']
    """

    __slots__ = ("arrow",)

    arrow: pa.Array

    def __init__(self, array: pa.Array) -> None:
        self.arrow = array

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """For `isinstance` this is the array."""
        return type(self.arrow)

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        return self.arrow if type is None else self.arrow.cast(type)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self.arrow.to_numpy(zero_copy_only=False), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        name = _UFUNCS.get(ufunc)
        if name is not None and method == "__call__" and len(inputs) == 2 and not options:
            return _apply(name, *inputs)
        arrays = [bare(each) for each in inputs]
        if method == "__call__" and ufunc.nout == 1 and not options and all(map(_is_plain, arrays)):
            return _with_nulls(ufunc, *arrays)
        plain = [np.asarray(each) if isinstance(each, pa.Array) else each for each in arrays]
        return getattr(ufunc, method)(*plain, **options)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.arrow, name)
        if not callable(found):
            return found

        def method(*args: Any, **options: Any) -> Any:
            made = found(*map(bare, args), **options)
            return ArrowColumn(made) if isinstance(made, pa.Array) else made

        return method

    def __len__(self) -> int:
        return len(self.arrow)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.arrow)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int | np.integer | slice):
            found = self.arrow[int(index) if isinstance(index, np.integer) else index]
            return ArrowColumn(found) if isinstance(found, pa.Array) else found
        chosen = np.asarray(index)
        if chosen.dtype == np.bool_:
            return ArrowColumn(self.arrow.filter(pa.array(chosen)))
        return ArrowColumn(self.arrow.take(pa.array(chosen)))

    def __contains__(self, value: object) -> bool:
        return value in self.arrow.to_pylist()

    def __bool__(self) -> bool:
        raise ValueError("a column is neither true nor false: join conditions with & and |")

    def __repr__(self) -> str:
        return repr(self.arrow)

    def __reduce__(self) -> Any:
        return ArrowColumn, (self.arrow,)

    def __invert__(self) -> Any:
        return _column(pc.invert(self.arrow))

    def __neg__(self) -> Any:
        return _apply("sub", 0, self)


def bare(value: Any) -> Any:
    """The array in an Arrow column; any other value as it is."""
    return value.arrow if type(value) is ArrowColumn else value


def _column(array: pa.Array | pa.ChunkedArray) -> Any:
    """The column that users see for an Arrow array: NumPy's where that can hold the values."""
    from jeton.columns.column import as_column

    column = as_column(array)
    return column if isinstance(column, np.ndarray) else ArrowColumn(column)


def _apply(name: str, left: Any, right: Any) -> Any:
    """An operator on two sides, of which at least one is an Arrow column."""
    left, right = bare(left), bare(right)
    if left is None or right is None:
        raise BatchError("nothing equals None: use pyarrow.compute.is_null or is_valid")
    if name in _LOGIC and _is_logic(left) and _is_logic(right):
        return _column(_LOGIC[name](_logic(left), _logic(right)))
    if _is_plain(left) and _is_plain(right):
        return _with_nulls(getattr(operator, name), left, right)
    compute = _COMPUTE.get(name)
    try:
        if compute is not None:
            return _column(compute(left, right))
    except (pa.ArrowException, TypeError) as error:
        raise BatchError(
            f"{_named(left)} and {_named(right)} do not go together: {error}"
        ) from error
    raise BatchError(
        f"there is no {name.strip('_')} for {_named(left)} and {_named(right)}: see pyarrow.compute"
    )


def _with_nulls(function: Callable[..., Any], *values: Any) -> Any:
    """The results of a NumPy function record by record, null where a value is."""
    unknown: Any = np.False_
    for value in values:
        if isinstance(value, pa.Array):
            unknown = unknown | value.is_null().to_numpy(zero_copy_only=False)
    made = function(*map(_filled, values))
    return _column(pa.array(made, mask=np.broadcast_to(unknown, made.shape)))


def _is_plain(value: Any) -> bool:
    if not isinstance(value, pa.Array):
        return not isinstance(value, str | bytes | list) and not (
            isinstance(value, np.ndarray) and value.dtype.kind in "OUS"
        )
    return is_plain_type(value.type)


def is_plain_type(kind: pa.DataType) -> bool:
    """Whether NumPy has arrays for values of a type: numbers, and times without a zone."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_duration(kind)
        or (pa.types.is_timestamp(kind) and kind.tz is None)
    )


def _filled(value: Any) -> Any:
    """Values for NumPy, with a one for each null; results for those are not used."""
    if not isinstance(value, pa.Array):
        return value
    return value.fill_null(pa.scalar(1).cast(value.type)).to_numpy(zero_copy_only=False)


def _is_logic(value: Any) -> bool:
    if isinstance(value, pa.Array):
        return bool(pa.types.is_boolean(value.type) or pa.types.is_null(value.type))
    return isinstance(value, bool | np.bool_) or (
        isinstance(value, np.ndarray) and value.dtype == np.bool_
    )


def _logic(value: Any) -> Any:
    if isinstance(value, pa.Array):
        return value.cast(pa.bool_())
    return pa.array(value) if isinstance(value, np.ndarray) else pa.scalar(bool(value))


def _named(value: Any) -> str:
    return f"values of type {value.type}" if isinstance(value, pa.Array) else repr(value)


def _both_ways(name: str) -> None:
    """Give Arrow columns an operator, on either side."""
    bare_name = name.strip("_")
    setattr(ArrowColumn, f"__{bare_name}__", lambda self, other: _apply(name, self, other))
    if bare_name not in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(ArrowColumn, f"__r{bare_name}__", lambda self, other: _apply(name, other, self))


for _name in dict.fromkeys(_UFUNCS.values()):
    _both_ways(_name)
