"""Kernels: a scalar Python function, compiled into a loop over whole columns.

Numba compiles the function once for each combination of column types, when it is first used. Where
it cannot (text, decimals, Python objects), the function is called for each record as it is, and a
`SlowKernel` warning says why.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import typing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import pyarrow as pa
from numba.core.errors import NumbaError
from numba.np.numpy_support import as_dtype, from_dtype

from jeton.columns import column as cols
from jeton.columns import compiled as nb
from jeton.columns.batch import Batch
from jeton.columns.column import Column
from jeton.columns.types import as_type
from jeton.core.errors import BatchError, GraphError


class SlowKernel(RuntimeWarning):
    """A kernel runs as plain Python, record by record, because Numba cannot compile it."""


def kernel(function: Callable[..., Any]) -> Kernel:
    """Compile a function of single values into one of whole columns.

    Its parameters are named like the columns that it reads. It can stand wherever a function of
    a batch can; a record with a null in one of its columns gets a null.

    >>> import jeton as jt
    >>> @jt.kernel
    ... def fare(distance: float, night: bool) -> float:
    ...     return 2.5 + distance * (1.8 if night else 1.2)
    >>> flow = jt.Flow("taxi")
    >>> flow.output("fares", flow.input("rides").with_columns(fare=fare))
    >>> rides = {"time": [0, 1], "distance": [10.0, 5.0], "night": [False, True]}
    >>> flow.run({"rides": rides})["fares"]["fare"].to_pylist()
    [14.5, 11.5]
    """
    return Kernel(function)


@dataclass(slots=True)
class _Loop:
    """The loop of a kernel for columns of certain types."""

    dtype: np.dtype[Any] | None = None
    arguments: tuple[Any, ...] = ()
    optional: bool = False
    obstacle: str | None = None
    """Why there is no compiled loop."""
    run: Callable[..., None] | None = None


class Kernel:
    """A scalar function that works on whole columns: see `kernel`.

    ``kernel(batch)`` takes the columns named like its parameters, ``kernel(column, …)`` those
    given, and plain values give a plain value. `python` is the function as it was written,
    `compiled` the scalar function compiled by Numba, for use in compiled code.

    Arithmetic is that of the columns' types, so integers wrap around instead of growing.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = list(inspect.signature(function).parameters.values())
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if not parameters or any(
            one.kind not in plain or one.default is not one.empty for one in parameters
        ):
            raise GraphError(
                f"kernel {function.__name__!r} needs one or more plain parameters, named like the "
                "columns that it reads, without defaults or stars"
            )
        functools.update_wrapper(self, function)
        self.__name__: str = function.__name__
        self.__qualname__: str = function.__qualname__
        self.python = function
        self.names = tuple(one.name for one in parameters)
        self._cached = _cacheable(function)
        self._loops: dict[tuple[Any, ...], _Loop] = {}
        self._warned = False

    @functools.cached_property
    def compiled(self) -> Any:
        """The scalar function as Numba compiles it, for the types that it is called with."""
        return _njit(self.python, cached=self._cached)

    def __call__(self, *values: Any) -> Any:
        """The results for a batch, or for columns in the order of the parameters."""
        if len(values) == 1 and isinstance(values[0], Batch):
            return self._run([cols.as_column(values[0][name]) for name in self.names])
        if len(values) != len(self.names):
            raise BatchError(
                f"kernel {self.__name__!r} takes a batch or {len(self.names)} columns "
                f"({', '.join(self.names)}), not {len(values)} values"
            )
        if not any(hasattr(value, "__len__") and not isinstance(value, str) for value in values):
            return self.python(*values)
        return self._run([cols.as_column(value) for value in values])

    def _run(self, columns: list[Column]) -> Column:
        length = len(columns[0])
        if any(len(column) != length for column in columns):
            lengths = dict(zip(self.names, map(len, columns), strict=True))
            raise BatchError(f"kernel {self.__name__!r} got columns of unequal lengths: {lengths}")
        valid = cols.known_rows(columns)
        if valid is None:
            return self._run_dense(columns)
        # Records with nulls are left out, not filled: the function might not stand the filling.
        dense = [cols.as_column(cols.take(column, np.flatnonzero(valid))) for column in columns]
        result = cols.to_arrow(self._run_dense(dense))
        places = pa.array(np.cumsum(valid) - 1, mask=~valid)
        return cols.from_arrow(result.take(places))

    def _run_dense(self, columns: list[Column]) -> Column:
        arrays = [column for column in columns if isinstance(column, np.ndarray)]
        if len(arrays) < len(columns):
            kinds = {str(c.type) for c in columns if not isinstance(c, np.ndarray)}
            return self._run_python(columns, f"it reads columns of type {', '.join(kinds)}")
        types = tuple(array.dtype for array in arrays)
        loop = self._loops.get(types)
        if loop is None:
            loop = self._loops[types] = self._specialise(types)
        if loop.obstacle is not None:
            return self._run_python(columns, loop.obstacle)
        out = np.empty(len(columns[0]), dtype=loop.dtype)
        if len(out) == 0:
            return out
        if loop.run is None:
            loop.run = self._compile(loop)
        arrays = [np.ascontiguousarray(array) for array in arrays]
        if not loop.optional:
            loop.run(out, *arrays)
            return out
        absent = np.zeros(len(out), dtype=bool)
        loop.run(out, absent, *arrays)
        return cols.from_arrow(pa.array(out, mask=absent))

    def _run_python(self, columns: list[Column], obstacle: str) -> Column:
        if len(columns[0]) and not self._warned:
            self._warned = True
            code = self.python.__code__
            warnings.warn(
                f"kernel {self.__name__!r} ({code.co_filename}:{code.co_firstlineno}) runs as "
                f"plain Python, some hundred times slower than compiled, because {obstacle}",
                SlowKernel,
                stacklevel=5,
            )
        rows = zip(*(cols.to_arrow(column).to_pylist() for column in columns), strict=True)
        values = [self.python(*row) for row in rows]
        try:
            declared = as_type(typing.get_type_hints(self.python)["return"])
            return cols.from_arrow(pa.array(values, declared))
        except (GraphError, KeyError, NameError, TypeError, pa.ArrowException):
            return cols.as_column(values)

    def _specialise(self, dtypes: tuple[np.dtype[Any], ...]) -> _Loop:
        """Compile the scalar function for these types, and find its result type."""
        try:
            arguments = tuple(from_dtype(dtype) for dtype in dtypes)
            self.compiled.compile(arguments)
        except (NumbaError, NotImplementedError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return _Loop(obstacle="Numba cannot compile it: " + " ".join(lines[:3]))
        returned = self.compiled.overloads[arguments].signature.return_type
        optional = isinstance(returned, nb.types.Optional)
        try:
            dtype = as_dtype(returned.type if optional else returned)
        except (NumbaError, NotImplementedError):
            return _Loop(obstacle=f"its results are of type {returned}")
        if dtype.kind not in "biufmM":
            return _Loop(obstacle=f"its results are of type {returned}")
        return _Loop(dtype, arguments, optional)

    def _compile(self, loop: _Loop) -> Callable[..., None]:
        """The loop over arrays that calls the scalar function, which is compiled into it."""
        code = self.python.__code__
        parameters = [f"a{index}" for index in range(len(self.names))]
        call = f"scalar({', '.join(f'{one}[i]' for one in parameters)})"
        name = f"{self.__name__}_loop" if self.__name__.isidentifier() else "loop"
        if loop.optional:
            name += "_optional"
            source = (
                f"def {name}(out, absent, {', '.join(parameters)}):\n"
                f"    for i in range(len(out)):\n"
                f"        value = {call}\n"
                f"        if value is None:\n"
                f"            absent[i] = True\n"
                f"        else:\n"
                f"            out[i] = value\n"
            )
        else:
            source = (
                f"def {name}(out, {', '.join(parameters)}):\n"
                f"    for i in range(len(out)):\n"
                f"        out[i] = {call}\n"
            )
        # In the file and line of the user's function, so that Numba keeps the two side by side
        # in its cache on disk, and forgets both when that file changes.
        space: dict[str, Any] = {"__name__": self.__module__, "scalar": self.compiled}
        lines = "\n" * (code.co_firstlineno - 1)
        exec(compile(lines + source, code.co_filename, "exec"), space)
        read_only = [_array(kind, readonly=True) for kind in loop.arguments]
        out = _array(from_dtype(np.dtype(loop.dtype)))
        absent = [_array(nb.types.boolean)] if loop.optional else []
        signature = nb.void(out, *absent, *read_only)
        compiled: Callable[..., None] = _njit(space[name], [signature], cached=self._cached)
        return compiled

    def __reduce__(self) -> Any:
        """By name if it can be imported there, else by the function that it was made from."""
        found: Any = sys.modules.get(self.__module__)
        for part in self.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is self and self.__module__ != "__main__":
            return self.__qualname__
        return Kernel, (self.python,)

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}({', '.join(self.names)})>"


def _array(kind: Any, *, readonly: bool = False) -> Any:
    return nb.types.Array(kind, 1, "C", readonly=readonly)


def _njit(function: Any, signatures: Any = None, *, cached: bool) -> Any:
    return nb.njit(signatures, cache=cached)(function)


def _cacheable(function: Callable[..., Any]) -> bool:
    """Whether a function depends on its file alone, so that its compiled form may be stored.

    Values from closures, globals and other modules are compiled in as constants, and the cache
    does not see when they change.
    """
    if not isinstance(function, FunctionType):
        return False
    code = function.__code__
    if code.co_freevars or function.__name__ == "<lambda>":
        return False
    if any(isinstance(constant, CodeType) for constant in code.co_consts):
        return False
    used = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
    return all(value is math or value is np for value in used)
