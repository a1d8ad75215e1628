"""Steps with two inputs, and all steps together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import jeton as jt
from tests.oracle.groups import (
    Distinct,
    Group,
    Running,
    RunningCount,
    StatefulMap,
    TopK,
    UnorderedCount,
)
from tests.oracle.steps import (
    Branch,
    Concat,
    Delay,
    Explode,
    Filter,
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

    how: str
    """``join``, ``interval_join`` or ``asof_join``."""
    key: tuple[str, ...]
    outer: bool
    lower: int = 0
    upper: int = 0
    tolerance: int | None = None

    def names(self, left: Shape, right: Shape) -> dict[str, str]:
        """The right columns that stay, by their names in the result."""
        taken = set(left.columns)
        return {n + "_right" if n in taken else n: n for n in right.columns if n not in self.key}

    def shapes(self, left: Shape, right: Shape) -> list[Shape]:
        names = self.names(left, right)
        found = left.add({new: right.columns[old] for new, old in names.items()})
        inexact = {new for new, old in names.items() if old in right.inexact}
        times = {new for new, old in names.items() if old in right.times}
        distinct = left.distinct and self.how == "asof_join"
        return [replace(found, distinct=distinct, inexact=left.inexact | inexact,
                        times=left.times | times)]  # fmt: skip

    def build(self, left: jt.Stream, right: jt.Stream) -> list[jt.Stream]:
        mine, others = left.key_by(*self.key), right.key_by(*self.key)
        how: Any = "left" if self.outer else "inner"
        if self.how == "join":
            return [mine.join(others, how=how)]
        if self.how == "interval_join":
            lower, upper = lasting(left.flow, self.lower), lasting(left.flow, self.upper)
            return [mine.interval_join(others, lower, upper, how=how)]
        tolerance = None if self.tolerance is None else lasting(left.flow, self.tolerance)
        return [mine.asof_join(others, tolerance=tolerance, how=how)]


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
    Filter | Branch | Partition | Concat | Select | Rename | WithColumn | MapRows | Explode
    | Delay | Shuffle | Group | Running | RunningCount | UnorderedCount | Distinct
    | TopK | StatefulMap | Join | Cogroup
)  # fmt: skip
