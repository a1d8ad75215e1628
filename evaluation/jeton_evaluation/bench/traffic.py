"""Progress traffic between 8 to 4,096 workers, which no machine with two cores can run.

Workers are simulated in this process, and everything that they send to each other is counted while
a time is completed on all of them: for a word count (each worker sends one record), and for a chain
of idle operators. With tokens and notifications only progress batches are sent; watermarks are
marks on every channel between workers, and Jeton counts those like any other message.

Tokens are counted twice: sent by each worker to all others, and through relays, each of which
serves a group of as many workers as there are groups (see `jeton.progress.relay`). Without being
asked to, Jeton uses relays from 32 workers on. Watermarks are counted without relays.

All counts are exact. Without relays, a time costs as many deliveries as there are pairs of workers,
for marks at each link of the chain. Where that takes too long, it is not simulated, and the line
says so. With tokens, workers run all the same: the batches that they would send are counted as
they are sealed, and their sum is delivered (`Pool`), which must give the simulated counts of two
smaller sizes. With marks, the counts for each pair are taken from these, which must agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import jeton as jt
from jeton.errors import JetonError
from jeton.progress.protocol import Changes, ProgressBatch, SealedChanges
from jeton.progress.relay import Hops, Relay, in_groups_of
from jeton.runtime.in_process import Run
from jeton.runtime.network import SimulatedNetwork
from jeton.runtime.worker import Worker
from jeton_evaluation.bench.harness import Line, OptionError, Say, Table, command, numbers
from jeton_evaluation.programs.chain import chain
from jeton_evaluation.programs.mechanisms import MECHANISMS
from jeton_evaluation.programs.word_count import word_count

Program: TypeAlias = Literal["wordcount", "chain"]
RELAYED = "tokens-relayed"
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
LENGTHS = (8, 64, 256)
COMPARED = ("tokens", RELAYED, "watermarks-x")

BATCH_BYTES, CHANGE_BYTES, NAME_BYTES, MARK_BYTES = 32, 32, 8, 48
"""On the wire: a progress batch, each change in it, the worker of one that is named, and a mark.
Tests hold them to the wire's."""
AFFORDABLE = 2_200_000
"""The most messages that are simulated, with one batch for each pair of workers."""
SMALLER = (16, 32)
"""Sizes from which the counts for each pair of workers are taken then, or checked."""


TABLE = Table(
    {
        "program": "program:>9",
        "length": "length:>9",
        "   mechanism": "mechanism:<18",
        "workers": "workers:>8",
        "batches": "progress_batches:>13,",
        "marks": "marks:>13,",
        "bytes": "bytes:>15,",
    }
)


def run(
    say: Say,
    workers: Annotated[str, "N,N,… simulated"] = ",".join(map(str, SIZES)),
    lengths: Annotated[str, "N,N,… of the chain"] = ",".join(map(str, LENGTHS)),
    mechanisms: Annotated[str, "M,M,…"] = ",".join(COMPARED),
) -> Iterator[Line]:
    """Count all cases."""
    known = ("tokens", RELAYED, *MECHANISMS[1:])
    wanted = mechanisms.split(",")
    for each in wanted:
        if each not in known:
            raise OptionError(f"there is no mechanism {each!r}: choose from {', '.join(known)}")
    say("for each time that is completed on all workers:\n" + TABLE.head)
    chosen = [each for each in known if each in wanted]
    for case in cases(numbers(workers), numbers(lengths), chosen):
        line = case.line()
        row = TABLE.row(line | {"mechanism": f"   {line['mechanism']}"})
        say(row + ("" if line["simulated"] else "   (not simulated)"))
        yield line


main = command(run)


