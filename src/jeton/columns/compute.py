"""Computing with columns: operators and functions record by record, with SQL's rules for nulls.

A null makes the result null, except where the other side decides alone (``False & null``). What a
function means depends on the types alone, never on whether a batch happens to have a null in it.
"""

from __future__ import annotations

import datetime
import operator
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns.column import (
    Column,
    as_column,
    cast_within,
    family,
    from_arrow,
    is_plain_type,
    to_arrow,
)
from jeton.columns.keys import same_values
from jeton.columns.time_units import require_zone
from jeton.columns.types import as_type
from jeton.core.errors import BatchError, ColumnTypeError

SIGNS: Final = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "and_": "&",
    "or_": "|",
    "xor": "^",
}
"""The operators, by the names that Python's `operator` has for them."""

_ARROW: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
    "add": pc.add_checked,
    "sub": pc.subtract_checked,
    "mul": pc.multiply_checked,
    "truediv": pc.divide_checked,
}
"""Arrow's functions for values that NumPy has no arrays for, such as text and decimals."""

_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")

_DIVISIONS: Final = ("truediv", "floordiv", "mod", "pow")
"""The operators that divide, and may divide by zero."""


class _Silent(threading.local):
    """Calls without NumPy's warnings of infinity and NaN, which are results like others.

    To enter a context takes a tenth of the time that ``np.errstate`` does. Each thread needs one.
    """

    def __init__(self) -> None:
        context = copy_context()
        context.run(np.seterr, divide="ignore", invalid="ignore")
        self.run = context.run


_SILENT: Final = _Silent()

_LOGIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "and_": pc.and_kleene,
    "or_": pc.or_kleene,
    "xor": pc.xor,
}
"""Logic with nulls: the result is known where the other side decides it alone."""

_INSTANT: Final = pa.timestamp("ns", "UTC")
_UNITS: Final = ("ns", "us", "ms", "s", "m", "h", "D", "W")

_EXACT: Final = 1 << 53
"""Up to here, integers are the same as floating-point numbers."""

_LEAST: Final = -(2**63)

NUMBERS: Final = (int, float, bool, np.integer, np.floating, np.bool_)


def binary(name: str, left: Any, right: Any) -> Column:
    """The results of an operator; at least one side is a column, the other may be one value.

    >>> binary("add", np.array([1, 2]), pa.array([None, 5])).to_pylist()
    [None, 7]
    >>> binary("eq", pa.array(["a", "b"]), "a")
    array([ True, False])
    >>> binary("floordiv", np.array([7, 7]), np.array([2, 0])).to_pylist()
    [3, None]
    >>> binary("gt", np.array([7]), "a")
    Traceback (most recent call last):
    jeton.core.errors.ColumnTypeError: int64 > 'a': these do not go together
    """
    if left is None or right is None:
        if name in _COMPARISONS:
            raise BatchError("nothing equals None: use is_null() or is_not_null()")
        raise BatchError(
            f"{described(name, left, right)}: None has no type, and every result would be null: "
            "leave it out, or give a value"
        )
    left, right = _decoded(_scalar(left)), _decoded(_scalar(right))
    if _is_time(left) or _is_time(right):
        left, right = _times(name, left, right)
    try:
        if name in _LOGIC and _is_logic(left) and _is_logic(right):
            return as_column(_LOGIC[name](_logic(left), _logic(right)))
        if name in _COMPARISONS and (_fits_arrow(left, right) or _fits_arrow(right, left)):
            return as_column(_ARROW[name](left, right))
        if _is_plain(left) and _is_plain(right):
            if name not in _COMPARISONS:
                left, right = _widened(name, left, right), _widened(name, right, left)
            return _with_nulls(numpy_operator(name), left, right)
        if _is_unknown(left) or _is_unknown(right):
            return _unknown(name, left, right)
        if name == "add" and _is_text(left) and _is_text(right):
            return _joined(left, right)
        if name in _ARROW and (_is_decimal(left) or _is_decimal(right)):
            return _decimals(name, left, right)
        if name in _ARROW and not (_is_number(left) or _is_number(right)):
            return as_column(_ARROW[name](left, right))
    except (pa.ArrowInvalid, OverflowError, ValueError) as error:
        raise BatchError(f"{described(name, left, right)}: {error}") from error
    except (pa.ArrowException, TypeError) as error:
        raise ColumnTypeError(f"{described(name, left, right)}: {error}") from error
    raise ColumnTypeError(f"{described(name, left, right)}: these do not go together")


