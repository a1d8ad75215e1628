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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import pyarrow as pa

from tests.oracle import groups, joins, steps
from tests.oracle.groups import Aggregate, When
from tests.oracle.steps import Shape
from tests.oracle.tables import LEAST, MOST

Select = str


@dataclass(frozen=True)
class Checked:
    """A step's relations, and the conditions under which a row of them must be an error."""

    selects: tuple[Select, ...]
    errors: tuple[tuple[str, str], ...] = ()
    """Conditions on rows of the first relation, with what each means."""
    before: tuple[tuple[str, str], ...] = ()
    """Conditions on rows of the first input."""
    refused: str | None = None
    """Why the step is an error whatever the rows."""


@singledispatch
def translate(step: Any, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    """A step as SELECT statements over its inputs' relations."""
    raise NotImplementedError(step)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str], of: str = "") -> str:
    """Columns with a comma before each."""
    return "".join(f", {of}{quoted(name)}" for name in names)


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return f"{value}::HUGEINT"
    if isinstance(value, float):
        return f"'{value!r}'::DOUBLE"
    return "'" + str(value).replace("'", "''") + "'"


def condition(of: steps.Condition, shape: Shape) -> str:
    column = quoted(of.column)
    if of.how == "null":
        return f"({column} IS NULL)"
    if of.how == "flag":
        return f"coalesce({column}, FALSE)"
    compared = f"{column} {'=' if of.how == '==' else '<'} {literal(of.value)}"
    return f"coalesce({compared}, FALSE)"


def is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


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


def modulo(value: str, size: int) -> str:
    """The remainder that is never negative, unlike SQL's."""
    return f"((({value}) % {size} + {size}) % {size})"


