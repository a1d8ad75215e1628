"""DESIGN §4, rule 2: a reference is good for its own step of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tests.helpers import consume, dropping, held, in_step, in_thread, stamped

import jeton as jt
from jeton import Product
from jeton.errors import ExpiredReference, TimeError, TokenError

RefAct = Callable[[jt.TokenRef, jt.Output], object]

USES: dict[str, RefAct] = {
    "time": lambda ref, output: ref.time,
    "retain": lambda ref, output: ref.retain(),
    "session": lambda ref, output: output.session(ref),
}

every_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


def three_messages(step: Callable[[jt.Input, jt.Output], None]) -> jt.Result:
    """Run a flow of one operator that finds three messages, at 1, 2 and 3, in its first step."""
    flow = jt.Flow("three messages")
    flow.output("out", flow.input("in").unary(dropping(step), name="acting"))
    with flow.open() as run:
        for time in (1, 2, 3):
            run.input("in").send({"time": [time], "n": [time]})
        return run.finish()


def refused(use: RefAct, ref: jt.TokenRef, output: jt.Output) -> None:
    with pytest.raises(ExpiredReference, match="retain"):
        use(ref, output)


@every_use
def test_reference_expires_at_the_next_step_of_the_loop(use: RefAct) -> None:
    def step(input: jt.Input, output: jt.Output) -> None:
        before: list[jt.TokenRef] = []
        for ref, _ in input:
            for old in before:
                refused(use, old, output)
            before.append(ref)
        assert len(before) == 3

    three_messages(step)


@every_use
def test_reference_expires_after_the_loop(use: RefAct) -> None:
    def step(input: jt.Input, output: jt.Output) -> None:
        refs = [ref for ref, _ in input]
        assert len(refs) == 3
        for ref in refs:
            refused(use, ref, output)

    three_messages(step)


@every_use
def test_reference_expires_after_break(use: RefAct) -> None:
    seen: list[int] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            seen.append(ref.time)
            break
        refused(use, ref, output)

    three_messages(step)
    assert seen == [1, 2, 3]


@every_use
def test_reference_expires_after_an_error_in_the_loop(use: RefAct) -> None:
    def step(input: jt.Input, output: jt.Output) -> None:
        refs: list[jt.TokenRef] = []
        with suppress(KeyError):
            for ref, _ in input:
                refs.append(ref)
                raise KeyError
        refused(use, refs[0], output)

    three_messages(step)


@every_use
def test_reference_expires_after_the_invocation(use: RefAct) -> None:
    refs: list[jt.TokenRef] = []
    outputs: list[jt.Output] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        refs.extend(ref for ref, _ in input)
        outputs.append(output)

    three_messages(step)
    for ref in refs:
        refused(use, ref, outputs[0])


@every_use
def test_reference_expires_after_the_invocation_though_its_loop_is_left_hanging(
    use: RefAct,
) -> None:
    hanging: list[Iterator[tuple[jt.TokenRef, jt.Batch]]] = []
    refs: list[jt.TokenRef] = []
    outputs: list[jt.Output] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        if not hanging:
            loop = iter(input)
            refs.append(next(loop)[0])
            outputs.append(output)
            hanging.append(loop)
        else:
            consume(input)

    flow = jt.Flow("hanging")
    flow.input("in").unary(dropping(step), name="acting").probe("after")
    with flow.open() as run:
        run.input("in").send({"time": [1], "n": [1]})
        run.run_to_rest()
        refused(use, refs[0], outputs[0])


@every_use
def test_reference_of_one_time_expires_too(use: RefAct) -> None:
    def act(input: jt.Input, output: jt.Output) -> None:
        before: list[jt.TokenRef] = []
        for ref, _ in input.by_time():
            for old in before:
                refused(use, old, output)
            before.append(ref)
        for old in before:
            refused(use, old, output)

    flow = jt.Flow("by time")
    flow.input("in").unary(dropping(act))
    flow.run({"in": {"time": [1, 2, 2, 3], "n": [1, 2, 3, 4]}})


def test_expired_reference_says_when_and_where_in_the_caller_s_face() -> None:
    def act(input: jt.Input, output: jt.Output) -> None:
        refs = [ref for ref, _ in input]
        refs[0].retain()

    with pytest.raises(ExpiredReference, match=r"token = ref\.retain\(\)") as caught:
        in_step(act, at=7)
    assert "[operator 'acting', worker 0, time 7]" in str(caught.value)


def test_reference_answers_at_its_own_time_or_later() -> None:
    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            with output.session(ref) as session:
                session.give(n=1)
            with output.session(ref, time=9) as session:
                session.give(n=2)
            with pytest.raises(TokenError, match="too early"):
                output.session(ref, time=6)

    assert stamped(in_step(act, at=7)["out"]) == [(7, 1), (9, 2)]


def test_retained_time_is_checked() -> None:
    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            with ref.retain() as same, ref.retain(9) as later:
                assert (same.time, later.time) == (7, 9)
            with pytest.raises(TokenError, match="7 at the earliest"):
                ref.retain(6)
            with pytest.raises((TokenError, TimeError)):
                ref.retain("tomorrow")
            with pytest.raises(TokenError, match="there is no output 1"):
                ref.retain(output=1)

    in_step(act, at=7)


def test_retaining_past_the_end_of_time_raises() -> None:
    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            with pytest.raises((TokenError, TimeError)):
                ref.retain(jt.END_OF_TIME + 1)

    in_step(act)


def test_retained_time_is_checked_in_loops() -> None:
    refs: list[object] = []

    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            ref.retain(Product(7, 3)).drop()
            for wrong in (Product(8, -1), Product(6, 9), Product(7, 0, 0)):
                with pytest.raises((TokenError, TimeError)):
                    ref.retain(wrong)
            refs.append(ref.time)

    flow = jt.Flow("loop")
    flow.input("in").enter(flow.loop()).unary(dropping(act))
    flow.run({"in": {"time": [7], "n": [1]}})
    assert refs == [Product(7, 0)]


def test_retaining_an_integer_in_a_loop_raises() -> None:
    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            with pytest.raises((TokenError, TimeError)):
                ref.retain(9)

    flow = jt.Flow("loop")
    flow.input("in").enter(flow.loop()).unary(dropping(act))
    flow.run({"in": {"time": [7], "n": [1]}})


def test_retained_token_outlives_the_loop() -> None:
    kept: list[jt.TimestampToken] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            kept.append(ref.retain())
        if input.frontier.is_empty:
            for token in kept:
                with token, output.session(token) as session:
                    session.give(n=token.time)
            kept.clear()

    flow = jt.Flow("later")
    flow.output("out", flow.input("in").unary_frontier(dropping(step)))
    result = flow.run({"in": {"time": [3], "n": [1]}})
    assert stamped(result["out"]) == [(3, 3)]


def test_session_of_a_reference_does_no_bookkeeping() -> None:
    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            with output.session(ref) as session:
                session.give(batch)
            assert not output.book.changes
            assert output.book.held == 0

    three_messages(step)


def test_session_of_a_reference_ends_with_its_step() -> None:
    def act(input: jt.Input, output: jt.Output) -> None:
        sessions = [output.session(ref) for ref, _ in input]
        with pytest.raises(ExpiredReference, match="retain"):
            sessions[0].give(n=1)
        with pytest.raises(ExpiredReference, match="retain"), sessions[0] as session:
            session.give(n=[1])

    assert in_step(act)["out"].num_rows == 0


def test_retaining_twice_counts_twice() -> None:
    kept: list[jt.TimestampToken] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            kept.extend([ref.retain(), ref.retain(), ref.retain(8)])

    flow = jt.Flow("twice")
    flow.input("in").unary(dropping(step), name="holder")
    with flow.open(check=True) as run:
        run.input("in").send({"time": [7], "n": [1]})
        run.run_to_rest()
        assert held(run, "holder") == {7: 2, 8: 1}


def test_reference_in_another_thread_raises() -> None:
    raised: list[BaseException | None] = []

    def act(input: jt.Input, output: jt.Output) -> None:
        for ref, _ in input:
            raised.append(in_thread(ref.retain))
            assert not output.book.changes

    in_step(act)
    assert isinstance(raised[0], TokenError)


def test_messages_that_are_left_are_offered_again() -> None:
    steps: list[list[int]] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        for _, batch in input:
            steps.append(batch["n"].tolist())
            break

    three_messages(step)
    assert steps == [[1], [2], [3]]


def test_times_that_are_left_are_offered_again() -> None:
    seen: list[int] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        for _, batch in input.by_time():
            seen.extend(batch["n"].tolist())
            break

    flow = jt.Flow("some at a time")
    flow.input("in").unary(dropping(step))
    flow.run({"in": {"time": [1, 2, 3], "n": [1, 2, 3]}})
    assert seen == [1, 2, 3]


def test_a_loop_inside_the_loop_takes_the_rest() -> None:
    seen: list[int] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        for _, batch in input:
            seen.extend(batch["n"].tolist())
            for _, rest in input:
                seen.extend(rest["n"].tolist())

    three_messages(step)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("inner", [0, 1], ids=["inner runs to its end", "inner is left too"])
def test_times_are_put_back_though_another_loop_ran_inside(inner: int) -> None:
    seen: list[int] = []

    def step(input: jt.Input, output: jt.Output) -> None:
        for _, batch in input.by_time():
            seen.extend(batch["n"].tolist())
            for _, part in input.by_time():
                seen.extend(part["n"].tolist())
                if inner:
                    break
            break

    flow = jt.Flow("nested")
    flow.output("out", flow.input("in").unary(dropping(step), name="nested"))
    with flow.open() as run:
        handle = run.input("in")
        handle.send({"time": [1, 2, 3], "n": [1, 2, 3]})
        handle.send({"time": [4, 5, 6], "n": [4, 5, 6]})
        handle.close()
        run.run_to_rest()
    assert sorted(seen) == [1, 2, 3, 4, 5, 6]
