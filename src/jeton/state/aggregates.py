"""Aggregates: what to compute of each group. ``jt.agg.sum("price")`` and so on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from jeton.columns.column import Column, is_plain_type
from jeton.columns.kernel import Kernel
from jeton.core.errors import BatchError
from jeton.state.accumulators import Accumulator, Count, Numeric, is_unknown
from jeton.state.kernel_fold import kernel_fold
from jeton.state.python_fold import DecimalMean, DecimalSum, Extreme, NullFold, PythonFold


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


def sum(column: str, *, widen: bool = False) -> Aggregate:
    """The sum of the values that are not null: integers stay integers, decimals decimals.

    Sums of integers and decimals are exact, in whatever order values come. Those of integers have
    64 bits (without a sign if the column is ``uint64``); with ``widen`` they are decimals of 38
    digits, which is always enough. Those of decimals have 38 digits, or 76 if the column is of
    256 bits. A sum that does not fit is an error that names its key. Sums of floating-point
    numbers depend on the order in their last digits, and so does whether one becomes infinite on
    the way.

    >>> import jeton as jt
    >>> flow = jt.Flow("large")
    >>> flow.output("out", flow.input("in").key_by().each_time().sum("n", widen=True))
    >>> flow.run({"in": {"time": [0, 0], "n": [2**63 - 1, 1]}})["out"]["sum"].to_pylist()
    [Decimal('9223372036854775808')]
    """
    return Aggregate("sum", column, lambda values: _sum(values, widen))


def min(column: str) -> Aggregate:
    """The least value that is not null: numbers, text, times. NaN is the greatest number."""
    return Aggregate("min", column, lambda values: _least_or_greatest("min", values, _least))


def max(column: str) -> Aggregate:
    """The greatest value that is not null: numbers, text, times. NaN is the greatest number.

    >>> import jeton as jt
    >>> flow = jt.Flow("greatest")
    >>> flow.output("out", flow.input("in").key_by().each_time().max("x"))
    >>> flow.run({"in": {"time": [0, 0], "x": [float("nan"), 1.0]}})["out"]["max"].to_pylist()
    [nan]
    """
    return Aggregate("max", column, lambda values: _least_or_greatest("max", values, _greatest))


def mean(column: str) -> Aggregate:
    """The mean of the values that are not null, as a floating-point number.

    That of integers is their exact sum, divided: it does not depend on their order.
    """
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
        return PythonFold(plain, merge=plain)

    if isinstance(function, Kernel):
        kernel = function
        return Aggregate(
            "reduce",
            column,
            lambda v: NullFold() if is_unknown(v) else kernel_fold(kernel, v, slow),
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
        return PythonFold(step, initial=start, finish=end, merge=join, skip_nulls=kernel)

    def make(values: Column | None) -> Accumulator:
        if not isinstance(function, Kernel):
            return slow()
        options = {"initial": start(), "finish": finish, "merge": merge}
        return kernel_fold(function, values, slow, **options)

    return Aggregate("fold", column, make, merges=merge is not None)


def maker(initial: Any) -> Callable[[], Any]:
    """A function that makes an initial value: the one given, or one that copies the value given.

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


def _sum(values: Column | None, widen: bool) -> Accumulator:
    if is_unknown(values):
        return NullFold()
    if _is_numeric(values, times=False):
        return Numeric("sum", widen=widen)
    if _is_decimal(values):
        return DecimalSum()
    kind = values.dtype if isinstance(values, np.ndarray) else values.type  # type: ignore[union-attr]
    raise BatchError(f"values of type {kind} cannot be summed")


def _least_or_greatest(
    how: str, values: Column | None, function: Callable[[Any, Any], Any]
) -> Accumulator:
    if is_unknown(values):
        return NullFold()
    if _is_numeric(values, times=True):
        return Numeric(how)
    if isinstance(values, pa.Array) and pa.types.is_struct(values.type):
        raise BatchError(
            f"values of type {values.type} have no order, so none is the {how}: choose one of "
            "their fields, with_columns(x=lambda batch: pc.struct_field(batch[…], …))"
        )
    return Extreme(function, merge=function)


def _least(left: Any, right: Any) -> Any:
    return right if right < left or left != left else left


def _greatest(left: Any, right: Any) -> Any:
    return right if right > left or right != right else left


def _mean(values: Column | None) -> Accumulator:
    if is_unknown(values):
        return NullFold()
    if _is_numeric(values, times=False):
        return Numeric("mean")
    if _is_decimal(values):
        return DecimalMean()
    raise BatchError("values of this type have no mean")


def _is_decimal(values: Column | None) -> bool:
    return isinstance(values, pa.Array) and bool(pa.types.is_decimal(values.type))


def _is_numeric(values: Column | None, *, times: bool) -> bool:
    if isinstance(values, np.ndarray):
        return values.dtype.kind in ("biufmM" if times else "biuf")
    assert values is not None
    return is_plain_type(values.type) and (times or not pa.types.is_temporal(values.type))
