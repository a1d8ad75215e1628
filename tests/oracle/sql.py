"""The same pipelines in SQL, from the definitions in docs/guide.md: no Jeton code runs here.

Where Jeton means something else than plain SQL, on purpose:

* Every record has a time, the column ``t``, and so has every result: a window's is its end.
* Groups without records do not exist: no row, where SQL's ungrouped aggregates give one.
* A null is a key of its own in groups (as in ``GROUP BY``), but joins with nothing (as ``=``).
* NaN equals NaN and is the greatest number, as in Spark and DuckDB; in Arrow's own comparisons,
  which conditions use, NaN is neither less nor equal. Nulls rank last in ``top_k``, both ways.
* A sum has the type of Arrow's widest kind of its column, and one that does not fit is an error;
  DuckDB's sums of integers have 128 bits, so that `Checked` can tell.
* A time past the end of int64 is an error. DuckDB computes times in 128 bits here. An outer
  ``interval_join`` refuses any left record whose interval ends there, with a partner or without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import pyarrow as pa

from tests.oracle import groups, joins, steps
from tests.oracle.expressions import is_text
from tests.oracle.groups import When
from tests.oracle.sql_aggregates import aggregate, sum_errors
from tests.oracle.sql_expressions import broken, written
from tests.oracle.sql_parts import (
    in_unit,
    listed,
    literal,
    modulo,
    off_clock,
    on_clock,
    partitioned,
    quoted,
)
from tests.oracle.steps import Shape
from tests.oracle.tables import LEAST, MOST

Select = str


@dataclass(frozen=True)
class Checked:
    """A step's relations, and the conditions under which a row of them must be an error."""

    selects: tuple[Select, ...]
    errors: tuple[tuple[str, str], ...] = ()
    """Conditions on rows of the first relation, with what each means."""
    before: tuple[tuple[str, str, str], ...] = ()
    """Inputs with conditions on their rows."""
    refused: str | None = None
    """Why the step is an error whatever the rows."""
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    """Tables that the relations read beside their inputs."""


