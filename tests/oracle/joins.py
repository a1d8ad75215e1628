"""Steps with two inputs, and all steps together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

import jeton as jt
from tests.oracle.groups import (
    Deduplicate,
    Distinct,
    Group,
    Moving,
    RunningCount,
    StatefulMap,
    TopK,
    UnorderedCount,
)
from tests.oracle.steps import (
    Branch,
    Compute,
    Concat,
    Delay,
    Explode,
    Filter,
    FilterBy,
    MapRows,
    Partition,
    Rename,
    Select,
    Shape,
    Shuffle,
    WithColumn,
    lasting,
)


@dataclass(frozen=True)
class Join:
    """Pairs of two streams' records with equal keys."""

    kind: str
    """``join``, ``interval_join`` or ``asof_join``."""
    key: tuple[str, ...]
    how: str
    """``inner``, ``left``, ``right`` or ``full``."""
    lower: int = 0
    upper: int = 0
    tolerance: int | None = None

    def shapes(self, left: Shape, right: Shape) -> list[Shape]:
        found = beside(left, right, self.key)
        if self.how in ("right", "full"):
            keys = {n: common_type(left.columns[n], right.columns[n]) for n in self.key}
            found = found.add(keys)
        return [replace(found, distinct=left.distinct and self.kind == "asof_join")]

    def build(self, left: jt.Stream, right: jt.Stream) -> list[jt.Stream]:
        mine, others = left.key_by(*self.key), right.key_by(*self.key)
        how: Any = self.how
        if self.kind == "join":
            return [mine.join(others, how=how)]
        if self.kind == "interval_join":
            lower, upper = lasting(left.flow, self.lower), lasting(left.flow, self.upper)
            return [mine.interval_join(others, lower, upper, how=how)]
        tolerance = None if self.tolerance is None else lasting(left.flow, self.tolerance)
        return [mine.asof_join(others, tolerance=tolerance, how=how)]


@dataclass(frozen=True)
class JoinStatic:
    """Each record with the rows of a table that have its key."""

    key: tuple[str, ...]
    table: pa.Table
    how: str
    """``inner`` or ``left``."""

    @property
    def rows(self) -> Shape:
        """The columns of the table."""
        return Shape({field.name: field.type for field in self.table.schema})

    def shapes(self, shape: Shape) -> list[Shape]:
        return [replace(beside(shape, self.rows, self.key), distinct=False)]

    def build(self, stream: jt.Stream) -> list[jt.Stream]:
        how: Any = self.how
        return [stream.key_by(*self.key).join_static(self.table, how=how)]


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type of keys that come from both sides."""
    if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (left, right)):
        return left
    names = (left.to_pandas_dtype(), right.to_pandas_dtype())
    return pa.from_numpy_dtype(np.promote_types(*names))


def joined_names(left: Shape, right: Shape, key: Sequence[str]) -> dict[str, str]:
    """The right columns that stay, by their names in the result."""
    return {n + "_right" if n in left.columns else n: n for n in right.columns if n not in key}


def beside(left: Shape, right: Shape, key: Sequence[str]) -> Shape:
    """The columns of a join."""
    names = joined_names(left, right, key)
    found = left.add({new: right.columns[old] for new, old in names.items()})
    inexact = {new: right.inexact[old] for new, old in names.items() if old in right.inexact}
    times = {new for new, old in names.items() if old in right.times}
    return replace(found, inexact={**left.inexact, **inexact}, times=left.times | times)


@dataclass(frozen=True)
class Cogroup:
    """How many records each side has at each key and time."""

    key: tuple[str, ...]

    def shapes(self, left: Shape, right: Shape) -> list[Shape]:
        return [replace(left.keep(list(self.key)), distinct=False).add(
            {"lefts": pa.int64(), "rights": pa.int64()}
        )]  # fmt: skip

    def build(self, left: jt.Stream, right: jt.Stream) -> list[jt.Stream]:
        def sizes(key: dict[str, Any], mine: jt.Batch, others: jt.Batch) -> dict[str, Any]:
            return {"lefts": len(mine), "rights": len(others)}

        schema = {"lefts": int, "rights": int}
        return [left.key_by(*self.key).cogroup(right.key_by(*self.key), sizes, schema=schema)]


Step = (
    Filter | FilterBy | Branch | Partition | Concat | Select | Rename | WithColumn | Compute
    | MapRows | Explode | Delay | Shuffle | Group | Moving | RunningCount | UnorderedCount
    | Distinct | Deduplicate | TopK | StatefulMap | Join | JoinStatic | Cogroup
)  # fmt: skip
