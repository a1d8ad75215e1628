"""Aggregates: what to compute of each group. ``jt.agg.sum("price")`` and so on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from jeton.columns.column import Column, is_plain_type, to_arrow
from jeton.columns.kernel import Kernel
from jeton.columns.keys import key_family
from jeton.core.checks import suggestion
from jeton.core.errors import ColumnTypeError, GraphError
from jeton.state.accumulators import Accumulator, Count, Numeric, is_unknown
from jeton.state.buckets import Buckets
from jeton.state.by_time import ByTime
from jeton.state.distinct_values import DistinctValues
from jeton.state.kernel_fold import kernel_fold
from jeton.state.moments import Moments
from jeton.state.python_fold import DecimalMean, DecimalSum, Extreme, NullFold, PythonFold
from jeton.state.python_values import StateCodec, require_codec
from jeton.state.registers import Registers, hash_family
from jeton.state.temporal import TemporalFold
from jeton.state.value_lists import Quantile, ValueLists

_ELSEWHERE: Final = {
    "approxCountDistinct": "approx_count_distinct",
    "approx_n_unique": "approx_count_distinct",
    "avg": "mean",
    "collect_list": "collect",
    "countDistinct": "count_distinct",
    "implode": "collect",
    "len": "count",
    "n_unique": "count_distinct",
    "nunique": "count_distinct",
    "percentile": "quantile",
    "percentile_approx": "approx_quantile",
    "size": "count",
    "stddev": "std",
    "variance": "var",
}
"""The names of other libraries, and ours."""


def value_family(kind: pa.DataType) -> object:
    """The property of types whose values can be summed and compared with each other.

    >>> value_family(pa.int8()) == value_family(pa.float64()) != value_family(pa.bool_())
    True
    """
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return "numbers" if plain else key_family(kind)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate: its column, and how to make its memory once the column's type is known."""

    name: str
    column: str | None
    make: Callable[[Column | None], Accumulator]
    merges: bool = True
    """Whether two groups can become one, as sessions do."""
    by_time: bool = False
    """Whether the times of records matter."""
    by_record: bool = False
    """Whether it calls plain Python for each record."""
    family: Callable[[pa.DataType], object] | None = value_family
    """The property that the types of values must share from batch to batch; ``None``: any will do.
    """


def count(column: str | None = None) -> Aggregate:
    """How many records; with a column, how many that are not null in it."""
    return Aggregate("count", column, lambda _: Count(), family=None)


def count_distinct(column: str) -> Aggregate:
    """The number of different values that are not null, exactly.

    NaN equals itself, and so do zeros of both signs. Each group keeps all its different values.

    >>> import jeton as jt
    >>> flow = jt.Flow("visitors")
    >>> flow.output("out", flow.input("in").key_by().each_time().count_distinct("who"))
    >>> rows = {"time": [0, 0, 0, 0], "who": ["Ann", "Bob", "Ann", None]}
    >>> flow.run({"in": rows})["out"]["count_distinct"].to_pylist()
    [2]
    """
    return Aggregate("count_distinct", column, lambda _: DistinctValues(), family=key_family)


def approx_count_distinct(column: str, *, rsd: float = 0.05) -> Aggregate:
    """About how many different values there are that are not null, in little memory.

    ``rsd`` is the relative standard deviation of the result: with 0.05, two of three results are
    at most 5 % off, and nearly all at most 15 %. A group takes about ``(1.04 / rsd) ** 2`` bytes
    (512 for 0.05) however many values it has. The result depends on the values alone.

    >>> import jeton as jt
    >>> flow = jt.Flow("visitors")
    >>> groups = flow.input("in").key_by().tumbling(10_000)
    >>> flow.output("out", groups.approx_count_distinct("who", rsd=0.01))
    >>> rows = {"time": list(range(9000)), "who": [n % 3000 for n in range(9000)]}
    >>> found = flow.run({"in": rows})["out"]["approx_count_distinct"].to_pylist()
    >>> 2900 < found[0] < 3100
    True
    """
    if not 0.004 <= rsd <= 0.26:
        raise GraphError(f"rsd, the relative standard deviation, is from 0.004 to 0.26, not {rsd}")
    return Aggregate("approx_count_distinct", column, lambda _: Registers(rsd), family=hash_family)


