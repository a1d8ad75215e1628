"""Expressions: columns that are computed later, such as ``jt.col("price") * 2``.

An expression is a function of a batch, so it goes wherever one does. It is checked against a
stream's schema when the flow is built, as functions are: it is tried on an empty batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from jeton.columns import compute
from jeton.columns.column import bare, from_arrow
from jeton.columns.conditions import (
    COMPARISONS,
    Among,
    Compared,
    Condition,
    Null,
    is_constant,
)
from jeton.columns.hints import no_column_method
from jeton.columns.operations import Operations
from jeton.columns.series import Series
from jeton.core.errors import BatchError

if TYPE_CHECKING:
    from jeton.columns.batch import Batch


Comparison = tuple[str, str, str]
"""A column, an operator, and another column."""


class Expr(Operations):
    """A column that is computed from a batch: see `col`."""

    __slots__ = ("_compares", "_condition", "_evaluate", "_reads", "_shown")

    def __init__(
        self,
        evaluate: Callable[[Batch], Any],
        shown: str,
        reads: frozenset[str],
        condition: Condition | None = None,
        compares: Comparison | None = None,
    ) -> None:
        self._evaluate = evaluate
        self._shown = shown
        self._reads = reads
        self._condition = condition
        self._compares = compares

    def __call__(self, batch: Batch) -> Series:
        """The values for the records of a batch."""
        made = self._evaluate(batch)
        return made if type(made) is Series else Series(made)

    def _binary(self, name: str, other: Any, *, swapped: bool = False) -> Expr:
        left, right = (other, self) if swapped else (self, other)
        shown = f"({_shown(left)} {compute.SIGNS[name]} {_shown(right)})"

        if isinstance(other, Expr):
            return Expr(
                lambda batch: self(batch)._binary(name, other(batch)),
                shown,
                self._reads | other._reads,
                _joined(name, self._condition, other._condition),
                _comparison(self, name, other),
            )
        _refuse_none(other)
        compared = None
        if isinstance(self, Col) and name in COMPARISONS and not swapped and is_constant(other):
            compared = Compared(self.name, name, other)
        return Expr(
            lambda batch: self(batch)._binary(name, other, swapped=swapped),
            shown,
            self._reads,
            compared,
        )

    def _apply(self, function: Callable[..., Any], *args: Any, **options: Any) -> Expr:
        def evaluate(batch: Batch) -> Series:
            values = [each(batch) if isinstance(each, Expr) else each for each in args]
            return self(batch)._apply(function, *values, **options)

        given = [*map(_shown, args), *(f"{name}={value!r}" for name, value in options.items())]
        name = f"{self._shown}.{function.__name__}({', '.join(given)})"
        return Expr(evaluate, name, _read_by(self, *args), self._tested(function, args))

    def _tested(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Condition | None:
        """The condition that a function of it is, if it is one that bounds can refute."""
        if isinstance(self, Col) and function is compute.is_null:
            return Null(self.name)
        if isinstance(self, Col) and function is compute.is_in:
            return Among(self.name, args[0])
        if function is compute.invert and isinstance(self._condition, Null):
            return Null(self._condition.column, not self._condition.wanted)
        return None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_column_method("an expression", self, name)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented

        def evaluate(batch: Batch) -> Any:
            return ufunc(*(each(batch) if isinstance(each, Expr) else each for each in inputs))

        shown = f"{ufunc.__name__}({', '.join(map(_shown, inputs))})"
        return Expr(evaluate, shown, _read_by(*inputs))

    def __repr__(self) -> str:
        return self._shown


class Col(Expr):
    """A column as it is: see `col`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(lambda batch: batch[name], f"col({name!r})", frozenset((name,)))
        self.name = name


class When:
    """A condition that waits for its value: see `when`."""

    __slots__ = ("_cases", "_condition")

    def __init__(self, condition: Expr, cases: tuple[tuple[Expr, Any], ...] = ()) -> None:
        if not isinstance(condition, Expr):
            raise BatchError(
                "when() needs a condition such as col('n') > 1, or for a batch batch['n'] > 1, "
                f"not {condition!r}"
            )
        self._condition = condition
        self._cases = cases

    def then(self, value: Any) -> Then:
        """The value where the condition is true: a constant or an expression."""
        return Then((*self._cases, (self._condition, value)))


class Then(Expr):
    """Conditions with their values; a record for which none is true has a null."""

    __slots__ = ("_cases",)

    def __init__(self, cases: tuple[tuple[Expr, Any], ...], other: Any = None) -> None:
        def evaluate(batch: Batch) -> Any:
            made = _value(other, batch)
            for condition, value in reversed(cases):
                made = compute.choose(condition(batch).values, _value(value, batch), made)
            return made

        shown = "".join(f"when({c!r}).then({_shown(v)})." for c, v in cases)
        parts = [part for case in cases for part in case]
        super().__init__(evaluate, f"{shown}otherwise({_shown(other)})", _read_by(*parts, other))
        self._cases = cases

    def when(self, condition: Expr) -> When:
        """Another condition, for records for which none before is true."""
        return When(condition, self._cases)

    def otherwise(self, value: Any) -> Expr:
        """The value of all other records."""
        return Then(self._cases, value)


