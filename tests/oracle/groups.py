"""Steps that group records by key: what each does to a stream's columns, and how Jeton is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import jeton as jt
from tests.oracle.aggregates import Aggregate, tolerances
from tests.oracle.steps import Shape, lasting
from tests.oracle.tables import TIME

BOUNDS = ("window_start", "window_end")


@dataclass(frozen=True)
class When:
    """When groups are reported."""

    how: str
    """``tumbling``, ``sliding``, ``calendar``, ``session``, ``each_time`` or ``until``."""
    size: int = 0
    every: int = 0
    offset: int = 0
    column: str = ""
    """The column with the end of a window, or with the gap of a session."""
    count: int = 1
    part: str = ""
    """The part of the calendar, and how many of them: 2 weeks."""
    steps: int = 1
    """How many times as long windows are that slide by that."""
    zone: str | None = None
    bounds: bool = False

    def of(self, keyed: jt.KeyedStream) -> Any:
        flow = keyed.stream.flow
        size, every, offset = (lasting(flow, n) for n in (self.size, self.every, self.offset))
        if self.how == "tumbling":
            return keyed.tumbling(size, offset=offset, bounds=self.bounds)
        if self.how == "calendar":
            step, whole = (f"{n * self.count} {self.part}" for n in (1, self.steps))
            if self.steps == 1:
                return keyed.tumbling(step, zone=self.zone, bounds=self.bounds)
            return keyed.sliding(whole, every=step, zone=self.zone, bounds=self.bounds)
        if self.how == "sliding":
            return keyed.sliding(size, every=every, offset=offset, bounds=self.bounds)
        if self.how == "session":
            return keyed.session_window(gap_column=self.column) if self.column else (
                keyed.session_window(size)
            )  # fmt: skip
        return keyed.until(self.column) if self.how == "until" else keyed.each_time()

    @property
    def own(self) -> tuple[str, ...]:
        """Columns that results have beside those of keys and aggregates, all of times."""
        if self.bounds:
            return BOUNDS
        return ("start",) if self.how == "session" else ()


@dataclass(frozen=True)
class Group:
    """Aggregates by key and window."""

    key: tuple[str, ...]
    when: When
    aggregates: tuple[Aggregate, ...]

    def shapes(self, shape: Shape) -> list[Shape]:
        columns = {name: shape.columns[name] for name in self.key}
        columns |= dict.fromkeys(self.when.own, pa.int64())
        columns |= {a.name: a.type(shape) for a in self.aggregates}
        times = (shape.times & set(self.key)) | {*self.when.own}
        times |= {a.name for a in self.aggregates if a.is_time(shape)}
        inexact = {n: x for n, x in shape.inexact.items() if n in self.key}
        inexact |= tolerances(self.aggregates, shape)
        return [Shape(columns, not self.key, inexact, frozenset(times), unit=shape.unit)]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        groups = self.when.of(stream.key_by(*self.key))
        return [groups.aggregate(**{a.name: a.of for a in self.aggregates})]


@dataclass(frozen=True)
class Moving:
    """Each record with the aggregates of others of its key, in order of time."""

    key: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    size: int | None = None
    """How far windows go back in time, or by records."""
    rows: int | None = None
    """Without either, all records so far."""

    def shapes(self, shape: Shape) -> list[Shape]:
        found = shape.add({a.name: a.type(shape) for a in self.aggregates})
        times = found.times | {a.name for a in self.aggregates if a.is_time(shape)}
        inexact = {**found.inexact, **tolerances(self.aggregates, shape)}
        return [replace(found, inexact=inexact, times=times)]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        keyed = stream.key_by(*self.key)
        groups: Any = keyed.running(ordered=True)
        if self.size is not None:
            groups = keyed.rolling(lasting(stream.flow, self.size))
        elif self.rows is not None:
            groups = keyed.rolling(rows=self.rows)
        return [groups.aggregate(**{a.name: a.of for a in self.aggregates})]


@dataclass(frozen=True)
class Deduplicate:
    """The first record of each key, and the first after it that is far enough."""

    key: tuple[str, ...]
    within: int | None

    def shapes(self, shape: Shape) -> list[Shape]:
        return [shape]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        within = None if self.within is None else lasting(stream.flow, self.within)
        return [stream.key_by(*self.key).deduplicate(within=within)]


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
        found = replace(shape.keep(list(self.key)), distinct=False)
        own = () if self.when is None else self.when.own
        return [replace(found.add(dict.fromkeys(own, pa.int64())), times=found.times | {*own})]

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
