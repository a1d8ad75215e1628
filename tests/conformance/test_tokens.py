"""CONFORMANCE.md, "Tokens": what operators may do with them, and what the system makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.helpers import (
    FROM_ZERO,
    UnaryBuild,
    UnaryStep,
    consume,
    dropping,
    held,
    in_step,
    keeping,
    seeded,
    stamped,
    with_token,
)

import jeton as jt
from jeton import Antichain, Product
from jeton.dataflow.plan import Step
from jeton.errors import TimeError, TokenError


@seeded
def test_28_acts_show_only_after_the_operator_yields(seed: int | None) -> None:
    """Minting +1, clone +1, drop −1 at the token's time, visible only after it yields."""
    during: list[dict[int, int]] = []
    kept: list[jt.TimestampToken] = []

    def step(token: jt.TimestampToken, input: jt.Input, output: jt.Output) -> None:
        consume(input)
        during.append(held(run, "holder"))
        if not kept:
            kept.extend([token, token.clone(), token.clone()])
        elif len(kept) == 3:
            kept.pop().drop()
        during.append(held(run, "holder"))

    flow = jt.Flow("holder", time=FROM_ZERO)
    flow.input("in").unary_frontier(keeping(step), name="holder")
    with flow.open(seed=seed) as run:
        assert held(run, "holder") == {0: 1}
        run.run_to_rest()
        assert during == [{0: 1}, {0: 1}]
        assert held(run, "holder") == {0: 3}
        run.input("in").advance_to(1)
        run.run_to_rest()
        assert during[2:] == [{0: 3}, {0: 3}]
        assert held(run, "holder") == {0: 2}


@seeded
def test_29_downgrade_moves_one_count(seed: int | None) -> None:
    """Downgrade 0→5 is −1 at 0 and +1 at 5."""

    def step(token: jt.TimestampToken, input: jt.Input, output: jt.Output) -> None:
        consume(input)
        token.downgrade(5)

    flow = jt.Flow("downgrade", time=FROM_ZERO)
    flow.input("in").unary_frontier(keeping(step), name="holder").probe("after")
    with flow.open(seed=seed) as run:
        assert held(run, "holder") == {0: 1}
        run.input("in").advance_to(9)
        run.run_to_rest()
        assert held(run, "holder") == {5: 1}
        assert run.probe("after").frontier == Antichain([5])


def test_29_downgrade_to_an_earlier_time_raises_and_changes_nothing() -> None:
    """Downgrading to an earlier time raises and changes nothing."""

    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        token.downgrade(5)
        with pytest.raises(TokenError, match="not ≥"):
            token.downgrade(4)
        assert token.time == 5
        with output.session(token) as session:
            session.give(n=1)

    assert stamped(with_token(act)["out"]) == [(5, 1)]


@seeded
def test_29_downgrade_to_an_incomparable_time_raises_and_changes_nothing(seed: int | None) -> None:
    """Downgrading to an incomparable time raises and changes nothing."""

    def step(token: jt.TimestampToken, input: jt.Input, output: jt.Output) -> None:
        consume(input)
        token.downgrade(Product(2, 3))
        with pytest.raises(TokenError, match="not ≥"):
            token.downgrade(Product(3, 2))
        assert token.time == Product(2, 3)

    flow = jt.Flow("incomparable", time=FROM_ZERO)
    flow.input("in").enter(flow.loop()).unary_frontier(keeping(step), name="holder")
    with flow.open(seed=seed) as run:
        run.run_to_rest()
        assert held(run, "loop.holder") == {Product(2, 3): 1}


def two_outputs(
    act: Callable[[list[jt.TimestampToken], Sequence[jt.Output]], None],
) -> None:
    """Run an operator with two outputs that does ``act`` with its first tokens."""
    flow = jt.Flow("two outputs", time=FROM_ZERO)
    builder = flow.operator("two")
    builder.input(flow.input("in"))
    builder.output()
    builder.output()

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Step:
        mine = list(tokens)

        def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
            consume(inputs[0])
            if mine:
                act(mine, outputs)
                for token in mine:
                    token.drop()
                mine.clear()

        return step

    builder.build(build)
    flow.run({"in": {"time": [0], "n": [1]}})


def test_30_token_of_another_output_raises() -> None:
    """A token of output 0 used on output 1 raises."""

    def act(tokens: list[jt.TimestampToken], outputs: Sequence[jt.Output]) -> None:
        with pytest.raises(TokenError, match="its own output only"):
            outputs[1].session(tokens[0])
        with outputs[1].session(tokens[1]) as session:
            session.give(n=1)

    two_outputs(act)