def first(column: str) -> Aggregate:
    """The value that is not null at the least time; of several at that time, the least one.

    >>> import jeton as jt
    >>> flow = jt.Flow("first")
    >>> flow.output("out", flow.input("in").key_by().tumbling(10).first("word"))
    >>> rows = {"time": [3, 1, 1], "word": ["c", "b", "a"]}
    >>> flow.run({"in": rows})["out"]["first"].to_pylist()
    ['a']
    """
    return _by_time("first", column, lambda: ByTime(latest=False))


def last(column: str) -> Aggregate:
    """The value that is not null at the greatest time; of several at that time, the greatest one.

    >>> import jeton as jt
    >>> flow = jt.Flow("last")
    >>> flow.output("out", flow.input("in").key_by().tumbling(10).last("word"))
    >>> rows = {"time": [3, 3, 1], "word": ["c", "d", "z"]}
    >>> flow.run({"in": rows})["out"]["last"].to_pylist()
    ['d']
    """
    return _by_time("last", column, lambda: ByTime(latest=True))


def collect(column: str) -> Aggregate:
    """A list of the values that are not null, in order of time; those of one time by value.

    A group without values has an empty list. Each group keeps all its values.

    >>> import jeton as jt
    >>> flow = jt.Flow("lists")
    >>> flow.output("out", flow.input("in").key_by().tumbling(10).collect("n"))
    >>> rows = {"time": [3, 1, 1], "n": [5, 9, 7]}
    >>> flow.run({"in": rows})["out"]["collect"].to_pylist()
    [[7, 9, 5]]
    """
    return _by_time("collect", column, ValueLists)


def var(column: str, *, ddof: int = 1) -> Aggregate:
    """The variance of the numbers that are not null: of a sample, or with ``ddof=0`` of all.

    Squared distances from the mean are divided by the number of values less ``ddof``; if that is
    not above zero, the result is null. Values are added by Welford's method, which loses far fewer
    digits than sums of squares where the mean is large; the last ones depend on the order.

    >>> import jeton as jt
    >>> flow = jt.Flow("spread")
    >>> flow.output("out", flow.input("in").key_by().each_time().var("x"))
    >>> flow.run({"in": {"time": [0, 0, 0], "x": [1.0, 2.0, 3.0]}})["out"]["var"].to_pylist()
    [1.0]
    """
    _require_ddof(ddof)
    return Aggregate("var", column, lambda values: _moments("var", values, ddof))


def std(column: str, *, ddof: int = 1) -> Aggregate:
    """The standard deviation of the numbers that are not null: the square root of `agg.var`.

    >>> import jeton as jt
    >>> flow = jt.Flow("spread")
    >>> flow.output("out", flow.input("in").key_by().each_time().std("x", ddof=0))
    >>> flow.run({"in": {"time": [0, 0], "x": [1, 5]}})["out"]["std"].to_pylist()
    [2.0]
    """
    _require_ddof(ddof)
    return Aggregate("std", column, lambda values: _moments("std", values, ddof))


def quantile(column: str, q: float) -> Aggregate:
    """The value below which a part ``q`` of the numbers is, exactly; 0.5 is the median.

    Between two values it is interpolated, as by ``percentile_cont`` in SQL. NaN is the greatest
    number, nulls are passed over. Each group keeps all its values.

    >>> import jeton as jt
    >>> flow = jt.Flow("quantiles")
    >>> flow.output("out", flow.input("in").key_by().each_time().quantile("x", 0.75))
    >>> flow.run({"in": {"time": [0, 0, 0], "x": [1, 9, 5]}})["out"]["quantile"].to_pylist()
    [7.0]
    """
    part = _checked_part(q)
    return _quantile("quantile", column, lambda: Quantile(part))


