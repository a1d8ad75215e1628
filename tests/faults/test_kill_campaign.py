"""A kill campaign: whatever is killed, and whenever, the output is that of an undisturbed run.

Seeded, so that a campaign can be run again; what it meets at those moments is up to the machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from secrets import token_hex
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from jeton.spark import store_access
from jeton.spark.query import Query
from jeton.storage import store_settings
from jeton.storage.checkpoints import Checkpoints
from tests.faults import campaign
from tests.storage.s3_server import BUCKET, s3_server, settings_of
from tests.storage.webhdfs_server import webhdfs_server

PROGRAM = Path(campaign.__file__)
LIMIT = 300.0
PLACES = ("disk", "s3", "hadoop", "name node")


def until(condition: Callable[[], Any], what: str, pause: float = 0.01) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(pause)


def workers(folder: Path) -> list[int]:
    """The processes that have made records since the last kill, and still live."""
    found = [int(path.name) for path in (folder / "pids").iterdir()]
    assert os.getpid() not in found, "this process is to be killed, which runs the tests"
    return [pid for pid in found if Path(f"/proc/{pid}").exists()]


def forget_workers(folder: Path) -> None:
    for path in (folder / "pids").iterdir():
        path.unlink()


def executor_of(worker: int) -> int:
    """A Python worker is a child of its executor's daemon, and that of the executor."""
    return _parent(_parent(worker))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def check(folder: Path, limit: int) -> None:
    assert campaign.committed(folder) == campaign.undisturbed(limit)