@dataclass(frozen=True)
class Case:
    """A program on a number of workers."""

    program: Program
    mechanism: str
    """One of `MECHANISMS`, or tokens through relays."""
    workers: int
    length: int = 1

    def line(self) -> Line:
        """The messages between workers while one time is completed."""
        count = self._count()
        simulated = self.events <= AFFORDABLE
        return {
            "experiment": "traffic",
            "program": self.program,
            "mechanism": self.mechanism,
            "workers": self.workers,
            "length": self.length,
            "progress_batches": count.batches,
            "progress_changes": count.changes,
            "named_changes": count.named,
            "marks": self.marks,
            "data_messages": count.messages - self.marks,
            "bytes": BATCH_BYTES * count.batches
            + CHANGE_BYTES * count.changes
            + NAME_BYTES * count.named
            + MARK_BYTES * self.marks,
            "simulated": simulated,
        }

    @property
    def pairs(self) -> int:
        """The number of ordered pairs of workers."""
        return self.workers * (self.workers - 1)

    @property
    def marks(self) -> int:
        """Marks between workers: one for each pair, at each exchange."""
        return self.pairs * self.length if self.mechanism == "watermarks-x" else 0

    @property
    def events(self) -> int:
        """About how many deliveries are to be simulated, for one batch of each worker."""
        return 6 * self.workers if self.mechanism == RELAYED else self.pairs + self.marks

    @property
    def hops(self) -> Hops:
        """The way of progress: about as many groups as there are workers in each, or no relays."""
        return in_groups_of(isqrt(self.workers - 1) + 1 if self.mechanism == RELAYED else 1)

    def flow(self) -> jt.Flow:
        """The program, with a probe at its end."""
        flow = jt.Flow("traffic")
        mechanism: Any = "tokens" if self.mechanism == RELAYED else self.mechanism
        stream: jt.Stream = flow.input("in")
        if self.program == "chain":
            stream = chain(stream, self.length, mechanism=mechanism)
        else:
            stream = word_count(stream, mechanism=mechanism)
        stream.probe("end")
        return flow

    def _count(self) -> Count:
        if self.events <= AFFORDABLE:
            return simulate(self)
        if self.mechanism == "tokens":
            for size in SMALLER:
                smaller = replace(self, workers=size)
                if count_sealed(smaller) != simulate(smaller):
                    raise JetonError(
                        f"{self} is too large to be simulated, and what workers seal is not what "
                        f"they send if there are {size} of them"
                    )
            return count_sealed(self)
        first, second = (
            [Fraction(n, size * (size - 1)) for n in simulate(replace(self, workers=size))]
            for size in SMALLER
        )
        if first != second:
            raise JetonError(
                f"{self} is too large to be simulated, and what it sends is not in proportion to "
                "the pairs of workers"
            )
        return Count(*(int(each * self.pairs) for each in first))


class Count(NamedTuple):
    """The messages on the simulated network."""

    batches: int
    changes: int
    named: int
    """Changes on workers that are named."""
    messages: int

    @staticmethod
    def so_far(network: SimulatedNetwork) -> Count:
        """The counts of a network."""
        progress = network.progress_batches, network.progress_changes, network.named_changes
        return Count(*progress, network.messages)

    def since(self, earlier: Count) -> Count:
        """The messages after an earlier count."""
        return Count(*(late - early for late, early in zip(self, earlier, strict=True)))


def simulate(case: Case) -> Count:
    """Complete a time on all workers, and then another one, which is counted.

    The first takes the tokens with it that operators had from the start.
    """
    with Run(case.flow(), workers=case.workers, hops=case.hops) as run:
        for time in (1, 2):
            before = Count.so_far(run.network)
            feed(case, run, time)
            run.run_to_rest()
            assert not run.probe("end").less_than(time)
        return Count.so_far(run.network).since(before)


def feed(case: Case, run: Run, time: int) -> None:
    """Send the records before a time, and advance all inputs to it."""
    for worker in range(case.workers):
        numbers = run.input("in", worker)
        if case.program == "wordcount":
            numbers.send({"time": [time - 1], "word": [worker]})
        numbers.advance_to(time)