def approx_quantile(column: str, q: float, *, error: float = 0.01) -> Aggregate:
    """About the value below which a part ``q`` of the numbers is, in little memory.

    The result is at most ``error`` of its size (1 %) away from the value of that rank, the lower
    one of two. A group keeps a count for each magnitude that occurs: about 115 for each power of
    ten with 0.01. NaN is the greatest number, nulls are passed over. The result depends on the
    values alone.

    >>> import jeton as jt
    >>> flow = jt.Flow("latencies")
    >>> groups = flow.input("in").key_by().tumbling(10_000)
    >>> flow.output("out", groups.approx_quantile("ms", 0.99))
    >>> rows = {"time": list(range(1001)), "ms": list(range(1001))}
    >>> found = flow.run({"in": rows})["out"]["approx_quantile"].to_pylist()
    >>> abs(found[0] - 990) <= 9.9
    True
    """
    part = _checked_part(q)
    if not 1e-6 <= error <= 0.5:
        raise GraphError(f"the error of a quantile is from 0.000001 to 0.5, not {error}")
    return _quantile("approx_quantile", column, lambda: Buckets(part, error))


def median(column: str) -> Aggregate:
    """The middle of the numbers that are not null, or the mean of the two in the middle.

    >>> import jeton as jt
    >>> flow = jt.Flow("medians")
    >>> flow.output("out", flow.input("in").key_by().each_time().median("x"))
    >>> flow.run({"in": {"time": [0, 0], "x": [1, 4]}})["out"]["median"].to_pylist()
    [2.5]
    """
    return _quantile("median", column, lambda: Quantile(0.5))


def sum(column: str, *, widen: bool = False) -> Aggregate:
    """The sum of the values that are not null: integers stay integers, decimals decimals.

    Sums of integers and decimals are exact, in whatever order values come. Those of integers have
    64 bits (without a sign if the column is ``uint64``); with ``widen`` they are decimals of 38
    digits, which is always enough. Those of decimals have 38 digits, or 76 if the column is of
    256 bits. A sum that does not fit is an error that names its key. Sums of floating-point
    numbers depend on the order in their last digits, and so does whether one becomes infinite on
    the way. Sums of durations are durations.

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

    That of integers is their exact sum, divided: it does not depend on their order. The mean of
    timestamps is a timestamp and that of durations a duration, rounded down to their unit.

    >>> from datetime import datetime
    >>> import jeton as jt
    >>> flow = jt.Flow("middle")
    >>> flow.output("out", flow.input("in").key_by().each_time().mean("at"))
    >>> rows = {"time": [0, 0], "at": [datetime(2026, 1, 1), datetime(2026, 1, 2)]}
    >>> flow.run({"in": rows})["out"]["mean"].to_pylist()
    [datetime.datetime(2026, 1, 1, 12, 0)]
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
    return Aggregate("reduce", column, lambda _: slow(), by_record=True)


def fold(
    column: str,
    initial: Any,
    function: Callable[[Any, Any], Any],
    *,
    finish: Callable[[Any], Any] | None = None,
    merge: Callable[[Any, Any], Any] | None = None,
    state_codec: StateCodec = "plain",
) -> Aggregate:
    """A state and a value to the next state, starting from ``initial``: a value, or what makes it.

    ``finish`` makes the result of the state; ``merge`` makes one state of two, which session
    windows and spread keys need. States are plain Python values, or ``state_codec=`` says how they
    are stored: see `KeyedValues`. Plain Python for each record, nulls included; a `kernel` runs
    compiled if states and values are numbers, and is spared the nulls.

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
    codec = require_codec(state_codec)

    def slow() -> Accumulator:
        step, end, join = _plain(function), _plain(finish), _plain(merge)
        return PythonFold(
            step, initial=start, finish=end, merge=join, skip_nulls=kernel, codec=codec
        )

    def make(values: Column | None) -> Accumulator:
        if not isinstance(function, Kernel):
            return slow()
        options = {"initial": start(), "finish": finish, "merge": merge}
        return kernel_fold(function, values, slow, **options)

    return Aggregate(
        "fold", column, make, merges=merge is not None, by_record=not kernel, family=None
    )


