"""The broadcast protocol as a small state machine: perform, seal, receive.

Workers do legal things only, and hear of each other late and in any interleaving, directly or by
way of relays. Whatever they have heard, no frontier that they show is ahead of a pointstamp that
could lead there, and none ever goes back; once they have heard all, every frontier is exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.properties import oracle
from tests.properties.generators import (
    add,
    flat_graphs,
    flow_graphs,
    later_times,
    on_workers,
    patience,
)

from jeton.errors import ProtocolError
from jeton.progress.graph import ProgressGraph
from jeton.progress.protocol import Inbox, Outbox, ProgressBatch
from jeton.progress.relay import in_groups_of
from jeton.progress.tracker import Tracker

Pointstamp = tuple[int, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]


class Party:
    """One worker: what it holds, what has been sent to it, and its view of progress."""

    def __init__(self, graph: ProgressGraph, index: int, workers: int, group: int) -> None:
        with patience():
            self.tracker = Tracker(graph, elsewhere=workers - 1)
        self.index = index
        self.outbox = Outbox(index)
        self.inbox = Inbox(workers)
        self.hop = in_groups_of(group)(index, workers)
        self.tokens: list[Pointstamp] = [(at, graph.kinds[at].minimum) for at in graph.sources()]
        self.messages: list[Pointstamp] = []
        self.due: dict[int, deque[ProgressBatch]] = {}
        """Batches that others have sealed and this one has not received."""
        self.shown = [self.tracker.least(at) for at in graph.locations]
        """The frontiers as they were last looked at."""

    def receive(self, batch: ProgressBatch) -> None:
        self.inbox.accept(batch)
        changes = (batch.yours, batch.changes) if self.hop is None else self.hop.receive(batch)
        with patience():
            self.tracker.apply(*changes)


class World:
    """All workers, what is under way between them, and the true pointstamps."""

    def __init__(self, graph: ProgressGraph, workers: int, group: int, draw: Draw) -> None:
        self.graph = graph
        self.draw = draw
        self.parties = [Party(graph, index, workers, group) for index in range(workers)]
        self.truth: dict[tuple[int, Pointstamp], int] = {}
        """The true pointstamps, by the worker that they are on."""
        for party in self.parties:
            add(self.truth, (((party.index, token), 1) for token in party.tokens))
            # With all initial tokens held, no frontier would move for long.
            keep = draw(st.sampled_from([None, *party.tokens]))
            for token in [token for token in party.tokens if token != keep]:
                self.drop(party, token)

    # What an operator may do. Each adds to the worker's outbox and to the truth, nothing else.

    def change(self, party: Party, at: int, time: Any, delta: int) -> None:
        party.outbox.add((at, time), delta)
        add(self.truth, [((party.index, (at, time)), delta)])

    def take(self, party: Party, token: Pointstamp) -> None:
        party.tokens.append(token)
        self.change(party, *token, +1)

    def drop(self, party: Party, token: Pointstamp) -> None:
        party.tokens.remove(token)
        self.change(party, *token, -1)

    def send(self, party: Party, right: Pointstamp) -> None:
        """Send under a token, or under what came with a message, to the workers it may reach."""
        source, time = right
        for step in self.graph.steps[source]:
            arrives = step.summary.apply(time)
            if arrives is not None:
                reached = self.parties if self.graph.exchanged[step.to] else [party]
                for to in self.draw(st.lists(st.sampled_from(reached), max_size=2)):
                    to.messages.append((step.to, arrives))
                    if to is party:
                        self.change(party, step.to, arrives, +1)
                    else:
                        party.outbox.add_at(to.index, (step.to, arrives), +1)
                        add(self.truth, [((to.index, (step.to, arrives)), +1)])

    def rights(self, message: Pointstamp) -> list[Pointstamp]:
        """The outputs to which a message gives a right, and from which time on."""
        at, time = message
        reached = [(step.to, step.summary.apply(time)) for step in self.graph.steps[at]]
        return [(to, later) for to, later in reached if later is not None]

    def later(self, right: Pointstamp) -> Pointstamp:
        at, time = right
        return at, self.draw(later_times(self.graph.kinds[at], time))

    def use(self, party: Party, rights: list[Pointstamp]) -> None:
        """Send, or retain, under some of the rights that came with a message."""
        for right in self.draw(st.lists(st.sampled_from(rights), max_size=2)) if rights else []:
            later = self.later(right)
            if self.draw(st.booleans()):
                self.take(party, later)
            else:
                self.send(party, later)

    # Steps

    def consume(self) -> None:
        """One invocation takes messages and answers some of them, now or later."""
        party = self.some_with("messages")
        for _ in range(self.draw(st.integers(1, min(2, len(party.messages))))):
            message = party.messages.pop(self.draw(st.integers(0, len(party.messages) - 1)))
            self.change(party, *message, -1)
            self.use(party, self.rights(message))

    def speak(self) -> None:
        """One invocation uses tokens that it holds: sends, clones, downgrades, drops."""
        party = self.some_with("tokens")
        acts = st.sampled_from(["send", "clone", "downgrade", "drop"])
        for act in self.draw(st.lists(acts, min_size=1, max_size=3)):
            if not party.tokens:
                break
            token = self.draw(st.sampled_from(party.tokens))
            if act == "send":
                self.send(party, self.later(token))
            elif act == "clone":
                self.take(party, token)
            else:
                self.drop(party, token)
                if act == "downgrade":
                    self.take(party, self.later(token))

    def seal(self) -> None:
        """Some worker tells what it has done; it knows at once, the others later."""
        self.tell(self.draw(st.sampled_from(self.parties)))

    def receive(self) -> None:
        """A worker receives some of the batches that another has sent it, in order."""
        party = self.some_with("due")
        sender = self.draw(st.sampled_from(sorted(party.due)))
        for _ in range(self.draw(st.integers(1, len(party.due[sender])))):
            self.hear(party, sender)

    def step(self) -> None:
        """Do one thing that can be done."""
        possible = [self.seal]
        possible += [self.speak] * any(party.tokens for party in self.parties)
        possible += [self.consume] * any(party.messages for party in self.parties)
        possible += [self.receive] * any(party.due for party in self.parties)
        self.draw(st.sampled_from(possible[::-1]))()

    def some_with(self, what: str) -> Party:
        having = [party for party in self.parties if getattr(party, what)]
        party: Party = self.draw(st.sampled_from(having))
        return party

    def tell(self, party: Party) -> None:
        here, elsewhere = party.outbox.settle()
        with patience():
            party.tracker.apply(
                here.items(), [(stamp, delta) for (_, stamp), delta in elsewhere.items()]
            )
        sealed = party.outbox.seal()
        if party.hop is not None:
            for to, batch in party.hop.send(sealed):
                self.parties[to].due.setdefault(party.index, deque()).append(batch)
        elif sealed is not None:
            for other in self.parties:
                if other is not party:
                    due = other.due.setdefault(party.index, deque())
                    due.append(sealed.batch_for(other.index))

    def hear(self, party: Party, sender: int) -> None:
        party.receive(party.due[sender].popleft())
        if not party.due[sender]:
            del party.due[sender]

    def finish(self) -> None:
        """Whatever is held or under way is given up."""
        for party in self.parties:
            for message in party.messages:
                self.change(party, *message, -1)
            party.messages.clear()
            for token in list(party.tokens):
                self.drop(party, token)

    def tell_and_hear_all(self) -> None:
        for _ in range(4):  # up, across and down, and what operators did last
            for party in self.parties:
                self.tell(party)
            for party in self.parties:
                for sender in sorted(party.due):
                    while sender in party.due:
                        self.hear(party, sender)
        assert not any(party.hop and party.hop.pending for party in self.parties)

    # What must hold

    def assert_nobody_is_ahead(self) -> None:
        """No frontier is ahead of the truth, nor behind what it was before."""
        everywhere = oracle.worker_frontiers(self.graph, self.truth, len(self.parties))
        for party, true in zip(self.parties, everywhere, strict=True):
            for at in self.graph.locations:
                before, shown = party.shown[at], party.tracker.least(at)
                assert all(any(s <= t for s in shown) for t in true[at]), self.graph.describe(at)
                anywhere = party.tracker.least_anywhere(at)
                for worker in everywhere:
                    assert all(any(s <= t for s in anywhere) for t in worker[at])
                assert all(any(b <= s for b in before) for s in shown), self.graph.describe(at)
                party.shown[at] = shown

    def assert_all_know(self) -> None:
        everywhere = oracle.worker_frontiers(self.graph, self.truth, len(self.parties))
        total: dict[Pointstamp, int] = {}
        add(total, ((stamp, count) for (_, stamp), count in self.truth.items()))
        for party, true in zip(self.parties, everywhere, strict=True):
            tracker = party.tracker
            assert [set(tracker.least(at)) for at in self.graph.locations] == true
            for at in self.graph.locations:
                times = [time for each in everywhere for time in each[at]]
                assert set(tracker.least_anywhere(at)) == oracle.minimal(times)
            assert tracker.pointstamps() == total


def play(graph: ProgressGraph, workers: int, group: int, steps: int, draw: Draw) -> None:
    world = World(graph, workers, group, draw)
    for _ in range(steps):
        world.step()
        world.assert_nobody_is_ahead()
    world.tell_and_hear_all()
    world.assert_all_know()
    world.finish()
    world.assert_nobody_is_ahead()
    world.tell_and_hear_all()
    world.assert_all_know()
    assert not world.truth
    assert all(party.tracker.is_complete for party in world.parties)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4))))
def test_batches_are_accepted_in_order_and_once(arriving: list[tuple[int, int]]) -> None:
    inbox, due = Inbox(workers=3), [0, 0, 0]
    for worker, sequence in arriving:
        batch = ProgressBatch(worker, sequence, ())
        if sequence == due[worker]:
            inbox.accept(batch)
            due[worker] += 1
        else:
            with pytest.raises(ProtocolError):
                inbox.accept(batch)


@given(on_workers(flat_graphs()), st.integers(1, 5), st.integers(5, 40), st.data())
def test_flat_graphs(graph: ProgressGraph, workers: int, steps: int, data: st.DataObject) -> None:
    play(graph, workers, 1, steps, data.draw)


@given(on_workers(flow_graphs()), st.integers(1, 5), st.integers(5, 40), st.data())
def test_nested_loops(graph: ProgressGraph, workers: int, steps: int, data: st.DataObject) -> None:
    assume(not oracle.has_still_cycle(graph))
    play(graph, workers, 1, steps, data.draw)


relayed = st.sampled_from([(3, 2), (4, 2), (5, 2), (5, 3), (6, 2), (7, 3), (4, 9)])
"""Numbers of workers and sizes of groups, the last of which may be smaller."""


@given(on_workers(flat_graphs()), relayed, st.integers(5, 50), st.data())
def test_relays(
    graph: ProgressGraph, sizes: tuple[int, int], steps: int, data: st.DataObject
) -> None:
    play(graph, *sizes, steps, data.draw)


@given(on_workers(flow_graphs()), relayed, st.integers(5, 50), st.data())
def test_relays_and_nested_loops(
    graph: ProgressGraph, sizes: tuple[int, int], steps: int, data: st.DataObject
) -> None:
    assume(not oracle.has_still_cycle(graph))
    play(graph, *sizes, steps, data.draw)
