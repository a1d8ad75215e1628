"""Relays under any schedule: few workers in small groups, as thousands of them would do it.

Every frontier of every worker is checked against the truth at every step, and once more for
equality when the flow is at rest; results are those without relays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation import test_breakpoints, test_checkpoints
from tests.simulation.moving import MovingRun, campaign
from tests.simulation.programs import Case, cases, records

import jeton as jt
from jeton.errors import ProtocolError, SnapshotError, TimeError
from jeton.progress import relay
from jeton.progress.protocol import ProgressBatch
from jeton.progress.relay import in_groups_of
from jeton.runtime.in_process import Run
from jeton.runtime.network import PROGRESS
from jeton.state.snapshot import Snapshot

sizes = st.sampled_from([(3, 2), (4, 2), (5, 3), (6, 2), (7, 3), (9, 3), (9, 4), (5, 8)])
"""Numbers of workers and sizes of groups: even ones, odd ones, and one group of all."""


@settings(max_examples=settings().max_examples // 12)
@given(case=cases(), sizes=sizes, seed=st.integers(0, 2**32))
def test_any_schedule_gives_the_same_records(case: Case, sizes: tuple[int, int], seed: int) -> None:
    workers, group = sizes
    with Run(case.flow(), workers=workers, hops=in_groups_of(group), seed=seed) as run:
        run.feed(case.inputs())
        result = run.finish()
        assert not any(worker.must_forward for worker in run.workers)
    assert records(result) == case.expected()
    assert not result.leaks
    assert result.checks > 0


@settings(max_examples=settings().max_examples // 12)
@given(cases(), sizes, st.integers(0, 2**32), st.data())
def test_frontiers_are_exact_at_rest(
    case: Case, sizes: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    """Inputs advance at different paces; at each rest, all workers know all."""
    workers, group = sizes
    with Run(case.flow(), workers=workers, hops=in_groups_of(group), seed=seed) as run:
        for time in range(0, 13, 4):
            for index, table in enumerate(case.tables):
                for t, n in [(t, n) for t, n in table if time <= t < time + 4]:
                    worker = data.draw(st.integers(0, workers - 1))
                    run.input(f"in{index}", worker).send({"time": [t], "n": [n]})
            run.run_to_rest()
            for index in range(len(case.tables)):
                for worker in range(workers):
                    if data.draw(st.booleans()):
                        run.input(f"in{index}", worker).advance_to(time + 4)
        assert records(run.finish()) == case.expected()


# State that moves, crashes


@dataclass
class RelayedRun(MovingRun):
    """A flow on workers with relays, whose state moves at random, and that crashes."""

    def open(self, restore: Snapshot | None) -> Run:
        random = self.random
        workers = random.choice([3, 4, 5, 6, 7])
        if restore is not None and restore.placement is not None and random.random() < 0.6:
            workers = restore.placement.workers
            self.facts["restored with moved bins"] += 1
        group = random.choice([2, 3, 4])
        self.facts[f"groups of {group}"] += 1
        seed = random.randrange(1 << 30)
        return Run(self.flow, workers=workers, hops=in_groups_of(group), seed=seed, restore=restore)


def test_state_moves_while_progress_goes_through_relays() -> None:
    facts = campaign(range(4), kind=RelayedRun)
    assert facts["migrations"] > 8, facts
    for fact in ("crashes", "fluid", "groups of 2", "groups of 3"):
        assert facts[fact] > 0, facts


@pytest.mark.long
@pytest.mark.parametrize("start", range(0, 300, 50))
def test_three_hundred_seeds(start: int) -> None:
    facts = campaign(range(start, start + 50), kind=RelayedRun)
    print(dict(facts))
    assert facts["crashes while state moves"] > 0


@pytest.mark.parametrize("name", ["delayed", "later pipeline", "distinct in a loop"])
def test_records_that_are_sent_early_and_loops(name: str) -> None:
    assert campaign([1], [name], kind=RelayedRun)["migrations"] > 1


# Agents that obey a driver, and rest together


@pytest.fixture
def all_in_groups_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has all runs of a test use groups of a size."""
    return lambda size: monkeypatch.setattr(relay, "group_size", lambda workers: size)


def test_checkpoints_at_rest(all_in_groups_of: Callable[[int], None]) -> None:
    all_in_groups_of(2)
    restored = 0
    for seed in range(8):
        query = test_checkpoints.Query(Random(seed))
        query.run()
        for output, rows in test_checkpoints.EXPECTED.items():
            assert query.rows(output) == rows, f"seed {seed}"
        restored += query.restored
    assert restored > 0


def test_rest_at_breakpoints(all_in_groups_of: Callable[[int], None]) -> None:
    all_in_groups_of(2)
    facts = test_breakpoints.campaign(range(8))
    for fact in ("paused", "stepped", "rested"):
        assert facts[fact] > 0, facts


# What a relay has to send on is work


def forwarding_run() -> tuple[Run, jt.Flow]:
    flow = jt.Flow("counts")
    flow.output("counts", flow.input("words").key_by("word").running().count())
    return Run(flow, workers=4, hops=in_groups_of(2)), flow


