"""Random cases: tables, a short pipeline over them, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.oracle import aggregates, groups, joins, steps, tables
from tests.oracle.aggregates import Aggregate
from tests.oracle.case import Case, Node, Schedule
from tests.oracle.choices import Choices, Drawn, Seeded
from tests.oracle.expressions import Expression, Writer
from tests.oracle.groups import When
from tests.oracle.steps import ROUNDED, Condition, Shape
from tests.oracle.tables import TIME, Column, Kind, TimeRange

END = "d_end"
"""The column that `until` reads."""

GAP = "e_gap"
"""The column with the gap of each record's session."""
COMPUTED = "z"
"""How the names of columns begin that expressions make."""

_OLDER = (
    "stateless", "tumbling", "join", "sliding", "session", "each_time", "until", "running",
    "running_count", "unordered", "distinct", "window_distinct", "top_k",
    "stateful_map", "interval_join", "asof_join", "cogroup", "branch", "partition",
)  # fmt: skip
NEWER = (
    "expressions", "aggregates", "outer_join", "outer_interval_join", "join_static", "deduplicate",
    "rolling", "rolling_rows", "gap_session", "calendar", "running_aggregates",
)  # fmt: skip
SHAPES = (*_OLDER, *NEWER)
_TWO_INPUTS = (
    "join", "interval_join", "asof_join", "cogroup", "outer_join", "outer_interval_join"
)  # fmt: skip
_WINDOWS = ("tumbling", "sliding", "session", "each_time", "until", "gap_session", "calendar")
_MOVING = ("running", "running_aggregates", "rolling", "rolling_rows")
_ORDERED = ("top_k", "stateful_map", "asof_join", "deduplicate", *_MOVING)
"""Ties are broken by all columns, so that all must have an order."""


@dataclass(frozen=True)
class Limits:
    """The limits of a host."""

    spark: bool = False
    """Only types that Spark has, and steps whose columns are known beforehand."""
    micro_batches: bool = False
    """Only integer times that leave room for a last record after all others."""


def seeded(seed: int, limits: Limits | None = None, shapes: Sequence[str] = SHAPES) -> Case:
    """The case of a seed."""
    return make(Seeded(seed), limits or Limits(), shapes)


