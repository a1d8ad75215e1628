"""Whether two tables have the same rows: exact, but for sums of floating-point numbers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tests.oracle.steps import Shape, Tolerance
from tests.oracle.tables import TIME

NAN = "NaN"
"""The stand-in for NaN in rows, which equals itself."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def difference(
    found: pa.Table,
    expected: pa.Table,
    shape: Shape,
    *,
    scale: float,
    unit: str | None = None,
    typed: bool = True,
) -> str | None:
    """The difference of a table, in words; ``None`` if it has the expected rows.

    ``scale`` bounds the absolute values of which sums were made, and ``unit`` is that of the times,
    if they were timestamps. With ``typed``, columns must have the very types that are expected.
    """
    if found.num_rows == 0 and expected.num_rows == 0:
        return None
    names = [TIME, *shape.columns]
    if found.column_names != names:
        if found.num_rows or found.column_names[:1] != [TIME]:
            return f"it has the columns {found.column_names}, not {names}"
        return f"it has no rows, not {expected.num_rows}"
    for name, kind in shape.columns.items():
        have = found.schema.field(name).type
        if not typed or name in shape.times or (name in shape.learnt and pa.types.is_null(have)):
            continue
        if not same_type(have, kind):
            return f"column {name!r} is {have}, not {kind}"
    if shape.timeless:
        names = names[1:]
    exact = [name for name in names if name not in shape.inexact]
    inexact = [name for name in names if name in shape.inexact]
    left = _rows(found, exact, inexact, shape, unit)
    right = _rows(expected, exact, inexact, shape, None)
    have, want = Counter(key for key, _ in left), Counter(key for key, _ in right)
    if have != want:
        return _told(have - want, want - have, exact)
    return _uneven(left, right, {n: shape.inexact[n] for n in inexact}, scale) if inexact else None


def _told(surplus: Counter[Any], missing: Counter[Any], names: Sequence[str]) -> str:
    parts = [
        f"{sum(rows.values())} rows {what}: "
        + ", ".join(str(dict(zip(names, row, strict=True))) for row in list(rows)[:3])
        for what, rows in (("too many", surplus), ("missing", missing))
        if rows
    ]
    return "; ".join(parts)


def _rows(
    table: pa.Table, exact: Iterable[str], inexact: Iterable[str], shape: Shape, unit: str | None
) -> list[tuple[Any, Any]]:
    def column(name: str) -> list[Any]:
        values = table[name].combine_chunks()
        if name == TIME or name in shape.times:
            if pa.types.is_timestamp(values.type):
                values = values.cast(pa.timestamp(unit or values.type.unit, values.type.tz))
            found: list[Any] = values.cast(pa.int64()).to_pylist()
            return found
        return plain(values, shape.columns[name])

    keys = list(zip(*map(column, exact), strict=True)) or [()] * table.num_rows
    values = list(zip(*map(column, inexact), strict=True)) or [()] * table.num_rows
    return list(zip(keys, values, strict=True))


def plain(array: pa.Array, kind: pa.DataType) -> list[Any]:
    """Values as Python compares them; times of day, moments and durations as nanoseconds."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        values = iter(plain(array.flatten(), kind.value_type))
        return [None if v is None else tuple(next(values) for _ in v) for v in array.to_pylist()]
    if types.is_duration(kind) or types.is_timestamp(kind) or types.is_time(kind):
        unit = kind.unit if types.is_integer(array.type) else array.type.unit
        ticks = 10**9 // _PER_SECOND[unit]
        wide = array.cast(pa.int32()) if types.is_time32(array.type) else array
        return [None if v is None else v * ticks for v in wide.cast(pa.int64()).to_pylist()]
    if types.is_float16(array.type):
        array = array.cast(pa.float32())
    return [_hashable(value) for value in array.to_pylist()]


def _hashable(value: Any) -> Any:
    if isinstance(value, float):
        return NAN if math.isnan(value) else value + 0.0
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((name, _hashable(part)) for name, part in value.items())
    return value


def same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether two types have the same values: text is text in any encoding."""
    return bool(_encoded(found) == _encoded(expected))


def _encoded(kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_dictionary(kind):
        return _encoded(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if (
        types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return ("list", _encoded(kind.value_type))
    return kind


def _uneven(
    left: Iterable[tuple[Any, Any]],
    right: Iterable[tuple[Any, Any]],
    bounds: Mapping[str, Tolerance],
    scale: float,
) -> str | None:
    """The first values that differ by more than their additions can round, or they may."""
    groups: defaultdict[Any, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for side, rows in enumerate((left, right)):
        for key, values in rows:
            groups[key][side].append(values)

    def near(have: Sequence[Any], want: Sequence[Any]) -> bool:
        rows = zip(have, want, bounds.values(), strict=True)
        return all(_near(a, b, bound, scale) for a, b, bound in rows)

    for key, (have, want) in groups.items():
        pairs = zip(sorted(have, key=repr), sorted(want, key=repr), strict=True)
        if not all(near(a, b) for a, b in pairs) and not _matched(have, want, near):
            return f"at {key}, {list(bounds)} are {have[:3]}, not {want[:3]}"
    return None


def _matched(have: Sequence[Any], want: Sequence[Any], near: Callable[[Any, Any], bool]) -> bool:
    """Whether rows can be paired; there are few with the same key."""
    rest = list(want)
    for values in have:
        fitting = [other for other in rest if near(values, other)]
        if not fitting:
            return False
        rest.remove(fitting[0])
    return True


def _near(found: Any, expected: Any, bound: Tolerance, scale: float) -> bool:
    if found == expected:
        return True
    if not isinstance(found, int | float) or not isinstance(expected, int | float):
        return False
    if bound.squared and found >= 0 and expected >= 0:
        found, expected = math.sqrt(found), math.sqrt(expected)
    if not (math.isfinite(found) and math.isfinite(expected)):
        return False
    most = bound.absolute + max(bound.relative * abs(expected), scale * 1e-13)
    return bool(abs(found - expected) <= most)
