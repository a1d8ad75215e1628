"""A long-lived query whose state moves and whose workers change in number, while some are killed.

The workers are 2, then 4, 1 and 3. Before, between and after these changes, bins move by each plan,
and a worker is killed during some of it. A driver's program, which checks all rows at the end.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

from jeton.errors import JetonError
from jeton.spark.query import Query
from tests.soak.sessions import local
from tests.spark.gated import LIMIT, TABLES, Place, expected, until, written

CHANGES = (4, 1, 3)


def one_run(spark: SparkSession, folder: Path, random: Random) -> tuple[Counter[str], str, int]:
    """Run a query to its end; returns the facts, an error if rows differ, and how many came."""
    facts: Counter[str] = Counter()
    place = Place(folder)
    with place.start(spark, workers=2, every=0.3, restarts=50) as query:
        query.await_running(LIMIT)
        opened = 1
        for workers in (None, *CHANGES):
            if workers is not None:
                _meanwhile(random, place, facts, partial(_rescale, query, workers, facts))
            opened += 2
            place.gate.open_to(opened)
            _meanwhile(random, place, facts, partial(_move, query, random, facts))
            place.gate.open_to(opened + 1)
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT), "the query does not end"
        facts["restarts"] += query.metrics()["checkpoints"]["restarts"]
    rows = 0
    for name, output in (("rolling", place.rolling), ("windows", place.windows)):
        have, want = written(output), expected(name)
        rows += len(have)
        if have != want:
            lost, more = Counter(want) - Counter(have), Counter(have) - Counter(want)
            return facts, f"{name}: {lost.total()} rows lost, {more.total()} too many", rows
    return facts, "", rows


def _meanwhile(random: Random, place: Place, facts: Counter[str], act: Callable[[], None]) -> None:
    """Do something in a thread, and kill a worker at some moment of it, or not."""
    thread = threading.Thread(target=act)
    thread.start()
    if random.random() < 0.6:
        time.sleep(random.random())
        # A worker of the number before may have ended, and the next not begun to read.
        with suppress(ProcessLookupError, FileNotFoundError, ValueError):
            place.kill(random.randrange(2))
            facts["kills"] += 1
    thread.join(LIMIT)
    assert not thread.is_alive(), "it does not come to an end"


def _rescale(query: Query, workers: int, facts: Counter[str]) -> None:
    change = query.rescale(workers, timeout=LIMIT)
    facts[f"{change.before} to {change.after} workers"] += 1


def _move(query: Query, random: Random, facts: Counter[str]) -> None:
    bins = random.sample(range(4096), random.choice([1, 100, 4096]))
    plan = random.choice(["all_at_once", 64 if len(bins) < 4096 else 1024])
    try:
        query.migrate({b: random.randrange(query.workers) for b in bins}, plan=plan, timeout=LIMIT)
        facts["migrations"] += 1
    except JetonError:
        # A worker was killed: the query goes on from its last checkpoint.
        facts["migrations given up"] += 1
        until(lambda: query.status in ("running", "ended"), "the query to go on")


def main(folder: str, seed: str, seconds: str, most: str = "1000000") -> None:
    """Run queries one after the other for a while, ``most`` at the most; print facts as JSON."""
    logging.disable(logging.WARNING)
    root, deadline = Path(folder), time.monotonic() + float(seconds)
    spark = local(root, max(CHANGES))
    hits: Counter[str] = Counter()
    wrong, rows = [], 0
    for number in range(int(most)):
        if number and time.monotonic() > deadline:
            break
        random = Random(f"{seed} {number}")
        try:
            facts, error, came = one_run(spark, root / f"run-{number}", random)
        except Exception as caught:
            facts, error, came = Counter(), f"{type(caught).__name__}: {caught}", 0
        hits += facts
        hits["runs"] += 1
        rows += came
        print(number, dict(facts), error or "equal", file=sys.stderr, flush=True)
        if error:
            wrong.append(f"seed {seed}, run {number}: {error}"[:2000])
    spark.stop()
    print(json.dumps({"hits": hits, "rows": rows, "lost": 0, "doubled": 0, "wrong": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
