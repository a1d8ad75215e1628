"""Aggregates of random pipelines: which type each makes, and how Jeton is asked for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import jeton as jt
from tests.oracle.steps import ROUNDED, Shape, Tolerance

COUNTS = ("count", "count_distinct", "approx_count_distinct", "reduce", "kernel", "fold")
VALUES = ("min", "max", "first", "last")
"""Aggregates whose result is one of the values."""
SPREADS = ("var", "std", "quantile", "median", "approx_quantile")
ALL = (*COUNTS, *VALUES, *SPREADS, "sum", "wide_sum", "mean", "collect")

ERROR = 0.01
"""The relative error of approximate quantiles, which is the default."""
FIVE_DEVIATIONS = Tolerance(relative=5 * 0.05, absolute=1)
"""Bounds for approximate counts, whose standard deviation is 5 %."""


@dataclass(frozen=True)
class Aggregate:
    """One result of each group."""

    name: str
    how: str
    """The name of one of `jt.agg`; ``kernel`` is a compiled reduction, ``wide_sum`` a wide sum."""
    column: str | None = None
    option: Any = None
    """The rank of a quantile, or what the number of values is less for a variance."""

    @property
    def of(self) -> Any:
        column = self.column
        if self.how == "count":
            return jt.agg.count(column)
        assert column is not None
        if self.how == "reduce":
            return jt.agg.reduce(column, lambda a, b: a ^ b)
        if self.how == "kernel":
            return jt.agg.reduce(column, xor)
        if self.how == "fold":
            return jt.agg.fold(
                column, 0, lambda n, value: n + (value is None), merge=lambda a, b: a + b
            )
        if self.how == "wide_sum":
            return jt.agg.sum(column, widen=True)
        if self.how in ("quantile", "approx_quantile"):
            return getattr(jt.agg, self.how)(column, self.option)
        if self.how in ("var", "std"):
            return getattr(jt.agg, self.how)(column, ddof=self.option)
        return getattr(jt.agg, self.how)(column)

    def type(self, shape: Shape) -> pa.DataType:
        if self.how in COUNTS:
            return pa.int64()
        if self.how in SPREADS:
            return pa.float64()
        if self.how == "wide_sum":
            return pa.decimal128(38, 0)
        assert self.column is not None
        kind = shape.columns[self.column]
        if self.how in VALUES:
            return kind
        if self.how == "collect":
            return pa.list_(kind.value_type if pa.types.is_dictionary(kind) else kind)
        if is_temporal(kind):
            return kind
        return pa.float64() if self.how == "mean" else sum_type(kind)

    def tolerance(self, shape: Shape) -> Tolerance | None:
        """How exact the result is; ``None`` if wholly."""
        if self.how == "approx_count_distinct":
            return FIVE_DEVIATIONS
        if self.how == "approx_quantile":
            return Tolerance(relative=ERROR * (1 + 1e-9))
        if self.how in SPREADS:
            return Tolerance(squared=True) if self.how == "var" else ROUNDED
        if self.how in ("sum", "mean"):
            return ROUNDED if pa.types.is_floating(self.type(shape)) else None
        return shape.inexact.get(self.column or "") if self.how in VALUES else None

    def is_time(self, shape: Shape) -> bool:
        return self.how in VALUES and self.column in shape.times


def sum_type(kind: pa.DataType) -> pa.DataType:
    """The type of sums of numbers."""
    if pa.types.is_decimal256(kind):
        return pa.decimal256(76, kind.scale)
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.uint64() if pa.types.is_uint64(kind) else pa.int64()


def is_temporal(kind: pa.DataType) -> bool:
    """Whether values have a mean that is one of them: timestamps and durations."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_duration(kind))


def tolerances(aggregates: Iterable[Aggregate], shape: Shape) -> dict[str, Tolerance]:
    """Those of the results that are not exact."""
    found = {of.name: of.tolerance(shape) for of in aggregates}
    return {name: bound for name, bound in found.items() if bound is not None}


@jt.kernel
def xor(a: int, b: int) -> int:
    """Bitwise: no order of the values matters."""
    return a ^ b
