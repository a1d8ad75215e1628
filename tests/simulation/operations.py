"""Operations of random programs: how to build each in a flow, and what it should give.

They work on records `Row(time, n, left)`: a time with a coordinate for each loop around, a number,
and how many rounds are left in each of the loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jeton as jt

MODULUS = 97


class Row(NamedTuple):
    """One record as the model sees it."""

    time: tuple[int, ...]
    n: int
    left: tuple[int, ...] = ()

    def later(self, steps: int) -> Row:
        """The same record with its innermost time moved on."""
        return self._replace(time=(*self.time[:-1], self.time[-1] + steps))


Rows = list[Row]
Step = Callable[[jt.Input, jt.Output], None]


class Operation(Protocol):
    """One step of a program."""

    def build(self, stream: jt.Stream, depth: int) -> jt.Stream:
        """Add it to a flow, inside ``depth`` loops."""

    def model(self, rows: Rows) -> Rows:
        """Its result for all records."""


Program = tuple[Operation, ...]


def build(program: Program, stream: jt.Stream, depth: int = 0) -> jt.Stream:
    for operation in program:
        stream = operation.build(stream, depth)
    return stream


def model(program: Program, rows: Rows) -> Rows:
    for operation in program:
        rows = operation.model(rows)
    return rows


def moved_on(times: Any, steps: Any) -> Any:
    """A column of times whose innermost coordinate has moved on."""
    if times.ndim == 1:
        return times + steps
    moved = times.copy()
    moved[:, -1] += steps
    return moved


# Operations that need no rights but those that come with a message


@dataclass(frozen=True)
class Map:
    """Other numbers."""

    factor: int

    def build(self, stream: jt.Stream, depth: int) -> jt.Stream:
        return stream.map(lambda b: b.with_columns({"n": (b["n"] * self.factor + 1) % MODULUS}))

    def model(self, rows: Rows) -> Rows:
        return [row._replace(n=(row.n * self.factor + 1) % MODULUS) for row in rows]


@dataclass(frozen=True)
class Keep:
    """Only some numbers: whole batches may vanish."""

    modulus: int

    def build(self, stream: jt.Stream, depth: int) -> jt.Stream:
        return stream.filter(lambda batch: batch["n"] % self.modulus != 0)

    def model(self, rows: Rows) -> Rows:
        return [row for row in rows if row.n % self.modulus != 0]


@dataclass(frozen=True)
class Delay:
    """Later times, at once."""

    most: int

    def build(self, stream: jt.Stream, depth: int) -> jt.Stream:
        return stream.delay(lambda batch: moved_on(batch.times, batch["n"] % (self.most + 1)))

    def model(self, rows: Rows) -> Rows:
        return [row.later(row.n % (self.most + 1)) for row in rows]


@dataclass(frozen=True)
class Exchange:
    """To other workers."""

    modulus: int

    def build(self, stream: jt.Stream, depth: int) -> jt.Stream:
        return stream.unary(_pass_on, pact=jt.Exchange(lambda b: b["n"] % self.modulus))

    def model(self, rows: Rows) -> Rows:
        return rows


def _pass_on(token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            output.session(ref).give(batch)

    return step


@dataclass(frozen=True)
class Broadcast:
    """To all workers, of which one keeps each record."""

    def build(self, stream: jt.Stream, depth: int) -> jt.Stream:
        return stream.unary(self._keep_mine, pact=jt.Broadcast())

    @staticmethod
    def _keep_mine(token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                mine = batch["n"] % info.workers == info.worker
                with output.session(ref) as session:
                    session.give(batch.filter(mine))

        return step

    def model(self, rows: Rows) -> Rows:
        return rows


@dataclass(frozen=True)
class Sip:
    """One message, or one time of it, for each invocation: the rest is offered again."""

    by_time: bool

    def build(self, stream: jt.Stream, depth: int) -> jt.Stream:
        return stream.unary(self._sip)

    def _sip(self, token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input.by_time() if self.by_time else input:
                output.session(ref).give(batch)
                break

        return step

    def model(self, rows: Rows) -> Rows:
        return rows


# Operations that hold tokens


class Groups:
    """Sums by exact time, rest of `n` and rounds left, each time with a token to send them."""

    def __init__(self) -> None:
        self.open: jt.state.TimeMap[tuple[jt.TimestampToken, Counter[Any]]] = jt.state.TimeMap()

    def take(self, input: jt.Input) -> None:
        for ref, batch in input.by_time():
            if ref.time not in self.open:
                self.open[ref.time] = ref.retain(), Counter()
            _, sums = self.open[ref.time]
            lefts = [batch[name].tolist() for name in batch.names if name != "n"]
            for n, *left in zip(batch["n"].tolist(), *lefts, strict=True):
                sums[n % 3, *left] += n

    def send(self, output: jt.Output, *frontiers: jt.Antichain) -> None:
        """Send all that is complete, the latest first: order must not matter."""
        for _, (token, sums) in reversed(list(self.open.pop_before(*frontiers))):
            with token, output.session(token) as session:
                for (_, *left), total in sums.items():
                    rounds = {f"left{index}": rounds for index, rounds in enumerate(left)}
                    session.give(n=total % MODULUS, **rounds)


def grouped(rows: Rows) -> Rows:
    sums: Counter[Any] = Counter()
    for row in rows:
        sums[row.time, row.n % 3, row.left] += row.n
    return [Row(time, total % MODULUS, left) for (time, _, left), total in sums.items()]


by_rest = jt.Exchange(lambda batch: batch["n"] % 3)


@dataclass(frozen=True)
class Sum:
    """One record for each group, once its time is complete."""

    def build(self, stream: jt.Stream, depth: int) -> jt.Stream:
        return stream.unary_frontier(self._sum, pact=by_rest)

    @staticmethod
    def _sum(token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
        token.drop()
        groups = Groups()

        def step(input: jt.Input, output: jt.Output) -> None:
            groups.take(input)
            groups.send(output, input.frontier)

        return step

    def model(self, rows: Rows) -> Rows:
        return grouped(rows)


@dataclass(frozen=True)
class Trickle:
    """Records go out in three invocations, under a token that moves on in between."""

    def build(self, stream: jt.Stream, depth: int) -> jt.Stream:
        return stream.unary_frontier(self._trickle)

    @staticmethod
    def _trickle(token: jt.TimestampToken, info: jt.OperatorInfo) -> Step:
        token.drop()
        held: list[tuple[jt.TimestampToken, jt.Batch, int]] = []

        def step(input: jt.Input, output: jt.Output) -> None:
            held.extend((ref.retain(), batch, 0) for ref, batch in input)
            todo = held[:]
            held.clear()
            for token, batch, turn in todo:
                part = batch.filter(batch["n"] % 3 == turn)
                with output.session(token) as session:
                    session.give(part, times=moved_on(part.times, turn))
                if turn < 2:
                    later = token.clone()
                    later.downgrade(jt.Advance(1).apply(token.time))
                    held.append((later, batch, turn + 1))
                token.drop()
            if held:
                info.activator.activate()

        return step

    def model(self, rows: Rows) -> Rows:
        return [row.later(row.n % 3) for row in rows]
