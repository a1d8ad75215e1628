"""Progress traffic between 8 to 1024 workers, which no machine with two cores can run.

Workers are simulated in this process, and everything that they send to each other is counted while
a time is completed on all of them: for a word count (each worker sends one record), and for a chain
of idle operators. With tokens and notifications only progress batches are sent; watermarks are
marks on every channel between workers, and Jeton counts those like any other message.

All counts are exact. A time costs as many deliveries as there are pairs of workers, for marks at
each link of the chain; where that takes too long, the counts for each pair are taken from two
smaller sizes, which must agree, and the line says that it was not simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import jeton as jt
from jeton.errors import JetonError
from jeton_evaluation.bench.harness import Line, Say, Table, command, numbers
from jeton_evaluation.programs.chain import chain
from jeton_evaluation.programs.mechanisms import MECHANISMS, Mechanism
from jeton_evaluation.programs.word_count import word_count

Program: TypeAlias = Literal["wordcount", "chain"]
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
LENGTHS = (8, 64, 256)
COMPARED: tuple[Mechanism, ...] = ("tokens", "watermarks-x")

BATCH_BYTES, CHANGE_BYTES, MARK_BYTES = 32, 32, 72
"""On the wire: a progress batch, each change in it, and a mark. Tests hold them to the wire's."""
AFFORDABLE = 2_200_000
"""The most messages that are simulated, with one batch for each pair of workers."""
SMALLER = (16, 32)
"""Sizes from which the counts for each pair of workers are taken then."""


TABLE = Table(
    {
        "program": "program:>9",
        "length": "length:>9",
        "   mechanism": "mechanism:<16",
        "workers": "workers:>10",
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
    say("for each time that is completed on all workers:\n" + TABLE.head)
    chosen = [each for each in MECHANISMS if each in mechanisms.split(",")]
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
    mechanism: Mechanism
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
            "marks": self.marks,
            "data_messages": count.messages - self.marks,
            "bytes": BATCH_BYTES * count.batches
            + CHANGE_BYTES * count.changes
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
        return self.pairs + self.marks

    def _count(self) -> Count:
        if self.events <= AFFORDABLE:
            return simulate(self)
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
    messages: int

    @staticmethod
    def so_far(network: Any) -> Count:
        """The counts of a network."""
        return Count(network.progress_batches, network.progress_changes, network.messages)


def simulate(case: Case) -> Count:
    """Complete a time on all workers, and then another one, which is counted.

    The first takes the tokens with it that operators had from the start.
    """
    flow = jt.Flow("traffic")
    stream: jt.Stream = flow.input("in")
    if case.program == "chain":
        stream = chain(stream, case.length, mechanism=case.mechanism)
    else:
        stream = word_count(stream, mechanism=case.mechanism)
    stream.probe("end")
    with flow.open(workers=case.workers) as run:
        for time in (1, 2):
            before = Count.so_far(run.network)
            for worker in range(case.workers):
                numbers = run.input("in", worker)
                if case.program == "wordcount":
                    numbers.send({"time": [time - 1], "word": [worker]})
                numbers.advance_to(time)
            run.run_to_rest()
            assert not run.probe("end").less_than(time)
        after = Count.so_far(run.network)
    return Count(*(late - early for early, late in zip(before, after, strict=True)))


def cases(
    sizes: Sequence[int], lengths: Sequence[int], mechanisms: Sequence[Mechanism] = COMPARED
) -> list[Case]:
    """Both programs at all sizes, the chain at its least length; and other lengths on the fewest.

    >>> [(case.workers, case.length) for case in cases([8, 64], [8, 256], ["tokens"])]
    [(8, 1), (64, 1), (8, 8), (64, 8), (8, 256)]
    """
    return [
        *(Case("wordcount", each, size) for size in sizes for each in mechanisms),
        *(Case("chain", each, size, min(lengths)) for size in sizes for each in mechanisms),
        *(
            Case("chain", each, min(sizes), length)
            for length in lengths
            if length != min(lengths)
            for each in mechanisms
        ),
    ]