def _widened(name: str, value: Any, column: Any) -> Any:
    """A plain integer beyond a column's type in a type that has it, as those of a column are.

    >>> _widened("add", 300, np.array([1], np.int8)), _widened("add", 100, np.array([1], np.int8))
    (np.int64(300), 100)
    """
    kind = _kind(column)
    if type(value) is not int or kind is None or not pa.types.is_integer(kind):
        return value
    narrow = np.iinfo(kind.to_pandas_dtype())
    if narrow.min <= value <= narrow.max:
        return value
    if name == "truediv":
        return float(value)
    for wide in (np.int64, np.uint64):
        if np.iinfo(wide).min <= value <= np.iinfo(wide).max:
            if np.result_type(narrow.dtype, wide).kind != "f":
                return wide(value)
            break
    raise ColumnTypeError(
        f"{kind} {SIGNS[name]} {value}: no type of integers has the values of both: cast the "
        "column to float or decimals first"
    )


def _decimals(name: str, left: Any, right: Any) -> Column:
    """The results for decimals, with no more than 38 digits if their operands have no more.

    Arrow makes room for every result there could be, and stops where its types end.
    """
    try:
        return as_column(_ARROW[name](left, right))
    except pa.ArrowInvalid as error:
        if "precision out of range" not in str(error):
            raise
    sides = [_wide_decimal(side) for side in (left, right)]
    try:
        wide = _ARROW[name](*sides)
        if name in _COMPARISONS:
            return as_column(wide)
        return as_column(wide.cast(pa.decimal128(38, wide.type.scale)))
    except pa.ArrowInvalid as error:
        if "Divide by zero" in str(error):
            raise
        raise BatchError(
            f"{described(name, left, right)}: a result may have more digits than decimals have "
            "room for, which is 38: cast to decimals of fewer digits, or to float, first"
        ) from error


def _wide_decimal(value: Any) -> Any:
    """Decimals of 128 bits as ones of 256."""
    kind = _kind(value)
    if kind is None:
        scalar = pa.scalar(value)
        kind = scalar.type
        value = scalar
    return value.cast(pa.decimal256(kind.precision, kind.scale)) if _is_decimal(value) else value


def described(name: str, left: Any, right: Any) -> str:
    """An operator with the types of its columns and its plain values, for people."""
    return f"{_named(left)} {SIGNS[name]} {_named(right)}"


def ufunc(function: Any, *values: Any) -> Column:
    """The results of one of NumPy's functions, null where a value is.

    >>> ufunc(np.sqrt, pa.array([4.0, None])).to_pylist()
    [2.0, None]
    """
    if not all(map(_is_plain, values)):
        kinds = ", ".join(_named(value) for value in values)
        raise ColumnTypeError(f"{function.__name__}({kinds}): NumPy has no arrays for such values")
    return _with_nulls(function, *values)


def invert(column: Column) -> Column:
    """Not: true for false and false for true."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "biu":
            raise ColumnTypeError(f"~ needs booleans, not {_kind(column)}")
        return ~column
    if pa.types.is_integer(column.type):
        return _with_nulls(np.invert, column)
    if not (pa.types.is_boolean(column.type) or pa.types.is_null(column.type)):
        raise ColumnTypeError(f"~ needs booleans, not {column.type}")
    return as_column(pc.invert(column.cast(pa.bool_())))


def negate(column: Column) -> Column:
    """The values with the other sign.

    >>> negate(pa.array([datetime.timedelta(1), None])).to_pylist()
    [datetime.timedelta(days=-1), None]
    """
    return _with_nulls(np.negative, column) if _is_length(column) else binary("sub", 0, column)


def is_null(column: Column) -> Column:
    """Whether each value is null; NaN is not."""
    if isinstance(column, np.ndarray):
        return np.zeros(len(column), bool)
    found: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return found


def is_nan(column: Column) -> Column:
    """Whether each value is NaN; null for a null."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "iub":
        return np.zeros(len(column), bool)
    return ufunc(np.isnan, column)


