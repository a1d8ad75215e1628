"""The rebalancer: when it moves bins, and why not, on a query of agents in this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jeton.cluster.rebalancer import Rebalancer
from jeton.core.errors import GraphError
from jeton.runtime.balance import Counts, Rebalance
from jeton.state.bins import Placement

QUICK = {"every": 0.001, "seconds": 0.001, "looks": 1, "cool_down": 0.0, "least": 0.0}


# Decisions


@given(
    st.integers(2, 5),
    st.lists(st.integers(0, 1000), min_size=256, max_size=256),
    st.floats(0.0, 2.0),
    st.floats(0.0, 0.5),
)
def test_bins_move_only_if_it_helps(
    workers: int, loads: list[int], above: float, gain: float
) -> None:
    placement, load = Placement.even(workers, 256), np.array(loads)
    policy = Rebalance(above=above, within=min(above, 0.1), gain=gain, least=1.0)
    decision = policy.decide(placement, load, 2.0)
    before = np.bincount(placement.owners, weights=load, minlength=workers)
    assert decision.load == tuple(before / 2)
    assert decision.reason
    if decision.moves:
        after = placement.moved(decision.moves)
        sums = np.bincount(after.owners, weights=load, minlength=workers)
        assert before.max() >= before.mean() * (1 + above)
        assert sums.max() <= before.max() * (1 - gain) + 1e-6
        # What it has done is not undone by the same load.
        assert not policy.decide(after, load, 2.0).moves
    assert bool(decision.moves) == decision.is_uneven


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"every": 0}, "every=0"),
        ({"gain": -1}, "gain=-1"),
        ({"above": 0.05}, "cannot begin below"),
        ({"looks": 0}, "at least one look"),
        ({"every": "5s"}, r"every=…\) is a number, not '5s' \(a str\)"),
        ({"plan": "slow"}, "a plan is .*, not 'slow'"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        Rebalance(**wrong)


# Queries


@dataclass
class Load:
    """A query of two workers whose load a test chooses, and whose bins only change hands."""

    load: Counts
    name: str = "skewed"
    is_active: bool = True
    paused_at: Any = None
    placement: Placement = field(default_factory=lambda: Placement.even(2, 256))
    counts: int = 0
    steps: int = 0
    before_step: Callable[[], None] = lambda: None

    def count_records(self, seconds: float) -> tuple[Placement, Counts]:
        self.counts += 1
        return self.placement, self.load

    def move_bins(
        self, moves: Mapping[int, int], plan: str | int, gives_way: Callable[[], bool]
    ) -> Mapping[int, int]:
        moved = {}
        for bin, worker in moves.items():
            self.before_step()
            if gives_way():
                break
            self.placement = self.placement.moved({bin: worker})
            moved[bin] = worker
            self.steps += 1
        return moved


def uneven() -> Counts:
    load = np.zeros(256, dtype=np.int64)
    load[0:64:2] = 100
    return load


@contextmanager
def started(query: Load, **policy: Any) -> Iterator[Rebalancer]:
    rebalancer = Rebalancer(query, Rebalance(**{**QUICK, **policy}))
    rebalancer.start()
    try:
        yield rebalancer
    finally:
        query.is_active = False
        rebalancer.stop()


def until(rebalancer: Rebalancer, condition: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError(list(rebalancer.decisions)[-3:])


def reasons(rebalancer: Rebalancer) -> list[str]:
    return [decision.reason for _, decision in rebalancer.decisions]


def test_it_moves_once_and_then_says_why_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jeton")
    query = Load(uneven())
    with started(query) as rebalancer:
        until(rebalancer, lambda: rebalancer.metrics()["looks"] > 5)
        seen = rebalancer.metrics()
    assert seen["migrations"] == 1
    assert seen["bins_moved"] == query.steps > 0
    assert "less than 25 %" in seen["reason"]
    said = [record.getMessage() for record in caplog.records]
    # The same reason again is not logged again.
    assert [text.split(":")[0] for text in said] == [
        "query 'skewed' moved bins",
        "query 'skewed' moves no bins",
    ]


def test_one_look_is_not_enough() -> None:
    query = Load(uneven())
    with started(query, looks=3) as rebalancer:
        until(rebalancer, lambda: query.steps > 0)
    waiting = [reason for reason in reasons(rebalancer) if "waiting for look" in reason]
    assert [reason[-6:] for reason in waiting] == ["2 of 3", "3 of 3"]


def test_looks_before_a_migration_of_the_user_do_not_count() -> None:
    class PausedOnce(Load):
        def count_records(self, seconds: float) -> tuple[Placement, Counts]:
            found = super().count_records(seconds)
            self.paused_at = 5 if self.counts == 1 else None
            return found

    query = PausedOnce(uneven())
    with started(query, looks=2) as rebalancer:
        until(rebalancer, lambda: "the query is paused at 5" in reasons(rebalancer))
        with rebalancer.held_off(10.0):
            query.paused_at = None
        until(rebalancer, lambda: query.steps > 0)
    waiting = [reason for reason in reasons(rebalancer) if "waiting for look 2" in reason]
    assert len(waiting) == 2


def test_a_load_that_changes_back_and_forth_is_not_followed() -> None:
    class Wavering(Load):
        def count_records(self, seconds: float) -> tuple[Placement, Counts]:
            self.load = np.full(256, 10) if self.counts % 2 else uneven()
            return super().count_records(seconds)

    query = Wavering(uneven())
    with started(query, looks=2) as rebalancer:
        until(rebalancer, lambda: query.counts > 20)
        assert query.steps == 0


def test_nothing_moves_while_it_cools_down_or_is_paused() -> None:
    query = Load(uneven())
    with started(query, cool_down=3600.0) as rebalancer:
        until(rebalancer, lambda: query.steps > 0)
        steps, query.load = query.steps, np.roll(uneven(), 1)
        looks = rebalancer.metrics()["looks"]
        until(rebalancer, lambda: rebalancer.metrics()["looks"] > looks + 5)
        assert query.steps == steps
        assert "cool-down" in reasons(rebalancer)[-1]
    query = Load(uneven(), paused_at=17)
    with started(query) as rebalancer:
        until(rebalancer, lambda: rebalancer.metrics()["looks"] > 5)
        assert set(reasons(rebalancer)) == {"the query is paused at 17"}
        query.paused_at = None
        until(rebalancer, lambda: query.steps > 0)


def test_the_user_comes_first() -> None:
    query = Load(uneven())
    moving, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        if query.steps == 2:
            moving.set()
            assert go_on.wait(30)

    query.before_step = wait
    with started(query, cool_down=0.0) as rebalancer:
        assert moving.wait(30)
        inside = threading.Event()

        def by_hand() -> None:
            with rebalancer.held_off(30):
                inside.set()
                assert query.steps == 2
                query.load = np.full(256, 10)

        thread = threading.Thread(target=by_hand)
        thread.start()
        until(rebalancer, lambda: rebalancer._users == 1)
        said = r"after 0.01 seconds, rebalance= still moves"
        with pytest.raises(TimeoutError, match=said), rebalancer.held_off(0.01):
            pass
        assert rebalancer._users == 1
        # The step under way comes to its end.
        assert not inside.is_set()
        go_on.set()
        thread.join(30)
        until(rebalancer, lambda: any("of which 2 moved" in each for each in reasons(rebalancer)))


def test_a_query_that_cannot_move_says_so_and_goes_on() -> None:
    query = Load(uneven())

    def refuse() -> None:
        raise GraphError("its records come by SpreadExchange, which does not follow bins")

    query.before_step = refuse
    with started(query) as rebalancer:
        until(rebalancer, lambda: rebalancer.metrics()["looks"] > 3)
        assert "bins cannot move now: its records come by" in reasons(rebalancer)[-1]


def test_it_goes_on_while_no_records_come_and_workers_do_not_answer() -> None:
    query = Load(np.zeros(256, dtype=np.int64))

    def give_up() -> None:
        raise TimeoutError("after 600 seconds, the workers have not answered")

    query.before_step = give_up
    with started(query) as rebalancer:
        until(rebalancer, lambda: rebalancer.metrics()["looks"] > 3)
        assert reasons(rebalancer)[-1] == "0 records/s are too few to judge by"
        query.load = uneven()
        until(rebalancer, lambda: "have not answered" in reasons(rebalancer)[-1])
        query.before_step = lambda: None
        until(rebalancer, lambda: query.steps > 0)
