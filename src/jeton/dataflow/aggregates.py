"""Aggregates: what to compute of each group. ``jt.agg.sum("price")`` and so on."""

from __future__ import annotations

import builtins
import copy
import decimal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from jeton.core.errors import BatchError
from jeton.dataflow.accumulators import Accumulator, Count, Numeric, is_unknown
from jeton.dataflow.columns import Column
from jeton.dataflow.kernel import Kernel
from jeton.dataflow.kernel_fold import kernel_fold
from jeton.dataflow.object_fold import Nothing, Objects


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate: its column, and how to make its memory once the column's type is known."""

    name: str
    column: str | None
    make: Callable[[Column | None], Accumulator]
    merges: bool = True
    """Whether two groups can become one, as sessions do."""


def count(column: str | None = None) -> Aggregate:
    """How many records; with a column, how many that are not null in it."""
    return Aggregate("count", column, lambda _: Count())


def sum(column: str) -> Aggregate:
    """The sum of the values that are not null: integers stay integers, decimals decimals."""
    return Aggregate("sum", column, lambda values: _folding("sum", values, lambda a, b: a + b))


def min(column: str) -> Aggregate:
    """The least value that is not null: numbers, text, times."""
    return Aggregate("min", column, lambda values: _folding("min", values, builtins.min))


def max(column: str) -> Aggregate:
    """The greatest value that is not null: numbers, text, times."""
    return Aggregate("max", column, lambda values: _folding("max", values, builtins.max))


def mean(column: str) -> Aggregate:
    """The mean of the values that are not null, as a floating-point number."""
    return Aggregate("mean", column, _mean)


def reduce(column: str, function: Callable[[Any, Any], Any]) -> Aggregate:
    """Two values to one, again and again, until one is left.

    The function should not care about order: records of a group come in any. Nulls are passed
    over. It is called once for each record, in plain Python; a `kernel` runs compiled over
    numbers, a hundred times faster, with the arithmetic of 64-bit numbers.

    >>> import jeton as jt
    >>> @jt.kernel
    ... def longer(a, b):
    ...     return a if abs(a) > abs(b) else b
    >>> flow = jt.Flow("extremes")
    >>> flow.output("out", flow.input("in").key_by("key").tumbling(10).reduce("x", longer))
    >>> rows = {"time": [1, 2, 3], "key": [7, 7, 7], "x": [2.0, -5.0, 3.0]}
    >>> flow.run({"in": rows})["out"].to_pylist()
    [{'time': 10, 'key': 7, 'reduce': -5.0}]
    """

    def slow() -> Accumulator:
        plain = _plain(function)
        return Objects(plain, merge=plain)

    if isinstance(function, Kernel):
        kernel = function
        return Aggregate(
            "reduce",
            column,
            lambda v: Nothing() if is_unknown(v) else kernel_fold(kernel, v, slow),
        )
    return Aggregate("reduce", column, lambda _: slow())


def fold(
    column: str,
    initial: Any,
    function: Callable[[Any, Any], Any],
    *,
    finish: Callable[[Any], Any] | None = None,
    merge: Callable[[Any, Any], Any] | None = None,
) -> Aggregate:
    """A state and a value to the next state, starting from ``initial``: a value, or what makes it.

    ``finish`` makes the result of the state; ``merge`` makes one state of two, which session
    windows need. States must be values that can be pickled. Plain Python for each record, nulls
    included; a `kernel` runs compiled if states and values are numbers, and is spared the nulls.

    >>> import jeton as jt
    >>> @jt.kernel
    ... def sum_of_squares(state, x):
    ...     return state + x * x
    >>> flow = jt.Flow("squares")
    >>> flow.output("out", flow.input("in").key_by().each_time().fold("x", 0.0, sum_of_squares))
    >>> flow.run({"in": {"time": [1, 1], "x": [3, 4]}})["out"].to_pylist()
    [{'time': 1, 'fold': 25.0}]
    """
    start, kernel = maker(initial), isinstance(function, Kernel)

    def slow() -> Accumulator:
        step, end, join = _plain(function), _plain(finish), _plain(merge)
        return Objects(step, initial=start, finish=end, merge=join, skip_nulls=kernel)

    def make(values: Column | None) -> Accumulator:
        if not isinstance(function, Kernel):
            return slow()
        options = {"initial": start(), "finish": finish, "merge": merge}
        return kernel_fold(function, values, slow, **options)

    return Aggregate("fold", column, make, merges=merge is not None)


def maker(initial: Any) -> Callable[[], Any]:
    """What makes an initial value: the function given, or one that copies the value given.

    >>> make = maker([])
    >>> make() is make()
    False
    """
    if callable(initial):
        making: Callable[[], Any] = initial
        return making
    return lambda: copy.deepcopy(initial)


def _plain(function: Any) -> Any:
    """A function as it was written, where it is a kernel."""
    return function.python if isinstance(function, Kernel) else function


def _folding(how: str, values: Column | None, function: Callable[[Any, Any], Any]) -> Accumulator:
    if is_unknown(values):
        return Nothing()
    if _is_numeric(values, times=how != "sum"):
        return Numeric(how)
    if how == "sum":
        if not _is_decimal(values):
            kind = values.dtype if isinstance(values, np.ndarray) else values.type  # type: ignore[union-attr]
            raise BatchError(f"values of type {kind} cannot be summed")
        return Objects(_EXACT.add, merge=_EXACT.add, typed=_widest)
    return Objects(function, merge=function)


def _mean(values: Column | None) -> Accumulator:
    if is_unknown(values):
        return Nothing()
    if _is_numeric(values, times=False) or _is_decimal(values):
        return Numeric("mean")
    raise BatchError("values of this type have no mean")


_EXACT = decimal.Context(prec=80)
"""Python's own decimals would be rounded to 28 digits."""


def _widest(kind: pa.DataType) -> pa.DataType:
    """The type of a sum of decimals."""
    if pa.types.is_decimal256(kind):
        return pa.decimal256(76, kind.scale)
    return pa.decimal128(38, kind.scale)


def _is_decimal(values: Column | None) -> bool:
    return isinstance(values, pa.Array) and bool(pa.types.is_decimal(values.type))


def _is_numeric(values: Column | None, *, times: bool) -> bool:
    if isinstance(values, np.ndarray):
        return values.dtype.kind in ("biufmM" if times else "biuf")
    assert values is not None
    kind = values.type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or (
            times
            and (pa.types.is_duration(kind) or (pa.types.is_timestamp(kind) and kind.tz is None))
        )
    )
