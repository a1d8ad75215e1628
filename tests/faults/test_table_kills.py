"""Into Delta, Iceberg and PostgreSQL, with kills: each row is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.faults import tables_campaign as campaign
from tests.faults.campaign import LIMIT
from tests.faults.test_kill_campaign import (
    counts_of,
    forget_workers,
    has_committed,
    has_restarted,
    running,
    until,
    workers,
)
from tests.postgres_server import needs_postgres, postgres_server

pytestmark = needs_postgres


@pytest.fixture
def dsn() -> Iterator[str]:
    with postgres_server() as dsn:
        yield dsn


def check(folder: Path, dsn: str, limit: int) -> None:
    found, expected = campaign.found(folder, dsn), campaign.expected(limit)
    assert {name: len(rows) for name, rows in found.items()} == {
        name: len(rows) for name, rows in expected.items()
    }
    assert found == expected


@pytest.mark.parametrize("kills", [1, pytest.param(15, marks=pytest.mark.long)])
def test_workers(spark: SparkSession, tmp_path: Path, dsn: str, kills: int) -> None:
    random, killed = Random(kills), 0
    limit = campaign.RATE * (1 + 2 * kills)
    query = campaign.start(spark, tmp_path, dsn, limit)

    # On a slow machine it may have read all rows before that number of workers was killed.
    def await_unless_ended(condition: Callable[[], bool], what: str) -> bool:
        until(lambda: condition() or query.status == "ended", what)
        return query.status != "ended"

    while killed < kills:
        if not await_unless_ended(lambda: len(workers(tmp_path)) >= 2, "both workers"):
            break
        time.sleep(random.uniform(0.0, 0.8))
        committed, restarts = counts_of(query)
        with suppress(ProcessLookupError, IndexError):
            os.kill(random.choice(workers(tmp_path)), signal.SIGKILL)
            killed += 1
        if not await_unless_ended(partial(has_restarted, query, restarts), "a restart"):
            break
        forget_workers(tmp_path)
        if not await_unless_ended(partial(has_committed, query, committed), "a version"):
            break
    assert query.await_termination(LIMIT)
    check(tmp_path, dsn, limit)
    versions = DeltaTable(tmp_path / "delta").version()
    assert killed > 0
    print(f"{killed} workers killed, {limit} records, {versions} versions of the Delta table")


@contextmanager
def driver(folder: Path, dsn: str, limit: int, point: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process and a group of its own, of which nothing is left at the end."""
    (folder / "running").unlink(missing_ok=True)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", campaign.__name__, str(folder), dsn, str(limit), point],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("kills", [5])
def test_drivers(tmp_path: Path, dsn: str, kills: int) -> None:
    """Drivers end at each point of a commit, and are killed at any other."""
    random = Random(kills)
    limit = campaign.RATE * 2 * (kills + len(campaign.POINTS))
    for point in campaign.POINTS:
        with driver(tmp_path, dsn, limit, point) as process:
            assert process.wait(LIMIT) == 9, log_of(tmp_path)
    for _ in range(kills):
        with driver(tmp_path, dsn, limit, "") as process:
            until(lambda p=process: running(tmp_path, p), "the query to run")  # type: ignore[misc]
            time.sleep(random.uniform(0.3, 2.0))
            process.kill()
    with driver(tmp_path, dsn, limit, "") as process:
        assert process.wait(LIMIT) == 0, log_of(tmp_path)
    check(tmp_path, dsn, limit)
    print(f"{len(campaign.POINTS)} drivers ended around commits, {kills} killed, {limit} records")


def log_of(folder: Path) -> str:
    return (folder / "log").read_text()[-5000:]
