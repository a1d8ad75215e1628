"""Notifications: order, one time for each invocation, requests from notifications, loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from tests.helpers import UnaryStep, held, load, operator, seeded, stamped

import jeton as jt
from jeton.errors import GraphError, TimeError
from jeton.idioms.notifications import Mode, Notificator, distinct_times, unary_notify

Notified = list[list[Any]]
"""The times that each invocation was notified of."""


Delivery = Literal["strict", "relaxed", "together"]
"""The modes, and all that are complete in one piece."""


def delivered(
    notificator: Notificator, how: Delivery, frontier: jt.Antichain
) -> Iterator[jt.TimestampToken]:
    if how != "together":
        yield from notificator.ready(frontier)
        return
    with notificator.together(frontier) as tokens:
        yield from tokens
    assert all(token.dropped for token in tokens)


def telling(
    how: Delivery, notified: Notified, on_notify: Callable[[Any, Notificator], None]
) -> Any:
    """Asks for every time at which there was data, and writes down what is delivered when."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()
        notificator = Notificator(info, mode="relaxed" if how == "together" else how)

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                for time in distinct_times(batch):
                    notificator.notify_at(ref, time)
            notified.append([])
            for token in delivered(notificator, how, input.frontier):
                assert input.frontier.passed(token.time)
                notified[-1].append(token.time)
                output.session(token).give(n=0)
                on_notify(token, notificator)

        return step

    return build


def flow_of(
    how: Delivery,
    notified: Notified,
    on_notify: Callable[[Any, Notificator], None] = lambda *_: None,
) -> jt.Flow:
    flow = jt.Flow("notified")
    flow.output(
        "out", flow.input("in").unary_frontier(telling(how, notified, on_notify), name="op")
    )
    return flow


def flat(notified: Notified) -> list[Any]:
    return [time for times in notified for time in times]


@pytest.mark.parametrize("how", ["strict", "relaxed", "together"])
@seeded
def test_each_time_is_delivered_once_and_in_order(how: Delivery, seed: int | None) -> None:
    notified: Notified = []
    table = {"time": [5, 1, 5, 3, 1, 9], "n": [0] * 6}
    result = flow_of(how, notified).run({"in": table}, seed=seed)
    assert flat(notified) == [1, 3, 5, 9]
    assert result["out"]["time"].to_pylist() == [1, 3, 5, 9]
    assert not result.leaks


def test_strict_delivers_one_time_for_each_invocation_and_relaxed_all() -> None:
    table = {"time": [4, 2, 8, 6], "n": [0] * 4}
    notified: Notified = []
    flow_of("strict", notified).run({"in": table})
    assert [times for times in notified if times] == [[2], [4], [6], [8]]
    notified = []
    flow_of("relaxed", notified).run({"in": table})
    assert [times for times in notified if times] == [[2, 4, 6, 8]]
    notified = []
    flow_of("together", notified).run({"in": table})
    assert [times for times in notified if times] == [[2, 4, 6, 8]]


def test_strict_yields_between_times_so_that_the_system_sees_each_of_them() -> None:
    """After each delivery the token is gone, and only then comes the next."""
    notified: Notified = []
    seen = []

    def look(token: jt.TimestampToken, notificator: Notificator) -> None:
        seen.append(held(run, "op"))

    with flow_of("strict", notified, look).open() as run:
        run.input("in").send({"time": [2, 4], "n": [0, 0]})
        run.run_to_rest()
        before = operator(run, "op").invocations
        run.input("in").advance_to(10)
        run.run_to_rest()
        assert flat(notified) == [2, 4]
        assert seen == [{2: 1, 4: 1}, {4: 1}]
        assert operator(run, "op").invocations == before + 2
        assert held(run, "op") == {}


@pytest.mark.parametrize("how", ["strict", "relaxed", "together"])
def test_nothing_is_delivered_before_the_frontier_has_passed(how: Delivery) -> None:
    notified: Notified = []
    with flow_of(how, notified).open() as run:
        run.input("in").send({"time": [3, 7], "n": [0, 0]})
        for time, expected in [(3, []), (4, [3]), (7, [3]), (8, [3, 7])]:
            run.input("in").advance_to(time)
            run.run_to_rest()
            assert flat(notified) == expected


