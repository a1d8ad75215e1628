"""Steps of random pipelines: what each does to a stream's columns, and how Jeton is asked for it.

`sql.py` says the same in SQL, from the definitions in docs/guide.md alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import jeton as jt
from tests.oracle.tables import TIME



@dataclass(frozen=True)
class Shape:
    """What is known of a stream beforehand: its value columns and what may be said of them."""

    columns: Mapping[str, pa.DataType]
    distinct: bool = False
    """Whether no two records have the same time."""
    inexact: frozenset[str] = frozenset()
    """Columns whose last digits depend on the order of additions."""
    times: frozenset[str] = frozenset()
    """Columns that hold times."""
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


@dataclass(frozen=True)
class Condition:
    """A condition on one column, as a user writes it with Arrow's functions."""

    column: str
    how: str
    """``==``, ``<``, ``null`` or ``flag``."""
    value: Any = None

    def mask(self, batch: jt.Batch) -> Any:
        column = batch[self.column]
        values = pa.array(column) if isinstance(column, np.ndarray) else column
        if self.how == "null":
            return pc.is_null(values)
        if self.how == "flag":
            return values
        compare = pc.equal if self.how == "==" else pc.less
        return compare(values, pa.scalar(self.value, values.type))


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
        inexact, times = self._set(shape.inexact), self._set(shape.times)
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
        types = {"time": pa.int64(), "null": pa.bool_(), "length": pa.int32()}
        kind = types.get(self.how) or pa.scalar(self.value).type
        shape = shape.add({self.name: kind})
        return [replace(shape, times=shape.times | {self.name}) if self.how == "time" else shape]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        how, value = self.how, self.value

        def make(batch: jt.Batch) -> Any:
            if how == "time":
                return batch.times
            column = batch[value]
            if how == "length":
                return pc.utf8_length(column)
            return pc.is_null(pa.array(column) if isinstance(column, np.ndarray) else column)

        return [stream.with_columns({self.name: value if how == "constant" else make})]


@dataclass(frozen=True)
class MapRows:
    """Plain Python for each record: leaves out nulls of a column, doubles the records of another."""

    column: str
    schema: bool

    def shapes(self, shape: Shape) -> list[Shape]:
        kind = shape.columns[self.column]
        distinct, inexact = shape.distinct, shape.inexact & {self.column}
        times = shape.times & {self.column}
        columns = {self.column: kind, "seen": pa.bool_()}
        return [Shape(columns, distinct, inexact, times, unit=shape.unit)]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        column = self.column

        def each(row: dict[str, Any]) -> dict[str, Any] | None:
            value = row[column]
            return None if value is None else {column: value, "seen": True}

        if not self.schema:
            return [stream.map_rows(each)]
        assert stream.schema is not None
        schema = {column: stream.schema.field(column).type, "seen": pa.bool_()}
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


@dataclass(frozen=True)
class When:
    """When groups are reported."""

    how: str
    """``tumbling``, ``sliding``, ``session``, ``each_time`` or ``until``."""
    size: int = 0
    every: int = 0
    offset: int = 0
    column: str = ""

    def of(self, keyed: jt.KeyedStream) -> Any:
        if self.how == "tumbling":
            return keyed.tumbling(self.size, offset=self.offset)
        if self.how == "sliding":
            return keyed.sliding(self.size, every=self.every, offset=self.offset)
        if self.how == "session":
            return keyed.session(self.size)
        return keyed.until(self.column) if self.how == "until" else keyed.each_time()


@dataclass(frozen=True)
class Aggregate:
    """One result of each group."""

    name: str
    how: str
    """``count``, ``sum``, ``min``, ``max``, ``mean``, ``reduce``, ``kernel`` or ``fold``."""
    column: str | None = None

    @property
    def of(self) -> Any:
        column = self.column
        if self.how == "count":
            return jt.agg.count(column)
        assert column is not None
        if self.how == "reduce":
            return jt.agg.reduce(column, lambda a, b: a ^ b)
        if self.how == "kernel":
            return jt.agg.reduce(column, xor)
        if self.how == "fold":
            return jt.agg.fold(
                column, 0, lambda n, value: n + (value is None), merge=lambda a, b: a + b
            )
        return getattr(jt.agg, self.how)(column)

    def type(self, shape: Shape) -> pa.DataType:
        if self.how in ("count", "reduce", "kernel", "fold"):
            return pa.int64()
        if self.how == "mean":
            return pa.float64()
        assert self.column is not None
        kind = shape.columns[self.column]
        if self.how != "sum":
            return kind
        if pa.types.is_decimal256(kind):
            return pa.decimal256(76, kind.scale)
        if pa.types.is_decimal(kind):
            return pa.decimal128(38, kind.scale)
        if pa.types.is_floating(kind):
            return pa.float64()
        return pa.uint64() if pa.types.is_uint64(kind) else pa.int64()

    def is_inexact(self, shape: Shape) -> bool:
        if self.how not in ("sum", "mean"):
            return self.column in shape.inexact and self.how in ("min", "max")
        assert self.column is not None
        return self.how == "mean" or pa.types.is_floating(shape.columns[self.column])


@jt.kernel
def xor(a: int, b: int) -> int:
    """Bitwise: no order of the values matters."""
    return a ^ b