class WhenSeries:
    """A condition on the records of a batch that waits for its value: see `when`."""

    __slots__ = ("_cases", "_condition")

    def __init__(self, condition: Series, cases: tuple[tuple[Series, Any], ...] = ()) -> None:
        if not isinstance(condition, Series):
            raise BatchError(
                f"when() needs conditions such as batch['n'] > 1 for all of them, not {condition!r}"
            )
        self._condition = condition
        self._cases = cases

    def then(self, value: Any) -> ThenSeries:
        """The value where the condition is true: a constant or a column."""
        return ThenSeries((*self._cases, (self._condition, value)))


class ThenSeries(Series):
    """The values that conditions choose; a record for which none is true has a null."""

    __slots__ = ("_cases",)

    def __init__(self, cases: tuple[tuple[Series, Any], ...], other: Any = None) -> None:
        rows = cases[0][0]
        made = _value(other, rows)
        for condition, value in reversed(cases):
            made = compute.choose(condition.values, _value(value, rows), made)
        super().__init__(made)
        self._cases = cases

    def when(self, condition: Series) -> WhenSeries:
        """Another condition, for records for which none before is true."""
        return WhenSeries(condition, self._cases)

    def otherwise(self, value: Any) -> Series:
        """The value of all other records."""
        return ThenSeries(self._cases, value)


def col(name: str) -> Expr:
    """The column of a name, to compute with.

    >>> import jeton as jt
    >>> flow = jt.Flow("hot")
    >>> readings = flow.input("readings", schema={"room": str, "value": float})
    >>> hot = readings.filter((jt.col("room") == "attic") & (jt.col("value") > 30))
    >>> flow.output("hot", hot.with_columns(over=jt.col("value") - 30))
    >>> rows = {"time": [1, 2], "room": ["attic", "hall"], "value": [31.5, 35.0]}
    >>> flow.run({"readings": rows})["hot"].to_pylist()
    [{'time': 1, 'room': 'attic', 'value': 31.5, 'over': 1.5}]
    >>> readings.filter(jt.col("value") > "30")
    Traceback (most recent call last):
    jeton.core.errors.GraphError: double > '30': these do not go together ...
    """
    return Col(name)


@overload
def when(condition: Expr) -> When: ...
@overload
def when(condition: Series) -> WhenSeries: ...
def when(condition: Expr | Series) -> When | WhenSeries:
    """A value that depends on conditions; the first that is true counts.

    Conditions are all expressions, or in a function of a batch all columns.

    >>> import jeton as jt
    >>> size = jt.when(jt.col("n") > 9).then("large").when(jt.col("n") > 4).then("medium")
    >>> size.otherwise("small")(jt.Batch({"n": [2, 7, 12]}, times=[0, 0, 0])).to_list()
    ['small', 'medium', 'large']
    >>> batch = jt.Batch({"n": [2, 7]}, times=[0, 0])
    >>> jt.when(batch["n"] > 4).then(batch["n"]).otherwise(0).to_list()
    [0, 7]
    """
    return WhenSeries(condition) if isinstance(condition, Series) else When(condition)


def columns_read(function: object) -> frozenset[str] | None:
    """The columns that an expression reads; ``None`` if it is another function of batches.

    >>> sorted(columns_read(col("a") * 2 > col("b")))
    ['a', 'b']
    >>> columns_read(lambda batch: batch["a"])
    """
    return function._reads if isinstance(function, Expr) else None


def condition_of(function: object) -> Condition | None:
    """The condition of an expression that bounds of its columns can refute, if it has one.

    >>> condition_of((col("a") > 2) & (col("b") * 2 > 3))
    Compared(column='a', operator='gt', value=2)
    """
    return function._condition if isinstance(function, Expr) else None


def comparison_of(function: object) -> Comparison | None:
    """Two columns and the operator between them, if an expression compares them as they are.

    >>> comparison_of(col("a") >= col("b"))
    ('a', 'ge', 'b')
    >>> comparison_of(col("a") + 1 >= col("b"))
    """
    return function._compares if isinstance(function, Expr) else None


def _comparison(left: Expr, name: str, right: Expr) -> Comparison | None:
    if isinstance(left, Col) and isinstance(right, Col) and name in COMPARISONS:
        return left.name, name, right.name
    return None


def _read_by(*values: Any) -> frozenset[str]:
    return frozenset().union(*(value._reads for value in values if isinstance(value, Expr)))


def _joined(name: str, one: Condition | None, other: Condition | None) -> Condition | None:
    """The condition of two expressions that an operator joins."""
    if name == "and_":
        return other if one is None else one & other
    return one | other if name == "or_" and one is not None and other is not None else None


def _value(value: Any, batch: Batch | Series) -> Any:
    """The values of an expression, or a constant for all records."""
    if isinstance(value, Expr):
        if isinstance(batch, Series):
            raise BatchError(
                f"when() has a condition on a batch and the value {value!r}: use batch[…] in both"
            )
        return value(batch).values
    if isinstance(value, Series):
        return value.values
    return from_arrow(pa.repeat(pa.scalar(value), len(batch)))


def _shown(value: Any) -> str:
    return repr(bare(value))


def _refuse_none(value: Any) -> None:
    if value is None:
        raise BatchError("nothing equals None: use is_null() or is_not_null()")
