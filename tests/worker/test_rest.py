"""Workers find out that all of them rest: never too early, always in the end."""

from random import Random

import pytest

import jeton as jt
from jeton.worker.process import Process
from jeton.worker.rest import Rest, Word


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
    with pytest.raises(jt.ProtocolError, match="cannot be read"):
        Word.unpack(b"short", 2)


def holding() -> jt.Flow:
    def hold_for_ever(token: jt.TimestampToken, info: jt.OperatorInfo) -> object:
        return lambda input, output: [token for _ in input]

    flow = jt.Flow("holding")
    flow.output("out", flow.input("numbers").unary(hold_for_ever, name="hoarder"))  # type: ignore[arg-type]
    return flow


def test_a_worker_alone_says_that_it_has_stalled() -> None:
    process = Process(holding(), None)
    process.worker.handles[0].close()
    with pytest.raises(jt.FlowStalled, match="'hoarder' holds 1 token at 0"):
        process.run()