@pytest.mark.parametrize("mode", ["strict", "relaxed"])
@seeded
def test_a_notification_may_ask_for_more_even_for_times_that_have_passed(
    mode: Mode, seed: int | None
) -> None:
    notified: Notified = []

    def ask(token: jt.TimestampToken, notificator: Notificator) -> None:
        if token.time == 1:
            notificator.notify_at(token.clone(), 4)  # between what is due already
            notificator.notify_at(token.clone(), 4)  # twice is once
            notificator.notify_at(token.clone(), 40)  # not passed yet
            notificator.notify_at(token, 3)  # the very token, which is taken over

    with flow_of(mode, notified, ask).open(seed=seed) as run:
        run.input("in").send({"time": [1, 5], "n": [0, 0]})
        run.input("in").advance_to(20)
        run.run_to_rest()
        assert flat(notified) == [1, 3, 4, 5]
        result = run.finish()
    assert flat(notified) == [1, 3, 4, 5, 40]
    assert not result.leaks


@pytest.mark.parametrize("mode", ["strict", "relaxed"])
def test_a_request_after_the_last_look_is_delivered_all_the_same(mode: Mode) -> None:
    notified: list[Any] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        notificator = Notificator(info, mode=mode)

        def step(input: jt.Input, output: jt.Output) -> None:
            for _ in input:
                pass
            notified.extend(token.time for token in notificator.ready(input.frontier))
            if input.frontier.passed(3) and not token.dropped:
                notificator.notify_at(token, 2)

        return step

    flow = jt.Flow("late request")
    flow.output("out", flow.input("in").unary_frontier(build))
    with flow.open() as run:
        run.input("in").advance_to(5)
        run.run_to_rest()
        assert notified == [2]


@pytest.mark.parametrize("mode", ["strict", "relaxed"])
def test_leaving_the_loop_early_keeps_the_rest(mode: Mode) -> None:
    notified: list[Any] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()
        notificator = Notificator(info, mode=mode)

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, _ in input.by_time():
                notificator.notify_at(ref)
            for token in notificator.ready(input.frontier):
                notified.append(token.time)
                break

        return step

    flow = jt.Flow("early")
    flow.output("out", flow.input("in").unary_frontier(build))
    result = flow.run({"in": {"time": [3, 1, 2], "n": [0] * 3}})
    assert notified == [1, 2, 3]
    assert not result.leaks


@pytest.mark.parametrize("mode", ["strict", "relaxed"])
@seeded
def test_a_notification_waits_for_all_inputs(mode: Mode, seed: int | None) -> None:
    notified: list[Any] = []
    flow = jt.Flow("two inputs")
    op = flow.operator("both")
    op.input(flow.input("left"))
    op.input(flow.input("right"))
    op.output()

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Any:
        tokens.pop().drop()
        notificator = Notificator(info, mode=mode)

        def step(inputs: Any, outputs: Any) -> None:
            for port in inputs:
                for ref, _ in port.by_time():
                    notificator.notify_at(ref)
            for token in notificator.ready(*(port.frontier for port in inputs)):
                notified.append(token.time)

        return step

    op.build(build)
    with flow.open(seed=seed) as run:
        run.input("left").send({"time": [1, 4], "n": [0, 0]})
        run.input("right").send({"time": [4, 6], "n": [0, 0]})
        for left, right, expected in [(9, 0, []), (9, 4, [1]), (9, 5, [1, 4])]:
            run.input("left").advance_to(left)
            run.input("right").advance_to(right)
            run.run_to_rest()
            assert notified == expected
        run.input("left").close()
        run.finish()
    assert notified == [1, 4, 6]


def test_a_request_in_between_waits_for_all_inputs_too() -> None:
    notified: list[Any] = []
    flow = jt.Flow("two inputs")
    op = flow.operator("both")
    op.input(flow.input("left"))
    op.input(flow.input("right"))
    op.output()

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Any:
        notificator = Notificator(info, mode="relaxed")
        notificator.notify_at(tokens.pop(), 1)

        def step(inputs: Any, outputs: Any) -> None:
            for token in notificator.ready(*(port.frontier for port in inputs)):
                notified.append(token.time)
                if token.time == 1:
                    notificator.notify_at(token, 4)

        return step

    op.build(build)
    with flow.open() as run:
        run.input("left").advance_to(9)
        run.input("right").advance_to(2)
        run.run_to_rest()
        assert notified == [1]
        run.input("right").advance_to(5)
        run.run_to_rest()
        assert notified == [1, 4]
        run.finish()