def test_31_retaining_for_an_unconnected_output_raises() -> None:
    """Retaining a reference for an output that the input is not connected to raises."""
    flow = jt.Flow("unconnected", time=FROM_ZERO)
    builder = flow.operator("one way")
    builder.input(flow.input("in"))
    builder.output()
    builder.output({})
    raised: list[int] = []

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Step:
        while tokens:
            tokens.pop().drop()

        def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
            for ref, _ in inputs[0]:
                ref.retain(output=0).drop()
                with pytest.raises(TokenError, match="not connected to output 1"):
                    ref.retain(output=1)
                with pytest.raises(TokenError, match="does not lead there"):
                    outputs[1].session(ref)
                raised.append(ref.time)

        return step

    builder.build(build)
    flow.run({"in": {"time": [0], "n": [1]}})
    assert raised == [0]


def test_31_retaining_across_a_summary_that_advances_raises() -> None:
    """So does retaining at the message's own time across a summary that advances time."""

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            with pytest.raises(TokenError, match="8 at the earliest"):
                ref.retain()
            with pytest.raises(TokenError, match="too early"):
                output.session(ref, time=7)
            with ref.retain(8) as token, output.session(token) as session:
                session.give(n=1)

    flow = jt.Flow("advancing", time=FROM_ZERO)
    flow.output("out", flow.input("in").unary(dropping(step), step=3))
    assert stamped(flow.run({"in": {"time": [5], "n": [1]}})["out"]) == [(8, 1)]


def test_32_token_set_keeps_the_least() -> None:
    """A token set holding 5: inserting 7 changes nothing; inserting 3 replaces 5."""

    def act(token: jt.TimestampToken, output: jt.Output) -> None:
        five, seven, three = token.clone(), token.clone(), token.clone()
        five.downgrade(5)
        seven.downgrade(7)
        three.downgrade(3)
        tokens = jt.state.TokenSet([five])
        assert not tokens.insert(seven)
        assert tokens.times == (5,)
        assert seven.dropped
        assert tokens.insert(three)
        assert tokens.times == (3,)
        assert five.dropped
        tokens.drop()

    with_token(act)


@seeded
def test_33_token_set_downgraded_to_the_empty_frontier_releases_all(seed: int | None) -> None:
    """A token set downgraded to the empty frontier releases all."""
    sets: list[jt.state.TokenSet] = []

    def step(token: jt.TimestampToken, input: jt.Input, output: jt.Output) -> None:
        consume(input)
        if not sets:
            early, late = token.clone(), token
            early.downgrade(Product(1, 5))
            late.downgrade(Product(2, 3))
            sets.append(jt.state.TokenSet([early, late]))
        if input.frontier.is_empty:
            sets[0].downgrade(input.frontier)

    flow = jt.Flow("released", time=FROM_ZERO)
    inside = flow.input("in").enter(flow.loop())
    inside.unary_frontier(keeping(step), name="holder").probe("after")
    with flow.open(seed=seed) as run:
        run.input("in").advance_to(9)
        run.run_to_rest()
        assert held(run, "loop.holder") == {Product(1, 5): 1, Product(2, 3): 1}
        frontier = [Product(1, 5), Product(2, 3), Product(9, 0)]
        assert run.probe("after").frontier == Antichain(frontier)
        run.finish()
        assert held(run, "loop.holder") == {}
        assert len(sets[0]) == 0


@pytest.mark.parametrize("unordered", [False, True])
def test_34_advancing_an_input_backwards_raises(unordered: bool) -> None:
    """Advancing an input backwards raises."""
    flow = jt.Flow("backwards", time=FROM_ZERO)
    (flow.unordered_input if unordered else flow.input)("in").probe("seen")
    with flow.open() as run:
        handle = run.input("in")
        forward = handle.token.downgrade if unordered else handle.advance_to
        forward(5)
        forward(5)
        with pytest.raises((TimeError, TokenError)):
            forward(4)
        run.run_to_rest()
        assert run.probe("seen").frontier == Antichain([5])


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_35_message_is_consumed_exactly_once(workers: int, seed: int | None) -> None:
    """A message whose reference was never used is counted as consumed exactly once."""
    flow = jt.Flow("ignored", time=FROM_ZERO)
    pact = jt.Exchange("n")
    flow.input("in").unary(dropping(consume), pact=pact, name="ignoring").probe("after")
    with flow.open(workers=workers, seed=seed, check=True) as run:
        for worker in range(workers):
            run.input("in", worker).send({"time": [3, 4, 5], "n": [1, 2, 3]})
            run.input("in", worker).advance_to(9)
        run.run_to_rest()
        (source,) = [node.outputs[0] for node in run.graph.nodes if node.name == "in"]
        for each in run.workers:
            assert each.tracker.pointstamps() == {(source, 9): workers}
        assert run.probe("after").frontier == Antichain([9])


