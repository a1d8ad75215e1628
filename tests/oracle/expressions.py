"""Random expressions over columns, as users write them with `jt.col` or in functions of a batch."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

import jeton as jt
from tests.oracle.choices import Choices

OPERATORS: dict[str, Callable[..., Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "~": operator.invert,
    "neg": operator.neg,
}
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
DATES = ("year", "month", "day", "weekday")
MOMENTS = (*DATES, "hour", "minute", "second", "date")

_UTC = dt.UTC
_TEXTS = ("a", "", "b", "ä", "ß", "Z", "😀")
_NUMBERS = (0.0, 1.0, 0.5, -2.25, 1e6)
_DAYS = (dt.date(2026, 3, 29), dt.date(1969, 12, 31))
_INSTANTS = (dt.datetime(2026, 3, 29, 2), dt.datetime(1970, 1, 1), dt.datetime(1843, 3, 31))


@dataclass(frozen=True)
class Expression:
    """An operation on others and on plain values, and the type of its results."""

    op: str
    """``column``, ``case``, one of `OPERATORS`, or a method such as ``str.slice``."""
    kind: pa.DataType
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.args))})"


def built(of: Expression, column: Callable[[str], Any]) -> Any:
    """The expression over columns that a function finds by name."""
    if of.op == "column":
        return column(of.args[0])
    parts = [built(each, column) if isinstance(each, Expression) else each for each in of.args]
    if of.op in OPERATORS:
        return OPERATORS[of.op](*parts)
    if of.op == "case":
        return jt.when(parts[0]).then(parts[1]).otherwise(parts[2])
    method = parts[0]
    for name in of.op.split("."):
        method = getattr(method, name)
    options = {"literal": True} if of.op in ("str.contains", "str.replace_all") else {}
    return method(*parts[1:], **options)


class Writer:
    """Writes expressions over the columns of a stream."""

    def __init__(
        self,
        choices: Choices,
        columns: Mapping[str, pa.DataType],
        *,
        cases: bool,
        durations: bool,
    ) -> None:
        self._choices = choices
        self._columns = {
            name: Expression("column", kind, (name,)) for name, kind in columns.items()
        }
        self._cases = cases
        """Whether ``when`` may be used, which functions of a batch do not have."""
        self._durations = durations
        """Whether results may be durations."""

    def condition(self, depth: int = 2) -> Expression | None:
        """A condition, if there are columns for one."""
        choices = self._choices
        options: list[Callable[[], Expression | None]] = [self._comparison, self._test]
        if depth:
            options += [lambda: self._joined(depth), lambda: self._inverted(depth)]
        return choices.one_of(options)() or self._test()

    def value(self) -> Expression | None:
        """Values of any type, if there are columns for them."""
        options = [
            self._number, self._text, self._part, self._moved, self._filled, self.condition
        ]  # fmt: skip
        for make in self._choices.shuffled(options):
            found = make()
            if found is not None:
                return found
        return None

    # Conditions

    def _joined(self, depth: int) -> Expression | None:
        left, right = self.condition(depth - 1), self.condition(depth - 1)
        if left is None or right is None:
            return left or right
        return Expression(self._choices.one_of(["&", "|", "^"]), pa.bool_(), (left, right))

    def _inverted(self, depth: int) -> Expression | None:
        of = self.condition(depth - 1)
        return None if of is None else Expression("~", pa.bool_(), (of,))

    def _comparison(self) -> Expression | None:
        choices = self._choices
        left = self._column(lambda kind: bool(constants(kind)))
        if left is None:
            return None
        if is_number(left.kind) and choices.chance(40):
            left = self._number() or left
        constant = choices.one_of(constants(left.kind))
        if pa.types.is_integer(left.kind) and choices.chance(20):
            constant = 0.5
        mixed = (left.kind, pa.float64()) if left.kind == pa.int64() else (left.kind,)
        others = self._all(lambda kind: kind in mixed)
        right = choices.one_of(others) if others and choices.chance(40) else constant
        if choices.chance(15) and left.kind != pa.bool_() and not pa.types.is_decimal(left.kind):
            bounds = (left, constant, choices.one_of(constants(left.kind)))
            return Expression("is_between", pa.bool_(), bounds)
        return Expression(choices.one_of(COMPARISONS), pa.bool_(), (left, right))

    def _test(self) -> Expression | None:
        choices = self._choices
        found: list[tuple[str, tuple[Any, ...]]] = []
        if self._columns:
            how = choices.one_of(["is_null", "is_not_null"])
            found.append((how, (choices.one_of(list(self._columns.values())),)))
        text = self._column(is_text)
        if text is not None:
            how = choices.one_of(["str.contains", "str.starts_with", "str.ends_with"])
            found.append((how, (text, choices.one_of(_TEXTS))))
        known = self._column(lambda kind: is_number(kind) or is_text(kind))
        if known is not None:
            found.append(("is_in", (known, choices.some_of(constants(known.kind), 0, 3))))
        number = self._column(pa.types.is_float64)
        if number is not None:
            found.append(("is_nan", (number,)))
        flag = self._column(pa.types.is_boolean)
        if flag is not None:
            found.append(("~", (flag,)))
        if not found:
            return None
        how, args = choices.one_of(found)
        return Expression(how, pa.bool_(), args)

    # Values

    def _number(self) -> Expression | None:
        choices = self._choices
        left = self._column(is_number)
        if left is None:
            return None
        kind = left.kind
        alike = self._all(lambda other: other == kind)
        right: Any = choices.one_of(alike) if choices.chance(30) else choices.one_of([1, 7, 3, 0])
        if pa.types.is_floating(kind):
            return self._floating(left, right)
        how = choices.one_of(["+", "-", "*", "//", "%", "neg", "abs", "/", "cast", "clip"])
        if how == "neg" or (how == "abs" and pa.types.is_signed_integer(kind)):
            return Expression(how, kind, (left,))
        if how == "cast":
            to = choices.one_of([float, str])
            return Expression("cast", pa.float64() if to is float else pa.string(), (left, to))
        if how == "clip":
            return Expression("clip", kind, (left, 1, 3))
        if how == "/":
            if kind != pa.int64():
                left = Expression("cast", pa.float64(), (left, float))
            return Expression("/", pa.float64(), (left, right))
        if pa.types.is_uint64(kind) and how == "*":
            right = choices.one_of([0, 1, 7])
        return Expression("+" if how == "abs" else how, kind, (left, right))

    def _floating(self, left: Expression, right: Any) -> Expression:
        hows = ["+", "-", "*", "/", "neg", "abs"]
        if left.kind == pa.float64():
            hows += ["floor", "ceil", "sqrt", "round", "clip", "case"]
        how = self._choices.one_of(hows)
        if how == "clip":
            return Expression("clip", pa.float64(), (left, -1.5, 1.0))
        if how == "case":
            condition = self.condition(1) if self._cases else None
            return left if condition is None else (
                Expression("case", pa.float64(), (condition, left, 0.5))
            )  # fmt: skip
        args = (left, right) if how in ("+", "-", "*", "/") else (left,)
        return Expression(how, left.kind, args)

    def _text(self) -> Expression | None:
        choices, left = self._choices, self._column(is_text)
        if left is None:
            return None
        options: list[tuple[str, pa.DataType, tuple[Any, ...]]] = [
            ("str.len_chars", pa.int64(), ()),
            ("str.to_uppercase", pa.string(), ()),
            ("str.to_lowercase", pa.string(), ()),
            ("str.strip_chars", pa.string(), ()),
            ("str.replace_all", pa.string(), ("a", "xy")),
            ("str.slice", pa.string(), (choices.integer(0, 2), choices.integer(0, 2))),
            ("+", pa.string(), (choices.one_of([*self._all(is_text), "é"]),)),
        ]
        how, kind, args = choices.one_of(options)
        return Expression(how, kind, (left, *args))

    def _part(self) -> Expression | None:
        left = self._column(lambda kind: pa.types.is_timestamp(kind) or pa.types.is_date32(kind))
        if left is None:
            return None
        part = self._choices.one_of(DATES if pa.types.is_date32(left.kind) else MOMENTS)
        return Expression(f"dt.{part}", pa.date32() if part == "date" else pa.int64(), (left,))

    def _moved(self) -> Expression | None:
        """Timestamps that are moved, or their distances from one."""
        choices, left = self._choices, self._column(pa.types.is_timestamp)
        if left is None:
            return None
        # Python's own have microseconds.
        unit = left.kind.unit if left.kind.unit == "ns" else "us"
        if self._durations and choices.chance(50):
            return Expression("-", pa.duration(unit), (left, choices.one_of(constants(left.kind))))
        by = choices.one_of([dt.timedelta(hours=1), dt.timedelta(microseconds=-1)])
        return Expression("+", pa.timestamp(unit, left.kind.tz), (left, by))

    def _filled(self) -> Expression | None:
        choices = self._choices
        left = self._column(lambda kind: bool(constants(kind)) and not pa.types.is_float32(kind))
        if left is None:
            return None
        kind = pa.string() if is_text(left.kind) else left.kind
        others = self._all(lambda other: other == left.kind)
        by = choices.one_of(others) if choices.chance(40) else choices.one_of(constants(left.kind))
        return Expression("fill_null", kind, (left, by))

    def _all(self, fits: Callable[[pa.DataType], bool]) -> list[Expression]:
        return [column for column in self._columns.values() if fits(column.kind)]

    def _column(self, fits: Callable[[pa.DataType], bool]) -> Expression | None:
        found = self._all(fits)
        return self._choices.one_of(found) if found else None


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or kind in (pa.float32(), pa.float64()))


def is_text(kind: pa.DataType) -> bool:
    types = pa.types
    plain = kind.value_type if types.is_dictionary(kind) else kind
    return any(
        fits(plain) for fits in (types.is_string, types.is_large_string, types.is_string_view)
    )


def constants(kind: pa.DataType) -> tuple[Any, ...]:
    """Plain values that can be compared with a column."""
    if pa.types.is_integer(kind):
        return (1, 0, 2, 7, 3)
    if pa.types.is_floating(kind) and not pa.types.is_float16(kind):
        return _NUMBERS
    if is_text(kind):
        return _TEXTS
    if pa.types.is_boolean(kind):
        return (True, False)
    if pa.types.is_date32(kind):
        return _DAYS
    if pa.types.is_timestamp(kind):
        return tuple(at if kind.tz is None else at.replace(tzinfo=_UTC) for at in _INSTANTS)
    if kind == pa.decimal128(9, 2):
        return (Decimal("1.50"), Decimal("0.00"))
    return ()
