"""Random dataflow programs: how to build each as a flow, and what it should give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tests.simulation.operations import (
    MODULUS,
    Broadcast,
    Delay,
    Exchange,
    Groups,
    Keep,
    Map,
    Operation,
    Program,
    Row,
    Rows,
    Sip,
    Sum,
    Trickle,
    build,
    by_rest,
    grouped,
    model,
)

import jeton as jt

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
        return left.binary_frontier(right, self._join, pact=by_rest)

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
