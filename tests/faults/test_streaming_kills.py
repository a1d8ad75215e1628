"""Workers, queries and drivers are killed in the midst of micro-batches: the output is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.faults.streaming_program import Job

LIMIT = 300


def run(job: Job, spark: SparkSession, *, starts: int = 1, workers: int = 2) -> int:
    """Run to the end, starting the query again if it fails; returns how many times it failed."""
    for failed in range(starts):
        query = job.start(spark, workers=workers)
        try:
            assert query.awaitTermination(LIMIT), "it hangs"
        except StreamingQueryException:
            if failed == starts - 1:
                raise
        else:
            return failed
    raise AssertionError("it never came to an end")


def test_nobody_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, 3)
    assert run(job, spark) == 0
    assert job.written() == job.expected()
    assert all(len(rows) > 20 for rows in job.written().values())


def test_a_worker_is_killed_while_it_works_and_while_it_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = Job(tmp_path, 4)
    for plan in ("step-1-0", "snapshot-2-1"):
        (job.plans / plan).touch()
    assert run(job, spark) == 0, "Spark runs the stage again"
    assert sorted(path.name for path in job.plans.glob("done-*")) == [
        "done-snapshot-2-1",
        "done-step-1-0",
    ]
    assert job.written() == job.expected()


def test_a_query_is_stopped_and_started_again(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(tmp_path, 4)
    stop_and_start(job, spark, Random(1), stops=2)
    assert job.written() == job.expected()


def stop_and_start(job: Job, spark: SparkSession, random: Random, stops: int) -> None:
    """Stop at random moments after a random number of micro-batches were begun."""
    for _ in range(stops):
        query = job.start(spark, workers=random.choice([1, 2, 3]))
        begun = len(list((job.root / "checkpoint/offsets").glob("[0-9]*")))
        deadline = time.monotonic() + LIMIT
        while (
            query.isActive and len(list((job.root / "checkpoint/offsets").glob("[0-9]*"))) <= begun
        ):
            assert time.monotonic() < deadline, "it hangs"
            time.sleep(0.01)
        time.sleep(random.uniform(0.0, 0.5))
        query.stop()
    run(job, spark, starts=2)


def start_program(job: Job, workers: int = 2, master: str = "") -> subprocess.Popen[bytes]:
    arguments = [str(job.root), str(job.batches), master, str(workers)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.streaming_program", *arguments],
        cwd=Path(__file__).parents[2],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.long
def test_a_driver_dies_between_two_outputs(tmp_path: Path) -> None:
    """The whole program, JVM and workers with it; another one goes on, with more workers."""
    job = Job(tmp_path, 3)
    (job.plans / "driver-1-sums").touch()
    assert start_program(job).wait(LIMIT) == -signal.SIGKILL
    assert (job.plans / "done-driver-1-sums").exists()
    assert start_program(job, workers=3).wait(LIMIT) == 0
    assert job.written() == job.expected()


# The campaign


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_workers_are_killed_at_random(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    job, random = Job(tmp_path, 12), Random(seed)
    killed = 0
    over = threading.Event()

    def kill() -> None:
        nonlocal killed
        while not over.wait(random.uniform(1.0, 4.0)):
            pids = [int(path.name[4:]) for path in job.plans.glob("pid-*")]
            alive = [pid for pid in pids if _is_python(pid)]
            if alive and killed < 8:
                with suppress(ProcessLookupError):
                    os.kill(random.choice(alive), signal.SIGKILL)
                    killed += 1

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        failed = run(job, spark, starts=10)
    finally:
        over.set()
        thread.join()
    print(f"{killed} workers were killed, the query failed {failed} times")
    assert killed
    assert job.written() == job.expected()


def _is_python(pid: int) -> bool:
    """Whether it is a worker of ours still, and not a process that came to its number since."""
    try:
        return "pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_query_is_stopped_at_random(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    job = Job(tmp_path, 12)
    stop_and_start(job, spark, Random(seed), stops=6)
    assert job.written() == job.expected()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_drivers_are_killed_at_random(tmp_path: Path, seed: int) -> None:
    job, random = Job(tmp_path, 10), Random(seed)
    for _ in range(5):
        program = start_program(job, workers=random.choice([1, 2, 3]))
        begun = len(list((tmp_path / "checkpoint/offsets").glob("[0-9]*")))
        deadline = time.monotonic() + LIMIT
        while program.poll() is None and (
            len(list((tmp_path / "checkpoint/offsets").glob("[0-9]*"))) <= begun
        ):
            assert time.monotonic() < deadline, "it hangs"
            time.sleep(0.05)
        time.sleep(random.uniform(0.0, 5.0))
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    assert start_program(job).wait(5 * LIMIT) == 0
    assert job.written() == job.expected()


@pytest.mark.long
def test_executors_are_killed(tmp_path: Path) -> None:
    """On a cluster of two executors in processes of their own.

    A stage may be retried four times only: if the program fails of it, it is started again.
    """
    job, random = Job(tmp_path, 30), Random(5)
    killed = starts = 0
    ended: int | None = None
    deadline = time.monotonic() + 5 * LIMIT
    while ended != 0:
        starts += 1
        program = start_program(job, master="local-cluster[2,1,1024]")
        while program.poll() is None and killed < 5:
            assert time.monotonic() < deadline, "it hangs"
            time.sleep(random.uniform(3.0, 8.0))
            executors = _executors_of(program.pid) if any(job.plans.glob("pid-*")) else []
            if executors:
                with suppress(ProcessLookupError):
                    os.kill(random.choice(executors), signal.SIGKILL)
                    killed += 1
        ended = program.wait(5 * LIMIT)
    print(f"{killed} executors were killed, the program was started {starts} times")
    assert killed >= 3
    assert job.written() == job.expected()


def _executors_of(group: int) -> list[int]:
    """The executors' JVMs among the processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pid = int(path.name)
            line = (path / "cmdline").read_bytes()
            if os.getsid(pid) == group and b"CoarseGrainedExecutorBackend" in line:
                found.append(pid)
    return found
