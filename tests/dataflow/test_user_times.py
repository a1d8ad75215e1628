"""A partial order of the user's own as the time of a flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.helpers import UnaryStep, consume, dropping, pass_on, seeded

import jeton as jt
from jeton import Antichain
from jeton.errors import FlowStalled, TimeError, TokenError


@dataclass(frozen=True)
class Pair:
    """Two counters that advance on their own."""

    a: int
    b: int

    @classmethod
    def minimum(cls) -> Pair:
        return cls(0, 0)

    def __le__(self, other: Any) -> bool:
        return bool(self.a <= other.a and self.b <= other.b)

    def sort_key(self) -> tuple[int, int]:
        return (self.a + self.b, self.a)


@dataclass(frozen=True)
class Known:
    """A set of names, ordered by inclusion: who has been heard."""

    names: frozenset[str] = frozenset()

    @classmethod
    def minimum(cls) -> Known:
        return cls()

    @classmethod
    def of(cls, *names: str) -> Known:
        return cls(frozenset(names))

    def __le__(self, other: Any) -> bool:
        return bool(self.names <= other.names)

    def sort_key(self) -> tuple[int, list[str]]:
        return (len(self.names), sorted(self.names))


@seeded
def test_frontiers_are_antichains(seed: int | None) -> None:
    flow = jt.Flow("pairs", time=Pair)
    flow.input("in").unary(dropping(pass_on), pact=jt.Exchange("n")).probe("seen")
    with flow.open(workers=2, seed=seed) as run:
        run.input("in", 0).advance_to(Pair(3, 0))
        run.input("in", 1).advance_to(Pair(0, 5))
        run.run_to_rest()
        assert run.probe("seen").frontier == Antichain([Pair(3, 0), Pair(0, 5)])
        run.input("in", 0).advance_to(Pair(3, 5))
        run.run_to_rest()
        assert run.probe("seen").frontier == Antichain([Pair(0, 5)])
        with pytest.raises(TimeError, match="cannot go back"):
            run.input("in", 0).advance_to(Pair(9, 4))
        run.finish()


@seeded
def test_sets_by_inclusion(seed: int | None) -> None:
    flow = jt.Flow("known", time=Known)
    flow.unordered_input("in").unary(dropping(pass_on)).probe("seen")
    with flow.open(workers=1, seed=seed) as run:
        token = run.input("in").token
        other = token.clone()
        token.downgrade(Known.of("ann"))
        other.downgrade(Known.of("bob"))
        run.run_to_rest()
        assert run.probe("seen").frontier == Antichain([Known.of("ann"), Known.of("bob")])
        with pytest.raises(TokenError):
            token.downgrade(Known.of("bob", "eve"))
        token.downgrade(Known.of("ann", "bob"))
        run.run_to_rest()
        assert run.probe("seen").frontier == Antichain([Known.of("bob")])
        with other, run.input("in").session(other) as session:
            session.give(n=1)
        token.drop()
        run.finish()
        assert run.probe("seen").done


@seeded
@pytest.mark.parametrize("workers", [1, 2])
def test_windows_by_a_partial_order(workers: int, seed: int | None) -> None:
    """Blocks of 10 × 10, each closed once the frontier has passed its far corner."""
    closed: list[tuple[Pair, int]] = []

    def corner(time: Pair) -> Pair:
        return Pair(time.a // 10 * 10 + 9, time.b // 10 * 10 + 9)

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()
        blocks: jt.state.TimeMap[tuple[jt.TimestampToken, list[int]]] = jt.state.TimeMap()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input.by_time():
                end = corner(ref.time)
                if end not in blocks:
                    blocks[end] = (ref.retain(end), [])
                blocks[end][1].extend(batch["n"].tolist())
            for end, (mine, values) in blocks.pop_before(input.frontier):
                with mine, output.session(mine) as session:
                    session.give(n=sum(values))
                closed.append((end, sum(values)))

        return step

    seen: list[tuple[Pair, int]] = []

    def look(batch: jt.Batch) -> None:
        seen.extend(zip(batch.times.tolist(), batch["n"].tolist(), strict=True))

    flow = jt.Flow("blocks", time=Pair)
    together = jt.Exchange(lambda batch: batch["n"] * 0)
    blocks = flow.input("in").unary_frontier(build, pact=together)
    blocks.inspect(look).probe("after")
    with flow.open(workers=workers, seed=seed) as run:
        times = [Pair(1, 1), Pair(15, 2), Pair(3, 12), Pair(2, 8)]
        run.input("in").send(n=[1, 2, 4, 8], times=times)
        run.run_to_rest()
        assert closed == []
        for worker in range(workers):
            run.input("in", worker).advance_to(Pair(0, 10))
        run.run_to_rest()
        assert sorted(closed, key=lambda item: item[0].sort_key()) == [
            (Pair(9, 9), 9),
            (Pair(19, 9), 2),
        ]
        run.finish()
        assert sorted(seen, key=lambda item: item[0].sort_key()) == [
            (Pair(9, 9), 9),
            (Pair(9, 19), 4),
            (Pair(19, 9), 2),
        ]


@seeded
def test_loops_around_a_partial_order(seed: int | None) -> None:
    seen: list[tuple[Pair, int]] = []

    def body(numbers: jt.Stream) -> tuple[jt.Stream, jt.Stream]:
        going, done = numbers.branch(lambda batch: batch["n"] <= 0)
        return going.map(lambda batch: {"n": batch["n"] - 1}), done

    flow = jt.Flow("loop", time=Pair)
    flow.input("in").iterate(body).inspect(
        lambda batch: seen.extend(zip(batch.times.tolist(), batch["n"].tolist(), strict=True))
    )
    with flow.open(workers=2, seed=seed) as run:
        run.input("in").send(n=[2, 5], times=[Pair(1, 0), Pair(0, 1)])
        run.finish()
    assert sorted(seen, key=lambda item: item[0].sort_key()) == [(Pair(0, 1), 0), (Pair(1, 0), 0)]


def test_records_come_out_of_an_output() -> None:
    flow = jt.Flow("pairs", time=Pair)
    flow.output("out", flow.input("in"))
    with flow.open() as run:
        run.input("in").send(n=[1, 2], times=[Pair(1, 0), Pair(0, 1)])
        table = run.finish()["out"]
    assert sorted(table["n"].to_pylist()) == [1, 2]


def test_tables_can_be_fed() -> None:
    flow = jt.Flow("pairs", time=Pair)
    seen: list[int] = []
    flow.input("in").inspect(lambda batch: seen.extend(batch["n"].tolist()))
    flow.run({"in": {"time": [Pair(1, 0), Pair(0, 1)], "n": [1, 2]}})
    assert sorted(seen) == [1, 2]


def test_late_records() -> None:
    seen: list[tuple[Pair, int]] = []
    flow = jt.Flow("late", time=Pair)
    flow.input("in").late.inspect(
        lambda batch: seen.extend(zip(batch.times.tolist(), batch["n"].tolist(), strict=True))
    )
    with flow.open() as run:
        run.input("in").advance_to(Pair(2, 2))
        run.input("in").send(n=[1, 2], times=[Pair(9, 1), Pair(2, 2)])
        assert run.finish().late == {"in": 1}
    assert seen == [(Pair(2, 2), 1)]


def test_a_flow_that_stalls_says_who_holds_it() -> None:
    kept: list[jt.TimestampToken] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        kept.append(token)
        return consume

    flow = jt.Flow("stalls", time=Pair)
    numbers = flow.input("in")
    numbers.unary(build, name="outside")
    numbers.enter(flow.loop()).unary(build, name="inside")
    with flow.open() as run, pytest.raises(FlowStalled, match="'outside' holds 1 token"):
        run.finish()


def test_capture_and_replay_keep_partial_orders() -> None:
    flow = jt.Flow("first", time=Pair)
    flow.input("in").capture("events")
    with flow.open(workers=2) as run:
        run.input("in", 0).advance_to(Pair(3, 0))
        run.input("in", 1).advance_to(Pair(0, 5))
        run.input("in", 0).send(n=[1], times=[Pair(3, 1)])
        run.run_to_rest()
        run.finish()
        events = run.captured("events")
    again = jt.Flow("second", time=Pair)
    again.replay(events).capture("again").probe("seen")
    with again.open(workers=3) as run:
        run.finish()
        assert run.probe("seen").done


def test_times_of_another_class_are_refused() -> None:
    flow = jt.Flow("pairs", time=Pair)
    flow.input("in")
    with flow.open() as run:
        for wrong in (3, (1, 2), Known.of("ann")):
            with pytest.raises(TimeError, match="is not a Pair"):
                run.input("in").advance_to(wrong)


def test_tokens_refuse_times_of_another_class() -> None:
    flow = jt.Flow("pairs", time=Pair)
    flow.unordered_input("in")
    with flow.open() as run:
        for wrong in (Known.of("ann"), 3):
            with pytest.raises((TimeError, TokenError)):
                run.input("in").token.downgrade(wrong)


@seeded
@pytest.mark.parametrize("workers", [1, 2])
def test_state_by_key_moves_on_within_each_time(workers: int, seed: int | None) -> None:
    """Records of one time are taken in the order of their columns, whichever came first."""

    def collect(before: list[int], row: dict[str, Any]) -> tuple[list[int], list[Any]]:
        return [*before, row["n"]], [{"so far": [*before, row["n"]]}]

    flow = jt.Flow("pairs", time=Pair)
    flow.output("out", flow.input("in").key_by("k").stateful_map(collect, []))
    times = [Pair(0, 0), Pair(1, 1), Pair(0, 0), Pair(1, 1), Pair(0, 0)]
    with flow.open(workers=workers, seed=seed) as run:
        run.input("in").send(k=[1, 1, 1, 2, 1], n=[3, 9, 2, 5, 1], times=times)
        found = run.finish()["out"].sort_by([("k", "ascending")]).to_pydict()
    one = [[1], [1, 2], [1, 2, 3], [1, 2, 3, 9]]
    assert found["k"] == [1, 1, 1, 1, 2]
    assert sorted(found["so far"][:4]) == one
    assert found["so far"][4:] == [[5]]
