"""A query into tables of Delta, Iceberg and PostgreSQL, to be killed.

As a program, it may end itself around a commit: before it, in the middle of a transaction, or after
it and before the checkpoint knows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors import sinks
from jeton.connectors.sinks import Delivery, SinkContext
from jeton.connectors.sources import Rate
from jeton.spark.query import Query
from jeton.spark.session import local_session
from tests.faults.campaign import LIMIT

RATE = 10_000
EVERY = 0.2
SIZE = 20_000_000
POINTS = (
    "delta-before",
    "delta-after",
    "iceberg-before",
    "iceberg-after",
    "postgres-before",
    "postgres-middle",
    "postgres-after",
)


def flow() -> jt.Flow:
    made = jt.Flow("tables")
    records = made.input("records", schema={"k": int, "v": float})
    windows = records.key_by("k").tumbling(SIZE).sum("v")
    for name in ("delta", "iceberg", "postgres"):
        made.output(name, windows)
    counts = records.key_by("k").running(ordered=True).count()
    for name in ("counts", "delta_counts"):
        made.output(name, counts)
    return made


def columns(numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
    return {"k": numbers * 7919 % 31, "v": (numbers * 31 % 1009) / 8}


def records(folder: Path, limit: int) -> Rate:
    """Whoever makes them leaves word who it is, so that it can be killed."""

    def make(numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
        (folder / "pids" / str(os.getpid())).touch()
        return columns(numbers)

    return Rate(RATE, make, limit=limit)


def catalog(folder: Path) -> dict[str, str]:
    database = f"sqlite:///{folder}/catalog.db"
    return {"type": "sql", "uri": database, "warehouse": f"file://{folder}/warehouse"}


def start(spark: SparkSession, folder: Path, dsn: str, limit: int, point: str = "") -> Query:
    """Go on from the last checkpoint; the driver may end itself at a point."""
    (folder / "pids").mkdir(parents=True, exist_ok=True)
    upsert: dict[str, Any] = {"mode": "upsert", "key": ["k"], "order_by": "time"}
    return flow().start(
        spark,
        sources={"records": records(folder, limit)},
        sinks={
            "delta": FatalDelta(folder / "delta", point),
            "iceberg": FatalIceberg(folder, point),
            "postgres": FatalPostgres(dsn, point),
            "counts": sinks.Postgres(dsn, "counts", **upsert),
            "delta_counts": sinks.Delta(folder / "delta_counts", **upsert),
        },
        workers=2,
        checkpoint=folder / "checkpoint",
        every=EVERY,
        restarts=50,
    )


class FatalDelta(sinks.Delta):
    """A sink that may end the driver at the next commit with rows, but not while it recovers."""

    def __init__(self, path: Path, point: str) -> None:
        super().__init__(path)
        self._point = point

    def commit(self, context: SinkContext, version: int, staged: Sequence[Any]) -> None:
        fatal = bool(staged) and not context.again
        end(fatal and self._point == "delta-before")
        super().commit(context, version, staged)
        end(fatal and self._point == "delta-after")


class FatalIceberg(sinks.Iceberg):
    def __init__(self, folder: Path, point: str) -> None:
        super().__init__("tests.windows", catalog(folder))
        self._point = point

    def commit(self, context: SinkContext, version: int, staged: Sequence[Any]) -> None:
        fatal = bool(staged) and not context.again
        end(fatal and self._point == "iceberg-before")
        super().commit(context, version, staged)
        end(fatal and self._point == "iceberg-after")


class FatalPostgres(sinks.Postgres):
    def __init__(self, dsn: str, point: str) -> None:
        super().__init__(dsn, "windows")
        self._point = point

    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        fatal = not delivery.again
        end(fatal and self._point == "postgres-before")
        if fatal and self._point == "postgres-middle":
            with self._session("jeton-test") as session:
                session.prepare(table.schema, "postgres")
                session.write(table)
                end(True)
        super().receive(table, delivery)
        end(fatal and self._point == "postgres-after")


def end(now: bool) -> None:
    if now:
        os._exit(9)


def expected(limit: int) -> dict[str, list[Any]]:
    """The rows of each table after an undisturbed run."""
    numbers = np.arange(limit)
    times = (numbers * (1e9 / RATE)).astype(np.int64)
    result = flow().run({"records": {"time": times, **columns(numbers)}}, workers=2)
    windows = rows_of(result["delta"].to_pylist())
    latest = {row["k"]: row for row in result["counts"].sort_by("time").to_pylist()}
    tables: dict[str, list[Any]] = dict.fromkeys(("delta", "iceberg", "postgres"), windows)
    return tables | dict.fromkeys(("counts", "delta_counts"), rows_of(latest.values()))


def found(folder: Path, dsn: str) -> dict[str, list[Any]]:
    """The rows of each table now."""
    iceberg = sinks.Iceberg("tests.windows", catalog(folder)).table
    table = iceberg.load()
    assert table is not None
    made = {
        name: rows_of(DeltaTable(folder / name).to_pyarrow_table().to_pylist())
        for name in ("delta", "delta_counts")
    }
    made["iceberg"] = rows_of(table.scan().to_arrow().to_pylist())
    iceberg.close()
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        for output, name in (("postgres", "windows"), ("counts", "counts")):
            made[output] = rows_of(connection.execute(f"SELECT * FROM {name}").fetchall())
    return made


def rows_of(rows: Any) -> list[Any]:
    return sorted((sorted(row.items()) for row in rows), key=repr)


def main(folder: Path, dsn: str, limit: int, point: str) -> None:
    """The driver: goes on from wherever the one before it ended."""
    spark = local_session(workers=2)
    query = start(spark, folder, dsn, limit, point)
    query.await_running(LIMIT)
    (folder / "running").touch()
    query.await_termination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
