"""Aggregates: what to compute of each group. ``jt.agg.sum("price")`` and so on."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from jeton.core.errors import BatchError
from jeton.dataflow.accumulators import Accumulator, Count, Numeric, Objects
from jeton.dataflow.columns import Column


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate: its column, and how to make its memory once the column's type is known."""

    name: str
    column: str | None
    make: Callable[[Column | None], Accumulator]


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

    The function should not care about order: records of a group come in any. It is called once
    for each record, in plain Python.
    """
    return Aggregate("reduce", column, lambda _: Objects(function, merge=function))


def fold(
    column: str,
    initial: Callable[[], Any],
    function: Callable[[Any, Any], Any],
    *,
    finish: Callable[[Any], Any] | None = None,
    merge: Callable[[Any, Any], Any] | None = None,
) -> Aggregate:
    """A state and a value to the next state, starting from ``initial()``.

    ``finish`` makes the result of the state; ``merge`` makes one state of two, which session
    windows need. States must be values that Arrow can hold. Plain Python for each record.
    """

    def make(_: Column | None) -> Accumulator:
        return Objects(function, initial=initial, finish=finish, merge=merge, skip_nulls=False)

    return Aggregate("fold", column, make)


def _folding(how: str, values: Column | None, function: Callable[[Any, Any], Any]) -> Accumulator:
    if _is_numeric(values, times=how != "sum"):
        return Numeric(how)
    if how == "sum" and not (isinstance(values, pa.Array) and pa.types.is_decimal(values.type)):
        kind = values.dtype if isinstance(values, np.ndarray) else values.type  # type: ignore[union-attr]
        raise BatchError(f"values of type {kind} cannot be summed")
    return Objects(function, merge=function)


def _mean(values: Column | None) -> Accumulator:
    if _is_numeric(values, times=False):
        return Numeric("mean")
    if isinstance(values, pa.Array) and pa.types.is_decimal(values.type):
        return Objects(
            lambda state, value: [state[0] + float(value), state[1] + 1],
            initial=lambda: [0.0, 0],
            finish=lambda state: state[0] / state[1] if state[1] else None,
            merge=lambda a, b: [a[0] + b[0], a[1] + b[1]],
        )
    raise BatchError("values of this type have no mean")


def _is_numeric(values: Column | None, *, times: bool) -> bool:
    if isinstance(values, np.ndarray):
        return values.dtype.kind in ("biufmM" if times else "biuf")
    assert values is not None
    kind = values.type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
        or (
            times
            and (pa.types.is_duration(kind) or (pa.types.is_timestamp(kind) and kind.tz is None))
        )
    )