def count_sealed(case: Case) -> Count:
    """As `simulate` for tokens without relays; progress is delivered in sums."""
    pool = Pool(case.workers)
    with Run(case.flow(), workers=case.workers, hops=pool.hop) as run:
        for time in (1, 2):
            before = Count(pool.batches, pool.changes, 0, run.network.messages)
            feed(case, run, time)
            while any((run.turn(), pool.deliver(run.workers))):
                pass
            assert not run.probe("end").less_than(time)
        return Count(pool.batches, pool.changes, 0, run.network.messages).since(before)


class Pool:
    """Progress from all workers to all others without a queue for each pair of them.

    What workers seal in a turn reaches the others before the next one, in one batch for each, and
    the batches that would go from each to each are counted.
    """

    def __init__(self, workers: int) -> None:
        self.batches = self.changes = 0
        self._workers = workers
        # A relay that is none of the workers: each of them has the next number.
        self._relay = Relay(0, workers + 1, workers + 1)

    def hop(self, worker: int, _: int) -> Pooled:
        """A worker's way to the pool."""
        return Pooled(self, worker)

    def take(self, worker: int, sealed: SealedChanges) -> None:
        """Take what a worker has sealed, and count the batches that it would send."""
        reached = sealed.by_worker
        others = [each for each in range(self._workers) if each != worker and each not in reached]
        self.batches += self._workers - 1
        self.changes += sum(_changes_in(sealed.batch_for(each)) for each in reached)
        if others:
            self.changes += len(others) * _changes_in(sealed.batch_for(others[0]))
        named = tuple(
            ((at + 1, pointstamp), delta)
            for at, changes in reached.items()
            for pointstamp, delta in changes
        )
        self._relay.receive(ProgressBatch(worker + 1, 0, sealed.here, named=named))

    def deliver(self, workers: Sequence[Worker]) -> bool:
        """Have all workers know of each other; returns whether there was anything to know."""
        did = self._relay.pending
        for to, batch in self._relay.send(None):
            workers[to - 1].receive_progress([batch])
        return did


class Pooled:
    """A worker's way to a pool."""

    pending = False
    has_heard = True

    def __init__(self, pool: Pool, worker: int) -> None:
        self._pool = pool
        self._worker = worker

    def mark(self) -> None:
        """Refuse: no state moves here."""
        raise AssertionError("state that moves is not counted")

    def receive(self, batch: ProgressBatch) -> tuple[Changes, Changes]:
        """Take a batch of the pool."""
        return batch.yours, batch.changes

    def send(self, sealed: SealedChanges | None) -> tuple[()]:
        """Put what was sealed into the pool."""
        if sealed is not None:
            self._pool.take(self._worker, sealed)
        return ()


def _changes_in(batch: ProgressBatch) -> int:
    return len(batch.changes) + len(batch.yours)


def cases(
    sizes: Sequence[int], lengths: Sequence[int], mechanisms: Sequence[str] = COMPARED
) -> list[Case]:
    """Both programs at all sizes, the chain at its least length; and other lengths on the fewest.

    Marks of a word count are left out where they cannot be simulated: what it sends is not in
    proportion to the pairs of workers.

    >>> [(case.workers, case.length) for case in cases([8, 64], [8, 256], ["tokens"])]
    [(8, 1), (64, 1), (8, 8), (64, 8), (8, 256)]
    >>> [case.workers for case in cases([8, 4096], [8], ["watermarks-x"])]
    [8, 8, 4096]
    """
    counts = [Case("wordcount", each, size) for size in sizes for each in mechanisms]
    return [
        *(case for case in counts if not case.marks or case.events <= AFFORDABLE),
        *(Case("chain", each, size, min(lengths)) for size in sizes for each in mechanisms),
        *(
            Case("chain", each, min(sizes), length)
            for length in lengths
            if length != min(lengths)
            for each in mechanisms
        ),
    ]
