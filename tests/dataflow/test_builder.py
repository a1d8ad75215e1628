"""The general builder: any inputs, any outputs, declared connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.helpers import FROM_ZERO, UnaryStep, consume, dropping, pass_on, seeded, stamped

import jeton as jt
from jeton import Antichain
from jeton.dataflow.plan import Build, Notify, Step
from jeton.errors import GraphError, TokenError


def idle(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Step:
    """Give all tokens up, and take what comes."""
    while tokens:
        tokens.pop().drop()

    def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
        for input in inputs:
            consume(input)

    return step


@seeded
def test_connections_decide_which_frontier_an_output_follows(seed: int | None) -> None:
    flow = jt.Flow("two ways")
    builder = flow.operator("node")
    left = builder.input(flow.input("left"))
    right = builder.input(flow.input("right"))
    builder.output({left: 0})
    builder.output({right: 3})
    builder.output({left: 1, right: 0})
    builder.output()
    builder.output({})
    for number, stream in enumerate(builder.build(idle)):
        stream.probe(f"{number}")
    with flow.open(seed=seed, workers=2) as run:
        for worker in range(2):
            run.input("left", worker).advance_to(10)
            run.input("right", worker).advance_to(20)
        run.run_to_rest()
        frontiers = [run.probe(f"{number}").frontier for number in range(5)]
        assert frontiers == [*(Antichain([t]) for t in (10, 23, 11, 10)), Antichain()]


def send_each(times: Sequence[int]) -> Build:
    """Answer each message on output ``i`` at ``times[i]`` later."""

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Step:
        while tokens:
            tokens.pop().drop()

        def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
            for ref, batch in inputs[0]:
                for later, output in zip(times, outputs, strict=True):
                    with output.session(ref) as session:
                        assert session.time == ref.time + later
                        session.give(batch, times=batch.times + later)

        return step

    return build


@seeded
def test_several_outputs_with_summaries(seed: int | None) -> None:
    flow = jt.Flow("outputs")
    builder = flow.operator("node")
    builder.input(flow.input("in"), jt.Exchange("n"))
    builder.output()
    builder.output({0: 5})
    now, later = builder.build(send_each([0, 5]))
    flow.output("now", now)
    flow.output("later", later)
    rows = {"time": [1, 2], "n": [1, 2]}
    result = flow.run({"in": rows}, workers=2, seed=seed)
    assert stamped(result["now"]) == [(1, 1), (2, 2)]
    assert stamped(result["later"]) == [(6, 1), (7, 2)]


def test_session_earlier_than_the_summary_raises() -> None:
    flow = jt.Flow("too early")
    builder = flow.operator("node")
    builder.input(flow.input("in"))
    builder.output({0: 5})

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Step:
        tokens.pop().drop()

        def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
            for ref, batch in inputs[0]:
                outputs[0].session(ref).give(batch)

        return step

    builder.build(build)
    with pytest.raises(TokenError, match="a record at 1 cannot be sent in a session at 6"):
        flow.run({"in": {"time": [1], "n": [1]}})


def test_connections_name_known_inputs() -> None:
    flow = jt.Flow("unknown")
    builder = flow.operator("node")
    builder.input(flow.input("in"))
    with pytest.raises(GraphError, match=r"'node' has no inputs \[1\]"):
        builder.output({1: 0})


def test_two_inputs_of_one_stream() -> None:
    flow = jt.Flow("twice")
    numbers = flow.input("in")
    builder = flow.operator("node")
    ports = [builder.input(numbers), builder.input(numbers)]
    builder.output()

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Step:
        tokens.pop().drop()

        def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
            for port in ports:
                pass_on(inputs[port], outputs[0])

        return step

    flow.output("out", builder.build(build)[0])
    result = flow.run({"in": {"time": [1], "n": [7]}})
    assert stamped(result["out"]) == [(1, 7), (1, 7)]


def test_input_that_observes_sees_the_frontier_and_no_data() -> None:
    seen: list[Antichain] = []
    flow = jt.Flow("observes")
    builder = flow.operator("node")
    builder.input(flow.input("in"), observes=True)

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Step:
        def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
            assert not inputs[0]
            seen.append(inputs[0].frontier)

        return step

    builder.build(build, notify="always")
    with flow.open() as run:
        run.input("in").send({"time": [1], "n": [1]})
        run.input("in").advance_to(3)
        run.run_to_rest()
        run.finish()
    assert seen == [Antichain([3]), Antichain()]


def test_names_are_made_unique() -> None:
    flow = jt.Flow("names")
    stream = flow.input("in")
    for _ in range(3):
        stream.unary(dropping(consume), name="twin")
    names = [plan.name for plan in flow.operators]
    assert len(set(names)) == len(names)
    assert "twin" in names


def test_a_dot_in_a_flow_s_name_stays_out_of_operators_names() -> None:
    flow = jt.Flow("version 1.0")
    flow.input("in").unary(dropping(consume), name="node")
    assert [plan.name for plan in flow.operators] == ["in", "node"]


def test_operators_in_scopes_are_named_after_them() -> None:
    flow = jt.Flow("scopes")
    inner = flow.scope("outer").scope("inner")
    flow.input("in").enter(inner.parent or flow).enter(inner).unary(dropping(consume), name="node")
    assert flow.operators[-1].name == "outer.inner.node"


@seeded
@pytest.mark.parametrize("notify", ["never", "held", "always"])
def test_notify_decides_what_a_moved_frontier_does(notify: Notify, seed: int | None) -> None:
    calls: list[Antichain] = []
    flow = jt.Flow("notify")

    def step(input: jt.Input, output: jt.Output) -> None:
        consume(input)
        calls.append(input.frontier)

    flow.input("in").unary_frontier(dropping(step), notify=notify)
    with flow.open(seed=seed) as run:
        run.run_to_rest()
        calls.clear()
        for time in (1, 2, 3):
            run.input("in").advance_to(time)
            run.run_to_rest()
    expected = [Antichain([t]) for t in (1, 2, 3)] if notify == "always" else []
    assert calls == expected


@seeded
def test_operator_that_holds_a_token_is_told_of_every_frontier(seed: int | None) -> None:
    seen: list[Antichain] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        def step(input: jt.Input, output: jt.Output) -> None:
            consume(input)
            if token.dropped:
                return
            seen.append(input.frontier)
            if input.frontier.passed(2):
                token.drop()

        return step

    flow = jt.Flow("emitted", time=FROM_ZERO)
    flow.input("in").unary_frontier(build)
    with flow.open(seed=seed) as run:
        run.run_to_rest()
        for time in (1, 2, 3, 4):
            run.input("in").advance_to(time)
            run.run_to_rest()
        run.finish()
    assert seen == [Antichain([t]) for t in (0, 1, 2, 3)]


@seeded
def test_binary_waits_for_both_sides(seed: int | None) -> None:
    def build(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Input, jt.Output], None]:
        token.drop()
        sums: jt.state.TimeMap[list[int]] = jt.state.TimeMap()
        tokens: dict[int, jt.TimestampToken] = {}

        def step(left: jt.Input, right: jt.Input, output: jt.Output) -> None:
            for side in (left, right):
                for ref, batch in side.by_time():
                    if ref.time not in tokens:
                        tokens[ref.time] = ref.retain()
                        sums[ref.time] = []
                    sums[ref.time] += batch["n"].tolist()
            for time, values in sums.pop_before(left.frontier, right.frontier):
                with tokens.pop(time) as mine, output.session(mine) as session:
                    session.give(n=sum(values))

        return step

    flow = jt.Flow("both")
    left, right = flow.input("left"), flow.input("right")
    together = jt.Exchange("time")
    joined = left.binary_frontier(right, build, pact=together)
    flow.output("out", joined)
    rows = {
        "left": {"time": [0, 1, 2], "n": [1, 2, 3]},
        "right": {"time": [2, 1, 5], "n": [10, 20, 30]},
    }
    result = flow.run(rows, workers=3, seed=seed)
    assert stamped(result["out"]) == [(0, 1), (1, 22), (2, 13), (5, 30)]
