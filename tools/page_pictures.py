"""Take the pictures of the live page on the documentation's pages, of a real query on Spark.

    .venv/bin/python -m tools.page_pictures

The query has an operator that never drops a token, so that one output stands still. It needs a
Chromium on the PATH, and writes docs/inspect-light.png and docs/inspect-dark.png.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import numpy as np
from playwright.sync_api import Browser, ViewportSize, sync_playwright
from tools.environments import ROOT

import jeton as jt
from jeton.connectors import sinks, sources
from jeton.spark import local_session

ROOMS = 12
SECONDS = 40
"""How long the query runs before the pictures are taken."""
SIZE: ViewportSize = {"width": 1360, "height": 1000}


def alarms(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
    """Pass records on, and keep a token of the first for each room: the mistake of the picture."""
    token.drop()
    first: dict[int, jt.TimestampToken] = {}

    def step(input: Any, output: Any) -> None:
        for ref, batch in input:
            room = int(batch["room"][0])
            if room not in first:
                first[room] = ref.retain()
            output.session(ref).give(batch)

    return step


def rooms() -> jt.Flow:
    """Means of rooms by second, and counts of alarms behind the operator that holds a token."""
    flow = jt.Flow("rooms")
    schema = {"ts": datetime, "room": int, "value": float}
    readings = flow.input("readings", time="ts", lateness="100ms", schema=schema)
    flow.output("means", readings.key_by("room").tumbling("1s").mean("value"))
    hot = readings.named("hot").filter(jt.col("value") > 30)
    alarmed = hot.unary(alarms, name="alarms", schema={"room": int, "value": float})
    flow.output("per room", alarmed.key_by("room").running().count())
    return flow


def thermometers(partition: int, partitions: int) -> Iterator[Any]:
    """Readings of this moment, again and again."""
    random = np.random.default_rng(partition)
    while True:
        size = 2_000
        now = np.datetime64(time.time_ns() // 1000, "us")
        yield {
            "ts": now + np.arange(size).astype("timedelta64[us]"),
            "room": random.integers(0, ROOMS, size),
            "value": random.normal(22, 4, size),
        }
        yield from [None] * 20


def main() -> int:
    """Run the query and take both pictures."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("there is no chromium on the PATH: apt-get install chromium", file=sys.stderr)
        return 1
    query = rooms().start(
        local_session(workers=2),
        sources={"readings": sources.Batches(thermometers, partitions=2)},
        sinks={name: sinks.Callback(lambda table: None) for name in ("means", "per room")},
        workers=2,
        inspect=True,
    )
    with query, sync_playwright() as driver:
        query.await_running()
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        address = query.inspect()
        # The page keeps rates from the moment on at which someone has opened it.
        browser.new_page().goto(address)
        time.sleep(SECONDS)
        take(browser, address, "light")
        take(browser, address, "dark")
        browser.close()
    return 0


def take(browser: Browser, address: str, scheme: Literal["light", "dark"]) -> None:
    """Take one picture, with the output that stands still chosen."""
    page = browser.new_page(viewport=SIZE, color_scheme=scheme, device_scale_factor=1.5)
    page.goto(address)
    page.wait_for_selector("body[data-snapshots]")
    page.locator('#graph g[aria-label="Operator per room"]').click()
    page.wait_for_timeout(4_000)
    page.screenshot(path=ROOT / "docs" / f"inspect-{scheme}.png")
    page.close()


if __name__ == "__main__":
    sys.exit(main())
