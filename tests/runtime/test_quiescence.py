"""Workers find out that all of them rest: never too early, always in the end."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import jeton as jt
from jeton.errors import FlowStalled, ProtocolError
from jeton.runtime.agent import Agent
from jeton.runtime.quiescence import Rest, Rounds, Word
from tests.runtime.rest import go_on, rest, run_until


class Office:
    """Workers that hand jobs to each other, by channels that take as long as they like."""

    def __init__(self, workers: int, random: Random) -> None:
        self.random = random
        self.rests = [Rest(index, workers) for index in range(workers)]
        self.jobs = [random.randrange(3) for _ in range(workers)]
        self.left = random.randrange(300)
        self.sent = [0] * workers
        self.received = [0] * workers
        # Words do not wait behind jobs.
        self.ways = [(a, b) for a in range(workers) for b in range(workers) if a != b]
        self.under_way = dict.fromkeys(self.ways, 0)
        self.words: dict[tuple[int, int], list[Word]] = {way: [] for way in self.ways}

    @property
    def is_busy(self) -> bool:
        return any(self.jobs) or any(self.under_way.values())

    def act(self) -> None:
        """A worker does a job or, having none, says that it rests; or a channel delivers."""
        ready = [way for way in self.ways if self.words[way] or self.under_way[way]]
        if ready and self.random.random() < 0.5:
            self.deliver(*self.random.choice(ready))
            return
        worker = self.random.randrange(len(self.rests))
        ways = [way for way in self.ways if way[0] == worker]
        if self.jobs[worker]:
            self.jobs[worker] -= 1
            # Were there one for one, the sums would not agree before the end anyway.
            for _ in range(min(self.random.randrange(3), self.left) if ways else 0):
                self.left -= 1
                self.under_way[self.random.choice(ways)] += 1
                self.sent[worker] += 1
        elif self.random.random() < 0.3 and not any(self.words[way] for way in ways):
            word = self.rests[worker].say(sent=self.sent[worker], received=self.received[worker])
            for way in ways:
                self.words[way].append(Word.unpack(word.pack(), len(self.rests)))

    def deliver(self, sender: int, receiver: int) -> None:
        words = self.words[sender, receiver]
        if words and (not self.under_way[sender, receiver] or self.random.random() < 0.5):
            self.rests[receiver].hear(sender, words.pop(0))
        else:
            self.under_way[sender, receiver] -= 1
            self.received[receiver] += 1
            self.jobs[receiver] += 1


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_rest_is_seen_once_everybody_rests_and_never_before(workers: int) -> None:
    for seed in range(300):
        office = Office(workers, Random(seed))
        for _ in range(3000 * workers):
            office.act()
            if office.is_busy:
                assert not any(rest.of_all for rest in office.rests), seed
            elif all(rest.of_all for rest in office.rests):
                break
        else:
            raise AssertionError(f"seed {seed}: rest was not seen")


def test_a_word_that_is_too_short_is_refused() -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        Word.unpack(b"short", 2)


class Shop(Office):
    """An office that comes to rest together in rounds, and takes in more jobs in between."""

    def __init__(self, workers: int, random: Random) -> None:
        super().__init__(workers, random)
        self.unheard: dict[tuple[int, int], list[bytes]] = {way: [] for way in self.ways}
        self.rounds = [Rounds(at, workers, self.teller(at)) for at in range(workers)]
        self.number = [0] * workers
        """The round that each worker takes part in; 0 if it does not."""
        self.looked = [0] * workers
        """The round in which each worker has last done what rest is wanted for."""

    def teller(self, worker: int) -> Callable[[bytes], None]:
        def tell(payload: bytes) -> None:
            for way in self.ways:
                if way[0] == worker:
                    self.unheard[way].append(payload)

        return tell

    def act(self) -> None:
        worker = self.random.randrange(len(self.rounds))
        rounds, number = self.rounds[worker], self.number[worker]
        waiting = [way for way in self.ways if self.unheard[way]]
        choice = self.random.random()
        if waiting and choice < 0.3:
            way = self.random.choice(waiting)
            self.rounds[way[1]].hear(way[0], self.unheard[way].pop(0))
        elif choice < 0.6 or self.jobs[worker]:
            super().act()
        elif not number:
            if rounds.begun > self.looked[worker] or choice < 0.65:
                self.number[worker] = self.looked[worker] + 1
                rounds.begin(self.number[worker])
            else:
                # A source has something.
                self.jobs[worker] += 1
                self.left += 2
        elif self.looked[worker] < number:
            rounds.say(number, sent=self.sent[worker], received=self.received[worker])
            if rounds.all_rest(number):
                assert not self.is_busy
                self.looked[worker] = number
                rounds.say_ready(number)
        elif rounds.all_ready(number):
            assert min(self.looked) >= number
            self.number[worker] = 0


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_rounds_come_to_an_end_and_nobody_acts_before_all_have_looked(workers: int) -> None:
    for seed in range(60):
        shop = Shop(workers, Random(seed))
        for _ in range(60_000 * workers):
            shop.act()
            if min(shop.looked) >= 4:
                break
        else:
            raise AssertionError(f"seed {seed}: only {shop.looked} rounds")


def test_what_cannot_be_understood_is_refused() -> None:
    rounds = Rounds(0, 2, lambda payload: None)
    for payload in (b"", bytes(8) + b"\x09", bytes(8) + b"\x01short"):
        with pytest.raises(ProtocolError, match="cannot be read"):
            rounds.hear(1, payload)
    rounds.say_ready(3)
    rounds.hear(1, (3).to_bytes(8, "little") + b"\x03")
    assert rounds.all_ready(3)
    with pytest.raises(ProtocolError, match="round 3 cannot begin after round 3"):
        rounds.begin(3)


def holding() -> jt.Flow:
    def hold_for_ever(token: jt.TimestampToken, info: jt.OperatorInfo) -> object:
        return lambda input, output: [token for _ in input]

    flow = jt.Flow("holding")
    flow.output("out", flow.input("numbers").unary(hold_for_ever, name="hoarder"))  # type: ignore[arg-type]
    return flow


def test_a_worker_alone_says_that_it_has_stalled() -> None:
    agent = Agent(holding())
    agent.worker.handles[0].close()
    with pytest.raises(FlowStalled, match="'hoarder' holds 1 token at the start of time"):
        agent.run()


def test_giving_up_lets_all_go_on() -> None:
    """An operator that always wants to be invoked again never rests."""

    def restless(token: jt.TimestampToken, info: jt.OperatorInfo) -> object:
        token.drop()
        info.activator.activate()

        def step(input: jt.Input, output: jt.Output) -> None:
            info.activator.activate()

        return step

    flow = jt.Flow("restless")
    flow.output("out", flow.input("numbers").unary(restless))  # type: ignore[arg-type]
    agent = Agent(flow)
    assert not rest(agent, 1, patience=0.01)
    assert not agent.is_engaged
    assert agent.turn(), "it goes on"
    agent.close()


def test_timers_and_sources_wait_while_all_rest() -> None:
    def ticking(token: jt.TimestampToken, info: jt.OperatorInfo) -> object:
        def step(*ports: Any) -> None:
            ports[-1].session(token).give(n=1)
            token.downgrade(token.time + 1)
            info.activator.after(0.0)

        return step

    def eager(token: jt.TimestampToken, info: jt.OperatorInfo) -> object:
        def step(output: jt.Output) -> None:
            output.session(token).give(n=1)
            token.downgrade(token.time + 1)
            info.activator.activate()

        return step

    flow = jt.Flow("ticking")
    flow.output("eager", flow.source(eager))  # type: ignore[arg-type]
    flow.output("source", flow.source(ticking))  # type: ignore[arg-type]
    flow.output("timer", flow.input("numbers").unary(ticking))  # type: ignore[arg-type]
    agent = Agent(flow)
    collected = [agent.worker.handles[flow.handle("output", each)] for each in flow.outputs]

    def counts() -> list[int]:
        return [len(each) for each in collected]

    def all_more_than(before: list[int]) -> bool:
        return all(now > then for now, then in zip(counts(), before, strict=True))

    run_until(agent, lambda: all_more_than([3, 3, 3]))
    for number in (1, 2, 3):
        assert rest(agent, number, patience=30.0)
        there = counts()
        assert not agent.turn(block=0.01)
        assert counts() == there
        go_on(agent)
        run_until(agent, lambda there=there: all_more_than(there))
    agent.close()


def test_a_moment_that_is_none_is_refused() -> None:
    """A timer at NaN would never be due, and the flow would wait for it without an end."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
        token.drop()

        def step(output: jt.Output) -> None:
            info.activator.after(float("nan"))

        return step

    flow = jt.Flow("never")
    flow.output("out", flow.source(build))
    with pytest.raises(jt.errors.TimeError, match="after NaN seconds"):
        flow.run({})
