"""Hints for methods that a column does not have, and for methods that were not called.

Users of pandas, Polars and PySpark try the names that they know: the error names ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from jeton.core.checks import suggestion
from jeton.core.errors import ColumnTypeError

_ELSEWHERE: Final = {
    "alias": "with_columns(name=…), which names a column",
    "apply": "with_columns(name=lambda batch: …), or jt.kernel for single values",
    "astype": "cast(…)",
    "between": "is_between(…)",
    "count_distinct": "count_distinct(…) of a keyed stream's groups",
    "diff": "stateful_map(…) of a keyed stream",
    "dropna": "filter(jt.col(…).is_not_null()) of a stream",
    "drop_nulls": "filter(jt.col(…).is_not_null()) of a stream",
    "drop_duplicates": "distinct(…) of a stream",
    "eqNullSafe": "== and is_null()",
    "fillna": "fill_null(…)",
    "is_not_nan": "~….is_nan()",
    "isNaN": "is_nan()",
    "isNotNull": "is_not_null()",
    "isNull": "is_null()",
    "isin": "is_in(…)",
    "isna": "is_null()",
    "isnan": "is_nan()",
    "isnull": "is_null()",
    "map": "with_columns(name=lambda batch: …), or jt.kernel for single values",
    "map_elements": "with_columns(name=lambda batch: …), or jt.kernel for single values",
    "notna": "is_not_null()",
    "notnull": "is_not_null()",
    "nunique": "count_distinct(…) of a keyed stream's groups",
    "n_unique": "count_distinct(…) of a keyed stream's groups",
    "otherwise": "jt.when(…).then(…).otherwise(…)",
    "rolling": "rolling(…) of a keyed stream",
    "shift": "stateful_map(…) of a keyed stream",
    "unique": "distinct(…) of a stream",
    "value_counts": "key_by(…).running().count() of a stream",
    "where": "jt.when(…).then(…).otherwise(…)",
}
_TEXT: Final = {
    "endswith": "ends_with(…)",
    "len": "len_chars()",
    "length": "len_chars()",
    "lower": "to_lowercase()",
    "match": "contains(…)",
    "replace": "replace_all(…)",
    "startswith": "starts_with(…)",
    "strip": "strip_chars()",
    "strptime": "to_datetime(format)",
    "substr": "slice(…)",
    "to_date": "to_datetime(format).dt.date()",
    "trim": "strip_chars()",
    "upper": "to_uppercase()",
}
_DATES: Final = {
    "dayofweek": "weekday()",
    "day_of_week": "weekday()",
    "tz_convert": "convert_time_zone(…)",
    "tz_localize": "replace_time_zone(…)",
}
"""The names of other libraries, and what does the same here."""
_AGGREGATES: Final = frozenset(
    (
        "count",
        "cum_sum",
        "cumsum",
        "first",
        "last",
        "max",
        "mean",
        "median",
        "min",
        "std",
        "sum",
        "var",
    )
)


def no_column_method(what: str, owner: object, name: str) -> AttributeError:
    """The error for a method that ``what`` does not have, but another library.

    >>> import jeton as jt
    >>> print(no_column_method("an expression", jt.col("n"), "isin"))
    an expression has no 'isin': use is_in(…)
    """
    if name.startswith("_"):
        return AttributeError(f"{what} has no {name!r}")
    known = {".str": _TEXT, ".dt": _DATES}.get(what, _ELSEWHERE)
    if name in known:
        return AttributeError(f"{what} has no {name!r}: use {known[name]}")
    if what == "an expression" and name in _AGGREGATES:
        return AttributeError(
            f"{what} has no {name!r}: aggregates belong to groups, as in "
            "key_by('item').tumbling(10).sum('n') or key_by('item').running().sum('n')"
        )
    names = [each for each in dir(owner) if not each.startswith("_")]
    return AttributeError(f"{what} has no {name!r}{suggestion(name, names)}")


class Uncalled:
    """A method of ``.str`` or ``.dt``, which must be called before it is computed with.

    >>> import jeton as jt
    >>> jt.col("at").dt.hour > 7
    Traceback (most recent call last):
    jeton.core.errors.ColumnTypeError: .dt.hour is a method: write .dt.hour(…)
    """

    __slots__ = ("_method", "_name")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, method: Callable[..., Any], name: str) -> None:
        self._method = method
        self._name = name

    def __call__(self, *args: Any, **options: Any) -> Any:
        """The result of the method."""
        if args and hasattr(args[0], "time_name"):
            self._refuse()  # in the place of a function of a batch
        return self._method(*args, **options)

    def _refuse(self, *_: Any) -> NoReturn:
        raise ColumnTypeError(f"{self._name} is a method: write {self._name}(…)")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            return getattr(self._method, name)
        return self._refuse()