def _by_time(name: str, column: str, make: Callable[[], Accumulator]) -> Aggregate:
    return Aggregate(name, column, lambda _: make(), by_time=True, family=key_family)


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
    if (temporal := _temporal(values)) is not None and pa.types.is_duration(temporal):
        return TemporalFold("sum", temporal)
    raise ColumnTypeError(f"values of type {_type_of(values)} cannot be summed")


def _least_or_greatest(
    how: str, values: Column | None, function: Callable[[Any, Any], Any]
) -> Accumulator:
    if is_unknown(values):
        return NullFold()
    if _is_numeric(values, times=True):
        return Numeric(how)
    if isinstance(values, pa.Array) and pa.types.is_struct(values.type):
        raise ColumnTypeError(
            f"values of type {values.type} have no order, so none is the {how}: choose one of "
            "their fields, with_columns(x=lambda batch: pc.struct_field(batch[…], …))"
        )
    if isinstance(values, pa.Array) and pa.types.is_interval(values.type):
        raise ColumnTypeError(
            f"values of type {values.type} have no order, so none is the {how}: months have "
            "different lengths"
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
    if (temporal := _temporal(values)) is not None:
        return TemporalFold("mean", temporal)
    raise ColumnTypeError(f"values of type {_type_of(values)} have no mean")


def _moments(what: str, values: Column | None, ddof: int) -> Accumulator:
    if is_unknown(values):
        return NullFold()
    _require_numbers(what, values)
    return Moments(ddof, root=what == "std")


def _require_ddof(ddof: int) -> None:
    given: object = ddof
    if not isinstance(given, int) or ddof < 0:
        raise GraphError(f"ddof must be an integer from 0 on, not {ddof!r}")


def _quantile(what: str, column: str, make_one: Callable[[], Accumulator]) -> Aggregate:
    def make(values: Column | None) -> Accumulator:
        if is_unknown(values):
            return NullFold()
        if not (isinstance(values, pa.Array) and pa.types.is_large_list(values.type)):  # a snapshot
            _require_numbers(what, values)
        return make_one()

    return Aggregate(what, column, make)


def _checked_part(q: float) -> float:
    given: object = q
    if not isinstance(given, (int, float)) or not 0 <= q <= 1:
        raise GraphError(f"a quantile is a number from 0 to 1, not {q!r}")
    return float(q)


def _require_numbers(what: str, values: Column | None) -> None:
    if not _is_numeric(values, times=False) and not _is_decimal(values):
        raise ColumnTypeError(
            f"values of type {_type_of(values)} have no {what}: cast them to numbers"
        )


def _type_of(values: Column | None) -> pa.DataType:
    assert values is not None
    return to_arrow(values[:0]).type


def _temporal(values: Column | None) -> pa.DataType | None:
    """The type of timestamps or durations."""
    kind = _type_of(values)
    return kind if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else None


def _is_decimal(values: Column | None) -> bool:
    return isinstance(values, pa.Array) and bool(pa.types.is_decimal(values.type))


def _is_numeric(values: Column | None, *, times: bool) -> bool:
    if isinstance(values, np.ndarray):
        return values.dtype.kind in ("biufmM" if times else "biuf")
    assert values is not None
    return is_plain_type(values.type) and (times or not pa.types.is_temporal(values.type))


if not TYPE_CHECKING:
    # Only for messages: type checkers must go on to refuse what is not there.
    def __getattr__(name: str) -> NoReturn:
        known = _ELSEWHERE.get(name)
        hint = f": use jt.agg.{known}" if known else suggestion(name, __dir__())
        raise AttributeError(f"jt.agg has no {name!r}{hint}")


def __dir__() -> list[str]:
    """The aggregates, for completions of ``jt.agg.``."""
    return sorted(
        name
        for name, value in globals().items()
        if getattr(value, "__module__", None) == __name__
        and not name.startswith("_")
        and name not in ("Aggregate", "maker", "value_family")
    )
