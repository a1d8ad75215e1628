"""Operations: the operators and methods that columns and expressions share.

`Series` does them at once, `Expr` notes them down; each is defined here once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from jeton.columns import compute, parsing
from jeton.columns.hints import Uncalled, no_column_method
from jeton.columns.types import as_type
from jeton.core.errors import ColumnTypeError

Of = TypeVar("Of", bound="Operations")


class Operations:
    """Operators and methods, record by record; a null makes null, as in SQL.

    Names are those of Polars.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    @abstractmethod
    def _binary(self, name: str, other: Any, *, swapped: bool = False) -> Self:
        """An operator of Python's `operator` module between this and another value."""

    @abstractmethod
    def _apply(self, function: Callable[..., Any], *args: Any, **options: Any) -> Self:
        """A function of `jeton.columns.compute` of this and other values."""

    # Operators

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self._binary("eq", other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self._binary("ne", other)

    def __lt__(self, other: Any) -> Self:
        return self._binary("lt", other)

    def __le__(self, other: Any) -> Self:
        return self._binary("le", other)

    def __gt__(self, other: Any) -> Self:
        return self._binary("gt", other)

    def __ge__(self, other: Any) -> Self:
        return self._binary("ge", other)

    def __add__(self, other: Any) -> Self:
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Self:
        return self._binary("add", other, swapped=True)

    def __sub__(self, other: Any) -> Self:
        return self._binary("sub", other)

    def __rsub__(self, other: Any) -> Self:
        return self._binary("sub", other, swapped=True)

    def __mul__(self, other: Any) -> Self:
        return self._binary("mul", other)

    def __rmul__(self, other: Any) -> Self:
        return self._binary("mul", other, swapped=True)

    def __truediv__(self, other: Any) -> Self:
        return self._binary("truediv", other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._binary("truediv", other, swapped=True)

    def __floordiv__(self, other: Any) -> Self:
        return self._binary("floordiv", other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._binary("floordiv", other, swapped=True)

    def __mod__(self, other: Any) -> Self:
        return self._binary("mod", other)

    def __rmod__(self, other: Any) -> Self:
        return self._binary("mod", other, swapped=True)

    def __pow__(self, other: Any) -> Self:
        return self._binary("pow", other)

    def __rpow__(self, other: Any) -> Self:
        return self._binary("pow", other, swapped=True)

    def __and__(self, other: Any) -> Self:
        return self._binary("and_", other)

    def __rand__(self, other: Any) -> Self:
        return self._binary("and_", other, swapped=True)

    def __or__(self, other: Any) -> Self:
        return self._binary("or_", other)

    def __ror__(self, other: Any) -> Self:
        return self._binary("or_", other, swapped=True)

    def __xor__(self, other: Any) -> Self:
        return self._binary("xor", other)

    def __rxor__(self, other: Any) -> Self:
        return self._binary("xor", other, swapped=True)

    def __invert__(self) -> Self:
        return self._apply(compute.invert)

    def __neg__(self) -> Self:
        return self._apply(compute.negate)

    def __abs__(self) -> Self:
        return self.abs()

    def __bool__(self) -> bool:
        raise ValueError("a column is neither true nor false: join conditions with & and |")

    # Nulls

    def is_null(self) -> Self:
        """Whether each value is null.

        >>> import jeton as jt
        >>> jt.Batch({"n": [1, None]}, times=[0, 0])["n"].is_null().to_list()
        [False, True]
        """
        return self._apply(compute.is_null)

    def is_not_null(self) -> Self:
        """Whether each value is not null.

        >>> import jeton as jt
        >>> jt.Batch({"n": [1, None]}, times=[0, 0])["n"].is_not_null().to_list()
        [True, False]
        """
        return ~self.is_null()

    def fill_null(self, value: Any) -> Self:
        """Another value, or that of another column, in the place of each null.

        >>> import jeton as jt
        >>> jt.Batch({"n": [1, None]}, times=[0, 0])["n"].fill_null(7).to_list()
        [1, 7]
        """
        return self._apply(compute.fill_null, value)

    def is_nan(self) -> Self:
        """Whether each value is NaN, which is not null.

        >>> import jeton as jt
        >>> jt.Batch({"n": [1.0, float("nan")]}, times=[0, 0])["n"].is_nan().to_list()
        [False, True]
        """
        return self._apply(compute.is_nan)

    # Values

    def is_in(self, values: Iterable[Any]) -> Self:
        """Whether each value is one of some.

        >>> import jeton as jt
        >>> jt.Batch({"k": ["a", "b"]}, times=[0, 0])["k"].is_in(["b", "c"]).to_list()
        [False, True]
        """
        if isinstance(values, Operations | str | bytes):
            raise ColumnTypeError("is_in takes a list of values, not a column or a single text")
        return self._apply(compute.is_in, list(values))

    def is_between(self, lower: Any, upper: Any) -> Self:
        """Whether each value is between two others, or equals one of them.

        >>> import jeton as jt
        >>> jt.Batch({"n": [1, 5, 9]}, times=[0, 0, 0])["n"].is_between(5, 9).to_list()
        [False, True, True]
        """
        return self._binary("ge", lower)._binary("and_", self._binary("le", upper))

    def cast(self, kind: Any) -> Self:
        """The values as another type; one that does not fit is an error.

        Timestamps with a zone are not cast to timestamps without one, nor the other way around:
        see ``.dt.replace_time_zone``. Their dates and texts are those of their own zone.

        >>> import jeton as jt
        >>> jt.Batch({"n": ["1", "2"]}, times=[0, 0])["n"].cast(int).to_list()
        [1, 2]
        """
        return self._apply(compute.cast, as_type(kind))

    def abs(self) -> Self:
        """The values without their signs.

        >>> import jeton as jt
        >>> jt.Batch({"n": [1, -2]}, times=[0, 0])["n"].abs().to_list()
        [1, 2]
        """
        return self._apply(compute.arrow, "abs_checked")

    def round(self, digits: int = 0) -> Self:
        """The values rounded; halves to even digits, as Python does.

        >>> import jeton as jt
        >>> jt.Batch({"x": [1.25, 2.0]}, times=[0, 0])["x"].round(1).to_list()
        [1.2, 2.0]
        """
        return self._apply(compute.arrow, "round", ndigits=digits, round_mode="half_to_even")

    def floor(self) -> Self:
        """The greatest whole number that is not above each value.

        >>> import jeton as jt
        >>> jt.Batch({"x": [1.5, -1.5]}, times=[0, 0])["x"].floor().to_list()
        [1.0, -2.0]
        """
        return self._apply(compute.arrow, "floor")

    def ceil(self) -> Self:
        """The least whole number that is not below each value.

        >>> import jeton as jt
        >>> jt.Batch({"x": [1.5, -1.5]}, times=[0, 0])["x"].ceil().to_list()
        [2.0, -1.0]
        """
        return self._apply(compute.arrow, "ceil")

    def sqrt(self) -> Self:
        """The square root of each value; NaN below zero.

        >>> import jeton as jt
        >>> jt.Batch({"x": [4.0]}, times=[0])["x"].sqrt().to_list()
        [2.0]
        """
        return self._apply(compute.arrow, "sqrt")

    def exp(self) -> Self:
        """The exponential of each value.

        >>> import jeton as jt
        >>> jt.Batch({"x": [0.0]}, times=[0])["x"].exp().to_list()
        [1.0]
        """
        return self._apply(compute.arrow, "exp")

    def log(self) -> Self:
        """The natural logarithm of each value; NaN below zero.

        >>> import jeton as jt
        >>> jt.Batch({"x": [1.0]}, times=[0])["x"].log().to_list()
        [0.0]
        """
        return self._apply(compute.arrow, "ln")

    def clip(self, lower: Any = None, upper: Any = None) -> Self:
        """The values, those below or above the bounds moved to them; ``None`` leaves a side open.

        >>> import jeton as jt
        >>> jt.Batch({"n": [1, 5, 9]}, times=[0, 0, 0])["n"].clip(2, 8).to_list()
        [2, 5, 8]
        """
        return self._apply(compute.clip, lower, upper)

    @property
    def str(self) -> Text[Self]:
        """Functions of text.

        >>> import jeton as jt
        >>> jt.Batch({"k": ["ab"]}, times=[0])["k"].str.to_uppercase().to_list()
        ['AB']
        """
        return Text(self)

    @property
    def dt(self) -> Dates[Self]:
        """Parts of timestamps and dates, in their own time zone.

        >>> import datetime, jeton as jt
        >>> jt.Batch({"d": [datetime.date(2024, 5, 6)]}, times=[0])["d"].dt.month().to_list()
        [5]
        """
        return Dates(self)


class Text(Generic[Of]):
    """Functions of text, as methods of ``.str``: see `Operations.str`."""

    __slots__ = ("_of",)

    def __init__(self, of: Of) -> None:
        self._of = of

    if not TYPE_CHECKING:

        def __getattribute__(self, name: str) -> Any:
            found = object.__getattribute__(self, name)
            return found if name.startswith("_") else Uncalled(found, f".str.{name}")

        def __getattr__(self, name: str) -> Any:
            raise no_column_method(".str", self, name)

    def len_chars(self) -> Of:
        """How many characters each text has.

        >>> import jeton as jt
        >>> jt.Batch({"k": ["ab", "ü"]}, times=[0, 0])["k"].str.len_chars().to_list()
        [2, 1]
        """
        return self._of._apply(compute.text, "utf8_length").cast(int)

    def to_uppercase(self) -> Of:
        """Each text in capital letters.

        >>> import jeton as jt
        >>> jt.Batch({"k": ["ab"]}, times=[0])["k"].str.to_uppercase().to_list()
        ['AB']
        """
        return self._of._apply(compute.text, "utf8_upper")

    def to_lowercase(self) -> Of:
        """Each text in small letters.

        >>> import jeton as jt
        >>> jt.Batch({"k": ["AB"]}, times=[0])["k"].str.to_lowercase().to_list()
        ['ab']
        """
        return self._of._apply(compute.text, "utf8_lower")

    def strip_chars(self, characters: str | None = None) -> Of:
        """Each text without white space, or some characters, at its ends.

        >>> import jeton as jt
        >>> jt.Batch({"k": [" ab "]}, times=[0])["k"].str.strip_chars().to_list()
        ['ab']
        """
        if characters is None:
            return self._of._apply(compute.text, "utf8_trim_whitespace")
        return self._of._apply(compute.text, "utf8_trim", characters=characters)

    def contains(self, pattern: str, *, literal: bool = False) -> Of:
        """Whether each text has a match of a regular expression, or a text as it is.

        >>> import jeton as jt
        >>> words = jt.Batch({"k": ["a.b", "ab"]}, times=[0, 0])["k"]
        >>> words.str.contains("^a.?b$").to_list(), words.str.contains(".", literal=True).to_list()
        ([True, True], [True, False])
        """
        function = "match_substring" if literal else "match_substring_regex"
        return self._of._apply(compute.text, function, pattern=pattern)

    def starts_with(self, prefix: str) -> Of:
        """Whether each text begins with another.

        >>> import jeton as jt
        >>> jt.Batch({"k": ["ab", "b"]}, times=[0, 0])["k"].str.starts_with("a").to_list()
        [True, False]
        """
        return self._of._apply(compute.text, "starts_with", pattern=prefix)

    def ends_with(self, suffix: str) -> Of:
        """Whether each text ends with another.

        >>> import jeton as jt
        >>> jt.Batch({"k": ["ab", "a"]}, times=[0, 0])["k"].str.ends_with("b").to_list()
        [True, False]
        """
        return self._of._apply(compute.text, "ends_with", pattern=suffix)

    def replace_all(self, pattern: str, value: str, *, literal: bool = False) -> Of:
        """Each text with another in the place of all matches.

        >>> import jeton as jt
        >>> jt.Batch({"k": ["a-b-c"]}, times=[0])["k"].str.replace_all("-", "").to_list()
        ['abc']
        """
        function = "replace_substring" if literal else "replace_substring_regex"
        return self._of._apply(compute.text, function, pattern=pattern, replacement=value)

    def slice(self, offset: int, length: int | None = None) -> Of:
        """The characters of each text from a place on, at most some.

        >>> import jeton as jt
        >>> jt.Batch({"k": ["abcd"]}, times=[0])["k"].str.slice(1, 2).to_list()
        ['bc']
        """
        stop = None if length is None else offset + length
        if length is not None and offset < 0 <= offset + length:
            stop = None
        return self._of._apply(compute.text, "utf8_slice_codeunits", start=offset, stop=stop)

    def to_datetime(self, format: str = "", *, unit: str = "us", strict: bool = True) -> Of:
        """Timestamps that texts show in a format of ``datetime.strptime``.

        Other texts, such as a 30 February, are an error, or null if ``strict`` is false. ``%f`` is
        a fraction of a second with up to nine digits, as many as the ``unit`` has. With ``%z``,
        timestamps are in UTC.

        >>> import jeton as jt
        >>> days = jt.Batch({"k": ["2024-05-06"]}, times=[0])["k"].str.to_datetime("%Y-%m-%d")
        >>> days.dt.day().to_list()
        [6]
        >>> texts = jt.Batch({"k": ["07:08:09.25", "07:08:60.0"]}, times=[0, 0])["k"]
        >>> texts.str.to_datetime("%H:%M:%S.%f", strict=False).dt.second().to_list()
        [9, None]
        """
        if not format:
            raise ColumnTypeError(
                "to_datetime needs the format of the texts, as in "
                ".str.to_datetime('%Y-%m-%dT%H:%M:%S'), with '.%f' for parts of a second and '%z' "
                "for a zone"
            )
        if unit not in ("s", "ms", "us", "ns"):
            raise ColumnTypeError(f"to_datetime: unit={unit!r} is not one of s, ms, us and ns")
        return self._of._apply(parsing.to_datetime, format, unit, strict)


class Dates(Generic[Of]):
    """Parts of timestamps and dates, as methods of ``.dt``: see `Operations.dt`."""

    __slots__ = ("_of",)

    def __init__(self, of: Of) -> None:
        self._of = of

    if not TYPE_CHECKING:

        def __getattribute__(self, name: str) -> Any:
            found = object.__getattribute__(self, name)
            return found if name.startswith("_") else Uncalled(found, f".dt.{name}")

        def __getattr__(self, name: str) -> Any:
            raise no_column_method(".dt", self, name)

    def year(self) -> Of:
        """The year of each.

        >>> import datetime, jeton as jt
        >>> jt.Batch({"d": [datetime.date(2024, 5, 6)]}, times=[0])["d"].dt.year().to_list()
        [2024]
        """
        return self._of._apply(compute.moment, "year")

    def month(self) -> Of:
        """The month of each, from 1 to 12.

        >>> import datetime, jeton as jt
        >>> jt.Batch({"d": [datetime.date(2024, 5, 6)]}, times=[0])["d"].dt.month().to_list()
        [5]
        """
        return self._of._apply(compute.moment, "month")

    def day(self) -> Of:
        """The day of the month of each, from 1 to 31.

        >>> import datetime, jeton as jt
        >>> jt.Batch({"d": [datetime.date(2024, 5, 6)]}, times=[0])["d"].dt.day().to_list()
        [6]
        """
        return self._of._apply(compute.moment, "day")

    def weekday(self) -> Of:
        """The day of the week of each, from 1 for Monday to 7 for Sunday.

        >>> import datetime, jeton as jt
        >>> jt.Batch({"d": [datetime.date(2024, 5, 6)]}, times=[0])["d"].dt.weekday().to_list()
        [1]
        """
        return self._of._apply(compute.moment, "day_of_week", count_from_zero=False)

    def hour(self) -> Of:
        """The hour of each, from 0 to 23.

        >>> import datetime, jeton as jt
        >>> jt.Batch({"d": [datetime.datetime(2024, 5, 6, 7)]}, times=[0])["d"].dt.hour().to_list()
        [7]
        """
        return self._of._apply(compute.moment, "hour")

    def minute(self) -> Of:
        """The minute of each, from 0 to 59.

        >>> import datetime, jeton as jt
        >>> at = jt.Batch({"d": [datetime.datetime(2024, 5, 6, 7, 8)]}, times=[0])["d"]
        >>> at.dt.minute().to_list()
        [8]
        """
        return self._of._apply(compute.moment, "minute")

    def second(self) -> Of:
        """The second of each, from 0 to 59.

        >>> import datetime, jeton as jt
        >>> at = jt.Batch({"d": [datetime.datetime(2024, 5, 6, 7, 8, 9)]}, times=[0])["d"]
        >>> at.dt.second().to_list()
        [9]
        """
        return self._of._apply(compute.moment, "second")

    def convert_time_zone(self, zone: str) -> Of:
        """The same instants, as the clocks of another zone show them.

        >>> import jeton as jt, pyarrow as pa
        >>> at = jt.Batch({"d": pa.array([0], pa.timestamp("s", "UTC"))}, times=[0])["d"]
        >>> at.dt.convert_time_zone("Europe/Berlin").dt.hour().to_list()
        [1]
        """
        return self._of._apply(compute.convert_time_zone, zone)

    def replace_time_zone(self, zone: str | None) -> Of:
        """The times that clocks show, as those of another zone; without one if it is ``None``.

        A time that the clocks of the zone show twice or never is an error.

        >>> import datetime, jeton as jt
        >>> at = jt.Batch({"d": [datetime.datetime(2024, 5, 6, 7)]}, times=[0])["d"]
        >>> instants = at.dt.replace_time_zone("Europe/Berlin")
        >>> instants.dt.convert_time_zone("UTC").dt.replace_time_zone(None).to_list()
        [datetime.datetime(2024, 5, 6, 5, 0)]
        """
        return self._of._apply(compute.replace_time_zone, zone)

    def date(self) -> Of:
        """The date of each.

        >>> import datetime, jeton as jt
        >>> jt.Batch({"d": [datetime.datetime(2024, 5, 6, 7)]}, times=[0])["d"].dt.date().to_list()
        [datetime.date(2024, 5, 6)]
        """
        return self._of._apply(compute.date)
