"""Counts of batch runs, in a Spark accumulator: what the workers of a flow did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from pyspark import SparkContext

COUNTED = ("runs", "rows_in", "rows_out", "late", "messages", "progress_batches")


class Counts(AccumulatorParam[dict[str, int]]):
    """Adds counts up by name.

    >>> Counts().addInPlace({"rows_in": 1, "late": 0}, {"rows_in": 2, "late": 1})
    {'rows_in': 3, 'late': 1}
    """

    def zero(self, value: dict[str, int]) -> dict[str, int]:
        """Nothing counted yet."""
        return dict.fromkeys(value, 0)

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:
        """The sums."""
        return {name: value1.get(name, 0) + value2.get(name, 0) for name in (value1 | value2)}


def accumulator(context: SparkContext) -> Accumulator[dict[str, int]]:
    """An accumulator for the runs of one flow."""
    return context.accumulator(dict.fromkeys(COUNTED, 0), Counts())


class Frames(dict[str, DataFrame]):
    """A DataFrame for each output of a flow, and what its workers did to compute them.

    >>> import jeton as jt
    >>> flow = jt.Flow("small")
    >>> numbers = flow.input("n", time="id", schema={})
    >>> flow.output("small", numbers.filter(lambda batch: batch.times < 3))
    >>> frames = flow.on_spark({"n": spark.range(100)}, workers=2)
    >>> len(frames["small"].collect())
    3
    >>> frames.metrics()
    {'runs': 1, 'rows_in': 100, 'rows_out': 3, 'late': 0, 'messages': 0, 'progress_batches': ...}
    """

    def __init__(
        self, frames: Mapping[str, DataFrame], counts: Accumulator[dict[str, int]] | None
    ) -> None:
        super().__init__(frames)
        self._counts = counts

    def metrics(self) -> dict[str, Any]:
        """Sums over all workers and over all actions so far: what Spark's accumulator holds.

        Each action computes the flow anew and counts again. Under Spark Connect, which has no
        accumulators, nothing is known.
        """
        return {} if self._counts is None else dict(self._counts.value)