@pytest.mark.parametrize("how", ["strict", "relaxed", "together"])
@pytest.mark.parametrize("seed", range(12))
def test_in_a_loop_the_order_extends_that_of_products(how: Delivery, seed: int) -> None:
    """Rounds of several times at once: no time comes after a greater one, each comes once."""
    notified: Notified = []
    flow = jt.Flow("looped")
    loop = flow.loop()
    again = loop.feedback()
    numbers = flow.input("n").enter(loop).concat(again.stream)
    more, done = numbers.branch(lambda batch: batch["n"] == 0)
    again.connect(more.with_columns(n=lambda batch: batch["n"] - 1))
    watched = numbers.unary_frontier(telling(how, notified, lambda *_: None), pact=jt.Gather())
    flow.output("watched", watched.leave())
    flow.output("done", done.leave())
    depths = [2, 0, 3, 1]
    flow.run({"n": {"time": [0, 1, 2, 3], "n": depths}}, workers=1 + seed % 3, seed=seed)
    times = flat(notified)
    # A worker other than the first is not notified, so this is one operator's order.
    assert sorted(times, key=tuple) == [
        jt.Product(time, turn) for time, depth in enumerate(depths) for turn in range(depth + 1)
    ]
    for at, time in enumerate(times):
        assert not any(later <= time for later in times[at + 1 :])


@pytest.mark.parametrize("mode", ["strict", "relaxed"])
def test_a_request_for_a_product_comes_before_greater_ones_that_are_due(mode: Mode) -> None:
    notified: Notified = []

    def ask(token: jt.TimestampToken, notificator: Notificator) -> None:
        if token.time == jt.Product(0, 0):
            # Rounds of the first time, while rounds of the second are due already.
            for turn in (3, 1):
                notificator.notify_at(token.clone(), jt.Product(0, turn))
        if token.time == jt.Product(0, 1):
            notificator.notify_at(token.clone(), jt.Product(1, 2))

    flow = jt.Flow("looped")
    numbers = flow.input("n").enter(flow.loop())
    flow.output("out", numbers.unary_frontier(telling(mode, notified, ask)).leave())
    flow.run({"n": {"time": [0, 1, 2], "n": [0] * 3}})
    assert [tuple(time) for time in flat(notified)] == [
        (0, 0), (0, 1), (0, 3), (1, 0), (1, 2), (2, 0),
    ]  # fmt: skip


def test_naiads_two_callbacks() -> None:
    received: list[Any] = []

    class Sums:
        def __init__(self, notificator: Notificator, info: jt.OperatorInfo) -> None:
            self.notificator = notificator
            self.sums: dict[Any, int] = {}

        def on_receive(self, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
            received.append(len(batch))
            for time, part in batch.by_time():
                self.notificator.notify_at(ref, time)
                self.sums[time] = self.sums.get(time, 0) + int(part["n"].sum())

        def on_notify(self, token: jt.TimestampToken, output: jt.Output) -> None:
            output.session(token).give(sum=self.sums.pop(token.time))

    flow = jt.Flow("sums")
    stream = unary_notify(flow.input("n"), Sums, pact=jt.Gather(), mode="relaxed")
    flow.output("sums", stream)
    table = {"time": [2, 1, 2, 1], "n": [1, 2, 4, 8]}
    for seed in range(10):
        result = flow.run({"n": table}, workers=3, seed=seed)["sums"]
        assert result.to_pylist() == [{"time": 1, "sum": 10}, {"time": 2, "sum": 5}]
    assert sum(received) == 40


def test_a_mode_that_does_not_exist_is_refused() -> None:
    flow = jt.Flow("refused")
    flow.output("out", flow.input("in").unary_frontier(telling("eager", [], lambda *_: None)))  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="'strict' or 'relaxed', not 'eager'"):
        flow.open()


def test_without_a_frontier_nothing_is_known_to_be_complete() -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()
        notificator = Notificator(info)

        def step(input: jt.Input, output: jt.Output) -> None:
            for _ in notificator.ready():
                pass

        return step

    flow = jt.Flow("refused")
    flow.output("out", flow.input("in").unary_frontier(build))
    with pytest.raises(TimeError, match=r"ready\(input.frontier\)"):
        flow.run({"in": {"time": [3], "n": [1]}})


@pytest.mark.parametrize("mode", ["strict", "relaxed"])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_example(mode: Mode, workers: int) -> None:
    example = load("notifications")
    words: dict[int, list[str]] = {}
    for time, word in zip(*example.WORDS.values(), strict=True):
        words.setdefault(time, []).append(word)
    result = example.longest_words(mode).run({"words": example.WORDS}, workers=workers, seed=1)
    assert stamped(result["longest"], "longest") == [
        (time, max(sorted(words[time]), key=len)) for time in sorted(words)
    ]
