"""Expressions in SQL, with NumPy's rules for integers that are too large and for NaN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tests.oracle.expressions import COMPARISONS, Expression
from tests.oracle.sql_parts import NANOSECONDS, in_unit, literal, modulo, on_clock, quoted, quotient

_PARTS = {"weekday": "isodow"}
_METHODS = {
    "str.contains": "contains({}, {})",
    "str.starts_with": "starts_with({}, {})",
    "str.ends_with": "ends_with({}, {})",
    "str.to_uppercase": "upper({})",
    "str.to_lowercase": "lower({})",
    "str.strip_chars": "trim({})",
    "str.len_chars": "length({})",
    "str.replace_all": "replace({}, {}, {})",
    "is_null": "({} IS NULL)",
    "is_not_null": "({} IS NOT NULL)",
    "is_nan": "isnan({})",
    "fill_null": "coalesce({}, {})",
    "case": "CASE WHEN {} THEN {} ELSE {} END",
    "~": "(NOT {})",
    "&": "({} AND {})",
    "|": "({} OR {})",
    "^": "({} <> {})",
    "floor": "floor({})",
    "ceil": "ceil({})",
    "round": "round_even({}, 0)",
}


def written(of: Any) -> str:
    """An expression or a plain value in SQL."""
    if not isinstance(of, Expression):
        return literal(of)
    if of.op == "column":
        return quoted(of.args[0])
    if of.op in COMPARISONS:
        return _compared(of.op, *of.args)
    if of.op == "is_between":
        value, lower, upper = of.args
        return f"({_compared('>=', value, lower)} AND {_compared('<=', value, upper)})"
    if of.op == "clip":
        value, lower, upper = of.args
        return (
            f"CASE WHEN {_compared('<', value, lower)} THEN {literal(lower)} "
            f"WHEN {_compared('>', value, upper)} THEN {literal(upper)} ELSE {written(value)} END"
        )
    if of.op == "is_in":
        value, some = of.args
        found = f"{written(value)} IN ({', '.join(map(literal, some))})" if some else "FALSE"
        return f"CASE WHEN {written(value)} IS NOT NULL THEN {found} END"
    if of.op.startswith("dt."):
        return _part(of)
    if of.op == "fill_null" and pa.types.is_timestamp(of.kind):
        return _filled_times(of)
    if of.op in _METHODS:
        return _METHODS[of.op].format(*map(written, of.args))
    if of.op == "str.slice":
        text, offset, length = of.args
        return f"substring({written(text)}, {offset + 1}, {length})"
    if of.op == "cast":
        return f"{written(of.args[0])}::{'DOUBLE' if of.args[1] is float else 'VARCHAR'}"
    if of.op == "+" and pa.types.is_string(of.kind):
        return f"({written(of.args[0])} || {written(of.args[1])})"
    return _arithmetic(of)


def broken(of: Any) -> Iterator[tuple[str, str]]:
    """Conditions under which an expression is an error, with what each means."""
    if not isinstance(of, Expression):
        return
    for each in of.args:
        yield from broken(each)
    if of.op == "abs" and pa.types.is_integer(of.kind):
        yield f"{written(of.args[0])} = -{2 ** (of.kind.bit_width - 1)}::HUGEINT", "no such number"

    if of.op == "cast" and of.kind == pa.float64():
        # Not every integer from here on is a floating-point number.
        yield f"abs({written(of.args[0])}::HUGEINT) > {2**53}::HUGEINT", "no such number"


def _compared(op: str, left: Expression, right: Any) -> str:
    first, second = written(left), written(right)
    kind = left.kind
    if pa.types.is_timestamp(kind):
        first = f"({first}::HUGEINT * {NANOSECONDS[kind.unit]})"
        if isinstance(right, Expression):
            second = f"({second}::HUGEINT * {NANOSECONDS[right.kind.unit]})"
    floats = [pa.types.is_floating(x.kind) for x in (left, right) if isinstance(x, Expression)]
    if any(floats):
        first, second = f"{first}::DOUBLE", f"{second}::DOUBLE"
    plain = f"({first} {'<>' if op == '!=' else '=' if op == '==' else op} {second})"
    if not any(floats):
        return plain
    # NaN is neither less, equal nor greater.
    unequal = str(op == "!=").upper()
    return (
        f"CASE WHEN {first} IS NOT NULL AND {second} IS NOT NULL "
        f"AND (isnan({first}) OR isnan({second})) THEN {unequal} ELSE {plain} END"
    )


def _part(of: Expression) -> str:
    part, kind, column = of.op.removeprefix("dt."), of.args[0].kind, written(of.args[0])
    if pa.types.is_timestamp(kind):
        column = on_clock(column, kind.unit, kind.tz)
    return (
        f"{column}::DATE" if part == "date" else f"date_part('{_PARTS.get(part, part)}', {column})"
    )


def _filled_times(of: Expression) -> str:
    column, by = of.args
    ticks = NANOSECONDS[of.kind.unit]
    filling = written(by) if isinstance(by, Expression) else f"({literal(by)} // {ticks})"
    return f"coalesce({written(column)}::HUGEINT, {filling})"


def _arithmetic(of: Expression) -> str:
    if pa.types.is_floating(of.kind):
        return _floating(of)
    if not pa.types.is_integer(of.kind):
        ticks = NANOSECONDS[of.kind.unit]
        column = in_unit(written(of.args[0]), of.args[0].kind.unit, of.kind.unit)
        return f"({column} {of.op} {literal(of.args[1])} // {ticks})"
    parts = [f"{written(each)}::HUGEINT" for each in of.args]
    if of.op == "abs":
        return f"abs({parts[0]})"
    if of.op == "neg":
        return _wrapped(f"-({parts[0]})", of.kind)
    if of.op in ("//", "%"):
        # Divided by zero there is no result.
        left, right = parts[0], f"nullif({parts[1]}, 0)"
        made = quotient(left, right) if of.op == "//" else modulo(left, right)
        return _wrapped(made, of.kind)
    return _wrapped(f"({parts[0]} {of.op} {parts[1]})", of.kind)


def _wrapped(value: str, kind: pa.DataType) -> str:
    """An integer as that of a width which is equal to it but for multiples of two to that width."""
    size = f"{2**kind.bit_width}::HUGEINT"
    if pa.types.is_unsigned_integer(kind):
        return modulo(value, size)
    half = f"{2 ** (kind.bit_width - 1)}::HUGEINT"
    return f"({modulo(f'{value} + {half}', size)} - {half})"


def _floating(of: Expression) -> str:
    width = "FLOAT" if pa.types.is_float32(of.kind) else "DOUBLE"
    parts = [f"{written(each)}::{width}" for each in of.args]
    if of.op in ("neg", "abs"):
        return f"{'abs' if of.op == 'abs' else '-'}({parts[0]})"
    if of.op == "sqrt":
        return f"CASE WHEN {parts[0]} < 0 THEN 'NaN'::DOUBLE ELSE sqrt({parts[0]}) END"
    return f"({parts[0]} {of.op} {parts[1]})"