def is_in(column: Column, values: Any) -> Column:
    """Whether each value is one of some; null for a null.

    >>> is_in(np.array([1, 2], np.int8), [2, 1000])
    array([False,  True])
    >>> is_in(pa.array(["1"]), [1])
    Traceback (most recent call last):
    jeton.core.errors.ColumnTypeError: is_in: string cannot be compared with int64
    """
    wanted = to_arrow(as_column(list(values)))
    array = _decoded(to_arrow(column))
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.bool_())
    if len(wanted) == 0:
        return _with_nulls(lambda values: np.zeros(len(values), bool), _ones(column))
    if wanted.null_count:
        raise BatchError("is_in has None among its values, which nothing equals: use is_null()")
    if family(array.type) != family(wanted.type):
        raise ColumnTypeError(f"is_in: {array.type} cannot be compared with {wanted.type}")
    fitting = [each for value in wanted if (each := _exactly(value, array.type)) is not None]
    among = pa.array(fitting, array.type)
    if pa.types.is_floating(array.type):
        # Arrow takes zeros of both signs for different values.
        array, among = (pc.add(side, pa.scalar(0.0, side.type)) for side in (array, among))
    found = pc.is_in(array, value_set=among)
    return as_column(pc.if_else(array.is_valid(), found, None))


def fill_null(column: Column, value: Any) -> Column:
    """Another value, or the one of another column, wherever there is a null.

    >>> fill_null(pa.array([5, None]), 0.5)
    Traceback (most recent call last):
    jeton.core.errors.ColumnTypeError: fill_null: 0.5 is not a value of type int64: cast the ...
    """
    array = _decoded(to_arrow(column))
    if isinstance(value, np.ndarray | pa.Array):
        if pa.types.is_null(array.type):
            return as_column(value)
        return as_column(pc.coalesce(array, _fillings(_decoded(to_arrow(value)), array.type)))
    if pa.types.is_null(array.type):
        return from_arrow(pa.repeat(value, len(array)))
    filling = None
    try:
        given = _arrow_scalar(value)
        if family(given.type) == family(array.type):
            filling = _exactly(given, array.type)
    except (pa.ArrowException, TypeError, OverflowError):
        pass
    if filling is None:
        raise ColumnTypeError(
            f"fill_null: {value!r} is not a value of type {array.type}: cast the column first"
        )
    return column if isinstance(column, np.ndarray) else as_column(array.fill_null(filling))


