"""The live page of a query on Spark with two workers, in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sources import Batches
from tests.browser.test_page import changes, operator, reached
from tests.inspector.driven import stuck

if TYPE_CHECKING:
    from playwright.sync_api import Page

Visit = Callable[..., "Page"]


def ticking(partition: int, partitions: int) -> Iterator[Any]:
    """One time after the other, with eight keys each, until the query is stopped."""
    for time in range(1_000_000):
        yield {"time": np.full(8, time), "k": np.arange(8), "v": np.ones(8)}
        yield None  # the reader is asked again when there is nothing else to do


def test_a_query_on_spark_is_seen_and_steered(
    visit: Visit, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = stuck().start(
        spark,
        sources={"readings": Batches(ticking)},
        workers=2,
        checkpoint=tmp_path,
        inspect=True,
    )
    link = f"jeton: query {query.name!r} is at {query.inspect()}\n"
    assert link in capsys.readouterr().err
    with query:
        query.await_running()
        query.monitor.every = 0.1
        page = visit(query.inspect())
        page.wait_for_selector("body[data-snapshots]")

        # The graph is there, with each worker's numbers, and frontiers move.
        boxes = page.locator("#graph g[data-operator]")
        named = [boxes.nth(at).get_attribute("aria-label") for at in range(boxes.count())]
        assert named == [
            "Operator readings",
            "Operator mean",
            "Operator means",
            "Operator keeper",
            "Operator high",
        ]
        page.wait_for_selector("#workers tbody tr:nth-child(2)")
        before, after = changes(page, '#frontiers div:has(dt:text-is("Frontier at means")) dd')
        assert reached(after) > reached(before)

        # A stuck token is found by clicking on the output that it holds.
        page.wait_for_selector(f"{operator(page, 'keeper')}.holds")
        page.locator(operator(page, "high")).click()
        text = page.locator('#holders .holder[data-what="token"]').first.inner_text()
        assert "'keeper' holds 2 tokens at 0 on workers 0 and 1" in text
        assert "kept.append(ref.retain())" in text

        # Pause, step and resume.
        page.locator("#pause").click()
        page.wait_for_selector("#step:enabled")
        paused_at = query.paused_at
        page.wait_for_selector(f'#status:text-is("paused at {paused_at}")')
        within_window = paused_at // 10 * 10 + 25
        page.locator("#at").fill(str(within_window))
        page.locator("#step").click()
        page.wait_for_selector(f'#status:text-is("paused at {within_window}")')
        query.await_paused()
        page.locator(operator(page, "mean")).click()
        page.wait_for_selector('#rows h3:has-text("State")')
        assert page.locator("#rows tbody tr").count() > 0
        page.locator("#resume").click()
        page.wait_for_selector('#status:text-is("running")')
        assert query.paused_at is None

        # State moves to the other worker, and back to where the load is even.
        page.locator("#migrate").click()
        page.locator("#giver").select_option("0")
        page.locator("#taker").select_option("1")
        page.locator("#move").click()
        page.wait_for_selector('#said:has-text("2048 bins have moved")')
        page.wait_for_selector('#workers tbody tr:last-child td:nth-child(10):text-is("4096")')
        assert query.placement[0] == []
        page.locator("#migrate").click()
        page.locator("#rebalance").click()
        page.wait_for_selector('#said:has-text("bins have moved"):not(:has-text("2048"))')
        assert query.placement[0] != []

        # A checkpoint.
        page.locator("#checkpoint").click()
        page.wait_for_selector('#said:has-text("is committed")')
        taken = re.search(r"checkpoint (\d+) is committed", page.locator("#said").inner_text())
        assert taken is not None
    page.wait_for_selector('#status:text-is("ended")')


def test_the_page_of_a_batch_is_for_looking_only(visit: Visit, spark: SparkSession) -> None:
    flow = jt.Flow("batch")
    numbers = flow.input("n", time="id", schema={})
    flow.output("small", numbers.filter(lambda batch: batch.times < 30))
    frames = flow.on_spark({"n": spark.range(1000)}, workers=2)
    page = visit(frames.inspect())
    page.wait_for_selector('#status:text-is("not started")')
    for button in ("why", "pause", "step", "resume", "checkpoint", "migrate"):
        assert page.locator(f"#{button}").is_disabled()
    page.locator(operator(page, "filter")).click()
    assert frames["small"].count() == 30
    page.wait_for_selector('#status:text-is("complete")')
    assert page.locator("#workers tbody tr").count() == 2
    assert page.locator('#facts div:has(dt:text-is("Records in")) dd').inner_text() == "1000"