@dataclass(frozen=True)
class Group:
    """Aggregates by key and window."""

    key: tuple[str, ...]
    when: When
    aggregates: tuple[Aggregate, ...]

    def shapes(self, shape: Shape) -> list[Shape]:
        columns = {name: shape.columns[name] for name in self.key}
        times = shape.times & set(self.key)
        if self.when.how == "session":
            columns["start"] = pa.int64()
            times |= {"start"}
        columns |= {a.name: a.type(shape) for a in self.aggregates}
        inexact = {a.name for a in self.aggregates if a.is_inexact(shape)}
        times |= {a.name for a in self.aggregates if a.how in ("min", "max") and a.column in times}
        inexact |= shape.inexact & set(self.key)
        return [
            Shape(columns, not self.key, frozenset(inexact), frozenset(times), unit=shape.unit)
        ]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        groups = self.when.of(stream.key_by(*self.key))
        return [groups.aggregate(**{a.name: a.of for a in self.aggregates})]


@dataclass(frozen=True)
class Running:
    """Each record with the aggregates of its key so far, in order of time."""

    key: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    def shapes(self, shape: Shape) -> list[Shape]:
        inexact = {a.name for a in self.aggregates if a.is_inexact(shape)}
        found = shape.add({a.name: a.type(shape) for a in self.aggregates})
        return [replace(found, inexact=found.inexact | inexact)]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        groups = stream.key_by(*self.key).rolling(ordered=True)
        return [groups.aggregate(**{a.name: a.of for a in self.aggregates})]


@dataclass(frozen=True)
class RunningCount:
    """How many records of its key there have been, for each record; which record is not said."""

    key: tuple[str, ...]

    def shapes(self, shape: Shape) -> list[Shape]:
        return [shape.keep(list(self.key)).add({"count": pa.int64()})]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        counted = stream.key_by(*self.key).rolling(ordered=True).count()
        return [counted.select(*self.key, "count")]


@dataclass(frozen=True)
class Distinct:
    """Each key once: at its least time, or in each window."""

    key: tuple[str, ...]
    when: When | None = None

    def shapes(self, shape: Shape) -> list[Shape]:
        return [replace(shape.keep(list(self.key)), distinct=False)]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        keyed = stream.key_by(*self.key)
        return [keyed.distinct() if self.when is None else self.when.of(keyed).distinct()]


@dataclass(frozen=True)
class TopK:
    """The greatest or least records of each group."""

    key: tuple[str, ...]
    when: When
    k: int
    by: str
    ascending: bool

    def shapes(self, shape: Shape) -> list[Shape]:
        own = {} if self.when.how in ("each_time", "until") else {"event_time": pa.int64()}
        found = replace(shape, distinct=False).add({**own, "rank": pa.int64()})
        return [replace(found, times=found.times | set(own))]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        groups = self.when.of(stream.key_by(*self.key))
        return [groups.top_k(self.k, by=self.by, ascending=self.ascending)]


@dataclass(frozen=True)
class StateMachine:
    """Each record with its number among those of its key, and the value of the one before."""

    key: tuple[str, ...]
    column: str

    def shapes(self, shape: Shape) -> list[Shape]:
        is_time = self.column == TIME or self.column in shape.times
        kind = pa.int64() if is_time else shape.columns[self.column]
        found = shape.keep(list(self.key)).add({"number": pa.int64(), "before": kind})
        times = found.times | ({"before"} if is_time else set())
        return [replace(found, times=times, learnt=frozenset({"before"}))]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        column = self.column

        def follow(state: Any, row: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
            number, before = state
            return (number + 1, row[column]), [{"number": number + 1, "before": before}]

        return [stream.key_by(*self.key).state_machine(follow, (0, None))]


@dataclass(frozen=True)
class Join:
    """Pairs of two streams' records with equal keys."""

    how: str
    """``join``, ``interval_join`` or ``asof_join``."""
    key: tuple[str, ...]
    outer: bool
    lower: int = 0
    upper: int = 0
    tolerance: int | None = None

    def names(self, left: Shape, right: Shape) -> dict[str, str]:
        """The right columns that stay, by their names in the result."""
        taken = set(left.columns)
        return {n + "_right" if n in taken else n: n for n in right.columns if n not in self.key}

    def shapes(self, left: Shape, right: Shape) -> list[Shape]:
        names = self.names(left, right)
        found = left.add({new: right.columns[old] for new, old in names.items()})
        inexact = {new for new, old in names.items() if old in right.inexact}
        times = {new for new, old in names.items() if old in right.times}
        distinct = left.distinct and self.how == "asof_join"
        return [replace(found, distinct=distinct, inexact=left.inexact | inexact,
                        times=left.times | times)]  # fmt: skip

    def build(self, left: jt.Stream, right: jt.Stream) -> list[jt.Stream]:
        mine, others = left.key_by(*self.key), right.key_by(*self.key)
        how: Any = "left" if self.outer else "inner"
        if self.how == "join":
            return [mine.join(others, how=how)]
        if self.how == "interval_join":
            return [mine.interval_join(others, self.lower, self.upper, how=how)]
        return [mine.asof_join(others, tolerance=self.tolerance, how=how)]


@dataclass(frozen=True)
class Cogroup:
    """How many records each side has at each key and time."""

    key: tuple[str, ...]

    def shapes(self, left: Shape, right: Shape) -> list[Shape]:
        return [replace(left.keep(list(self.key)), distinct=False).add(
            {"left": pa.int64(), "right": pa.int64()}
        )]  # fmt: skip

    def build(self, left: jt.Stream, right: jt.Stream) -> list[jt.Stream]:
        def sizes(key: dict[str, Any], mine: jt.Batch, others: jt.Batch) -> dict[str, Any]:
            return {"left": len(mine), "right": len(others)}

        schema = {"left": int, "right": int}
        return [left.key_by(*self.key).cogroup(right.key_by(*self.key), sizes, schema=schema)]


Step = (
    Filter | Branch | Partition | Concat | Select | Rename | WithColumn | MapRows | Explode
    | Delay | Shuffle | Group | Running | RunningCount | Distinct | TopK | StateMachine | Join
    | Cogroup
)  # fmt: skip