def windowed(when: When, name: str, key: Sequence[str], shape: Shape) -> str:
    """All records with the end of each window that they are in, as ``e``."""
    if when.how == "tumbling":
        end = f"t - {modulo(f't - {when.offset}', when.size)} + {when.size}"
        return f"SELECT *, {end} AS e FROM {name}"
    if when.how == "sliding":
        first = f"t - {modulo(f't - {when.offset}', when.every)} + {when.every}"
        most = -(-when.size // when.every)
        return (
            f"SELECT * FROM (SELECT *, {first} + i * {when.every} AS e "
            f"FROM {name}, (SELECT i::HUGEINT AS i FROM range({most}) r(i))) "
            f"WHERE e <= t + {when.size}"
        )
    if when.how == "session":
        # Of records with equal times any may open the session: RANGE, the default, sees them all.
        over = f"OVER ({partitioned(key)} ORDER BY t)"
        gap = f"CASE WHEN t - lag(t) {over} < {when.size} THEN 0 ELSE 1 END"
        return f"SELECT *, sum(opens) {over} AS e FROM (SELECT *, {gap} AS opens FROM {name})"
    end = "t" if when.how == "each_time" else in_times(when.column, shape)
    return f"SELECT *, {end} AS e FROM {name}"


def in_times(column: str, shape: Shape) -> str:
    """A column of integers or timestamps as integers in the unit of the times."""
    if shape.unit is None:
        return f"{quoted(column)}::HUGEINT"
    ticks = 10**9 // {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[shape.unit]
    return f"(epoch_ns({quoted(column)})::HUGEINT // {ticks})"


def partitioned(key: Sequence[str], *more: str) -> str:
    parts = [*map(quoted, key), *more]
    return "PARTITION BY " + ", ".join(parts) if parts else ""


def until_errors(when: When, shape: Shape) -> tuple[tuple[str, str], ...]:
    if when.how != "until":
        return ()
    end = in_times(when.column, shape)
    return ((f"{end} IS NULL", "no end"), (f"{end} < t", "an end before its record"))


def aggregate(of: Aggregate, shape: Shape, over: str = "") -> str:
    """One aggregate; nulls are passed over, as everywhere in SQL."""
    column = quoted(of.column) if of.column is not None else "*"
    kind = shape.columns[of.column] if of.column is not None else pa.int64()
    if of.how in ("sum", "mean"):
        if pa.types.is_boolean(kind):
            column += "::INT"
        elif of.how == "mean" or is_float(kind):
            column += "::DOUBLE"
    function = {
        "mean": f"avg({column})",
        "reduce": f"bit_xor({column})",
        "kernel": f"bit_xor({column})",
        "fold": f"count(*) FILTER ({column} IS NULL)",
    }.get(of.how, f"{of.how}({column})")
    return f"{function} {over} AS {quoted(of.name)}"


def sum_errors(aggregates: Sequence[Aggregate], shape: Shape) -> tuple[tuple[str, str], ...]:
    """Sums that do not fit."""
    errors = []
    for of in aggregates:
        kind = of.type(shape)
        if of.how != "sum" or is_float(kind) or pa.types.is_decimal256(kind):
            continue
        least, most = f"{LEAST}::HUGEINT", f"{MOST}::HUGEINT"
        if pa.types.is_uint64(kind):
            least, most = "0", f"{2**64 - 1}::HUGEINT"
        elif pa.types.is_decimal(kind):
            digits = "9" * (38 - kind.scale) + "." + "9" * kind.scale
            least, most = (f"'{x}'::DECIMAL(38, {kind.scale})" for x in (f"-{digits}", digits))
        errors.append((f"{quoted(of.name)} NOT BETWEEN {least} AND {most}", "a sum too large"))
    return tuple(errors)


@translate.register
def _(step: groups.Group, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    (shape,), when = shapes, step.when
    made = "".join(f", {aggregate(of, shape)}" for of in step.aggregates)
    end = f"max(t) + {when.size} AS t" if when.how == "session" else "e AS t"
    start = ", min(t) AS start" if when.how == "session" else ""
    groups = ", ".join(["e", *map(quoted, step.key)])
    rows = windowed(when, names[0], step.key, shape)
    select = f"SELECT {end}{listed(step.key)}{start}{made} FROM ({rows}) GROUP BY {groups}"
    return Checked(
        (select,), (PAST_THE_END, *sum_errors(step.aggregates, shape)), until_errors(when, shape)
    )


@translate.register
def _(step: groups.Running, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    over = f"OVER ({partitioned(step.key)} ORDER BY t ROWS UNBOUNDED PRECEDING)"
    made = "".join(f", {aggregate(of, shapes[0], over)}" for of in step.aggregates)
    return Checked((f"SELECT *{made} FROM {names[0]}",), sum_errors(step.aggregates, shapes[0]))


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
    key = ", ".join(map(quoted, step.key))
    if step.when is None:
        return Checked((f"SELECT min(t) AS t, {key} FROM {names[0]} GROUP BY {key}",))
    rows = windowed(step.when, names[0], step.key, shapes[0])
    return Checked(
        (f"SELECT e AS t, {key} FROM ({rows}) GROUP BY e, {key}",),
        (PAST_THE_END,),
        until_errors(step.when, shapes[0]),
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
        until_errors(step.when, shapes[0]),
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


def is_text(kind: pa.DataType) -> bool:
    types = pa.types
    plain = kind.value_type if types.is_dictionary(kind) else kind
    return any(
        fits(plain) for fits in (types.is_string, types.is_large_string, types.is_string_view)
    )


def is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        fits(kind) for fits in (types.is_binary, types.is_large_binary, types.is_binary_view)
    )


@translate.register
def _(step: joins.Join, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    left, right = shapes
    for name in step.key:
        if not can_be_equal(left.columns[name], right.columns[name]):
            return Checked((), refused="keys of types that cannot be equal")
    pairs = "".join(
        f", r.{quoted(old)} AS {quoted(new)}" for new, old in step.names(left, right).items()
    )
    on = " AND ".join(f"l.{quoted(name)} = r.{quoted(name)}" for name in step.key)
    kept = listed(list(left.columns), "l.")
    numbered = f"(SELECT *, row_number() OVER () AS row FROM {names[0]}) l"
    outer = "LEFT JOIN" if step.outer else "JOIN"
    if step.how == "asof_join":
        on += " AND r.t <= l.t"
        if step.tolerance is not None:
            on += f" AND r.t >= l.t - {step.tolerance}::HUGEINT"
        last = f"r.t DESC{greatest_first(right, 'r.')}"
        return Checked(
            (
                f"SELECT l.t AS t{kept}{pairs} FROM {numbered} {outer} {names[1]} r ON {on} "
                f"QUALIFY row_number() OVER (PARTITION BY l.row ORDER BY {last}) = 1",
            )
        )
    on += f" AND r.t BETWEEN l.t + {step.lower}::HUGEINT AND l.t + {step.upper}::HUGEINT"
    alone = f"l.t + {max(step.upper, 0)}"
    time = f"CASE WHEN r.t IS NULL THEN {alone} ELSE greatest(l.t, r.t) END"
    return Checked(
        (f"SELECT {time} AS t{kept}{pairs} FROM {numbered} {outer} {names[1]} r ON {on}",),
        before=((f"t + {max(step.upper, 0)} > {MOST}::HUGEINT", "no end"),) if step.outer else (),
    )


@translate.register
def _(step: joins.Cogroup, names: Sequence[str], shapes: Sequence[Shape]) -> Checked:
    key = listed(step.key)
    sides = " UNION ALL ".join(
        f"SELECT t{key}, {n} AS side FROM {name}" for n, name in enumerate(names)
    )
    made = "count(*) FILTER (side = 0) AS lefts, count(*) FILTER (side = 1) AS rights"
    return Checked((f"SELECT t{key}, {made} FROM ({sides}) GROUP BY t{key}",))
