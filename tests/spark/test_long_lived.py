"""Long-lived queries: their handle, sources, sinks, and how they end, well or not."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Callback, Memory, Parquet, Retry
from jeton.connectors.sources import Batches, Files, Rate
from jeton.errors import GraphError, QueryFailed
from jeton.spark.query import Query

LIMIT = 300.0


def counting(lateness: int | None = None) -> jt.Flow:
    flow = jt.Flow("counting")
    numbers = flow.input("numbers", lateness=lateness)
    flow.output("counts", numbers.key_by("n").tumbling(100).count())
    return flow


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that the other end will report."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def endless(partition: int, partitions: int) -> Iterator[Any]:
    """Nothing, for as long as it is asked."""
    while True:
        yield None


def tables(partition: int, partitions: int) -> Iterator[Any]:
    """A thousand rows in ten tables, with pauses between."""
    for at in range(10):
        times = np.arange(at * 100, at * 100 + 100)
        yield pa.table({"time": times, "n": np.full(100, partition)})
        yield None


def half_idle(partition: int, partitions: int) -> Iterator[Any]:
    """Partitions 0 and 2 go on, far apart; the others have a record each and then nothing."""
    base = -500 if partition == 2 else 100_000
    yield {"time": [base], "n": [partition]}
    for at in range(10):
        yield None if partition % 2 else {"time": [base + 100 * at], "n": [partition]}
    while True:
        yield None


def test_idle_partitions_of_any_worker_hold_nothing_back(spark: SparkSession) -> None:
    flow = jt.Flow("half idle")
    numbers = flow.input("numbers", lateness=0, idle_after=0.5)
    flow.output("counts", numbers.key_by("n").tumbling(100).count())
    sources = {"numbers": Batches(half_idle, 4)}
    with flow.start(spark, sources=sources, sinks={"counts": Memory()}, workers=2) as query:
        # Worker 1 has the idle partitions only; all are idle in the end, and the input stays.
        until(lambda: query.frontiers().get("counts", [0])[0] >= 400, "windows of partition 2")
        assert query.metrics()["late"] == 0
        # The frontier is any worker's word: the rows of another may still be on their way.
        until(lambda: query.table("counts").where("n = 2").count() >= 9, "the last row")
        rows = query.table("counts").where("n = 2").collect()
    # Once this partition is idle too, its last window may be complete as well.
    assert sorted(row["time"] for row in rows)[:9] == [-400 + 100 * at for at in range(9)]


def test_runs_to_the_end_of_its_sources(spark: SparkSession, tmp_path: Path) -> None:
    came: list[pa.Table] = []
    flow = counting()
    flow.output("all", flow.input("more"))
    query = flow.start(
        spark,
        sources={
            "numbers": Batches(tables),
            "more": Batches(lambda partition, _: iter([[{"time": partition, "m": 1.5}]])),
        },
        sinks={"counts": Callback(came.append), "all": Parquet(tmp_path / "out")},
        workers=2,
        name="to the end",
    )
    assert query.await_termination(LIMIT)
    assert query.status == "ended"
    assert query.exception() is None
    assert not query.is_active
    rows = sorted(tuple(row.values()) for table in came for row in table.to_pylist())
    assert rows == [(end, n, 100) for end in range(100, 1001, 100) for n in (0, 1)]
    assert spark.read.parquet(str(tmp_path / "out")).count() == 2
    metrics = query.metrics()
    assert (metrics["rows_in"], metrics["rows_out"], metrics["late"]) == (2002, 22, 0)
    assert set(metrics["workers"]) == {0, 1}
    operators = {each["name"]: each for each in metrics["operators"]}
    each = [worker["operators"][1] for worker in metrics["workers"].values()]
    assert {worker["name"] for worker in each} == {"count"}
    assert operators["count"]["invocations"] == sum(worker["invocations"] for worker in each) > 0
    assert (operators["count"]["tokens"], operators["count"]["frontiers"]) == (0, [[]])
    assert query.frontiers() == {"counts": [], "all": []}
    # Once more: it has ended, and stays so.
    query.stop()
    assert query.status == "ended"


def test_stops_at_once_while_other_jobs_run(spark: SparkSession) -> None:
    flow = counting()
    with flow.start(spark, sources={"numbers": Batches(endless)}, workers=2) as query:
        query.await_running(LIMIT)
        assert str(query.status) == "running"
        assert "running, 2 workers" in repr(query)
        assert query.frontiers()["counts"][0] <= 0
        # Two of four slots are free.
        assert spark.range(1000).repartition(2).count() == 1000
        assert not query.await_termination(0.01)
        query.stop()
    assert query.status == "ended"


@pytest.mark.long
def test_a_query_that_waits_names_the_jobs_that_hold_the_slots(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    sources = {"numbers": Batches(endless)}
    with counting().start(spark, sources=sources, workers=3, name="first") as first:
        first.await_running(LIMIT)
        with counting().start(spark, sources=sources, workers=2, name="second") as second:
            held = r"slots are held by job \d+, Jeton query 'first' on 3 workers \(3 tasks\)"
            message = ""
            # Spark's own counts of tasks are some seconds old.
            while not re.search(f"0 of 2 workers of query 'second'.*{held}", message):
                with pytest.raises(TimeoutError) as caught:
                    second.await_running(2.0)
                message = str(caught.value)
            second.warn_of_waiting(0.0)
            assert re.search(f"query 'second' waits for 2 slots: {held}", caplog.text)
            assert "starting, 2 workers" in second._repr_html_()
            first.stop()
            second.await_running(LIMIT)
            before = caplog.text.count("waits for 2 slots")
            second.warn_of_waiting(0.0)
            assert caplog.text.count("waits for 2 slots") == before
            assert not re.search(r"held by [^\n]*Jeton query 'second'", caplog.text)


def test_a_lock_in_a_function_is_named(spark: SparkSession) -> None:
    lock = threading.Lock()
    flow = jt.Flow("locked")
    numbers = flow.input("numbers", time="id", schema={})
    flow.output("numbers", numbers.filter(lambda batch: lock.locked()))
    with pytest.raises(GraphError, match=r"it uses 'lock', a _thread\.lock"):
        flow.start(spark, sources={"numbers": Batches(endless)})
    with pytest.raises(GraphError, match=r"it uses 'lock', a _thread\.lock"):
        flow.on_spark({"numbers": spark.range(10)})


def test_stopping_before_it_has_started(spark: SparkSession) -> None:
    query = counting().start(spark, sources={"numbers": Batches(endless)}, workers=2)
    query.stop()
    assert query.status == "ended"


def test_draining_tells_open_windows(spark: SparkSession) -> None:
    memory = Memory()
    flow = counting()

    def some(partition: int, partitions: int) -> Iterator[Any]:
        yield {"time": [5, 6, 7], "n": [1, 2, 2]}
        while True:
            yield None

    query = flow.start(
        spark, sources={"numbers": Batches(some)}, sinks={"counts": memory}, workers=2
    )
    with query:
        until(lambda: query.metrics().get("rows_in") == 6, "all rows")
        with pytest.raises(GraphError, match="no row of output 'counts'"):
            query.table("counts")
        query.stop(drain=True)
    assert query.status == "ended"
    rows = query.table("counts").collect()
    assert sorted((row.time, row.n, row["count"]) for row in rows) == [(100, 1, 2), (100, 2, 4)]


def test_a_rate_moves_time_and_results_come_while_it_runs(spark: SparkSession) -> None:
    memory = Memory()
    flow = jt.Flow("rate")
    numbers = flow.input("numbers")
    flow.output("counts", numbers.key_by().tumbling(50_000_000).count())
    source = Rate(20_000, lambda positions: {"n": positions % 7})
    query = flow.start(spark, sources={"numbers": source}, sinks={"counts": memory}, workers=2)
    with query:
        until(lambda: memory.table() is not None and len(memory.table()) > 3, "windows")  # type: ignore[arg-type]
        before = query.frontiers()["counts"]
        until(lambda: query.frontiers()["counts"] > before, "the frontier to move")
        assert query.table("counts").count() >= 4
    table = memory.table()
    assert table is not None
    assert set(table["count"].to_pylist()) == {1000}


def test_a_limited_rate_ends(spark: SparkSession) -> None:
    memory = Memory()
    flow = jt.Flow("rate")
    flow.output("numbers", flow.input("numbers").exchange("n"))
    query = flow.start(
        spark,
        sources={"numbers": Rate(1e6, lambda positions: {"n": positions}, limit=12_345)},
        sinks={"numbers": memory},
        workers=3,
    )
    assert query.await_termination(LIMIT)
    table = memory.table()
    assert table is not None
    assert sorted(table["n"].to_pylist()) == list(range(12_345))


def write(folder: Path, name: str, values: list[int]) -> None:
    """A file that appears whole."""
    table = pa.table({"time": values, "n": [value % 3 for value in values]})
    pq.write_table(table, folder / f".{name}")
    (folder / f".{name}").rename(folder / name)


def test_files_as_they_appear_and_sinks_that_write_whole_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    write(folder, "a.parquet", list(range(100)))
    flow = jt.Flow("files")
    flow.output("rows", flow.input("files").exchange("n"))
    query = flow.start(
        spark,
        sources={"files": Files(folder, every=0.05)},
        sinks={"rows": Parquet(out, rows=50)},
        workers=2,
    )
    with query:
        until(lambda: query.metrics().get("rows_in") == 100, "the first file")
        for at in range(5):
            write(folder, f"b{at}.parquet", list(range(100 + at * 10, 110 + at * 10)))
        until(lambda: query.metrics().get("rows_out") == 150, "the others")
        # Whole files are there to be read while the query runs.
        until(lambda: any(out.glob("part-*.parquet")), "a file of the sink")
        for path in out.glob("part-*.parquet"):
            assert pq.read_table(path).num_rows >= 50
    values = [n for path in out.glob("*.parquet") for n in pq.read_table(path)["time"].to_pylist()]
    assert sorted(values) == list(range(150))
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_a_failing_operator_fails_the_query_with_the_first_cause(spark: SparkSession) -> None:
    def judge(batch: jt.Batch) -> dict[str, Any]:
        if (batch["n"] == 1).any():
            raise ValueError("one is not allowed")
        return {"n": batch["n"]}

    flow = jt.Flow("failing")
    flow.output("out", flow.input("numbers").exchange("n").map(judge, name="judging"))
    query = flow.start(spark, sources={"numbers": Batches(tables)}, workers=3)
    with pytest.raises(QueryFailed, match="one is not allowed") as caught:
        query.await_termination(LIMIT)
    assert query.status == "failed"
    text = str(query.exception())
    assert text == str(caught.value)
    assert "operator 'judging'" in text
    assert text.count("in judge") == 1
    with pytest.raises(QueryFailed):
        query.await_running(1.0)


def test_a_failing_source_and_a_failing_callback(spark: SparkSession) -> None:
    def broken(partition: int, partitions: int) -> Iterator[Any]:
        yield {"time": [1], "n": [1]}
        raise OSError("the disk is gone")

    query = counting().start(spark, sources={"numbers": Batches(broken)}, workers=2)
    with pytest.raises(QueryFailed, match="the disk is gone"):
        query.await_termination(LIMIT)

    def refuse(table: pa.Table) -> None:
        raise RuntimeError("no, thank you")

    sinks = {"counts": Callback(refuse, retry=Retry(times=1, first_wait=0.0))}
    query = counting().start(spark, sources={"numbers": Batches(tables)}, sinks=sinks, workers=2)
    with pytest.raises(QueryFailed, match=r"sink of output 'counts' failed 2 .*no, thank you") as e:
        query.await_termination(LIMIT)
    assert e.value.__cause__ is not None
    assert isinstance(e.value.__cause__.__cause__, RuntimeError)


def test_a_killed_worker_fails_the_query(spark: SparkSession, tmp_path: Path) -> None:
    def announcing(partition: int, partitions: int) -> Iterator[Any]:
        (tmp_path / f"{os.getpid()}.{partition}").touch()
        while True:
            yield None

    query = counting().start(spark, sources={"numbers": Batches(announcing)}, workers=2)
    query.await_running(LIMIT)
    until(lambda: any(tmp_path.glob("*.1")), "a pid")
    [worker] = tmp_path.glob("*.1")
    os.kill(int(worker.stem), signal.SIGKILL)
    with pytest.raises(QueryFailed, match="worker 1"):
        query.await_termination(LIMIT)
    assert query.status == "failed"


def test_two_queries_at_once(spark: SparkSession) -> None:
    memories = [Memory(), Memory()]
    queries = [
        counting().start(
            spark,
            sources={"numbers": Batches(tables)},
            sinks={"counts": memory},
            workers=2,
            name=f"query {at}",
        )
        for at, memory in enumerate(memories)
    ]
    for query in queries:
        assert query.await_termination(LIMIT)
    for memory in memories:
        table = memory.table()
        assert table is not None
        assert table.num_rows == 20


def test_what_cannot_start_is_refused_at_once(spark: SparkSession) -> None:
    source = Batches(endless)
    with pytest.raises(
        GraphError, match=r"needs a source for each of its inputs, .* for 'numbers'"
    ):
        counting().start(spark)
    with pytest.raises(GraphError, match=r"has no input 'words'"):
        counting().start(spark, sources={"words": source, "numbers": source})
    with pytest.raises(GraphError, match=r"has no output 'sums'"):
        counting().start(spark, sources={"numbers": source}, sinks={"sums": Memory()})
    with pytest.raises(GraphError, match=r"9 workers .* slots for 4 tasks"):
        counting().start(spark, sources={"numbers": source}, workers=9)
    policy: Any = "often"
    with pytest.raises(GraphError, match=r"True, False or a Rebalance, not 'often' \(a str\)"):
        counting().start(spark, sources={"numbers": source}, rebalance=policy)


def processor_share(pids: list[int], seconds: float) -> float:
    """How much of a core these processes use."""

    def used() -> float:
        ticks = 0
        for pid in pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    before = used()
    threading.Event().wait(seconds)
    return (used() - before) / seconds


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads Linux's process table")
def test_an_idle_query_costs_little(spark: SparkSession, tmp_path: Path) -> None:
    def idle(partition: int, partitions: int) -> Iterator[Any]:
        (tmp_path / str(os.getpid())).touch()
        while True:
            yield None

    query: Query
    with counting().start(spark, sources={"numbers": Batches(idle)}, workers=2) as query:
        query.await_running(LIMIT)
        until(lambda: len(list(tmp_path.iterdir())) == 2, "both pids")
        pids = [int(path.name) for path in tmp_path.iterdir()]
        until(lambda: processor_share(pids, 1.0) / len(pids) < 0.03, "the workers to be idle")