@pytest.fixture
def place(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> Iterator[campaign.Place]:
    """Where a query keeps its files: on a disk, in a bucket, or where only Java can reach them."""
    before = store_settings.current()
    with ExitStack() as stack:
        made = campaign.Place(str(tmp_path), {})
        if request.param == "s3":
            endpoint = stack.enter_context(s3_server())
            made = campaign.Place(f"s3a://{BUCKET}/kills", dict(settings_of(endpoint).values))
        elif request.param == "hadoop":
            # A name of its own: Hadoop remembers file systems by name.
            name = f"kills{token_hex(4)}"
            (tmp_path / "data").mkdir()
            link = {f"fs.viewfs.mounttable.{name}.link./data": (tmp_path / "data").as_uri()}
            made = campaign.Place(f"viewfs://{name}/data", link)
        elif request.param == "name node":
            made = campaign.Place(f"{stack.enter_context(webhdfs_server())[0]}/kills", {})
        made.write(tmp_path)
        for key, value in made.settings.items():
            spark.conf.set(key, value)
        store_access.adopt(spark)
        yield made
        for key in made.settings:
            spark.conf.unset(key)
    store_settings.use(before)


@pytest.mark.parametrize(
    ("place", "kills"),
    [
        ("disk", 3),
        ("s3", 2),
        *(pytest.param(where, 20, marks=pytest.mark.long) for where in PLACES),
    ],
    indirect=["place"],
)
def test_workers(spark: SparkSession, tmp_path: Path, place: campaign.Place, kills: int) -> None:
    random = Random(kills)
    limit = campaign.RATE * (2 + 2 * kills)
    query = campaign.start(spark, tmp_path, limit)
    back: list[float] = []

    # On a slow machine it may have read all rows before that number of workers was killed.
    def await_unless_ended(condition: Callable[[], bool], what: str) -> bool:
        until(lambda: condition() or query.status == "ended", what)
        return query.status != "ended"

    for _ in range(kills):
        if not await_unless_ended(lambda: len(workers(tmp_path)) >= 2, "both workers"):
            break
        time.sleep(random.uniform(0.0, 1.2))
        committed, restarts = counts_of(query)
        with suppress(ProcessLookupError):
            os.kill(random.choice(workers(tmp_path)), signal.SIGKILL)
        killed = time.monotonic()
        if not await_unless_ended(partial(has_restarted, query, restarts), "a restart"):
            break
        forget_workers(tmp_path)
        await_unless_ended(partial(has_committed, query, committed), "a new version")
        back.append(time.monotonic() - killed)
    assert query.await_termination(LIMIT)
    check(tmp_path, limit)
    assert back, "nobody was killed in time"
    back.sort()
    cost = query.metrics()["checkpoints"]
    print(
        f"{len(back)} workers killed; the next version came {back[len(back) // 2]:.1f} s later "
        f"(at most {back[-1]:.1f}); a pause took {cost['pause_ms']:.1f} ms (at most "
        f"{cost['longest_pause_ms']:.1f}), a checkpoint {cost['seconds'] * 1e3:.0f} ms"
    )


def has_restarted(query: Query, before: int) -> bool:
    return counts_of(query)[1] > before


def has_committed(query: Query, before: int) -> bool:
    return counts_of(query)[0] > before


def counts_of(query: Query) -> tuple[int, int]:
    """The newest version and the number of restarts."""
    checkpoints = query.metrics()["checkpoints"]
    return checkpoints["version"] or 0, checkpoints["restarts"]


@contextmanager
def driver(folder: Path, limit: int, cluster: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process and a group of its own, of which nothing is left at the end."""
    (folder / "running").unlink(missing_ok=True)
    (folder / "pids").mkdir(exist_ok=True)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), str(limit), cluster],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # Its JVM and what that started may outlive it, also if it has failed by itself.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def running(folder: Path, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, (folder / "log").read_text()[-5000:]
    return (folder / "running").exists()


def last_version(folder: Path) -> int:
    """The latest version that has been committed."""
    return max(Checkpoints(f"{campaign.Place.of(folder).root}/checkpoint").versions(), default=0)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "kills"),
    [("disk", 1), ("disk", 6), ("s3", 15), ("hadoop", 15), ("name node", 5)],
    indirect=["place"],
)
def test_drivers(tmp_path: Path, place: campaign.Place, kills: int) -> None:
    random = Random(kills)
    limit = campaign.RATE * (3 + 2 * kills)
    for _ in range(kills):
        with driver(tmp_path, limit) as process:
            until(lambda p=process: running(tmp_path, p), "the query to run")  # type: ignore[misc]
            time.sleep(random.uniform(0.3, 2.0))
            # Only the driver: what it started must find out by itself.
            process.kill()
            process.wait()
            until(lambda: not workers(tmp_path), "the orphans to end")
    with driver(tmp_path, limit) as process:
        assert process.wait(LIMIT) == 0, (tmp_path / "log").read_text()[-5000:]
    check(tmp_path, limit)
    print(f"{kills} drivers killed")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("place", "kills"),
    [
        ("disk", 1),
        *(
            pytest.param(where, kills, marks=pytest.mark.long)
            for where, kills in (("disk", 6), ("s3", 15), ("hadoop", 15))
        ),
    ],
    indirect=["place"],
)
def test_executors(tmp_path: Path, place: campaign.Place, kills: int) -> None:
    random = Random(kills)
    # Enough for executors that take their time to start on a busy machine.
    limit = campaign.RATE * (12 + 3 * kills)
    # Spark leaves the executors' logs there, and has no setting for another place.
    work = Path(pyspark.__file__).parent / "work"
    was_there = work.exists()
    back: list[float] = []
    try:
        with driver(tmp_path, limit, "local-cluster[3,1,1024]") as process:
            for _ in range(kills):
                until(lambda: len(workers(tmp_path)) >= 2, "both workers")
                time.sleep(random.uniform(0.0, 2.0))
                executor = executor_of(random.choice(workers(tmp_path)))
                assert executor != process.pid
                os.kill(executor, signal.SIGKILL)
                killed, before = time.monotonic(), last_version(tmp_path)
                # One may have been under way.
                until(lambda b=before: last_version(tmp_path) > b + 1, "a version", 0.3)  # type: ignore[misc]
                back.append(time.monotonic() - killed)
                forget_workers(tmp_path)
            assert process.wait(LIMIT) == 0, (tmp_path / "log").read_text()[-5000:]
    finally:
        if not was_there:
            shutil.rmtree(work, ignore_errors=True)
    check(tmp_path, limit)
    back.sort()
    middle = back[len(back) // 2]
    print(f"{kills} executors killed; the next version came {middle:.1f} s later")