def test_a_relay_with_something_to_send_on_is_not_at_rest() -> None:
    run, _ = forwarding_run()
    run.run_to_rest()
    run.input("words", 3).advance_to(5)
    assert run.agents[3].step()
    assert run.network.deliver_all()
    [relayed] = [worker for worker in run.workers if worker.must_forward]
    assert relayed.index == 2
    assert relayed.has_work
    with pytest.raises(SnapshotError, match="at rest"):
        relayed.snapshot()
    run.run_to_rest()
    assert not any(worker.must_forward for worker in run.workers)


def test_a_relay_does_not_leave_before_it_has_told_the_others() -> None:
    run, _ = forwarding_run()
    for worker in (0, 1, 2, 3):
        run.input("words", worker).close()
    seen = 0
    while run.network or any(agent.is_ready for agent in run.agents):
        run.network.deliver_all()
        for agent in run.agents:
            if agent.worker.tracker.is_complete and agent.worker.must_forward:
                seen += 1
                assert not agent.is_complete
        for agent in run.agents:
            agent.step()
    assert seen > 0
    assert all(agent.is_complete for agent in run.agents)


def test_units_that_differ_are_found_whatever_is_under_way() -> None:
    """Also if a relay hears a unit, and the other one before it has sent that on."""
    flow = jt.Flow("echo")
    flow.output("out", flow.input("in"))
    run = Run(flow, workers=6, hops=in_groups_of(3))
    run.run_to_rest()

    def say(worker: int, time: Any) -> None:
        run.input("in", worker).send({"time": [time], "n": [worker]})
        run.input("in", worker).advance_to(time)
        while run.agents[worker].step():
            pass

    def deliver(worker: int, to: int) -> None:
        for batch in run.network.lanes.pop((worker, to, PROGRESS)):
            assert isinstance(batch, ProgressBatch)
            run.workers[to].receive_progress([batch])

    say(1, datetime(2024, 1, 1))
    deliver(1, 0)
    run.agents[0].step()
    deliver(0, 3)
    say(4, 5)
    with pytest.raises(TimeError, match=r"one worker are timestamps, but .* one are integers"):
        deliver(4, 3)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    "batch",
    [
        ProgressBatch(2, 0, (((1_000, 5), 1),)),
        ProgressBatch(2, 0, (((-1, 5), 1),)),
        ProgressBatch(2, 0, (), yours=(((1_000, 5), 1),)),
        ProgressBatch(2, 0, (), yours=(((-1, 5), 1),)),
        ProgressBatch(2, 0, (((0, jt.Product(5, 0)), 1),)),
        ProgressBatch(2, 0, (), named=(((1, (1_000, 5)), 1),)),
        ProgressBatch(-2, 0, (((0, 5), 1),)),
        ProgressBatch(4, 0, (((0, 5), 1),)),
    ],
)
def test_progress_that_cannot_be_is_refused(batch: ProgressBatch, group: int) -> None:
    flow = jt.Flow("echo")
    flow.output("out", flow.input("in").exchange("n"))
    run = Run(flow, workers=4, hops=in_groups_of(group))
    before = [run.workers[0].tracker.frontier(at) for at in run.graph.locations]
    with pytest.raises(ProtocolError, match="progress batch"):
        run.workers[0].receive_progress([batch])
    assert [run.workers[0].tracker.frontier(at) for at in run.graph.locations] == before


@pytest.mark.parametrize("more", [{"named": (((2, (0, 5)), 1),)}, {"mark": 1}])
def test_a_worker_without_relays_refuses_what_is_for_one(more: dict[str, Any]) -> None:
    flow = jt.Flow("echo")
    flow.output("out", flow.input("in"))
    run = Run(flow, workers=3)
    with pytest.raises(ProtocolError, match="batch 0 of worker 1 is not one for worker 0"):
        run.workers[0].receive_progress([ProgressBatch(1, 0, (), **more)])


def test_workers_know_when_all_have_heard() -> None:
    run, _ = forwarding_run()
    run.run_to_rest()
    for worker in run.workers:
        worker.mark_progress()
        assert worker.has_work
    assert not any(worker.has_heard([]) for worker in run.workers)
    run.run_to_rest()
    assert all(worker.has_heard([]) for worker in run.workers)


def test_with_few_workers_nothing_is_relayed() -> None:
    flow = jt.Flow("empty")
    flow.output("out", flow.input("in"))
    for workers in (1, 2, 31):
        with Run(flow, workers=workers) as run:
            for worker in range(workers):
                run.input("in", worker).close()
            run.run_to_rest()
            lanes = run.network.progress_batches
            assert lanes % max(workers * (workers - 1), 1) == 0
            assert run.network.named_changes == 0


def test_many_workers_use_relays_without_being_asked() -> None:
    flow = jt.Flow("counts")
    flow.output("counts", flow.input("words").key_by("word").tumbling(5).count())
    words = {"time": list(range(60)), "word": [n % 11 for n in range(60)]}
    with flow.open(workers=36) as run:
        run.migrate(dict.fromkeys(run.placement[0], 35), at=20)
        run.feed({"words": words})
        result = run.finish()
        assert run.migration is None
        assert len(run.placement[0]) == 0
        assert run.network.named_changes > 0
        assert result.progress_batches < sum(worker.sealed for worker in run.workers) * 35 / 3
    expected = flow.run({"words": words})
    for counts in (result["counts"], expected["counts"]):
        assert counts.num_rows == 60
    assert sorted(map(repr, result["counts"].to_pylist())) == sorted(
        map(repr, expected["counts"].to_pylist())
    )
