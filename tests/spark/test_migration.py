"""State of long-lived queries moves between workers while records flow, and no row changes."""

from __future__ import annotations

import threading
from contextlib import suppress
from random import Random

import numpy as np
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Memory
from jeton.connectors.sources import Rate
from jeton.errors import GraphError, JetonError, TimeError
from tests.spark.gated import LIMIT, TABLES, Place, until


@pytest.mark.parametrize("plan", ["all_at_once", 2000, "fluid"])
def test_every_row_comes_once(spark: SparkSession, place: Place, plan: str | int) -> None:
    with place.start(spark, workers=2) as query:
        place.read_to(query, 3)
        bins = query.placement[0][: 12 if plan == "fluid" else None]
        place.gate.open_to(5)
        moved = query.migrate(dict.fromkeys(bins, 1), plan=plan, timeout=LIMIT)
        assert set(moved.moves) == set(bins)
        assert moved.steps == {"all_at_once": 1, 2000: 2, "fluid": 12}[plan]
        assert query.migration is None
        assert len(query.placement[1]) == 2048 + len(bins)
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
        assert query.metrics()["checkpoints"]["restarts"] == 0
    place.check()


def test_a_restart_finds_state_where_it_was(spark: SparkSession, place: Place) -> None:
    with place.start(spark, workers=2) as query:
        place.read_to(query, 3)
        place.gate.open_to(5)
        query.migrate(dict.fromkeys(query.placement[0], 1), timeout=LIMIT)
        query.checkpoint(LIMIT)
        query.migrate({0: 0}, timeout=LIMIT)
        place.kill(0)
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
        assert query.metrics()["checkpoints"]["restarts"] == 1
        assert query.placement[0] == []
    place.check()


def test_it_says_why_it_cannot(spark: SparkSession) -> None:
    flow = jt.Flow("plain")
    flow.output("n", flow.input("n", lateness=0).key_by("n").running().count())
    ticks = Rate(1000, lambda positions: {"n": positions})
    with flow.start(spark, sources={"n": ticks}, sinks={"n": Memory()}, workers=2) as query:
        query.await_running()
        with pytest.raises(GraphError, match="there is no bin 4096"):
            query.migrate({4096: 0})
        with pytest.raises(GraphError, match="there is no worker 2"):
            query.migrate({0: 2})
        until(lambda: query.metrics().get("rows_in", 0) > 0, "rows")
        with pytest.raises(TimeError, match=r"state cannot move at 5: input .n. has passed"):
            query.migrate({0: 1}, at=5)
        query.pause_at()
        with pytest.raises(GraphError, match="the flow is paused"):
            query.migrate({0: 1})
        query.resume()
        assert query.migrate({0: 1}).moves == {0: 1}
        assert query.migrate({0: 1}).steps == 0
    with pytest.raises(JetonError, match="has ended"):
        query.migrate({0: 0})


def test_a_hot_worker_gives_bins_away(spark: SparkSession) -> None:
    flow = jt.Flow("skewed", bins=256)
    flow.output("n", flow.input("n", lateness=0).key_by("n").running().count())
    owners = jt.state.bins_of([np.arange(1000)]) % 256
    mine = np.flatnonzero(owners % 2 == 0)
    ticks = Rate(20_000, lambda positions: {"n": mine[positions % len(mine)]})
    with flow.start(spark, sources={"n": ticks}, sinks={"n": Memory()}, workers=2) as query:
        until(lambda: query.metrics().get("rows_in", 0) > 0, "rows")
        moved = query.rebalance(plan=16)
        assert 20 < len(moved.moves) < 100
        assert set(moved.moves.values()) == {1}
        assert query.rebalance(within=0.5).moves == {}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_random_migrations_and_kills(spark: SparkSession, place: Place, seed: int) -> None:
    random = Random(seed)

    def move() -> None:
        bins = random.sample(range(4096), random.choice([1, 100, 4096]))
        plan = random.choice(["all_at_once", 64 if len(bins) < 4096 else 1024])
        # The query is started again after a kill.
        with suppress(JetonError):
            query.migrate({b: random.randrange(query.workers) for b in bins}, plan=plan)

    with place.start(spark, workers=random.choice([2, 3])) as query:
        query.await_running()
        for tables in range(2, TABLES, 2):
            place.gate.open_to(tables)
            thread = threading.Thread(target=move)
            thread.start()
            if random.random() < 0.4:
                with suppress(ProcessLookupError, FileNotFoundError):
                    place.kill(random.randrange(2))
            place.gate.open_to(tables + 1)
            thread.join(LIMIT)
            assert not thread.is_alive()
        place.gate.open_to(TABLES)
        assert query.await_termination(LIMIT)
    place.check()