def _fillings(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of a column for the nulls of another, in its type, in which none may change."""
    if pa.types.is_null(values.type):
        return values.cast(kind)
    if family(values.type) != family(kind):
        raise ColumnTypeError(
            f"fill_null: {values.type} are not values of type {kind}: cast one of them first"
        )
    try:
        made = values.cast(kind)
        if pa.types.is_floating(kind) and not same_values(made, values).all():
            raise pa.ArrowInvalid("some would be rounded")
        return made
    except pa.ArrowInvalid as error:
        raise BatchError(
            f"fill_null: values of type {values.type} do not fit {kind} ({error}): cast one of "
            "them first"
        ) from error


def _exactly(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    """The value as another type; nothing if that type does not have it."""
    if value.type == kind:
        return value
    try:
        cast = value.cast(kind)
        return cast if cast.cast(value.type) == value else None
    except (pa.ArrowException, OverflowError):
        return None


def _arrow_scalar(value: Any) -> pa.Scalar:
    """One value of a user as Arrow has it, with the nanoseconds of pandas' values."""
    value = _scalar(value)
    if isinstance(value, np.generic):
        return pa.array(np.array([value]))[0]
    return value if isinstance(value, pa.Scalar) else pa.scalar(value)


def choose(condition: Column, value: Any, other: Any) -> Column:
    """One value where a condition is true, another where it is false or null."""
    mask = to_arrow(condition)
    if not (pa.types.is_boolean(mask.type) or pa.types.is_null(mask.type)):
        raise ColumnTypeError(f"when() needs booleans, not {mask.type}: compare it with something")
    mask = mask.cast(pa.bool_()).fill_null(False)
    sides = [to_arrow(side) if isinstance(side, np.ndarray) else side for side in (value, other)]
    try:
        return as_column(pc.if_else(mask, *(_decoded(side) for side in sides)))
    except (pa.ArrowException, TypeError) as error:
        kinds = " and ".join(_named(side) for side in sides)
        raise ColumnTypeError(f"when(): {kinds} do not make one column: {error}") from error


def cast(column: Column, kind: pa.DataType) -> Column:
    """The same values as another type; one that does not fit is an error."""
    array = _decoded(to_arrow(column))
    if (
        pa.types.is_timestamp(array.type)
        and pa.types.is_timestamp(kind)
        and (array.type.tz is None) != (kind.tz is None)
    ):
        # pandas refuses this too; in Polars the result is the time in UTC, in Spark that of a zone.
        raise ColumnTypeError(
            f"cast: {array.type} to {kind}: an instant and the time that a clock shows are "
            "different things: use .dt.replace_time_zone(None) for the time that the zone's clock "
            "shows, after .dt.convert_time_zone('UTC') for the one in UTC, or "
            ".dt.replace_time_zone('UTC') for instants"
        )
    try:
        made = cast_within(array, kind)
        if pa.types.is_integer(array.type) and pa.types.is_temporal(kind) and kind.bit_width == 64:
            # The least integer is the null of NumPy's times.
            made = pc.if_else(
                pc.equal(array, pa.scalar(_LEAST, pa.int64())), pa.scalar(None, kind), made
            )
        return as_column(made)
    except pa.ArrowInvalid as error:
        raise BatchError(f"cast: {error}") from error
    except pa.ArrowException as error:
        raise ColumnTypeError(f"cast: {error}") from error


def arrow(column: Column, function: str, **options: Any) -> Column:
    """The function of `pyarrow.compute` that has a name, on a column.

    >>> arrow(pa.array(["a", None]), "utf8_upper").to_pylist()
    ['A', None]
    """
    array = _decoded(to_arrow(column))
    if pa.types.is_null(array.type):
        return array
    try:
        return as_column(getattr(pc, function)(array, **options))
    except pa.ArrowInvalid as error:
        raise BatchError(f"{function}: {error}") from error
    except (pa.ArrowException, TypeError) as error:
        raise ColumnTypeError(f"{function} of {array.type}: {error}") from error


def text(column: Column, function: str, **options: Any) -> Column:
    """One of Arrow's functions of text."""
    kind = _kind(column)
    if not (_is_text(column) or pa.types.is_null(kind)):
        raise ColumnTypeError(f"functions of .str need text, not {kind}: cast(str) makes it")
    return arrow(column, function, **options)


def moment(column: Column, function: str, **options: Any) -> Column:
    """One of Arrow's functions of timestamps and dates."""
    kind = _kind(column)
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind)):
        raise ColumnTypeError(f"functions of .dt need timestamps or dates, not {kind}")
    return arrow(column, function, **options)


def date(column: Column) -> Column:
    """The dates of timestamps, in their own time zone."""
    kind = to_arrow(column).type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = moment(column, "local_timestamp")
    # Down to whole days first, also before 1970.
    return cast(moment(column, "floor_temporal", unit="day"), pa.date32())


def convert_time_zone(column: Column, zone: str) -> Column:
    """The same instants as the clocks of another zone show them."""
    kind = _zone_kind(column, zone)
    if pa.types.is_timestamp(kind) and kind.tz is None:
        raise ColumnTypeError(
            f"convert_time_zone: {kind} has no zone to convert from: replace_time_zone() gives it "
            "one"
        )
    unit = kind.unit if pa.types.is_timestamp(kind) else "us"
    return cast(column, pa.timestamp(unit, zone))


def replace_time_zone(column: Column, zone: str | None) -> Column:
    """The times that clocks show, as those of another zone, or without one."""
    kind = _zone_kind(column, zone)
    if pa.types.is_null(kind):
        return cast(column, pa.timestamp("us", zone))
    if kind.tz is not None:
        column = moment(column, "local_timestamp")
    if zone is None:
        return column
    return moment(column, "assume_timezone", timezone=zone)


def _zone_kind(column: Column, zone: str | None) -> pa.DataType:
    kind = _kind(column)
    if kind is None or not (pa.types.is_timestamp(kind) or pa.types.is_null(kind)):
        raise ColumnTypeError(f"time zones are for timestamps, not for {kind}")
    if zone is not None:
        require_zone(zone)
    return kind


