"""Steps of random pipelines: what each does to a stream's columns, and how Jeton is asked for it.

`sql.py` says the same in SQL, from the definitions in docs/guide.md alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

import jeton as jt
from tests.oracle.expressions import Expression, built


@dataclass(frozen=True)
class Tolerance:
    """How far a column's values may be from the expected ones, beside the rounding of sums."""

    relative: float = 1e-12
    absolute: float = 0.0
    squared: bool = False
    """Whether values are squares, whose roots are compared."""


ROUNDED = Tolerance()
"""Values whose last digits depend on the order of additions."""


@dataclass(frozen=True)
class Shape:
    """The known properties of a stream: its value columns and their limits."""

    columns: Mapping[str, pa.DataType]
    distinct: bool = False
    """Whether no two records have the same time."""
    inexact: Mapping[str, Tolerance] = field(default_factory=dict)
    """Columns whose values are not compared exactly."""
    times: frozenset[str] = frozenset()
    """Columns that hold times."""
    timeless: bool = False
    """Whether the times of records depend on the order of arrival."""
    learnt: frozenset[str] = frozenset()
    """Columns whose type follows from plain Python values, and is null if there are none."""
    unit: str | None = None
    """The unit of the times, if they are timestamps."""

    def keep(self, names: list[str]) -> Shape:
        """Only some of the columns."""
        return replace(self, columns={name: self.columns[name] for name in names})

    def add(self, more: Mapping[str, pa.DataType]) -> Shape:
        """More columns."""
        return replace(self, columns={**self.columns, **more})


def lasting(flow: jt.Flow, length: int) -> Any:
    """A length of time as the flow takes it: a duration, if its times are timestamps."""
    unit: Any = flow.domain.unit
    return np.timedelta64(length, unit) if flow.domain.stamps else length


@dataclass(frozen=True)
class Condition:
    """A condition on one column, as a user writes it with Arrow's functions."""

    column: str
    how: str
    """``==``, ``<``, ``null`` or ``flag``."""
    value: Any = None

    def mask(self, batch: jt.Batch) -> Any:
        column = batch[self.column]
        if self.how == "null":
            return column.is_null()
        if self.how == "flag":
            return column
        value = pa.scalar(self.value, column.type)
        return column == value if self.how == "==" else column < value


@dataclass(frozen=True)
class Filter:
    """Records for which a condition holds."""

    condition: Condition

    def shapes(self, shape: Shape) -> list[Shape]:
        return [shape]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        by_name = self.condition.how == "flag"
        return [stream.filter(self.condition.column if by_name else self.condition.mask)]


@dataclass(frozen=True)
class FilterBy:
    """Records for which an expression is true."""

    expression: Expression
    function: bool
    """Whether it is a function of a batch."""

    def shapes(self, shape: Shape) -> list[Shape]:
        return [shape]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        return [stream.filter(computed(self.expression, function=self.function))]


@dataclass(frozen=True)
class Compute:
    """One more column: the values of an expression."""

    name: str
    expression: Expression
    function: bool

    def shapes(self, shape: Shape) -> list[Shape]:
        return [shape.add({self.name: self.expression.kind})]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        made = computed(self.expression, function=self.function)
        return [stream.with_columns({self.name: made})]


def computed(expression: Expression, *, function: bool) -> Any:
    """An expression of `jt.col`, or a function of a batch that does the same."""
    if function:
        return lambda batch: built(expression, batch.__getitem__)
    return built(expression, jt.col)


@dataclass(frozen=True)
class Branch:
    """Records for which a condition does not hold, and those for which it does."""

    condition: Condition

    def shapes(self, shape: Shape) -> list[Shape]:
        return [shape, shape]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        return list(stream.branch(self.condition.mask))


@dataclass(frozen=True)
class Partition:
    """Streams by the time modulo their number."""

    parts: int

    def shapes(self, shape: Shape) -> list[Shape]:
        return [shape] * self.parts

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        parts = self.parts
        return list(stream.partition(parts, lambda batch: batch.times % parts))