def test_35_each_message_is_offered_once() -> None:
    """A second look at the input in the same invocation finds nothing."""
    counts: list[int] = []

    def act(input: jt.Input, output: jt.Output) -> None:
        counts.extend([len(list(input)), len(list(input))])

    in_step(act)
    assert counts == [1, 0]


class Window:
    """A window's token and what is known of it."""

    def __init__(self, token: jt.TimestampToken) -> None:
        self.token = token
        self.values: list[float] = []


def tumbling_average(size: int, closed: list[list[int]]) -> UnaryBuild:
    """The paper's operator; ``closed`` gets the windows that each invocation closed."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        assert token.time == 0
        token.drop()
        windows: jt.state.TimeMap[Window] = jt.state.TimeMap()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                for end, part in batch.split_by(lambda times: (times // size + 1) * size):
                    if end not in windows:
                        windows[end] = Window(ref.retain(end))
                    windows[end].values += part["value"].tolist()
            done = list(windows.pop_before(input.frontier))
            for _, window in done:
                with window.token as mine, output.session(mine) as session:
                    session.give(n=sum(window.values) / len(window.values))
            if done:
                closed.append([end for end, _ in done])

        return step

    return build


def averages(closed: list[list[int]]) -> jt.Flow:
    flow = jt.Flow("averages", time=FROM_ZERO)
    build = tumbling_average(10, closed)
    windows = flow.input("in").unary_frontier(build)
    flow.output("out", windows.probe("after"))
    return flow


@seeded
def test_50_windows_of_ten_close_when_the_frontier_has_passed(seed: int | None) -> None:
    """Times 3, 7, 12: stamped 10 and 20, each out only once the frontier has passed its end."""
    flow = averages([])
    with flow.open(seed=seed) as run:
        run.input("in").send({"time": [3, 7, 12], "value": [1.0, 2.0, 4.0]})
        for upto, out, frontier in [
            (10, [], 10),
            (11, [(10, 1.5)], 11),
            (20, [(10, 1.5)], 20),
            (21, [(10, 1.5), (20, 4.0)], 21),
            (99, [(10, 1.5), (20, 4.0)], 99),
        ]:
            run.input("in").advance_to(upto)
            run.run_to_rest()
            table = run.results()["out"]
            assert (stamped(table) if table.num_rows else []) == out
            assert run.probe("after").frontier == Antichain([frontier])


@seeded
def test_50_one_jump_of_the_frontier_closes_all_windows_in_one_invocation(
    seed: int | None,
) -> None:
    """All windows passed by one frontier jump come out in one invocation; none for empty ones."""
    closed: list[list[int]] = []
    with averages(closed).open(seed=seed) as run:
        run.input("in").send({"time": [3, 7, 12, 95], "value": [1.0, 2.0, 4.0, 8.0]})
        run.run_to_rest()
        assert closed == []
        run.input("in").advance_to(1000)
        run.run_to_rest()
        assert closed == [[10, 20, 100]]
        assert stamped(run.results()["out"]) == [(10, 1.5), (20, 4.0), (100, 8.0)]


@seeded
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_50_windows_whatever_the_workers_and_the_order(workers: int, seed: int | None) -> None:
    """The same averages from unordered times, with the records of a window on any worker."""
    flow = jt.Flow("exchanged", time=FROM_ZERO)
    build = tumbling_average(10, [])
    pact = jt.Exchange(lambda batch: batch.times // 10)
    flow.output("out", flow.input("in").unary_frontier(build, pact=pact))
    rows = {"time": [12, 3, 35, 7, 31], "value": [4.0, 1.0, 5.0, 2.0, 7.0]}
    result = flow.run({"in": rows}, workers=workers, seed=seed)
    assert stamped(result["out"]) == [(10, 1.5), (20, 4.0), (40, 6.0)]