def clip(column: Column, lower: Any, upper: Any) -> Column:
    """The values, those below or above the bounds moved to them; ``None`` leaves a side open."""
    if upper is not None:
        column = choose(binary("gt", column, upper), _alike(upper, column), column)
    if lower is not None:
        column = choose(binary("lt", column, lower), _alike(lower, column), column)
    return column


def _alike(value: Any, column: Column) -> Any:
    """A plain value in the type of a column, if that has it: narrow integers stay narrow."""
    kind = _kind(column)
    if kind is None or isinstance(value, np.ndarray | pa.Array):
        return value
    scalar = _arrow_scalar(value)
    exact = _exactly(scalar, kind) if family(scalar.type) == family(kind) else None
    return value if exact is None else exact


_REDUCTIONS: Final = ("all", "any", "max", "mean", "min", "prod", "std", "sum", "var")


def reduction(column: pa.Array, name: str) -> Callable[..., Any] | None:
    """A method of NumPy's arrays that makes one value of all, for those that are not null.

    >>> reduction(pa.array([1, None, 3]), "max")()
    np.int64(3)
    """
    if name not in _REDUCTIONS:
        return None
    known = from_arrow(_decoded(column).drop_null())
    if isinstance(known, np.ndarray):
        values = known

        def reduce(*args: Any, **options: Any) -> Any:
            empty = not len(values) and name not in ("all", "any", "prod", "sum")
            return None if empty else getattr(values, name)(*args, **options)

        return reduce
    if name in ("max", "min"):
        return lambda: arrow_scalar(known, name)
    return None


def arrow_scalar(column: pa.Array, name: str) -> Any:
    """The least or the greatest of values that NumPy has no arrays for, such as text."""
    try:
        return getattr(pc, name)(column).as_py()
    except pa.ArrowException as error:
        raise ColumnTypeError(f"{name} of {column.type}: {error}") from error


def astype(column: pa.Array, dtype: Any) -> Column:
    """The values as NumPy would convert them, null where they are."""
    target = np.dtype(dtype)
    array = _decoded(column)
    if _is_plain(array) and target.kind in "biufmM":
        return _with_nulls(lambda values: values.astype(target), array)
    return cast(array, as_type(dtype))


def _with_nulls(function: Callable[..., Any], *values: Any) -> Column:
    """The results of a NumPy function record by record, null where a value is."""
    unknown: Any = None
    for value in values:
        if isinstance(value, pa.Array) and value.null_count:
            here = value.is_null().to_numpy(zero_copy_only=False)
            unknown = here if unknown is None else unknown | here
    made = function(*map(_filled, values))
    if unknown is None:
        return as_column(made)
    if isinstance(made, pa.Array):
        known = pc.invert(pa.array(unknown))
        return as_column(pc.if_else(known, made, pa.scalar(None, made.type)))
    return from_arrow(_masked(made, np.broadcast_to(unknown, made.shape)))


def _masked(values: npt.NDArray[Any], unknown: npt.NDArray[np.bool_]) -> pa.Array:
    """Values with some nulls; of times also where NumPy has its own, as where one is divided by 0.

    >>> _masked(np.array(["NaT", 1, 2], "m8[s]"), np.array([False, True, False])).to_pylist()
    [None, None, datetime.timedelta(seconds=2)]
    """
    if values.dtype.kind in "mM":
        unknown = unknown | np.isnat(values)
    return pa.array(values, mask=unknown)


def numpy_operator(name: str) -> Callable[[Any, Any], Any]:
    """The operator for NumPy's arrays; an integer divided by zero has no result, a float has."""
    function: Callable[[Any, Any], Any] = getattr(operator, name)
    if name not in _DIVISIONS:
        return function

    def divide(left: Any, right: Any) -> Any:
        return _SILENT.run(function, left, right)

    def divide_whole(left: Any, right: Any) -> Any:
        by = np.asarray(right)
        if by.dtype.kind not in "iu" or by.all() or np.asarray(left).dtype.kind == "f":
            return divide(left, right)
        # A plain zero leaves the type of the column as it is, so a plain one stands for it.
        made = divide(left, np.where(by == 0, by.dtype.type(1), by) if by.ndim else 1)
        return _masked(made, np.broadcast_to(by == 0, made.shape))

    return divide_whole if name in ("floordiv", "mod") else divide


