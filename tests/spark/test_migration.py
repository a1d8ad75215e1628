"""State of long-lived queries moves between workers while records flow, and no row changes."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.sql import SparkSession

import jeton as jt
from jeton.connectors.sinks import Memory
from jeton.connectors.sources import Rate
from jeton.errors import GraphError, JetonError, TimeError
from jeton.spark import Rebalance
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


def test_a_time_that_is_not_reached_holds_others_up_and_leaves_nothing_behind(
    spark: SparkSession,
) -> None:
    flow = jt.Flow("later", bins=256)
    flow.output("n", flow.input("n", lateness=0).key_by("n").running().count())
    ticks = Rate(1000, lambda positions: {"n": positions % 7})
    with flow.start(spark, sources={"n": ticks}, sinks={"n": Memory()}, workers=2) as query:
        query.await_running()
        with pytest.raises(TimeoutError, match="It will, once all inputs"):
            query.migrate({0: 1}, at=2**62, timeout=0.2)
        waiting = query.migration
        assert waiting == {"moved": 0, "bins": 1}
        with pytest.raises(GraphError, match="is moving already"):
            query.migrate({2: 1})
        with pytest.raises(TimeoutError, match="is still moving, and this waits for it"):
            query.pause_at(timeout=0.1)
        # The end of all inputs is after any time.
        query.stop(drain=True)
        assert query.placement[0] == [*range(2, 256, 2)]
        assert query.migration is None
    found = sorted(row["count"] for row in query.table("n").collect() if row["n"] == 0)
    assert found == [*range(1, len(found) + 1)]


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


def test_bins_move_by_themselves(spark: SparkSession) -> None:
    limit = 100_000
    flow = jt.Flow("skewed", bins=256)
    flow.output("n", flow.input("n", lateness=0).key_by("n").running().count())
    owners = jt.state.bins_of([np.arange(1000)]) % 256
    mine = np.flatnonzero(owners % 2 == 0)
    ticks = Rate(10_000, lambda positions: {"n": mine[positions % len(mine)]}, limit=limit)
    policy = Rebalance(every=0.2, seconds=0.2, looks=2, cool_down=600.0, least=0.0, plan=16)
    sinks = {"n": Memory()}
    with flow.start(spark, sources={"n": ticks}, sinks=sinks, workers=2, rebalance=policy) as query:
        until(lambda: query.metrics()["rebalancing"]["migrations"] > 0, "a move")
        [decision] = [decision for _, decision in query.rebalancing if decision.moves]
        assert set(decision.moves.values()) == {1}
        assert "worker 0 has 100 % more than the mean" in decision.reason
        assert any("waiting for look 2 of 2" in each.reason for _, each in query.rebalancing)
        assert set(decision.moves) <= set(query.placement[1])
        query.monitor.look()
        assert query.last_progress is not None
        assert query.last_progress.rebalancing["bins_moved"] == len(decision.moves)
        # What the user wants is done at once.
        query.migrate(dict.fromkeys(query.placement[1], 0), plan=64)
        assert query.placement[1] == []
        assert query.await_termination(LIMIT)
        until(lambda: "cool-down" in query.rebalancing[-1][1].reason, "the cool-down")
    counts: dict[int, list[int]] = {}
    for row in query.table("n").collect():
        counts.setdefault(row["n"], []).append(row["count"])
    assert sum(map(len, counts.values())) == limit
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in counts.values())
