"""The truth: the answer of Spark SQL to a query, and whether a flow has the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from jeton_evaluation.nexmark.config import Config
from jeton_evaluation.nexmark.frames import frames
from jeton_evaluation.nexmark.queries import RESULT, Query
from jeton_evaluation.programs.mechanisms import Mechanism

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLES: Final = 5
"""Rows that differ, of which a verdict names this many."""
_SIDE: Final = "jeton_side"
_GOT: Final = "jeton_got"


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison."""

    rows: int
    """Rows of the flow."""
    missing: int
    """Rows that the flow lacks, each as often as it occurs."""
    extra: int
    """Rows that the flow should not have."""
    missing_rows: tuple[dict[str, Any], ...] = ()
    """Some of the missing rows."""
    extra_rows: tuple[dict[str, Any], ...] = ()

    @property
    def equal(self) -> bool:
        """Whether the rows are the same, in any order."""
        return not self.missing and not self.extra

    def __str__(self) -> str:
        if self.equal:
            return f"all {self.rows} rows are right"
        return (
            f"of {self.rows} rows, {self.extra} are wrong, such as {list(self.extra_rows)}; "
            f"{self.missing} are missing, such as {list(self.missing_rows)}"
        )


def check(
    spark: SparkSession,
    query: Query,
    config: Config,
    events: int,
    workers: int | None = None,
    mechanism: Mechanism | None = None,
) -> Verdict:
    """Run a query on Spark as a flow, and as SQL, and compare.

    >>> from jeton_evaluation.nexmark import queries
    >>> print(check(spark, queries.get("q7"), Config(), 1000, workers=2))
    all 1 rows are right
    """
    made = frames(spark, config, events, columns=query.columns)
    got = query.flow(config, mechanism).on_spark(made, workers=workers)[RESULT]
    return compare(got, answer(spark, query, made))


def answer(spark: SparkSession, query: Query, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The answer of Spark SQL; the views of the query's inputs are made anew.

    >>> columns = "ts long, auction long, bidder long, price long"
    >>> bids = spark.createDataFrame([(1, 7, 3, 50)], columns)
    >>> from jeton_evaluation.nexmark import queries
    >>> answer(spark, queries.get("q7"), {"bids": bids}).first().price
    50
    """
    for name, frame in inputs.items():
        frame.createOrReplaceTempView(name)
    return spark.sql(query.sql)


def compare(got: DataFrame, wanted: DataFrame) -> Verdict:
    """Compare rows, in any order, and how often each occurs.

    >>> print(compare(spark.range(3), spark.range(1, 3)))
    of 3 rows, 1 are wrong, such as [{'id': 0}]; 0 are missing, such as []
    """
    if got.columns != wanted.columns:
        raise ValueError(f"columns {got.columns} cannot be compared with {wanted.columns}")
    sides = got.withColumn(_SIDE, F.lit(1)).unionAll(wanted.withColumn(_SIDE, F.lit(-1)))
    compared = (
        sides.groupBy(*got.columns)
        .agg(F.count_if(F.col(_SIDE) > 0).alias(_GOT), F.sum(_SIDE).alias(_SIDE))
        .persist()
    )
    extra, missing = F.greatest(_SIDE, F.lit(0)), F.greatest(-F.col(_SIDE), F.lit(0))
    totals = compared.agg(F.sum(_GOT), F.sum(missing), F.sum(extra)).first()
    assert totals is not None, "an aggregate without groups has one row"
    rows, absent, wrong = (total or 0 for total in totals)
    examples = [
        _examples(compared.where(which > 0)) if count else ()
        for which, count in ((missing, absent), (extra, wrong))
    ]
    compared.unpersist(blocking=True)
    return Verdict(rows, absent, wrong, *examples)


def _examples(compared: DataFrame) -> tuple[dict[str, Any], ...]:
    rows = compared.drop(_SIDE, _GOT).limit(SAMPLES).collect()
    return tuple(row.asDict() for row in rows)
