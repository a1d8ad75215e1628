"""Pages of batches and streams, and what queries say in Spark."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sources import Rate
from jeton.inspector.running import pages
from jeton.inspector.server import PageServer
from tests.inspector.test_server import act

LIMIT = 120


@pytest.fixture(autouse=True)
def own_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield
    PageServer.close_all()


def snapshot(url: str) -> Any:
    with urlopen(f"{url}snapshot", timeout=LIMIT) as answer:
        return json.load(answer)


def counts() -> jt.Flow:
    flow = jt.Flow("counts")
    numbers = flow.input("n", time="value", lateness=0, schema={"k": int})
    flow.output("counts", numbers.key_by("k").tumbling(50).count())
    return flow


def test_the_page_of_a_batch_shows_its_latest_run(spark: SparkSession) -> None:
    frame = spark.range(1000).selectExpr("id as value", "id % 7 as k")
    frames = counts().on_spark({"n": frame}, workers=2)
    url = frames.inspect()
    assert snapshot(url)["status"] == "not started"
    status, answer = act(url, "pause")
    assert (status, answer) == (409, {"error": "pause: it cannot be steered"})
    assert frames["counts"].count() == 140
    frames._inspection.monitor.look()
    shown = snapshot(url)
    assert shown["status"] == "complete"
    assert [worker["worker"] for worker in shown["workers"]] == [0, 1]
    assert sum(worker["rows_in"] for worker in shown["workers"]) == 1000
    assert [each["name"] for each in shown["operators"]] == ["n", "count", "counts"]
    assert shown["operators"][2]["frontiers"] == [
        {"text": "complete", "short": "complete", "value": None}
    ]
    assert shown["reasons"]["why"] == "it cannot be steered"


def test_the_page_of_a_stream_shows_its_latest_micro_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    frames = counts().on_spark({"n": source.selectExpr("value", "value % 7 as k")}, workers=2)
    url = frames.inspect()
    query = frames["counts"].writeStream.format("noop").start()
    try:
        while query.lastProgress is None or query.lastProgress.batchId < 2:
            assert query.exception() is None
    finally:
        query.stop()
    frames._inspection.monitor.look()
    shown = snapshot(url)
    assert shown["status"] == "streaming"
    assert sum(worker["rows_in"] for worker in shown["workers"]) == 100, "of one micro-batch"
    reached = shown["operators"][1]["frontiers"][0]["value"]
    assert reached >= 200
    assert shown["operators"][1]["tokens"] > 0


def test_a_stream_is_paused_on_its_page(spark: SparkSession) -> None:
    flow = jt.Flow("paused")
    flow.output("ticks", flow.input("ticks", time="value", schema={}, lateness=0))
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    frames = flow.on_spark({"ticks": source.select("value")}, workers=1)
    url = frames.inspect()
    assert act(url, "pause", at="15") == (200, {"text": "paused at 15"})
    query = frames["ticks"].writeStream.format("memory").queryName("paused").start()
    try:
        frames.await_paused(LIMIT)
        status, held = act(url, "why", name="ticks")
        assert status == 200
        assert held["places"][0]["holders"][0]["what"] == "breakpoint"
        status, flying = act(url, "in_flight")
        assert [(row[-1], row[-2]) for row in flying["rows"]] == [("5", "15")]
        seen = frames.monitor.look()
        assert (seen.status, seen.paused_at, seen.awaited) == ("streaming", 15, None)
        assert act(url, "migrate")[1] == {"error": "migrate: it cannot be steered"}
        assert act(url, "step") == (200, {"text": "paused at 16"})
        assert act(url, "resume") == (200, {"text": "resumed"})
    finally:
        query.stop()


def test_a_query_is_found_while_it_runs_and_measured_once_it_is_looked_at(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = jt.Flow("rate")
    flow.output("out", flow.input("numbers", lateness=0))
    rate = Rate(1_000, lambda positions: {"n": positions})
    with flow.start(spark, sources={"numbers": rate}, workers=2) as query:
        url = query.inspect()
        assert [(page.name, page.url) for page in pages()] == [("rate", url)]
        query.await_running()
        assert query.description == "Jeton query 'rate' on 2 workers: numbers, out"
        assert act(url, "why", name="out")[0] == 200
        assert all("seconds" not in each for each in query.metrics()["operators"])
        assert query.sample("numbers").empty
        query.monitor.look()
        with urlopen(f"{url}metrics", timeout=LIMIT) as answer:
            assert b'jeton_up{query="rate"} 1' in answer.read()
        while query.sample("numbers").empty:
            pass
        while not all("seconds" in each for each in query.metrics()["operators"]):
            assert query.is_active
        assert {record.name for record in query.recent_progress} <= {"rate"}
        query.log_events(tmp_path / "log", full=True)
        with pytest.raises(jt.errors.GraphError, match="full event log of query 'rate' is written"):
            query.log_events(tmp_path / "log", full=True)
    query.monitor.join()
    assert pages() == []
    assert query.last_progress is not None
    assert query.last_progress.status == "ended"


SPARK_UI = """
import json, re, sys, urllib.request
import jeton as jt
from jeton.connectors.sources import Rate
from jeton.spark import local_session

spark = local_session(2, **{"spark.ui.enabled": True, "spark.ui.port": 0})
flow = jt.Flow("seen")
flow.output("out", flow.input("n", lateness=0))
source = Rate(1000, lambda positions: {"n": positions})
with flow.start(spark, sources={"n": source}, workers=1, inspect=True) as query:
    query.await_running()
    for line in sys.stdin:
        asked = urllib.request.Request(line.strip())
        if asked.full_url.endswith("/act"):
            asked.data = json.dumps({"act": "why", "arguments": {"name": "out"}}).encode()
            asked.add_header("content-type", "application/json")
            asked.add_header("origin", spark.sparkContext.uiWebUrl)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                print(answer.status, answer.geturl(), flush=True)
        except urllib.error.HTTPError as error:
            print(error.code, error.geturl(), flush=True)
"""


def test_the_page_is_shown_through_spark_s_ui() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SPARK_UI],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        lines = iter(child.stderr.readline, "")
        url = next(line.split()[-1] for line in lines if "through Spark's UI at" in line)
        assert re.fullmatch(r"http://127.0.0.1:\d+/proxy/jeton-\d+/[\w-]+/", url)
        for path in ("", "graph", "snapshot", "metrics", "act"):
            print(url + path, file=child.stdin)
            assert child.stdout.readline() == f"200 {url}{path}\n"
        wrong = f"{url.rsplit('/', 2)[0]}/nothing/"
        print(wrong, file=child.stdin)
        assert child.stdout.readline() == f"404 {wrong}\n"
        child.stdin.close()
        assert child.wait(LIMIT) == 0
