"""Steps that group records by key: what each does to a stream's columns, and how Jeton is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import jeton as jt
from tests.oracle.steps import Shape, lasting
from tests.oracle.tables import TIME


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
        flow = keyed.stream.flow
        size, every, offset = (lasting(flow, n) for n in (self.size, self.every, self.offset))
        if self.how == "tumbling":
            return keyed.tumbling(size, offset=offset)
        if self.how == "sliding":
            return keyed.sliding(size, every=every, offset=offset)
        if self.how == "session":
            return keyed.session_window(size)
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
        return [Shape(columns, not self.key, frozenset(inexact), frozenset(times), unit=shape.unit)]

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
        groups = stream.key_by(*self.key).running(ordered=True)
        return [groups.aggregate(**{a.name: a.of for a in self.aggregates})]


@dataclass(frozen=True)
class RunningCount:
    """How many records of its key there have been, for each record; which record is not said."""

    key: tuple[str, ...]

    def shapes(self, shape: Shape) -> list[Shape]:
        return [shape.keep(list(self.key)).add({"so_far": pa.int64()})]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        counted = stream.key_by(*self.key).running(ordered=True).count(name="so_far")
        return [counted.select(*self.key, "so_far")]


@dataclass(frozen=True)
class UnorderedCount:
    """How many records of its key there have been, in the order in which they come."""

    key: tuple[str, ...]

    def shapes(self, shape: Shape) -> list[Shape]:
        return [replace(shape.keep(list(self.key)).add({"so_far": pa.int64()}), timeless=True)]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        counted = stream.key_by(*self.key).running().count(name="so_far")
        return [counted.select(*self.key, "so_far")]


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
class StatefulMap:
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

        return [stream.key_by(*self.key).stateful_map(follow, (0, None))]
