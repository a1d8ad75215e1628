"""A worker is killed in the middle of a stage: Spark runs it again, and the answer is right."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import jeton as jt

LIMIT = 300.0


def watched(folder: Path, stop_at: int) -> Callable[[jt.TimestampToken, jt.OperatorInfo], Any]:
    """Passes records on; the first time that worker 1 is midway, it says so and waits there."""

    def build(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Output], None]:
        token.drop()
        (folder / f"built-{info.worker}-{os.getpid()}-{time.monotonic_ns()}").touch()
        rows = 0

        def step(input: jt.Input, output: jt.Output) -> None:
            nonlocal rows
            for ref, batch in input:
                rows += len(batch)
                with output.session(ref) as session:
                    session.give(batch)
            if info.worker == 1 and rows > stop_at and not (folder / "midway").exists():
                (folder / "pid").write_text(str(os.getpid()))
                (folder / "midway").touch()
                # Until it is killed, which the test does as soon as it sees the file.
                time.sleep(LIMIT)

        return step

    return build


def kill_midway(folder: Path) -> float:
    """Wait until a worker says that it is midway, kill it, and tell when that was."""
    deadline = time.monotonic() + LIMIT
    while not (folder / "midway").exists():
        assert time.monotonic() < deadline, "no worker came midway"
        time.sleep(0.01)
    os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
    return time.monotonic()


@pytest.mark.parametrize(("workers", "inputs"), [(2, 1), (3, 1), (2, 3)])
def test_the_stage_is_retried_and_the_answer_is_right(
    spark: SparkSession, tmp_path: Path, workers: int, inputs: int
) -> None:
    rows = 60_000
    flow = jt.Flow("killed")
    first, *others = (flow.input(f"n{n}", time="id", schema={"k": int}) for n in range(inputs))
    passed = first.concat(*others).unary_frontier(
        watched(tmp_path, rows // workers // 2),
        pact=jt.Exchange("k"),
        name="watched",
        schema={"k": int},
    )
    flow.output("counts", passed.key_by("k").tumbling(10_000).count())
    frames = {
        f"n{n}": spark.range(n, rows, inputs, workers).selectExpr("id", "id % 10 as k")
        for n in range(inputs)
    }
    counts = flow.on_spark(frames, workers=workers)["counts"]

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(counts.collect()), daemon=True)
    thread.start()
    killed = kill_midway(tmp_path)
    thread.join(LIMIT)
    took = time.monotonic() - killed
    assert not thread.is_alive(), "it hangs"
    assert sorted((row.id, row.k, row["count"]) for row in found) == [
        (end, k, 1000) for end in range(10_000, rows + 1, 10_000) for k in range(10)
    ]
    # All workers were built anew, not only the one that died.
    for worker in range(workers):
        assert len(list(tmp_path.glob(f"built-{worker}-*"))) >= 2
    print(f"right again {took:.1f} s after worker 1 of {workers} was killed")


def test_without_an_exchange_the_job_fails_and_does_not_hang(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = jt.Flow("killed for good")
    passed = flow.input("n", time="id", schema={}).unary_frontier(
        watched(tmp_path, 10), name="watched", schema={}
    )
    flow.output("out", passed)
    result = flow.on_spark({"n": spark.range(0, 1000, 1, 2)}, workers=2, shuffle=False)["out"]
    raised: list[Exception] = []

    def collect() -> None:
        try:
            result.collect()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    kill_midway(tmp_path)
    thread.join(LIMIT)
    assert not thread.is_alive(), "it hangs"
    assert len(raised) == 1