def _fits_arrow(column: Any, value: Any) -> bool:
    """Whether Arrow compares an array with a number as NumPy would, and sooner."""
    if not isinstance(column, pa.Array):
        return False
    if type(value) is int:
        return column.type in (pa.int64(), pa.float64()) and abs(value) <= _EXACT
    return type(value) is float and column.type == pa.float64()


def _is_plain(value: Any) -> bool:
    """Whether NumPy has arrays for such values: numbers, and times without a zone."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind not in "OUS"
    if not isinstance(value, pa.Array):
        return isinstance(value, (*NUMBERS, np.datetime64, np.timedelta64))
    return is_plain_type(value.type)


def _scalar(value: Any) -> Any:
    """One value as NumPy has it, if it has such values; columns as they are."""
    if isinstance(value, pa.Scalar):
        kind = value.type
        if pa.types.is_duration(kind) or (pa.types.is_timestamp(kind) and kind.tz is None):
            return pa.array([value]).to_numpy()[0]
        plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        return value.as_py() if plain else value
    pandas: Any = value
    if hasattr(value, "to_timedelta64"):  # pandas' values have nanoseconds
        return pandas.to_timedelta64()
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None and hasattr(value, "as_unit"):
            return pa.scalar(pandas.as_unit("ns").value, _INSTANT)
        if value.tzinfo is None:
            has_own = hasattr(value, "to_datetime64")
            return pandas.to_datetime64() if has_own else np.datetime64(value)
    return np.timedelta64(value) if isinstance(value, datetime.timedelta) else value


def _is_time(value: Any) -> bool:
    """Whether values are timestamps, dates or durations."""
    if isinstance(value, np.datetime64 | np.timedelta64 | datetime.date):
        return True
    kind = _kind(value)
    return kind is not None and bool(pa.types.is_temporal(kind))


def _times(name: str, left: Any, right: Any) -> tuple[Any, Any]:
    """Both sides, at least one of which has times, in one unit; refused if that has no meaning."""
    sides = [left, right]
    for one, other in (sides, sides[::-1]):
        if _is_number(other) and not isinstance(other, np.timedelta64):
            # A duration can be multiplied and divided; what else 5 would be, depends on the unit.
            if not (_is_length(one) and name in ("mul", "truediv", "floordiv")):
                raise ColumnTypeError(
                    f"{described(name, left, right)}: numbers are not times; write a timedelta"
                )
            return left, right
    if all(_is_plain(side) for side in sides):
        units = [np.datetime_data(_dtype(side))[0] for side in sides]
        finest = min(units, key=_UNITS.index)
        return _in_unit(left, finest, name), _in_unit(right, finest, name)
    zoned = [_is_zoned(side) for side in sides]
    dates = [_is_date(side) for side in sides]
    if any(zoned) and any(dates):
        raise ColumnTypeError(
            f"{described(name, left, right)}: an instant has a date in a zone only: use .dt.date()"
        )
    if all(zoned):
        return _instants(name, left, right)
    # Arrow adds durations of its own to instants and dates.
    first, second = (
        pa.array(np.array([side]))[0] if isinstance(side, np.timedelta64) else side
        for side in sides
    )
    return first, second


def _instants(name: str, left: Any, right: Any) -> tuple[Any, Any]:
    """Timestamps with zones in the finer of their units, and in the zone of the first ones."""
    sides = [s if isinstance(s, pa.Array | pa.Scalar) else pa.scalar(s) for s in (left, right)]
    unit = min((side.type.unit for side in sides), key=_UNITS.index)
    try:
        first, second = (side.cast(pa.timestamp(unit, sides[0].type.tz)) for side in sides)
    except pa.ArrowInvalid as error:
        raise BatchError(f"{SIGNS[name]}: a time does not fit into {unit}: {error}") from error
    return first, second


def _is_length(value: Any) -> bool:
    kind = _kind(value)
    return isinstance(value, np.timedelta64) or (kind is not None and pa.types.is_duration(kind))


def _is_zoned(value: Any) -> bool:
    if isinstance(value, datetime.datetime):
        return value.tzinfo is not None
    kind = _kind(value)
    return kind is not None and pa.types.is_timestamp(kind) and kind.tz is not None


def _is_date(value: Any) -> bool:
    if isinstance(value, datetime.date):
        return not isinstance(value, datetime.datetime)
    kind = _kind(value)
    return kind is not None and bool(pa.types.is_date(kind))


def _dtype(value: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = value.dtype if not isinstance(value, pa.Array) else _numpy(value.type)
    return found


def _numpy(kind: pa.DataType) -> np.dtype[Any]:
    return np.dtype(f"{'m' if pa.types.is_duration(kind) else 'M'}8[{kind.unit}]")


def _in_unit(value: Any, unit: str, name: str) -> Any:
    """Times in a finer unit; NumPy would let those that do not fit wrap around."""
    have = np.datetime_data(_dtype(value))[0]
    if have == unit:
        return value
    array = value if isinstance(value, pa.Array) else pa.array(np.atleast_1d(value))
    kind = pa.duration(unit) if pa.types.is_duration(array.type) else pa.timestamp(unit)
    try:
        cast = array.cast(kind)
    except pa.ArrowInvalid as error:
        raise BatchError(f"{SIGNS[name]}: a time does not fit into {unit}: {error}") from error
    if isinstance(value, pa.Array):
        return cast
    plain = cast.to_numpy(zero_copy_only=False)
    return plain if isinstance(value, np.ndarray) else plain[0]


def _filled(value: Any) -> Any:
    """Values for NumPy, with a one for each null; results for those are not used."""
    if not isinstance(value, pa.Array):
        return value
    if value.null_count:
        value = value.fill_null(pa.scalar(1).cast(value.type))
    return value.to_numpy(zero_copy_only=False)


def _ones(column: Column) -> Column:
    """A column of numbers with the nulls of another."""
    if isinstance(column, np.ndarray):
        return np.ones(len(column), np.int8)
    return pc.if_else(column.is_valid(), pa.scalar(1, pa.int8()), None)


def _is_unknown(value: Any) -> bool:
    """Whether a column has nulls only, and no type that a schema declares."""
    return isinstance(value, pa.NullArray)


def _unknown(name: str, left: Any, right: Any) -> Column:
    """The results where one side has nulls only."""
    column, other = (left, right) if _is_unknown(left) else (right, left)
    kind = pa.bool_() if name in _COMPARISONS else _kind(other) or pa.null()
    return pa.nulls(len(column), kind)


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


def _kind(value: Any) -> pa.DataType | None:
    if isinstance(value, pa.Array | pa.Scalar):
        kind = value.type
        return kind.value_type if pa.types.is_dictionary(kind) else kind
    if isinstance(value, np.ndarray):
        return pa.from_numpy_dtype(value.dtype)
    return None


def _is_text(value: Any) -> bool:
    kind = _kind(value)
    if kind is None:
        return isinstance(value, str)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(value: Any) -> bool:
    kind = _kind(value)
    if kind is None:
        return isinstance(value, NUMBERS)
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def _is_decimal(value: Any) -> bool:
    kind = _kind(value)
    return kind is not None and bool(pa.types.is_decimal(kind))


def _joined(left: Any, right: Any) -> Column:
    """Texts one after the other."""
    sides = [_decoded(side) for side in (left, right)]
    kinds = [kind for side in sides if (kind := _kind(side)) is not None]
    kind = pa.large_string() if any(map(pa.types.is_large_string, kinds)) else pa.string()
    texts = [
        side.cast(kind) if isinstance(side, pa.Array) else pa.scalar(str(side), kind)
        for side in sides
    ]
    return as_column(pc.binary_join_element_wise(*texts, pa.scalar("", kind)))


def _decoded(value: Any) -> Any:
    """Values of a dictionary as they are: Arrow has few functions for dictionaries."""
    if isinstance(value, pa.DictionaryArray):
        return value.dictionary_decode()
    return value


def _named(value: Any) -> str:
    kind = _kind(value)
    if isinstance(value, pa.Scalar):
        return repr(value.as_py())
    return repr(value) if kind is None else str(kind)
