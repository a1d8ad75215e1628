"""Series: a column of a batch as users' functions get it, with operators and methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns import compute
from jeton.columns.column import Column, Wrapped, as_column, bare, to_arrow
from jeton.columns.hints import no_column_method
from jeton.columns.operations import Operations

_LOGIC: Final = ("and_", "or_", "xor")
_NUMBERS: Final = "iuf"
_PLAIN: Final[dict[tuple[str, str, str], Callable[[Any, Any], Any]]] = {
    (name, left, right): compute.numpy_operator(name)
    for name in compute.SIGNS
    if name not in ("floordiv", "mod")  # by zero they have no result
    for left, right in ([("b", "b")] if name in _LOGIC else product(_NUMBERS, _NUMBERS))
}
"""The operators of Python that are right, by their names and the kinds of both arrays."""
_KINDS: Final = {int: "i", float: "f", bool: "b"}

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
"""The functions of NumPy that are operators."""


def _like_numpy(values: pa.Array, name: str) -> Callable[..., Any] | None:
    """A method of NumPy's arrays for one of Arrow's, so that a null changes nothing else."""
    if name == "astype":
        return partial(compute.astype, values)
    return compute.reduction(values, name)


class Series(Operations, Wrapped, list):  # type: ignore[type-arg, misc]
    """One value for each record: ``batch["name"]``.

    It has operators and methods, whatever its type and whether or not there are nulls. Functions
    of NumPy and of `pyarrow.compute` take it; the latter take lists, which is why this is one, and
    return Arrow's own arrays. Its values are in `values`, a NumPy or an Arrow array, and other
    methods are those of that array.

    >>> import jeton as jt
    >>> batch = jt.Batch({"word": ["to", "be", None], "n": [1, 2, 3]}, times=[0, 0, 0])
    >>> ((batch["word"] == "to") | (batch["n"] > 2)).to_list()
    [True, False, True]
    >>> (batch["n"] + 1).values, batch["word"].str.to_uppercase().to_list()
    (array([2, 3, 4]), ['TO', 'BE', None])
    >>> import pyarrow.compute as pc
    >>> np.sqrt(batch["n"]).round(1).to_list(), pc.utf8_length(batch["word"]).to_pylist()
    ([1.0, 1.4, 1.7], [2, 2, None])
    """

    __slots__ = ("values",)

    def __init__(self, values: Column) -> None:
        self.values = values

    # Operators and methods

    def _binary(self, name: str, other: Any, *, swapped: bool = False) -> Series:
        left = self.values
        there = _KINDS.get(type(other))
        if there is None:
            other = other.values if isinstance(other, Wrapped) else other
            there = other.dtype.kind if type(other) is np.ndarray else "O"
        if type(left) is np.ndarray:
            # Nearly always, so without looking for nulls and types.
            function = _PLAIN.get((name, left.dtype.kind, there))
            if function is not None:
                try:
                    return Series(function(other, left) if swapped else function(left, other))
                except (OverflowError, ValueError):
                    pass  # a constant beyond the type, or no result: both are dealt with below
        if isinstance(other, list | tuple):
            other = as_column(other)
        sides = (other, left) if swapped else (left, other)
        return Series(compute.binary(name, *sides))

    def _apply(self, function: Callable[..., Any], *args: Any, **options: Any) -> Series:
        return Series(function(self.values, *map(bare, args), **options))

    def __iadd__(self, other: Any) -> Series:
        return self._binary("add", other)

    def __imul__(self, other: Any) -> Series:
        return self._binary("mul", other)

    # Values

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the values."""
        values = self.values
        if isinstance(values, np.ndarray):
            return pa.from_numpy_dtype(values.dtype)
        return values.type

    def to_list(self) -> list[Any]:
        """The values as Python has them.

        >>> import jeton as jt
        >>> jt.Batch({"n": [1, None]}, times=[0, 0])["n"].to_list()
        [1, None]
        """
        found: list[Any] = to_arrow(self.values).to_pylist()
        return found

    to_pylist = tolist = to_list

    def to_numpy(self) -> npt.NDArray[Any]:
        """The values as a NumPy array; numbers with nulls become floating-point ones with NaN.

        >>> import jeton as jt
        >>> jt.Batch({"n": [1, 2]}, times=[0, 0])["n"].to_numpy()
        array([1, 2])
        """
        return self.__array__()

    def to_arrow(self) -> pa.Array:
        """The values as an Arrow array.

        >>> import jeton as jt
        >>> jt.Batch({"n": [1, 2]}, times=[0, 0])["n"].to_arrow().type
        DataType(int64)
        """
        return to_arrow(self.values)

    # For NumPy and Arrow

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        array = to_arrow(self.values)
        return array if type is None else array.cast(type)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        values = self.values
        if not isinstance(values, np.ndarray):
            values = values.to_numpy(zero_copy_only=False)
        return np.array(values, dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [bare(each) for each in inputs]
        if method == "__call__" and not options:
            name = _UFUNCS.get(ufunc)
            if name is not None and len(inputs) == 2:
                return Series(compute.binary(name, *arrays))
            if ufunc.nout == 1:
                return Series(compute.ufunc(ufunc, *arrays))
        plain = [np.asarray(each) if isinstance(each, pa.Array) else each for each in arrays]
        return getattr(ufunc, method)(*plain, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        values = self.values
        found: Any = None if isinstance(values, np.ndarray) else _like_numpy(values, name)
        if found is None:
            found = getattr(values, name, None)
        if found is None:
            raise no_column_method(f"a column of type {self.type}", self, name)
        if not callable(found):
            return found

        def method(*args: Any, **options: Any) -> Any:
            made = found(*map(bare, args), **options)
            if isinstance(made, pa.Scalar):
                return made.as_py()
            return Series(made) if isinstance(made, np.ndarray | pa.Array) else made

        return method

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_list())

    def __getitem__(self, index: Any) -> Any:
        values, index = self.values, bare(index)
        if isinstance(index, int | np.integer):
            found = values[int(index)]
            return found.as_py() if isinstance(found, pa.Scalar) else found
        if isinstance(values, np.ndarray) or isinstance(index, slice):
            return Series(values[index])
        chosen = np.asarray(index)
        if chosen.dtype == np.bool_:
            return Series(as_column(values.filter(pa.array(chosen))))
        return Series(as_column(values.take(pa.array(chosen))))

    def __reversed__(self) -> Iterator[Any]:
        return iter(self.to_list()[::-1])

    def count(self, value: Any) -> int:
        """How often a value occurs."""
        return self.to_list().count(value)

    def index(self, value: Any, *places: Any) -> int:
        """The first place of a value."""
        return self.to_list().index(value, *places)

    def copy(self) -> Series:
        """The same values."""
        return Series(self.values)

    def _fixed(self, *_: Any, **options: Any) -> NoReturn:
        raise TypeError("a Series does not change: compute another one, or use to_list()")

    append = extend = insert = remove = pop = clear = sort = reverse = _fixed
    __setitem__ = __delitem__ = _fixed

    def __contains__(self, value: object) -> bool:
        return value in self.to_list()

    def __repr__(self) -> str:
        return f"<Series of {len(self)} {self.type}: {self.values}>"

    def __reduce__(self) -> Any:
        return Series, (self.values,)