@singledispatch
def translate(step: Any, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    """A step as SELECT statements over its inputs' relations."""
    raise NotImplementedError(step)


def condition(of: steps.Condition, shape: Shape) -> str:
    column = quoted(of.column)
    if of.how == "null":
        return f"({column} IS NULL)"
    if of.how == "flag":
        return f"coalesce({column}, FALSE)"
    compared = f"{column} {'=' if of.how == '==' else '<'} {literal(of.value)}"
    return f"coalesce({compared}, FALSE)"


def ordered(name: str, direction: str) -> str:
    """An order of values in which nulls come last, whichever direction."""
    return f"{name} {direction} NULLS LAST"


def least_first(shape: Shape) -> str:
    """Ties are broken by all columns that have an order, from the first to the last."""
    names = [n for n, kind in shape.columns.items() if not pa.types.is_nested(kind)]
    return "".join(f", {ordered(quoted(name), 'ASC')}" for name in names)


def greatest_first(shape: Shape, of: str) -> str:
    """The same for `asof_join`, which takes the greatest; NaN is greater than all numbers."""
    names = [n for n, kind in shape.columns.items() if not pa.types.is_nested(kind)]
    return "".join(f", {ordered(of + quoted(name), 'DESC')}" for name in names)


@translate.register
def _(step: steps.Filter, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    return Checked((f"SELECT * FROM {names[0]} WHERE {condition(step.condition, shapes[0])}",))


@translate.register
def _(step: steps.FilterBy, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    errors = tuple((names[0], *rule) for rule in broken(step.expression))
    holds = f"coalesce({written(step.expression)}, FALSE)"
    return Checked((f"SELECT * FROM {names[0]} WHERE {holds}",), before=errors)


@translate.register
def _(step: steps.Compute, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    errors = tuple((names[0], *rule) for rule in broken(step.expression))
    select = f"SELECT *, {written(step.expression)} AS {quoted(step.name)} FROM {names[0]}"
    return Checked((select,), before=errors)


@translate.register
def _(step: steps.Branch, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    holds = condition(step.condition, shapes[0])
    return Checked(tuple(f"SELECT * FROM {names[0]} WHERE {x}" for x in (f"NOT {holds}", holds)))


@translate.register
def _(step: steps.Partition, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    part = modulo("t", step.parts)
    return Checked(tuple(f"SELECT * FROM {names[0]} WHERE {part} = {n}" for n in range(step.parts)))


@translate.register
def _(step: steps.Concat, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    return Checked((" UNION ALL BY NAME ".join(f"SELECT * FROM {name}" for name in names),))


@translate.register
def _(step: steps.Select, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    return Checked((f"SELECT t{listed(step.kept(shapes[0]))} FROM {names[0]}",))


@translate.register
def _(step: steps.Rename, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    return Checked((f"SELECT * RENAME ({quoted(step.old)} AS {quoted(step.new)}) FROM {names[0]}",))


@translate.register
def _(step: steps.WithColumn, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    made = "t" if step.how == "time" else literal(step.value)
    if step.how == "null":
        made = f"{quoted(step.value)} IS NULL"
    elif step.how == "length":
        made = f"length({quoted(step.value)})"
    return Checked((f"SELECT *, {made} AS {quoted(step.name)} FROM {names[0]}",))


@translate.register
def _(step: steps.MapRows, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    name = quoted(step.column)
    return Checked(
        (f"SELECT t, {name}, TRUE AS was_there FROM {names[0]} WHERE {name} IS NOT NULL",)
    )


@translate.register
def _(step: steps.Explode, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    name = quoted(step.column)
    return Checked((f"SELECT * REPLACE (unnest({name}) AS {name}) FROM {names[0]}",))


@translate.register
def _(step: steps.Delay, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    return Checked((f"SELECT * REPLACE (t + {step.by} AS t) FROM {names[0]}",), (PAST_THE_END,))


@translate.register
def _(step: steps.Shuffle, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    return Checked((f"SELECT * FROM {names[0]}",))


PAST_THE_END = (f"t > {MOST}::HUGEINT", "a time past the end of int64")


def windowed(when: When, name: str, key: Sequence[str], shape: Shape) -> str:
    """All records with the end of each window that they are in, as ``e``, and its start."""
    if when.how == "tumbling":
        end = f"t - {modulo(f't - {when.offset}', when.size)} + {when.size}"
        return f"SELECT *, {end} AS e, {end} - {when.size} AS {START} FROM {name}"
    if when.how == "calendar":
        return calendar(when, name, shape)
    if when.how == "sliding":
        first = f"t - {modulo(f't - {when.offset}', when.every)} + {when.every}"
        most = -(-when.size // when.every)
        return (
            f"SELECT *, e - {when.size} AS {START} FROM (SELECT *, {first} + i * {when.every} AS e "
            f"FROM {name}, (SELECT i::HUGEINT AS i FROM range({most}) r(i))) "
            f"WHERE e <= t + {when.size}"
        )
    if when.how == "session":
        # Of records with equal times any may open the session: RANGE, the default, sees them all.
        over = f"OVER ({partitioned(key)} ORDER BY t"
        reach = (
            f"max(t + {gap(when, shape)}) {over} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        )
        opens = f"CASE WHEN t < {reach} THEN 0 ELSE 1 END"
        return f"SELECT *, sum(opens) {over}) AS e FROM (SELECT *, {opens} AS opens FROM {name})"
    end = "t" if when.how == "each_time" else in_times(when.column, shape)
    return f"SELECT *, {end} AS e FROM {name}"


START = '"%start"'
"""A name that no column has."""


def calendar(when: When, name: str, shape: Shape) -> str:
    """Records with the parts of the calendar that they are in."""
    assert shape.unit is not None
    clock = on_clock("t", shape.unit, when.zone)
    # Weeks begin on Mondays, the first of them before the epoch.
    origin = "1969-12-29" if when.part == "week" else "1970-01-01"
    width = f"INTERVAL '{when.count} {when.part}'"
    start = f"time_bucket({width}, {clock}, TIMESTAMP '{origin}')"
    if when.count == 1:
        start = f"date_trunc('{when.part}', {clock})::TIMESTAMP"
    last = f"({start} + i * {width})"
    moments = (f"({last} - {when.steps - 1} * {width})", f"({last} + {width})")
    bounds = [off_clock(at, shape.unit, when.zone) for at in moments]
    return (
        f"SELECT * EXCLUDE i, {bounds[1]} AS e, {bounds[0]} AS {START} "
        f"FROM {name}, range({when.steps}) r(i)"
    )


def gap(when: When, shape: Shape) -> str:
    return in_times(when.column, shape) if when.column else str(when.size)


def in_times(column: str, shape: Shape) -> str:
    """A column of integers, timestamps or durations as integers in the unit of the times."""
    unit = getattr(shape.columns[column], "unit", None)
    if shape.unit is None or unit is None:
        return f"{quoted(column)}::HUGEINT"
    return in_unit(quoted(column), unit, shape.unit)


def column_errors(when: When, name: str, shape: Shape) -> tuple[tuple[str, str, str], ...]:
    """Records whose column does not say when their window ends."""
    if not when.column:
        return ()
    value = in_times(when.column, shape)
    least = "t" if when.how == "until" else "1"
    return (name, f"{value} IS NULL", "no end"), (name, f"{value} < {least}", "too early an end")


def bounds(when: When) -> str:
    """The columns with the bounds of windows."""
    return f", {START} AS window_start, e AS window_end" if when.bounds else ""


def window_errors(when: When, shape: Shape) -> tuple[tuple[str, str], ...]:
    """Results at a time that there is not; among timestamps, the first one is null."""
    if not when.bounds:
        return (PAST_THE_END,)
    first = LEAST if shape.unit is None else LEAST + 1
    return PAST_THE_END, (f"window_start < {first}::HUGEINT", "a start before all times")


@translate.register
def _(step: groups.Group, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    (shape,), when = shapes, step.when
    made = "".join(f", {aggregate(of, shape.columns)}" for of in step.aggregates)
    own = bounds(when)
    end = "e AS t"
    if when.how == "session":
        end, own = f"max(t + {gap(when, shape)}) AS t", ", min(t) AS start"
    by = ", ".join(["e", *map(quoted, step.key), *([START] if when.bounds else [])])
    rows = windowed(when, names[0], step.key, shape)
    select = f"SELECT {end}{listed(step.key)}{own}{made} FROM ({rows}) GROUP BY {by}"
    types = [of.type(shape) for of in step.aggregates]
    return Checked(
        (select,),
        (*window_errors(when, shape), *sum_errors(step.aggregates, types)),
        column_errors(when, names[0], shape),
    )


NUMBER, ROW, KEY = '"%number"', '"%row"', '"%key"'
"""The number of a record among those of its key and among all, and that of its key."""


def numbered(name: str, key: Sequence[str], shape: Shape) -> str:
    """Records with numbers, those of each key in order of time; ties are broken by all columns."""
    keys = f"dense_rank() OVER (ORDER BY {', '.join(map(quoted, key))})" if key else "1"
    rows = f"SELECT *, {keys} AS {KEY}, row_number() OVER () AS {ROW} FROM {name}"
    order = f"PARTITION BY {KEY} ORDER BY t{least_first(shape)}"
    return f"SELECT *, row_number() OVER ({order}) AS {NUMBER} FROM ({rows})"


@translate.register
def _(step: groups.Moving, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    (shape,) = shapes
    # Windows by number follow the order by which records are numbered.
    order = NUMBER if step.rows is not None else None
    made = "".join(f", {aggregate(of, shape.columns, order=order)}" for of in step.aggregates)
    frame = f"r.{NUMBER} <= l.{NUMBER}"
    if step.size is not None:
        frame = f"r.t > l.t - {step.size}::HUGEINT AND r.t <= l.t"
    elif step.rows is not None:
        frame += f" AND r.{NUMBER} > l.{NUMBER} - {step.rows}"
    pairs = f"SELECT r.*, l.{ROW} AS of FROM rows l JOIN rows r ON l.{KEY} = r.{KEY} AND {frame}"
    results = listed([of.name for of in step.aggregates], "results.")
    select = (
        f"WITH rows AS MATERIALIZED ({numbered(names[0], step.key, shape)}), "
        f"results AS (SELECT of{made} FROM ({pairs}) GROUP BY of) "
        f"SELECT rows.t AS t{listed(list(shape.columns), 'rows.')}{results} "
        f"FROM rows JOIN results ON rows.{ROW} = results.of"
    )
    return Checked((select,), sum_errors(step.aggregates, [a.type(shape) for a in step.aggregates]))


@translate.register
def _(step: groups.Deduplicate, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    (shape,) = shapes
    rows = numbered(names[0], step.key, shape)
    columns = f"t{listed(list(shape.columns))}"
    if step.within is None:
        return Checked((f"SELECT {columns} FROM ({rows}) WHERE {NUMBER} = 1",))
    after = f"l.{KEY} = r.{KEY} AND r.t > l.t + {step.within}::HUGEINT"
    select = (
        f"WITH RECURSIVE rows AS MATERIALIZED ({rows}), following AS MATERIALIZED ("
        f"SELECT l.{KEY} AS k, l.{NUMBER} AS n, l.{ROW} AS of, min(r.{NUMBER}) AS next "
        f"FROM rows l LEFT JOIN rows r ON {after} GROUP BY ALL), "
        "kept AS (SELECT * FROM following WHERE n = 1 UNION ALL "
        "SELECT f.* FROM kept JOIN following f ON f.k = kept.k AND f.n = kept.next) "
        f"SELECT {columns} FROM rows WHERE {ROW} IN (SELECT of FROM kept)"
    )
    return Checked((select,))


@translate.register
def _(step: groups.RunningCount, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    over = f"OVER ({partitioned(step.key)} ORDER BY t ROWS UNBOUNDED PRECEDING)"
    return Checked((f"SELECT t{listed(step.key)}, count(*) {over} AS so_far FROM {names[0]}",))


@translate.register
def _(step: groups.UnorderedCount, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    # Any order of records will do: which record gets which count is not compared.
    over = f"OVER ({partitioned(step.key)} ROWS UNBOUNDED PRECEDING)"
    return Checked((f"SELECT t{listed(step.key)}, count(*) {over} AS so_far FROM {names[0]}",))


@translate.register
def _(step: groups.Distinct, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    key, when = ", ".join(map(quoted, step.key)), step.when
    if when is None:
        return Checked((f"SELECT min(t) AS t, {key} FROM {names[0]} GROUP BY {key}",))
    rows = windowed(when, names[0], step.key, shapes[0])
    by = f"e, {key}" + (f", {START}" if when.bounds else "")
    return Checked(
        (f"SELECT e AS t, {key}{bounds(when)} FROM ({rows}) GROUP BY {by}",),
        window_errors(when, shapes[0]),
        column_errors(when, names[0], shapes[0]),
    )


@translate.register
def _(step: groups.TopK, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    (shape,), own = shapes, step.when.how not in ("each_time", "until")
    by = ordered(quoted(step.by), "ASC" if step.ascending else "DESC")
    order = f"{by}, t{least_first(shape)}"
    rank = f"row_number() OVER ({partitioned(step.key, 'e')} ORDER BY {order})"
    event_time = ", t AS event_time" if own else ""
    rows = windowed(step.when, names[0], step.key, shapes[0])
    return Checked(
        (
            f"SELECT e AS t{listed(list(shape.columns))}{event_time}, {rank} AS rank "
            f"FROM ({rows}) QUALIFY rank <= {step.k}",
        ),
        (PAST_THE_END,),
        column_errors(step.when, names[0], shapes[0]),
    )


@translate.register
def _(step: groups.StatefulMap, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    over = f"OVER ({partitioned(step.key)} ORDER BY t{least_first(shapes[0])})"
    return Checked(
        (
            f"SELECT t{listed(step.key)}, row_number() {over} AS number, "
            f"lag({quoted(step.column)}) {over} AS before FROM {names[0]}",
        )
    )


def can_be_equal(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether keys can be joined: numbers of one kind in any width, text in any encoding."""
    for fits in (pa.types.is_integer, pa.types.is_floating, is_text, is_bytes):
        if fits(left) or fits(right):
            return bool(fits(left) and fits(right))
    return bool(left == right)


def is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        fits(kind) for fits in (types.is_binary, types.is_large_binary, types.is_binary_view)
    )


def never_equal(key: Sequence[str], left: Shape, right: Shape) -> Checked | None:
    """The refusal of keys whose types have no equal values."""
    if all(can_be_equal(left.columns[name], right.columns[name]) for name in key):
        return None
    return Checked((), refused="keys of types that cannot be equal")


def taken(left: Shape, right: Shape, key: Sequence[str]) -> str:
    """The right columns of a join under their new names."""
    names = joins.joined_names(left, right, key)
    return "".join(f", r.{quoted(old)} AS {quoted(new)}" for new, old in names.items())


def equal(key: Sequence[str]) -> str:
    return " AND ".join(f"l.{quoted(name)} = r.{quoted(name)}" for name in key)


def with_rows(name: str) -> str:
    return f"(SELECT *, row_number() OVER () AS {ROW} FROM {name})"


@translate.register
def _(step: joins.Join, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    left, right = shapes
    refused = never_equal(step.key, left, right)
    if refused is not None:
        return refused
    return asof(step, names, left, right) if step.kind == "asof_join" else (
        interval(step, names, left, right)
    )  # fmt: skip


def asof(step: joins.Join, names: Sequence[str], left: Shape, right: Shape) -> Checked:
    on = f"{equal(step.key)} AND r.t <= l.t"
    if step.tolerance is not None:
        on += f" AND r.t >= l.t - {step.tolerance}::HUGEINT"
    last = f"r.t DESC{greatest_first(right, 'r.')}"
    outer = "LEFT JOIN" if step.how == "left" else "JOIN"
    return Checked(
        (
            f"SELECT l.t AS t{listed(list(left.columns), 'l.')}{taken(left, right, step.key)} "
            f"FROM {with_rows(names[0])} l {outer} {names[1]} r ON {on} "
            f"QUALIFY row_number() OVER (PARTITION BY l.{ROW} ORDER BY {last}) = 1",
        )
    )


def interval(step: joins.Join, names: Sequence[str], left: Shape, right: Shape) -> Checked:
    """Pairs whose times are close or, with bounds of zero, equal; then records without a pair."""
    near = f"r.t BETWEEN l.t + {step.lower}::HUGEINT AND l.t + {step.upper}::HUGEINT"
    mine, others = listed(list(left.columns), "l."), taken(left, right, step.key)
    waits = {"l": max(step.upper, 0), "r": max(-step.lower, 0)}
    parts = [
        f"SELECT greatest(l.t, r.t) AS t{mine}{others} "
        f"FROM pairs JOIN l ON l.{ROW} = pairs.l JOIN r ON r.{ROW} = pairs.r"
    ]
    before: list[tuple[str, str, str]] = []
    for side, name, hows in (("l", names[0], ("left", "full")), ("r", names[1], ("right", "full"))):
        if step.how not in hows:
            continue
        before.append((name, f"t + {waits[side]} > {MOST}::HUGEINT", "no end"))
        columns = mine + "".join(f", NULL AS {quoted(n)}" for n in
                                 joins.joined_names(left, right, step.key))  # fmt: skip
        if side == "r":
            columns = "".join(f", {alone(n, step.key)}" for n in left.columns) + others
        parts.append(
            f"SELECT {side}.t + {waits[side]} AS t{columns} FROM {side} "
            f"WHERE {ROW} NOT IN (SELECT {side} FROM pairs)"
        )
    select = (
        f"WITH l AS MATERIALIZED ({with_rows(names[0])[1:-1]}), "
        f"r AS MATERIALIZED ({with_rows(names[1])[1:-1]}), pairs AS MATERIALIZED ("
        f"SELECT l.{ROW} AS l, r.{ROW} AS r FROM l JOIN r ON {equal(step.key)} AND {near}) "
        + " UNION ALL ".join(parts)
    )
    return Checked((select,), before=tuple(before))


def alone(name: str, key: Sequence[str]) -> str:
    """A left column of a right record without a partner: its key, or a null."""
    return f"{f'r.{quoted(name)}' if name in key else 'NULL'} AS {quoted(name)}"


@translate.register
def _(step: joins.JoinStatic, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    (left,), right = shapes, step.rows
    refused = never_equal(step.key, left, right)
    if refused is not None:
        return refused
    outer = "LEFT JOIN" if step.how == "left" else "JOIN"
    select = (
        f"SELECT l.t AS t{listed(list(left.columns), 'l.')}{taken(left, right, step.key)} "
        f"FROM {names[0]} l {outer} {names[0]}_static r ON {equal(step.key)}"
    )
    return Checked((select,), tables={f"{names[0]}_static": step.table})


@translate.register
def _(step: joins.Cogroup, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    key = listed(step.key)
    sides = " UNION ALL ".join(
        f"SELECT t{key}, {n} AS side FROM {name}" for n, name in enumerate(names)
    )
    made = "count(*) FILTER (side = 0) AS lefts, count(*) FILTER (side = 1) AS rights"
    return Checked((f"SELECT t{key}, {made} FROM ({sides}) GROUP BY t{key}",))