def cases(limits: Limits | None = None, shapes: Sequence[str] = SHAPES) -> st.SearchStrategy[Case]:
    """Cases for Hypothesis."""

    @st.composite
    def drawn(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Case:
        return make(Drawn(draw), limits or Limits(), shapes)

    return drawn()


def make(choices: Choices, limits: Limits, shapes: Sequence[str] = SHAPES) -> Case:
    """A case."""
    # Micro-batches have integer times only, of which there is no calendar.
    fitting = [name for name in shapes if name != "calendar" or not limits.micro_batches]
    return _Maker(choices, limits).case(choices.one_of(fitting))


class _Maker:
    def __init__(self, choices: Choices, limits: Limits) -> None:
        self._choices = choices
        self._limits = limits
        self._names = 0
        self._key_name = "a_key"
        self._zoned = False

    def case(self, shape: str) -> Case:
        choices = self._choices
        ranges = tables.CALENDAR if shape == "calendar" else tables.RANGES
        times = choices.one_of([one for one in ranges if self._fits(one, shape)])
        self._zoned = getattr(times.type, "tz", None) is not None
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
        if self._limits.spark and shape == "gap_session":
            # Spark has no durations that Arrow reads.
            return bool(times.type == pa.int64())
        return True

    def _tables(self, shape: str, times: TimeRange) -> tuple[pa.Table, ...]:
        choices = self._choices
        kinds = self._kinds()
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
            if shape == "gap_session":
                table = self._with_gaps(table, times)
            found.append(table)
        return tuple(found)

    def _kinds(self) -> list[Kind]:
        return [kind for kind in tables.KINDS if kind.spark or not self._limits.spark]

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

    def _with_gaps(self, table: pa.Table, times: TimeRange) -> pa.Table:
        choices = self._choices
        few = [0, 1, 5, 30] if choices.chance(3) else [5, 1, 2, 30]
        gaps = pa.array([choices.one_of(few) for _ in range(table.num_rows)], pa.int64())
        if pa.types.is_timestamp(times.type):
            gaps = gaps.cast(pa.duration(times.type.unit))
            if choices.chance(50):
                gaps = gaps.cast(pa.duration("ns"))
        return table.append_column(GAP, gaps)

    def _schedule(self, case: Case) -> Schedule:
        choices = self._choices
        declared = self._limits.spark or choices.chance(50)
        if any(
            isinstance(n.step, steps.MapRows | joins.Join | joins.JoinStatic) for n in case.nodes
        ):
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
        keyed = ("distinct", "window_distinct", "join_static", "deduplicate", *_TWO_INPUTS)
        key = self._key(of, least=int(shape in keyed))
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
        if shape == "expressions":
            return self._computed(case, last)
        if shape == "join_static":
            return self._add(case, self._static(of), last)
        if shape == "deduplicate":
            within = choices.one_of([None, 0, 5, 100])
            return self._add(case, groups.Deduplicate(key, within), last)
        if shape in _MOVING:
            return self._add(case, self._moving(shape, key, of), last)
        if shape == "running_count":
            return self._add(case, groups.RunningCount(key), last)
        if shape == "unordered":
            return self._add(case, groups.UnorderedCount(key), last)
        if shape == "distinct":
            return self._add(case, groups.Distinct(key), last)
        if shape == "stateful_map":
            step = groups.StatefulMap(key, choices.one_of([*self._natural(of), TIME]))
            return self._add(case, step, last)
        how = shape if shape in _WINDOWS else ""
        if shape == "aggregates":
            how = choices.one_of(["session", "tumbling", "sliding", "each_time"])
        when = self._when(how, of)
        if shape == "top_k":
            by = choices.one_of(self._ordered(of) or [self._key_name])
            when = replace(when, bounds=False)
            top = groups.TopK(key, when, choices.integer(1, 3), by, choices.chance(50))
            return self._add(case, top, last)
        if shape == "window_distinct":
            if when.how == "session":
                when = When("each_time")
            return self._add(case, groups.Distinct(key, when), last)
        most = 8 if shape in NEWER else 3
        return self._add(case, groups.Group(key, when, self._aggregates(of, most)), last)

    def _computed(self, case: Case, stream: int) -> Case:
        """Columns from expressions, and perhaps a filter by one."""
        for _ in range(self._choices.integer(1, 3)):
            case = self._add(case, self._compute(case.shapes()[stream]), stream)
            stream = len(case.shapes()) - 1
        if self._choices.chance(50):
            return case
        return self._add(case, self._filter(case.shapes()[stream]), stream)

    def _moving(self, shape: str, key: tuple[str, ...], of: Shape) -> groups.Moving:
        choices = self._choices
        made = self._aggregates(of, 3 if shape == "running" else 8)
        if shape == "rolling":
            return groups.Moving(key, made, size=choices.one_of([5, 1, 2, 30, 1000]))
        if shape == "rolling_rows":
            return groups.Moving(key, made, rows=choices.one_of([2, 1, 3, 10]))
        return groups.Moving(key, made)

    def _static(self, of: Shape) -> joins.JoinStatic:
        """A join with a random table."""
        choices, kinds = self._choices, self._kinds()
        kind = _kind_of(of.columns[self._key_name])
        assert kind is not None
        key, value = self._partner(kind, kinds), choices.one_of(kinds)
        size = choices.one_of([3, 0, 1, 8, 30])
        name = choices.one_of(["s_value", "b_value"])
        arrays = {
            k: tables.array(choices, x, size) for k, x in ((self._key_name, key), (name, value))
        }
        return joins.JoinStatic(
            (self._key_name,), pa.table(arrays), choices.one_of(["inner", "left"])
        )

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
            lambda: self._filter(of),
            lambda: self._compute(of),
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
            spare = [n for n in of.columns if n not in (self._key_name, END, GAP)]
            if spare:
                options.append(lambda: self._renamed(choices.one_of(spare)))
                options.append(lambda: steps.Select((choices.one_of(spare),), drop=True))
            if self._key_name in self._natural(of) and not {END, GAP} & set(of.columns):
                options.append(lambda: steps.MapRows(self._key_name, schema=True))
            lists = [n for n, kind in of.columns.items() if _is_list(kind)]
            if lists:
                options.append(lambda: steps.Explode(choices.one_of(lists)))
        return choices.one_of(options)()

    def _writer(self, of: Shape) -> tuple[Writer, bool]:
        """A writer of expressions, and whether they are functions of a batch."""
        function = self._choices.chance(30)
        columns = {n: k for n, k in of.columns.items() if n not in of.inexact and n not in of.times}
        spark = self._limits.spark
        writer = Writer(self._choices, columns, cases=not function, durations=not spark)
        return writer, function

    def _filter(self, of: Shape) -> joins.Step:
        writer, function = self._writer(of)
        found = writer.condition()
        return steps.FilterBy(found, function) if found else steps.Filter(self._condition(of))

    def _compute(self, of: Shape) -> joins.Step:
        writer, function = self._writer(of)
        found: Expression | None = writer.value()
        if found is None:
            return steps.WithColumn(self._fresh(), "time")
        return steps.Compute(f"{COMPUTED}{self._fresh()}", found, function)

    def _most(self, of: Shape) -> list[str]:
        """Some columns, the key and the end among them."""
        kept = self._choices.some_of(list(of.columns), 0, len(of.columns))
        return [n for n in of.columns if n in kept or n in (self._key_name, END, GAP)]

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

    def _aggregates(self, of: Shape, most: int = 3) -> tuple[Aggregate, ...]:
        choices = self._choices
        hows = self._hows(of)
        found = []
        for number in range(choices.integer(1, most)):
            how = choices.one_of(list(hows))
            column = choices.one_of(hows[how])
            option: float | None = None
            if how in ("var", "std"):
                option = choices.one_of([1, 0, 2])
            elif how in ("quantile", "approx_quantile"):
                option = choices.one_of([0.5, 0.25, 0.9, 0, 1, 0.29])
            found.append(Aggregate(f"y{self._fresh()}_{number}", how, column, option))
        return tuple(found)

    def _hows(self, of: Shape) -> dict[str, list[str | None]]:
        """The aggregates that a stream's columns allow."""
        ordered = [n for n in self._ordered(of) if of.unit is None or n not in of.times]
        sums = [n for n, kind in of.columns.items() if _has_sum(kind) and self._adds_up(n, of)]
        # Timestamps among the results of windows are integers in a shape.
        clocks = [n for n in ordered if aggregates.is_temporal(of.columns[n])]
        whole = [n for n in sums if pa.types.is_integer(of.columns[n])]
        exact = [n for n in ordered if of.columns[n] == pa.int64()]
        keys = [n for n in ordered if _can_be_key(of.columns[n])]
        found: dict[str, list[str | None]] = {
            "count": [None, *of.columns],
            "sum": [*sums, *(n for n in clocks if pa.types.is_duration(of.columns[n]))],
            "mean": [*sums, *clocks],
            "fold": [*of.columns],
            "wide_sum": [*whole],
            "reduce": [*exact],
            "kernel": [*exact],
            "min": [*self._ordered(of)],
            "max": [*self._ordered(of)],
            "first": [*self._ordered(of)],
            "last": [*self._ordered(of)],
            "collect": [*ordered],
            "count_distinct": [*keys],
            "approx_count_distinct": [*keys],
            "var": [*sums],
            "std": [*sums],
            "median": [*sums],
            "quantile": [*sums],
            "approx_quantile": [n for n in sums if n not in of.inexact],
        }
        return {how: columns for how, columns in found.items() if columns}

    def _adds_up(self, name: str, of: Shape) -> bool:
        """Whether the rounding of a column's sums is bounded by the values of the inputs."""
        if of.unit is not None and name in of.times:
            return False
        computed = name.startswith(COMPUTED) and pa.types.is_floating(of.columns[name])
        return not computed and of.inexact.get(name, ROUNDED) == ROUNDED

    def _when(self, how: str, of: Shape) -> When:
        choices = self._choices
        how = how or choices.one_of(["tumbling", "sliding", "each_time"])
        if how == "until" and END not in of.columns:
            how = "each_time"
        every = choices.one_of([5, 1, 7, 60])
        bounds = choices.chance(25) and not {*groups.BOUNDS} & set(of.columns)
        if how == "sliding":
            return When(how, every * choices.integer(1, 3) + choices.integer(0, 2), every,
                        choices.integer(-3, 3), bounds=bounds)  # fmt: skip
        if how == "tumbling":
            size, offset = choices.one_of([10, 1, 3, 1000]), choices.integer(-3, 3)
            return When(how, size, offset=offset, bounds=bounds)
        if how == "calendar":
            return self._calendar(bounds=bounds)
        if how == "gap_session":
            return When("session", column=GAP)
        if how == "session":
            return When(how, choices.one_of([5, 1, 2, 30]))
        return When(how, column=END if how == "until" else "")

    def _calendar(self, *, bounds: bool) -> When:
        choices = self._choices
        zone = choices.one_of(["Europe/Berlin", *tables.ZONES]) if self._zoned else None
        part = choices.one_of(["day", "week", "month", "quarter", "year"])
        if part == "day" and zone is None:
            part = "week"
        count = choices.one_of([1, 1, 2, 3])
        # Weeks without a zone all have the same length, and other rules when they slide.
        steps = 1 if zone is None and part == "week" else choices.one_of([1, 1, 2, 3])
        return When("calendar", count=count, part=part, steps=steps, zone=zone, bounds=bounds)

    def _pairing(self, shape: str, key: tuple[str, ...]) -> joins.Step:
        choices = self._choices
        if shape == "cogroup":
            return joins.Cogroup(key)
        hows = ["inner", "left"]
        if shape.startswith("outer_"):
            shape, hows = shape.removeprefix("outer_"), ["right", "full"]
        how = choices.one_of(hows)
        if shape == "interval_join":
            lower = choices.integer(-10, 10)
            upper = lower + choices.integer(0, 10)
            return joins.Join(shape, key, how, lower, upper)
        tolerance = choices.one_of([None, 0, 5, 100]) if shape == "asof_join" else None
        return joins.Join(shape, key, how, tolerance=tolerance)


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