@dataclass(frozen=True)
class Concat:
    """The records of several streams with the same columns."""

    def shapes(self, shape: Shape, *others: Shape) -> list[Shape]:
        return [replace(shape, distinct=False)]

    def build(self, stream: jt.Stream, *others: jt.Stream) -> list[jt.Stream]:
        return [stream.concat(*others)]


@dataclass(frozen=True)
class Select:
    """Some of the columns."""

    names: tuple[str, ...]
    drop: bool = False

    def kept(self, shape: Shape) -> list[str]:
        return [n for n in shape.columns if (n in self.names) != self.drop]

    def shapes(self, shape: Shape) -> list[Shape]:
        return [shape.keep(self.kept(shape))]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        return [stream.drop(*self.names) if self.drop else stream.select(*self.names)]


@dataclass(frozen=True)
class Rename:
    """A column under another name."""

    old: str
    new: str

    def _set(self, names: frozenset[str]) -> frozenset[str]:
        return frozenset(self.new if name == self.old else name for name in names)

    def shapes(self, shape: Shape) -> list[Shape]:
        columns = {self.new if n == self.old else n: kind for n, kind in shape.columns.items()}
        inexact = {self.new if n == self.old else n: x for n, x in shape.inexact.items()}
        times = self._set(shape.times)
        return [replace(shape, columns=columns, inexact=inexact, times=times)]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        return [stream.rename({self.old: self.new})]


@dataclass(frozen=True)
class WithColumn:
    """One more column: a constant, the time, or a function of another column."""

    name: str
    how: str
    """``constant``, ``time``, ``null`` or ``length``."""
    value: Any = None

    def shapes(self, shape: Shape) -> list[Shape]:
        types = {"time": pa.int64(), "null": pa.bool_(), "length": pa.int64()}
        kind = types.get(self.how) or pa.scalar(self.value).type
        shape = shape.add({self.name: kind})
        return [replace(shape, times=shape.times | {self.name}) if self.how == "time" else shape]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        how, value = self.how, self.value

        def make(batch: jt.Batch) -> Any:
            if how == "time":
                return batch.times
            column = batch[value]
            return column.str.len_chars() if how == "length" else column.is_null()

        return [stream.with_columns({self.name: value if how == "constant" else make})]


@dataclass(frozen=True)
class MapRows:
    """Plain Python for each record: leaves out those with a null in a column."""

    column: str
    schema: bool

    def shapes(self, shape: Shape) -> list[Shape]:
        kind = shape.columns[self.column]
        distinct, times = shape.distinct, shape.times & {self.column}
        inexact = {n: x for n, x in shape.inexact.items() if n == self.column}
        columns = {self.column: kind, "was_there": pa.bool_()}
        return [Shape(columns, distinct, inexact, times, unit=shape.unit)]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        column = self.column

        def each(row: dict[str, Any]) -> dict[str, Any] | None:
            value = row[column]
            return None if value is None else {column: value, "was_there": True}

        if not self.schema:
            return [stream.map_rows(each)]
        assert stream.schema is not None
        schema = {column: stream.schema.field(column).type, "was_there": pa.bool_()}
        return [stream.map_rows(each, schema=schema)]


@dataclass(frozen=True)
class Explode:
    """A record for each element of a column of lists."""

    column: str

    def shapes(self, shape: Shape) -> list[Shape]:
        columns = {
            name: kind.value_type if name == self.column else kind
            for name, kind in shape.columns.items()
        }
        return [replace(shape, columns=columns, distinct=False)]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        return [stream.explode(self.column)]


@dataclass(frozen=True)
class Delay:
    """Records at later times."""

    by: int

    def shapes(self, shape: Shape) -> list[Shape]:
        return [shape]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        by = self.by
        return [stream.delay(lambda batch: batch.times + by)]


@dataclass(frozen=True)
class Shuffle:
    """Records moved between workers: nothing else may change."""

    key: tuple[str, ...]

    def shapes(self, shape: Shape) -> list[Shape]:
        return [shape]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        return [stream.exchange(*self.key)]
