"""Queries from Parquet files to Parquet files: as flows, natively and by DataFrames, and as SQL.

All three read the same files, which have every column of the events, and write files of their own,
with the same codec. A flow *natively* has workers that read and write the files themselves; by
*DataFrames*, Spark reads and writes them, and rows cross over to Python and back. Spark SQL stays
in the JVM. What is timed is the action as a user calls it, from the plan to the committed files;
the best of several runs counts.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from jeton.connectors import sinks, sources
from jeton_evaluation.bench.harness import grid
from jeton_evaluation.nexmark import truth
from jeton_evaluation.nexmark.config import Config
from jeton_evaluation.nexmark.frames import frames
from jeton_evaluation.nexmark.queries.query import RESULT, Query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_HEAD: Final = (
    *("query", "native", "DataFrames", "Spark SQL", "native : SQL", "native : DataFrames"),
    *("rows", "same"),
)


@dataclass(frozen=True)
class ParquetFigures:
    """Measurements of one query. Speeds are events a second, of all kinds."""

    query: str
    events: int
    workers: int
    rows: int
    native: float
    by_frames: float
    spark_sql: float
    equal: bool
    """Whether all three have the same rows, by their number and the sum of their hashes."""


def write_events(spark: SparkSession, config: Config, events: int, folder: Path) -> None:
    """Write the events as Parquet, in a folder for each kind, with a file for each slot."""
    slots = spark.sparkContext.defaultParallelism
    for kind, frame in frames(spark, config, events, partitions=slots).items():
        frame.write.parquet(str(folder / kind))


def measure_parquet(
    spark: SparkSession,
    query: Query,
    config: Config,
    events: int,
    folder: Path,
    *,
    workers: int = 2,
    runs: int = 2,
) -> ParquetFigures:
    """Run a query in the three ways over the files of `write_events`, and compare the answers.

    >>> import tempfile
    >>> from jeton_evaluation.nexmark import queries
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_events(spark, Config(), 1000, folder)
    >>> figures = measure_parquet(spark, queries.get("q7"), Config(), 1000, folder, runs=1)
    >>> figures.rows, figures.equal
    (1, True)
    """
    kinds = {str(kind): columns for kind, columns in query.columns.items()}
    read = {kind: _columns(spark, folder, kind, columns) for kind, columns in kinds.items()}
    out = {way: folder / f"{query.name}-{way}" for way in ("native", "frames", "sql")}

    def natively() -> None:
        files = {kind: sources.Parquet(folder / kind) for kind in kinds}
        sink = sinks.Parquet(out["native"])
        query.flow(config).on_spark(files, sinks={RESULT: sink}, workers=workers)

    def by_frames() -> None:
        made = query.flow(config).on_spark(read, workers=workers, shuffle=False)
        made[RESULT].write.parquet(str(out["frames"]))

    def by_sql() -> None:
        truth.answer(spark, query, read).write.parquet(str(out["sql"]))

    def speed(run: Callable[[], None], written: Path) -> float:
        return events / min(_timed(run, written) for _ in range(runs))

    native = speed(natively, out["native"])
    framed = speed(by_frames, out["frames"])
    sql = speed(by_sql, out["sql"])
    wanted = spark.read.parquet(str(out["sql"]))
    sums = {way: _check_sum(spark.read.parquet(str(out[way])), wanted.schema) for way in out}
    for written in out.values():
        shutil.rmtree(written)
    equal = len(set(sums.values())) == 1
    rows = sums["native"][0]
    return ParquetFigures(query.name, events, workers, rows, native, framed, sql, equal)


def lay_out_parquet(
    figures: Sequence[ParquetFigures], about: str, *, markdown: bool = False
) -> str:
    """The table, with the geometric means of its ratios below.

    >>> one = ParquetFigures("q4", 1000, 2, 7, 4e6, 2e6, 1e6, True)
    >>> print(lay_out_parquet([one], "Here."))
    Here. Millions of events a second.
    <BLANKLINE>
    query  native  DataFrames  Spark SQL  native : SQL  native : DataFrames  rows  same
    q4          4           2          1         4.00×                2.00×     7   yes
    all                                          4.00×                2.00×
    """
    rows = [
        (
            *(one.query, f"{one.native / 1e6:.3g}", f"{one.by_frames / 1e6:.3g}"),
            *(f"{one.spark_sql / 1e6:.3g}", f"{one.native / one.spark_sql:.2f}×"),
            *(f"{one.native / one.by_frames:.2f}×", f"{one.rows:,}"),
            "yes" if one.equal else "NO",
        )
        for one in figures
    ]
    means = [
        f"{_geometric_mean(ratios):.2f}×"
        for ratios in (
            [one.native / one.spark_sql for one in figures],
            [one.native / one.by_frames for one in figures],
        )
    ]
    lines = grid([_HEAD, *rows, ("all", "", "", "", *means, "", "")], markdown)
    return "\n".join([f"{about} Millions of events a second.", "", *lines])


def _columns(spark: SparkSession, folder: Path, kind: str, columns: Sequence[str]) -> DataFrame:
    return spark.read.parquet(str(folder / kind)).select("ts", *columns)


def _check_sum(rows: DataFrame, schema: StructType) -> tuple[int, int]:
    """The number of rows, and the sum of their hashes, by the columns and types of a schema."""
    columns = [F.col(field.name).cast(field.dataType) for field in schema.fields]
    hashes = F.sum(F.xxhash64(*columns).cast("decimal(38, 0)"))
    found = rows.agg(F.count(F.lit(1)), hashes).first()
    assert found is not None, "an aggregate without groups has one row"
    return int(found[0]), int(found[1] or 0)


def _timed(run: Callable[[], None], written: Path) -> float:
    shutil.rmtree(written, ignore_errors=True)
    began = perf_counter()
    run()
    return perf_counter() - began


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
