"""Aggregates in SQL; nulls are passed over, as everywhere in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tests.oracle.aggregates import Aggregate, is_temporal
from tests.oracle.sql_parts import is_float, quoted, quotient
from tests.oracle.tables import LEAST, MOST


def aggregate(
    of: Aggregate, columns: Mapping[str, pa.DataType], *, order: str | None = None
) -> str:
    """One aggregate of a relation that has the column ``t``, with its name.

    Those that depend on an order take records by time, and by value where that is the same, unless
    another ``order`` is given.
    """
    column = quoted(of.column) if of.column is not None else "*"
    kind = columns[of.column] if of.column is not None else pa.int64()
    return f"{_function(of, column, kind, order or f't, {column}')} AS {quoted(of.name)}"


def _function(of: Aggregate, column: str, kind: pa.DataType, order: str) -> str:
    how, is_known = of.how, f"FILTER ({column} IS NOT NULL)"
    number = f"({column}{'::INT' if pa.types.is_boolean(kind) else ''})::DOUBLE"
    if how in ("reduce", "kernel"):
        return f"bit_xor({column})"
    if how == "fold":
        return f"count(*) FILTER ({column} IS NULL)"
    if how in ("count_distinct", "approx_count_distinct"):
        return f"count(DISTINCT {column})"
    if how in ("first", "last"):
        return f"{how}({column} ORDER BY {order}) {is_known}"
    if how == "collect":
        return f"coalesce(list({column} ORDER BY {order}) {is_known}, [])"
    if how == "wide_sum":
        return f"sum({column}::HUGEINT)::DECIMAL(38, 0)"
    if how in ("var", "std"):
        return _variance(how, of.option, number)
    if how in ("quantile", "median"):
        return _quantile(0.5 if how == "median" else of.option, number)
    if how == "approx_quantile":
        values = f"list_sort(list({number}) FILTER ({number} IS NOT NULL))"
        return f"{values}[floor((count({column}) - 1) * {of.option})::BIGINT + 1]"
    if how == "mean":
        return _mean(column, number, kind)
    if how == "sum":
        if pa.types.is_boolean(kind):
            return f"sum({column}::INT)"
        return f"sum({number if is_float(kind) else column})"
    return f"{how}({column})"


def _mean(column: str, number: str, kind: pa.DataType) -> str:
    if not is_temporal(kind):
        return f"avg({number})"
    return quotient(f"sum({column}::HUGEINT)", f"nullif(count({column}), 0)::HUGEINT")


def _variance(how: str, less: int, number: str) -> str:
    count, finite = f"count({number})", f"FILTER (isfinite({number}))"
    made = f"var_pop({number}) {finite} * {count} / ({count} - {less})"
    return (
        f"CASE WHEN {count} <= {less} THEN NULL "
        f"WHEN count(*) FILTER (NOT isfinite({number})) > 0 THEN 'NaN'::DOUBLE "
        f"ELSE {made if how == 'var' else f'sqrt({made})'} END"
    )


def _quantile(part: float, number: str) -> str:
    """DuckDB's own where all numbers are finite; else the same by hand, since it has none."""
    values, count = f"list_sort(list({number}) FILTER ({number} IS NOT NULL))", f"count({number})"
    place = f"(({count} - 1) * {part})"
    below = f"floor({place})::BIGINT"
    left, right = f"{values}[{below} + 1]", f"{values}[least({below} + 2, {count})]"
    share = f"({place} - {below})::DOUBLE"
    return (
        f"CASE WHEN count(*) FILTER (NOT isfinite({number})) = 0 "
        f"THEN quantile_cont({number}, {part}) FILTER (isfinite({number})) "
        f"WHEN {share} = 0 OR {left} = {right} THEN {left} "
        f"ELSE {left} * (1 - {share}) + {right} * {share} END"
    )


def sum_errors(
    aggregates: Sequence[Aggregate], types: Sequence[pa.DataType]
) -> tuple[tuple[str, str], ...]:
    """Sums that do not fit their types."""
    errors = []
    for of, kind in zip(aggregates, types, strict=True):
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
