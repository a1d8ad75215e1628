"""Random cases: tables, a short pipeline over them, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.oracle import groups, joins, steps, tables
from tests.oracle.case import Case, Node, Schedule
from tests.oracle.choices import Choices, Drawn, Seeded
from tests.oracle.groups import Aggregate, When
from tests.oracle.steps import Condition, Shape
from tests.oracle.tables import TIME, Column, Kind, TimeRange

END = "d_end"
"""The column that `until` reads."""

SHAPES = (
    "stateless", "tumbling", "join", "sliding", "session", "each_time", "until", "running",
    "running_count", "unordered", "distinct", "window_distinct", "top_k",
    "stateful_map", "interval_join", "asof_join", "cogroup", "branch", "partition",
)  # fmt: skip
_TWO_INPUTS = ("join", "interval_join", "asof_join", "cogroup")
_WINDOWS = ("tumbling", "sliding", "session", "each_time", "until")
_ORDERED = ("top_k", "stateful_map", "asof_join")
"""Ties are broken by all columns, so that all must have an order."""


@dataclass(frozen=True)
class Limits:
    """What a host can take."""

    spark: bool = False
    """Only types that Spark has, and steps whose columns are known beforehand."""
    micro_batches: bool = False
    """Only integer times that leave room for a last record after all others."""


def seeded(seed: int, limits: Limits | None = None) -> Case:
    """The case of a seed."""
    return make(Seeded(seed), limits or Limits())


def cases(limits: Limits | None = None, shapes: Sequence[str] = SHAPES) -> st.SearchStrategy[Case]:
    """Cases for Hypothesis."""

    @st.composite
    def drawn(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Case:
        return make(Drawn(draw), limits or Limits(), shapes)

    return drawn()


def make(choices: Choices, limits: Limits, shapes: Sequence[str] = SHAPES) -> Case:
    """A case."""
    return _Maker(choices, limits).case(choices.one_of(shapes))


class _Maker:
    def __init__(self, choices: Choices, limits: Limits) -> None:
        self._choices = choices
        self._limits = limits
        self._names = 0
        self._key_name = "a_key"

    def case(self, shape: str) -> Case:
        choices = self._choices
        times = choices.one_of([one for one in tables.RANGES if self._fits(one, shape)])
        inputs = self._tables(shape, times)
        case = Case(shape, inputs, times, (), Schedule())
        case = self._main(self._stateless(case, 0, choices.integer(0, 2)), shape)
        for end in case.ends:
            case = self._then(case, end)
        return replace(case, schedule=self._schedule(case))

    def _fits(self, times: TimeRange, shape: str) -> bool:
        if shape == "until" and times.type == pa.uint64():
            return False
        if self._limits.micro_batches:
            return times.type == pa.int64() and times.least > -(2**38) and times.most < 2**38
        if self._limits.spark and times.type not in (pa.int64(), pa.timestamp("us")):
            return False
        return times.distinct or shape != "running"

    def _tables(self, shape: str, times: TimeRange) -> tuple[pa.Table, ...]:
        choices = self._choices
        kinds = [kind for kind in tables.KINDS if kind.spark or not self._limits.spark]
        key = choices.one_of([kind for kind in kinds if kind.key and kind.name != "null"])
        if choices.chance(30):
            self._key_name = choices.one_of(tables.NAMES)
        found = []
        for number in range(2 if shape in _TWO_INPUTS else 1):
            value = choices.one_of([k for k in kinds if k.order or shape not in _ORDERED])
            number_kind = choices.one_of([kind for kind in kinds if kind.sums])
            if number and shape != "cogroup":
                key = self._partner(key, kinds)
            columns = [Column(self._key_name, key), Column("b_value", value)]
            columns.append(Column(f"c_number{number or ''}", number_kind))
            sorting = choices.one_of(["sorted", "nearly", "any"])
            table = tables.table(choices, columns, times, sorting=sorting)
            if shape == "until":
                table = self._with_ends(table, times)
            found.append(table)
        return tuple(found)

    def _partner(self, key: Kind, kinds: Sequence[Kind]) -> Kind:
        """The kind of the right side's key: mostly the same, at times another."""
        if self._choices.chance(3) and key.name in tables.UNLIKE:
            return tables.BY_NAME[tables.UNLIKE[key.name]]
        alike = next((names for names in tables.ALIKE if key.name in names), (key.name,))
        usable = [kind for kind in kinds if kind.name in alike]
        return self._choices.one_of(usable) if self._choices.chance(30) else key

    def _with_ends(self, table: pa.Table, times: TimeRange) -> pa.Table:
        stamps = [stamp or 0 for stamp in table[TIME].cast(pa.int64(), safe=False).to_pylist()]
        room = [min(tables.MOST - stamp, 20) for stamp in stamps]
        ends = [s + self._choices.integer(0, most) for s, most in zip(stamps, room, strict=True)]
        kind = times.type
        if pa.types.is_timestamp(kind) and self._choices.chance(50):
            # The same moments in another unit.
            kind = pa.timestamp("ns", kind.tz)
        column = pa.array(ends, pa.int64()).cast(times.type).cast(kind)
        return table.append_column(END, column)

    def _schedule(self, case: Case) -> Schedule:
        choices = self._choices
        declared = self._limits.spark or choices.chance(50)
        if any(isinstance(n.step, steps.MapRows | joins.Join) for n in case.nodes):
            # The right columns of an outer join, and plain Python's, are known from a schema only.
            declared = True
        lateness = None
        if case.times.type == pa.int64():
            lateness = choices.one_of([None, 0, 3, 20])
        if self._limits.micro_batches:
            lateness = lateness or 0
        return Schedule(
            workers=choices.integer(1, 4),
            seed=choices.integer(0, 999) if choices.chance(50) else None,
            form=choices.one_of(["table", "chunks", "pandas", "polars"]),
            declared=declared,
            lateness=lateness,
            restart=choices.integer(0, 5) if choices.chance(25) else None,
        )

    # Steps

    def _add(self, case: Case, step: joins.Step, *inputs: int) -> Case:
        return replace(case, nodes=(*case.nodes, Node(step, inputs)))

    def _stateless(self, case: Case, stream: int, count: int) -> Case:
        for _ in range(count):
            step = self._one_by_one(case.shapes()[stream])
            case = self._add(case, step, stream)
            stream = len(case.shapes()) - 1
        return case

    def _main(self, case: Case, shape: str) -> Case:
        choices = self._choices
        last = case.ends[-1]
        of = case.shapes()[last]
        key = self._key(of, least=int(shape in ("distinct", "window_distinct", *_TWO_INPUTS)))
        if shape in _TWO_INPUTS:
            first, second = case.ends
            if choices.chance(50):
                first, second = second, first
            return self._add(case, self._pairing(shape, (self._key_name,)), first, second)
        if shape == "stateless":
            return self._stateless(case, last, choices.integer(1, 2))
        if shape == "branch":
            case = self._add(case, steps.Branch(self._condition(of)), last)
            return self._rejoined(case)
        if shape == "partition":
            case = self._add(case, steps.Partition(choices.integer(1, 3)), last)
            return self._rejoined(case)
        if shape == "running" and of.distinct:
            return self._add(case, groups.Running(key, self._aggregates(of)), last)
        if shape in ("running", "running_count"):
            return self._add(case, groups.RunningCount(key), last)
        if shape == "unordered":
            return self._add(case, groups.UnorderedCount(key), last)
        if shape == "distinct":
            return self._add(case, groups.Distinct(key), last)
        if shape == "stateful_map":
            step = groups.StatefulMap(key, choices.one_of([*self._natural(of), TIME]))
            return self._add(case, step, last)
        when = self._when(shape if shape in _WINDOWS else "", of)
        if shape == "top_k":
            by = choices.one_of(self._ordered(of) or [self._key_name])
            top = groups.TopK(key, when, choices.integer(1, 3), by, choices.chance(50))
            return self._add(case, top, last)
        if shape == "window_distinct":
            if when.how == "session":
                when = When("each_time")
            return self._add(case, groups.Distinct(key, when), last)
        return self._add(case, groups.Group(key, when, self._aggregates(of)), last)

    def _rejoined(self, case: Case) -> Case:
        """Sometimes the parts together again, one of them after a step that keeps its columns."""
        parts = case.ends
        if self._choices.chance(50) or len(parts) == 1:
            return case
        case = self._add(case, steps.Delay(self._choices.integer(0, 5)), parts[-1])
        return self._add(case, steps.Concat(), *parts[:-1], len(case.shapes()) - 1)

    def _then(self, case: Case, stream: int) -> Case:
        """Sometimes one more step behind an output."""
        choices, of = self._choices, case.shapes()[stream]
        usable = self._ordered(of)
        if not usable or of.learnt or of.timeless or choices.chance(50):
            return case
        if choices.chance(40):
            return self._add(case, self._one_by_one(of), stream)
        group = groups.Group(self._key(of), self._when("", of), self._aggregates(of))
        return self._add(case, group, stream)

    def _one_by_one(self, of: Shape) -> joins.Step:
        choices = self._choices
        options: list[Callable[[], joins.Step]] = [
            lambda: steps.Filter(self._condition(of)),
            lambda: steps.Select(tuple(self._most(of))),
            lambda: steps.WithColumn(
                self._fresh(), "constant", choices.one_of([1, "ä", 0.5, True])
            ),
            lambda: steps.WithColumn(self._fresh(), "time"),
            lambda: steps.Shuffle(self._key(of, least=1)),
            lambda: steps.Delay(choices.integer(0, 5)),
        ]
        if of.columns:
            options.append(
                lambda: steps.WithColumn(self._fresh(), "null", choices.one_of(list(of.columns)))
            )
            texts = [n for n, kind in of.columns.items() if pa.types.is_string(kind)]
            if texts:
                options.append(
                    lambda: steps.WithColumn(self._fresh(), "length", choices.one_of(texts))
                )
            spare = [n for n in of.columns if n not in (self._key_name, END)]
            if spare:
                options.append(lambda: self._renamed(choices.one_of(spare)))
                options.append(lambda: steps.Select((choices.one_of(spare),), drop=True))
            if self._key_name in self._natural(of) and END not in of.columns:
                options.append(lambda: steps.MapRows(self._key_name, schema=True))
            lists = [n for n, kind in of.columns.items() if _is_list(kind)]
            if lists:
                options.append(lambda: steps.Explode(choices.one_of(lists)))
        return choices.one_of(options)()

    def _most(self, of: Shape) -> list[str]:
        """Some columns, the key and the end among them."""
        kept = self._choices.some_of(list(of.columns), 0, len(of.columns))
        return [n for n in of.columns if n in kept or n in (self._key_name, END)]

    def _renamed(self, name: str) -> steps.Rename:
        # The order of names stays that of the columns.
        return steps.Rename(name, name + "_")

    def _fresh(self) -> str:
        self._names += 1
        return f"x{self._names}"

    def _condition(self, of: Shape) -> Condition:
        choices = self._choices
        simple = [n for n, kind in of.columns.items() if _literal(kind) and n not in of.inexact]
        flags = [n for n, kind in of.columns.items() if pa.types.is_boolean(kind)]
        how = choices.one_of(["time", "==", "<", "null", "flag"])
        if how == "flag" and flags:
            return Condition(choices.one_of(flags), "flag")
        if how in ("==", "<") and simple:
            name = choices.one_of(simple)
            return Condition(name, how, choices.one_of(_values(of.columns[name])))
        if how == "null" and of.columns:
            return Condition(choices.one_of(list(of.columns)), "null")
        return Condition(TIME, "<", choices.one_of([5, 0, 20, -10]))

    def _key(self, of: Shape, least: int = 0) -> tuple[str, ...]:
        usable = [n for n, kind in of.columns.items() if _can_be_key(kind) and n not in of.inexact]
        if self._key_name in usable and self._choices.chance(60):
            return (self._key_name,)
        return tuple(self._choices.some_of(usable, min(least, len(usable)), 2))

    def _ordered(self, of: Shape) -> list[str]:
        return [n for n, kind in of.columns.items() if _has_order(kind) and n not in of.inexact]

    def _natural(self, of: Shape) -> list[str]:
        """Columns that come back from Python's values in the same type."""
        natural = (pa.int64(), pa.string(), pa.float64(), pa.bool_(), pa.date32())
        return [n for n, kind in of.columns.items() if kind in natural and n not in of.inexact]

    def _aggregates(self, of: Shape) -> tuple[Aggregate, ...]:
        choices = self._choices
        sums = [n for n, kind in of.columns.items() if _has_sum(kind)]
        exact = [n for n in self._ordered(of) if of.columns[n] == pa.int64()]
        found = []
        for number in range(choices.integer(1, 3)):
            options: list[tuple[str, str | None]] = [("count", None)]
            options += [("count", n) for n in of.columns]
            options += [(how, n) for how in ("sum", "mean") for n in sums]
            options += [(how, n) for how in ("min", "max") for n in self._ordered(of)]
            options += [(how, n) for how in ("reduce", "kernel") for n in exact]
            options += [("fold", n) for n in of.columns]
            how, column = choices.one_of(options)
            found.append(Aggregate(f"y{self._fresh()}_{number}", how, column))
        return tuple(found)

    def _when(self, how: str, of: Shape) -> When:
        choices = self._choices
        how = how or choices.one_of(["tumbling", "sliding", "each_time"])
        if how == "until" and END not in of.columns:
            how = "each_time"
        every = choices.one_of([5, 1, 7, 60])
        if how == "sliding":
            return When(how, every * choices.integer(1, 3) + choices.integer(0, 2), every,
                        choices.integer(-3, 3))  # fmt: skip
        if how == "tumbling":
            return When(how, choices.one_of([10, 1, 3, 1000]), offset=choices.integer(-3, 3))
        if how == "session":
            return When(how, choices.one_of([5, 1, 2, 30]))
        return When(how, column=END if how == "until" else "")

    def _pairing(self, shape: str, key: tuple[str, ...]) -> joins.Step:
        choices = self._choices
        if shape == "cogroup":
            return joins.Cogroup(key)
        outer = choices.chance(50)
        if shape == "interval_join":
            lower = choices.integer(-10, 10)
            upper = lower + choices.integer(0, 10)
            return joins.Join(shape, key, outer, lower, upper)
        tolerance = choices.one_of([None, 0, 5, 100]) if shape == "asof_join" else None
        return joins.Join(shape, key, outer, tolerance=tolerance)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _literal(kind: pa.DataType) -> bool:
    return kind in (pa.int64(), pa.int8(), pa.uint64(), pa.string(), pa.bool_())


def _values(kind: pa.DataType) -> list[Any]:
    (of,) = [one for one in tables.KINDS if one.type == kind]
    return [value for value in of.values if value != "a\0b"]


def _kind_of(kind: pa.DataType) -> Kind | None:
    return next((one for one in tables.KINDS if one.type == kind), None)


def _can_be_key(kind: pa.DataType) -> bool:
    of = _kind_of(kind)
    return of.key and of.name != "null" if of else not pa.types.is_nested(kind)


def _has_order(kind: pa.DataType) -> bool:
    of = _kind_of(kind)
    return of.order if of else not pa.types.is_nested(kind)


def _has_sum(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )
