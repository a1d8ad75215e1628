"""Random dataflow programs: how to build each as a flow, and what it should give.

A program is a list of operations on records `Row(time, n, left)`: a time with a coordinate for
each loop around, a number, and how many rounds are left in each of the loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from hypothesis import strategies as st

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
        """What it makes of all records there ever are."""


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
        self.open: jt.TimeMap[tuple[jt.TimestampToken, Counter[Any]]] = jt.TimeMap()

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


_by_rest = jt.Exchange(lambda batch: batch["n"] % 3)


@dataclass(frozen=True)
class Sum:
    """One record for each group, once its time is complete."""

    def build(self, stream: jt.Stream, depth: int) -> jt.Stream:
        return stream.unary_frontier(self._sum, pact=_by_rest)

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


# Operations with operations inside


@dataclass(frozen=True)
class Split:
    """A diamond: odd and even numbers go two ways, and meet again."""

    even: Program
    odd: Program
    join: bool

    def build(self, stream: jt.Stream, depth: int) -> jt.Stream:
        even, odd = stream.branch(lambda batch: batch["n"] % 2 == 1)
        left, right = build(self.even, even, depth), build(self.odd, odd, depth)
        if not self.join:
            return left.concat(right)
        return left.binary_frontier(right, self._join, pact=_by_rest)

    @staticmethod
    def _join(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Input, jt.Output], None]:
        token.drop()
        groups = Groups()

        def step(left: jt.Input, right: jt.Input, output: jt.Output) -> None:
            groups.take(left)
            groups.take(right)
            groups.send(output, left.frontier, right.frontier)

        return step

    def model(self, rows: Rows) -> Rows:
        even = model(self.even, [row for row in rows if row.n % 2 == 0])
        odd = model(self.odd, [row for row in rows if row.n % 2 == 1])
        return grouped(even + odd) if self.join else even + odd


@dataclass(frozen=True)
class Loop:
    """Around a few times: in a loop of its own, or (``ring``) in the scope that is there."""

    body: Program
    step: int
    ring: bool

    def build(self, stream: jt.Stream, depth: int) -> jt.Stream:
        outside, left = stream.scope, f"left{depth}"
        stream = stream.map(lambda batch: batch.with_columns({left: batch["n"] % 3}))
        if self.ring:
            again = outside.feedback(self.step)
        else:
            loop = outside.loop()
            again = loop.feedback(self.step)
            stream = stream.enter(loop)
        done, going = build(self.body, stream.concat(again.stream), depth + 1).branch(
            lambda batch: batch[left] > 0
        )
        again.connect(going.map(lambda batch: batch.with_columns({left: batch[left] - 1})))
        if not self.ring:
            done = done.leave()
        return done.map(lambda batch: batch.select(*(n for n in batch.names if n != left)))

    def model(self, rows: Rows) -> Rows:
        """Around until another round makes no difference."""
        inner = () if self.ring else (0,)
        rows = [Row(row.time + inner, row.n, (*row.left, row.n % 3)) for row in rows]
        again: Rows = []
        while True:
            out = model(self.body, rows + again)
            going = [row.later(self.step) for row in out if row.left[-1] > 0]
            going = [row._replace(left=(*row.left[:-1], row.left[-1] - 1)) for row in going]
            if Counter(going) == Counter(again):
                break
            again = going
        done = [row for row in out if row.left[-1] == 0]
        return [Row(row.time if self.ring else row.time[:-1], row.n, row.left[:-1]) for row in done]


# Programs at random


@cache
def operations(nesting: int) -> st.SearchStrategy[Operation]:
    small = st.integers(2, 4)
    simple: st.SearchStrategy[Operation] = st.one_of(
        st.builds(Map, small),
        st.builds(Keep, small),
        st.builds(Delay, small),
        st.builds(Exchange, small),
        st.just(Broadcast()),
        st.builds(Sip, st.booleans()),
        st.just(Sum()),
        st.just(Trickle()),
    )
    if not nesting:
        return simple
    inside = programs(nesting - 1)
    return st.one_of(
        st.builds(Loop, inside, st.integers(1, 2), st.booleans()),
        st.builds(Split, inside, inside, st.booleans()),
        simple,
    )


@cache
def programs(nesting: int = 2) -> st.SearchStrategy[Program]:
    return st.lists(operations(nesting), min_size=1, max_size=3).map(tuple)


Table = tuple[tuple[int, int], ...]
"""Records from outside: times and numbers."""

tables: st.SearchStrategy[Table] = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, MODULUS - 1)), max_size=10
).map(tuple)


@dataclass(frozen=True)
class Case:
    """A flow: inputs, each with a program of its own, a source, and a program for all of them."""

    first: tuple[Program, ...]
    tables: tuple[Table, ...]
    counted: int
    then: Program

    def flow(self) -> jt.Flow:
        flow = jt.Flow("random")
        streams = [
            build(program, flow.input(f"in{index}")) for index, program in enumerate(self.first)
        ]
        streams.append(flow.source(self._count))
        merged = streams[0].concat(*streams[1:])
        flow.output("before", merged)
        flow.output("after", build(self.then, merged).probe("end"))
        return flow

    def _count(
        self, token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Output], None]:
        """A few numbers, one in each invocation, dealt out to the workers."""
        numbers = iter(range(info.worker, self.counted, info.workers))

        def step(output: jt.Output) -> None:
            number = next(numbers, None)
            if number is None:
                token.drop()
                return
            token.downgrade(number)
            with output.session(token) as session:
                session.give(n=7 * number % MODULUS)
            info.activator.activate()

        return step

    def inputs(self) -> dict[str, dict[str, Any]]:
        return {
            f"in{index}": {
                "time": np.array([time for time, _ in table], dtype=np.int64),
                "n": np.array([n for _, n in table], dtype=np.int64),
            }
            for index, table in enumerate(self.tables)
        }

    def expected(self) -> dict[str, Counter[tuple[int, int]]]:
        """The records of each output, as the model has them."""
        rows = [Row((number,), 7 * number % MODULUS) for number in range(self.counted)]
        for program, table in zip(self.first, self.tables, strict=True):
            rows += model(program, [Row((time,), n) for time, n in table])
        return {"before": _counted(rows), "after": _counted(model(self.then, rows))}


def _counted(rows: Iterable[Row]) -> Counter[tuple[int, int]]:
    return Counter((row.time[0], row.n) for row in rows)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    inputs = draw(st.integers(1, 3))
    return Case(
        first=tuple(draw(programs(1)) for _ in range(inputs)),
        tables=tuple(draw(tables) for _ in range(inputs)),
        counted=draw(st.integers(0, 4)),
        then=draw(programs()),
    )


def records(result: jt.Result) -> dict[str, Counter[tuple[int, int]]]:
    """The records of each output, as they came out."""
    return {
        name: Counter((row["time"], row["n"]) for row in table.to_pylist())
        for name, table in result.items()
    }
