"""Scopes: streams meet only inside one scope of one flow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.helpers import FROM_ZERO, UnaryStep, consume, dropping

import jeton as jt
from jeton.errors import GraphError


def no_step(
    token: jt.TimestampToken, info: jt.OperatorInfo
) -> Callable[[jt.Input, jt.Input, jt.Output], None]:
    token.drop()
    return lambda left, right, output: None


MEET: dict[str, Callable[[jt.Stream, jt.Stream], object]] = {
    "concat": lambda one, other: one.concat(other),
    "binary": lambda one, other: one.binary(other, no_step),
    "builder": lambda one, other: one.scope.operator("op").input(other),
}


@pytest.mark.parametrize("meet", MEET.values(), ids=MEET)
def test_streams_of_different_scopes_refuse_to_meet(
    meet: Callable[[jt.Stream, jt.Stream], object],
) -> None:
    flow = jt.Flow("flow", time=FROM_ZERO)
    outside = flow.input("in")
    for scope in (flow.scope("part"), flow.loop("round")):
        inside = outside.enter(scope)
        with pytest.raises(GraphError, match=r"enter\(\) or leave\(\) first") as caught:
            meet(outside, inside)
        assert "'flow'" in str(caught.value)
        assert f"'flow.{scope.name}'" in str(caught.value)
        meet(outside, inside.leave())


@pytest.mark.parametrize("meet", MEET.values(), ids=MEET)
def test_streams_of_different_flows_refuse_to_meet(
    meet: Callable[[jt.Stream, jt.Stream], object],
) -> None:
    one, other = jt.Flow("one"), jt.Flow("other")
    with pytest.raises(GraphError, match="different flows"):
        meet(one.input("in"), other.input("in"))


def test_streams_enter_one_scope_at_a_time() -> None:
    flow = jt.Flow("flow", time=FROM_ZERO)
    inner = flow.scope("outer").loop("inner")
    with pytest.raises(GraphError, match="one scope at a time"):
        flow.input("in").enter(inner)
    with pytest.raises(GraphError, match="one scope at a time"):
        flow.input("other").enter(jt.Flow("another").scope("part"))


def test_the_outermost_scope_cannot_be_left() -> None:
    with pytest.raises(GraphError, match="nothing to leave"):
        jt.Flow("flow", time=FROM_ZERO).input("in").leave()


def test_outputs_and_feedbacks_take_streams_of_their_own_scope() -> None:
    flow = jt.Flow("flow", time=FROM_ZERO)
    loop = flow.loop()
    inside = flow.input("in").enter(loop)
    with pytest.raises(GraphError, match=r"leave\(\) first"):
        flow.output("out", inside)
    with pytest.raises(GraphError, match="cannot be fed"):
        loop.feedback().connect(inside.leave())


def test_output_of_another_flow_is_refused() -> None:
    with pytest.raises(GraphError):
        jt.Flow("one").output("out", jt.Flow("other").input("in"))


def test_operators_inside_see_times_of_their_scope() -> None:
    kinds: list[tuple[object, str]] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        kinds.append((token.time, info.name))
        token.drop()
        return consume

    flow = jt.Flow("flow", time=FROM_ZERO)
    part, loop = flow.scope("part"), flow.loop("loop")
    flow.input("in").enter(part).unary(build, name="op")
    flow.input("other").enter(loop).unary(build, name="op")
    flow.run({"in": {"time": []}, "other": {"time": []}})
    assert kinds == [(0, "part.op"), (jt.Product(0, 0), "loop.op")]


def test_scopes_of_one_name_stay_apart() -> None:
    flow = jt.Flow("flow", time=FROM_ZERO)
    for _ in range(2):
        flow.input(f"in {_}").enter(flow.scope("part")).unary(dropping(consume), name="op")
    names = [plan.name for plan in flow.operators]
    assert len(set(names)) == len(names)
