"""Relays: whatever goes through them, each worker hears exactly what it would hear directly."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jeton.core.changes import ChangeBatch
from jeton.errors import ProtocolError
from jeton.progress.protocol import Inbox, Outbox, ProgressBatch
from jeton.progress.relay import Hop, Member, Relay, group_size, in_groups, in_groups_of

Key = tuple[bool, tuple[int, int]]
"""Whether a change is on the worker that hears of it, and its pointstamp."""


class Workers:
    """Workers that make any changes, and send them through relays, in any order."""

    def __init__(self, workers: int, group: int) -> None:
        self.outboxes = [Outbox(worker) for worker in range(workers)]
        self.inboxes = [Inbox(workers) for _ in range(workers)]
        self.hops = [made_hop(worker, workers, group) for worker in range(workers)]
        self.lanes: dict[tuple[int, int], deque[ProgressBatch]] = {}
        self.heard = [ChangeBatch[Key]() for _ in range(workers)]
        self.direct = [ChangeBatch[Key]() for _ in range(workers)]
        """The changes that each would have heard of without relays."""
        self.units: list[set[str]] = [set() for _ in range(workers)]
        self.batches = 0

    def seal(self, worker: int, changes: list[tuple[int, int, int]], unit: str | None) -> None:
        outbox = self.outboxes[worker]
        for at, time, delta in changes:
            if at == worker:
                outbox.add((0, time), delta)
            else:
                outbox.add_at(at, (0, time), delta)
        outbox.settle()
        sealed = outbox.seal(unit)
        if sealed is not None:
            for other, direct in enumerate(self.direct):
                if other != worker:
                    batch = sealed.batch_for(other)
                    direct.extend(((True, stamp), delta) for stamp, delta in batch.yours)
                    direct.extend(((False, stamp), delta) for stamp, delta in batch.changes)
        for to, batch in self.hops[worker].send(sealed):
            self.batches += 1
            self.lanes.setdefault((worker, to), deque()).append(batch)

    def deliver(self, lane: tuple[int, int]) -> None:
        batch = self.lanes[lane].popleft()
        if not self.lanes[lane]:
            del self.lanes[lane]
        to = lane[1]
        self.inboxes[to].accept(batch)
        if batch.unit is not None:
            self.units[to].add(batch.unit)
        yours, others = self.hops[to].receive(batch)
        self.heard[to].extend(((True, stamp), delta) for stamp, delta in yours)
        self.heard[to].extend(((False, stamp), delta) for stamp, delta in others)

    def run_to_rest(self, random: Random) -> None:
        while self.lanes or any(hop.pending for hop in self.hops):
            pending = [worker for worker, hop in enumerate(self.hops) if hop.pending]
            if pending and (not self.lanes or random.random() < 0.3):
                self.seal(random.choice(pending), [], None)
            else:
                self.deliver(random.choice(sorted(self.lanes)))


def made_hop(worker: int, workers: int, group: int) -> Hop:
    hop = in_groups_of(group)(worker, workers)
    assert hop is not None
    return hop


@given(st.integers(2, 11), st.integers(2, 6), st.integers(0, 40), st.randoms(use_true_random=False))
def test_workers_hear_what_they_would_hear_directly(
    workers: int, group: int, steps: int, random: Random
) -> None:
    world = Workers(workers, group)
    for _ in range(steps):
        if world.lanes and random.random() < 0.6:
            world.deliver(random.choice(sorted(world.lanes)))
        else:
            changes = [
                (random.randrange(workers), random.randrange(3), random.choice([-2, -1, 1, 2]))
                for _ in range(random.randrange(6))
            ]
            world.seal(random.randrange(workers), changes, None)
    world.run_to_rest(random)
    assert [each.net for each in world.heard] == [each.net for each in world.direct]


@given(st.integers(2, 9), st.integers(2, 4), st.randoms(use_true_random=False))
def test_marks_follow_all_that_was_sealed_before(workers: int, group: int, random: Random) -> None:
    world = Workers(workers, group)
    for migration in range(1, 4):
        waiting = list(range(workers))
        random.shuffle(waiting)
        while waiting or not all(hop.has_heard for hop in world.hops):
            if waiting and random.random() < 0.4:
                worker = waiting.pop()
                world.seal(worker, [(worker, migration, 1)], None)
                world.hops[worker].mark()
                continue
            for worker, hop in enumerate(world.hops):
                if not waiting and hop.has_heard:
                    others = [(False, (0, time)) for time in range(1, migration + 1)]
                    assert world.heard[worker].net == dict.fromkeys(others, workers - 1)
            pending = [worker for worker, hop in enumerate(world.hops) if hop.pending]
            if pending and random.random() < 0.5:
                world.seal(random.choice(pending), [], None)
            elif world.lanes:
                world.deliver(random.choice(sorted(world.lanes)))


def test_a_mark_is_not_heard_before_everybody_has_made_it() -> None:
    world = Workers(7, 3)
    for worker in (0, 1, 2, 3, 4, 6):
        world.hops[worker].mark()
    world.run_to_rest(Random(1))
    assert [at for at, hop in enumerate(world.hops) if hop.has_heard] == [5]
    world.hops[5].mark()
    assert not any(hop.has_heard for hop in world.hops)
    world.run_to_rest(Random(1))
    assert all(hop.has_heard for hop in world.hops)


@pytest.mark.parametrize("origin", range(7))
def test_the_unit_of_one_worker_reaches_all(origin: int) -> None:
    """Also if the changes that it comes with cancel out on the way."""
    world = Workers(7, 3)
    world.seal(origin, [((origin + 1) % 7, 1, 1)], "ms")
    world.run_to_rest(Random(1))
    assert all("ms" in heard for at, heard in enumerate(world.units) if at != origin)


def test_the_unit_goes_on_without_changes() -> None:
    relay = Relay(0, workers=6, size=3)
    relay.receive(ProgressBatch(1, 0, (((0, 1), 1),), unit="ms"))
    relay.receive(ProgressBatch(2, 0, (((0, 1), -1),)))
    batches = dict(relay.send(None))
    assert batches[3] == ProgressBatch(0, 0, (), unit="ms")
    assert set(batches) == {1, 2, 3}
    assert not list(relay.send(None))
    other = Relay(3, workers=9, size=3)
    other.receive(ProgressBatch(0, 0, (((0, 1), 1),), unit="ms"))
    other.receive(ProgressBatch(6, 0, (((0, 1), -1),)))
    assert dict(other.send(None)) == dict.fromkeys((4, 5), ProgressBatch(3, 0, (), unit="ms"))


def test_changes_that_cancel_out_in_a_group_do_not_leave_it() -> None:
    relay = Relay(0, workers=6, size=3)
    relay.receive(ProgressBatch(1, 0, (((0, 1), 1),)))
    relay.receive(ProgressBatch(2, 0, (((0, 1), -1),)))
    batches = dict(relay.send(None))
    assert {to: batch.changes for to, batch in batches.items()} == {
        1: (((0, 1), -1),),
        2: (((0, 1), 1),),
    }


def test_a_time_costs_few_batches() -> None:
    """One up from each member, two across (of the relay, of its members), three down to each."""
    workers, size = 100, 10
    world = Workers(workers, size)
    for worker in range(workers):
        world.seal(worker, [(worker, 1, -1), (worker, 2, 1)], None)
    while world.lanes or any(hop.pending for hop in world.hops):
        for lane in sorted(world.lanes):
            while lane in world.lanes:
                world.deliver(lane)
        for worker, hop in enumerate(world.hops):
            if hop.pending:
                world.seal(worker, [], None)
    assert world.batches == 90 + 2 * 10 * 9 + 3 * 90
    assert [each.net for each in world.heard] == [each.net for each in world.direct]


def test_groups_are_used_with_many_workers_only() -> None:
    assert in_groups(0, 31) is None
    assert isinstance(in_groups(0, 32), Relay)
    assert isinstance(in_groups(5, 32), Member)
    assert isinstance(in_groups(6, 32), Relay)
    assert in_groups_of(1)(3, 4096) is None
    for workers in range(32, 300):
        size = group_size(workers)
        assert (size - 1) ** 2 < workers <= size**2


@pytest.mark.parametrize(
    ("to", "batch"),
    [
        (1, ProgressBatch(2, 0, ())),
        (1, ProgressBatch(0, 0, (), named=(((2, (0, 1)), 1),))),
        (0, ProgressBatch(4, 0, ())),
        (0, ProgressBatch(0, 0, ())),
        (0, ProgressBatch(1, 0, (), named=(((6, (0, 1)), 1),))),
        (0, ProgressBatch(1, 0, (), named=(((0, (0, 1)), 1),))),
        (0, ProgressBatch(1, 0, (), named=(((1, (0, 1)), 1),))),
        (0, ProgressBatch(3, 0, (), named=(((4, (0, 1)), 1),))),
    ],
)
def test_batches_that_take_another_way_are_refused(to: int, batch: ProgressBatch) -> None:
    with pytest.raises(ProtocolError, match=f"is not one for worker {to}"):
        made_hop(to, 6, 3).receive(batch)
