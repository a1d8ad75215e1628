"""Errors in user code are named, earlier results stay, and nothing hangs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import jeton as jt
from jeton.errors import BatchError, FlowStalled, GraphError, JetonError, OperatorFailed, TimeError
from tests.helpers import (
    SEEDS,
    UnaryStep,
    consume,
    dropping,
    keeping,
    messages,
    pass_on,
    seeded,
    stamped,
)


def failing(at: int) -> UnaryStep:
    """Send on record after record, and fail at one in the middle of a batch."""

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            with output.session(ref) as session:
                for row in batch.rows():
                    if row["n"] == at:
                        raise ValueError(f"cannot bear {at}")
                    session.give(n=row["n"], times=row["time"])

    return step


@seeded
def test_error_in_an_operator_names_operator_worker_and_time(seed: int | None) -> None:
    flow = jt.Flow("fails")
    flow.output("out", flow.input("in").unary(dropping(failing(5)), name="picky"))
    with flow.open(workers=2, seed=seed) as run:
        run.input("in", 1).send({"time": [1, 2], "n": [1, 2]})
        run.run_to_rest()
        run.input("in", 1).send({"time": [7, 8, 9], "n": [4, 5, 6]})
        with pytest.raises(OperatorFailed) as caught:
            run.finish()
        error = caught.value
        assert (error.operator, error.worker, error.time) == ("picky", 1, 7)
        assert "ValueError" in str(error)
        assert "cannot bear 5" in str(error)
        assert "[operator 'picky', worker 1, time 7]" in str(error)
        assert isinstance(error.__cause__, ValueError)
        assert stamped(run.results()["out"]) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("seed", SEEDS)
def test_flow_run_raises_the_same(seed: int | None) -> None:
    flow = jt.Flow("fails")
    flow.output("out", flow.input("in").unary(dropping(failing(5)), name="picky"))
    with pytest.raises(OperatorFailed, match="'picky'") as caught:
        flow.run({"in": {"time": [1, 2, 3], "n": [4, 5, 6]}}, workers=2, seed=seed)
    assert isinstance(caught.value.__cause__, ValueError)


def raising(batch: jt.Batch) -> dict[str, object]:
    raise KeyError("price")


FAILURES: dict[str, Callable[[jt.Stream], object]] = {
    "map": lambda stream: stream.map(raising, name="op"),
    "filter": lambda stream: stream.filter(raising, name="op"),
    "branch": lambda stream: stream.branch(raising, name="op"),
    "delay": lambda stream: stream.delay(raising, name="op"),
    "inspect": lambda stream: stream.inspect(raising, name="op"),
}


@pytest.mark.parametrize("add", FAILURES.values(), ids=FAILURES)
def test_functions_given_to_operators_fail_alike(add: Callable[[jt.Stream], object]) -> None:
    flow = jt.Flow("fails")
    add(flow.input("in"))
    with pytest.raises(OperatorFailed, match=r"price.*operator 'op', worker 0, time 3"):
        flow.run({"in": {"time": [3], "n": [1]}})


def test_error_of_jeton_s_own_keeps_its_class_and_is_located() -> None:
    flow = jt.Flow("fails")
    flow.input("in").map(lambda batch: {"m": batch["nn"]}, name="op")
    with pytest.raises(BatchError, match=r"'nn'.*\[operator 'op', worker 0, time 3\]"):
        flow.run({"in": {"time": [3], "n": [1]}})


def test_delay_into_the_past_is_refused() -> None:
    flow = jt.Flow("back")
    flow.input("in").delay(lambda batch: batch.times - 1, name="op")
    with pytest.raises(TimeError, match=r"from 3 back to 2.*operator 'op'"):
        flow.run({"in": {"time": [3], "n": [1]}})


def test_error_while_building_names_the_operator() -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()
        raise RuntimeError("no such file")

    flow = jt.Flow("fails")
    flow.input("in").unary(build, name="op")
    with pytest.raises(OperatorFailed, match=r"building.*no such file.*operator 'op'") as caught:
        flow.run({"in": {"time": []}})
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_error_at_the_second_input_bears_its_time() -> None:
    def build(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Input, jt.Output], None]:
        token.drop()

        def step(left: jt.Input, right: jt.Input, output: jt.Output) -> None:
            consume(left)
            for _ in right:
                raise ValueError("right")

        return step

    flow = jt.Flow("fails")
    flow.input("left").binary(flow.input("right"), build, name="op")
    with flow.open() as run:
        run.input("left").send({"time": [3], "n": [1]})
        run.run_to_rest()
        run.input("right").send({"time": [8], "n": [1]})
        with pytest.raises(OperatorFailed) as caught:
            run.finish()
    assert caught.value.time == 8


def test_error_after_a_frontier_moved_does_not_bear_an_old_message_s_time() -> None:
    def step(token: jt.TimestampToken, input: jt.Input, output: jt.Output) -> None:
        consume(input)
        if input.frontier.passed(50):
            raise ValueError("closing")

    flow = jt.Flow("fails")
    flow.input("in").unary_frontier(keeping(step), name="op")
    with flow.open() as run:
        run.input("in").send({"time": [3], "n": [1]})
        run.run_to_rest()
        run.input("in").advance_to(99)
        with pytest.raises(OperatorFailed) as caught:
            run.run_to_rest()
    assert caught.value.time != 3


def test_failure_of_one_worker_leaves_the_results_of_all() -> None:
    flow = jt.Flow("fails")
    numbers = flow.input("in")
    flow.output("plain", numbers)
    flow.output("out", numbers.unary(dropping(failing(5)), name="picky"))
    with flow.open(workers=2) as run:
        run.input("in", 0).send({"time": [1], "n": [1]})
        run.run_to_rest()
        run.input("in", 1).send({"time": [2], "n": [5]})
        with pytest.raises(OperatorFailed):
            run.finish()
        assert stamped(run.results()["out"]) == [(1, 1)]
        assert stamped(run.results()["plain"])[0] == (1, 1)


@seeded
@pytest.mark.parametrize("workers", [1, 2])
def test_token_kept_for_ever_stalls_the_flow_and_names_its_holder(
    workers: int, seed: int | None
) -> None:
    flow = jt.Flow("stalls")

    def hold(token: jt.TimestampToken, input: jt.Input, output: jt.Output) -> None:
        consume(input)
        token.downgrade(7)

    flow.output("out", flow.input("in").unary_frontier(keeping(hold), name="miser"))
    plural = "s" if workers > 1 else ""
    with pytest.raises(FlowStalled, match=f"'miser' holds {workers} token{plural} at 7"):
        flow.run({"in": {"time": [1], "n": [1]}}, workers=workers, seed=seed)


@seeded
def test_results_before_a_stall_can_be_read(seed: int | None) -> None:
    kept: list[jt.TimestampToken] = []

    def hold(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            with output.session(ref) as session:
                session.give(batch)
            kept.append(ref.retain(9))

    flow = jt.Flow("stalls")
    flow.output("out", flow.input("in").unary(dropping(hold), name="miser"))
    with flow.open(seed=seed) as run:
        run.input("in").send({"time": [1], "n": [1]})
        with pytest.raises(FlowStalled, match="'miser' holds 1 token at 9"):
            run.finish()
        assert stamped(run.results()["out"]) == [(1, 1)]


def test_clone_of_an_unordered_input_s_token_stalls_the_flow() -> None:
    flow = jt.Flow("stalls")
    flow.unordered_input("in")
    with flow.open() as run:
        clone = run.input("in").token.clone()
        with pytest.raises(FlowStalled, match="'in' holds 1 token at the start of time"):
            run.finish()
        clone.drop()
        run.finish()


def test_failure_shows_the_user_s_own_error_once() -> None:
    flow = jt.Flow("fails")
    flow.input("in").unary(dropping(pass_on)).map(raising, name="op")
    with pytest.raises(OperatorFailed) as caught:
        flow.run({"in": {"time": [3], "n": [1]}})
    assert messages(caught.value).splitlines() == [
        "KeyError: 'price' [operator 'op', worker 0, time 3]",
        f"  at {caught.value.line}",
        "'price'",
    ]
    assert str(caught.value.line).endswith('raise KeyError("price")')


@pytest.mark.parametrize("workers", [0, -1])
def test_a_flow_needs_a_worker(workers: int) -> None:
    with pytest.raises(GraphError, match="at least one worker"):
        jt.Flow("none").open(workers=workers)


# What is not an `Exception`, and where the user's line is


def leaving(error: BaseException) -> Callable[[jt.Batch], object]:
    def leave(batch: jt.Batch) -> object:
        if len(batch):
            raise error
        return batch.times >= 0

    return leave


@pytest.mark.parametrize(
    "error", [SystemExit(3), GeneratorExit(), BaseExceptionGroup("two", [SystemExit(1)])], ids=repr
)
@seeded
def test_whatever_user_code_raises_is_located(error: BaseException, seed: int | None) -> None:
    flow = jt.Flow("leaves")
    flow.input("in").filter(leaving(error), name="op")
    with pytest.raises(OperatorFailed) as caught:
        flow.run({"in": {"time": [3], "n": [1]}}, workers=2, seed=seed)
    where = f"[operator 'op', worker {caught.value.worker}, time 3]"
    assert str(caught.value).splitlines()[0] == f"{error!r} {where}"
    assert caught.value.__cause__ is error


class Mute(Exception):
    def __str__(self) -> str:
        raise LookupError("no words")


class MuteExit(BaseException):
    def __repr__(self) -> str:
        raise LookupError("no words")


@pytest.mark.parametrize("error", [Mute(), MuteExit()], ids=lambda error: type(error).__name__)
def test_an_exception_without_a_text_is_located(error: BaseException) -> None:
    flow = jt.Flow("leaves")
    flow.input("in").filter(leaving(error), name="op")
    with pytest.raises(OperatorFailed) as caught:
        flow.run({"in": {"time": [3], "n": [1]}})
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"{type(error).__name__}: its text cannot be had: LookupError(")
    assert first.endswith("[operator 'op', worker 0, time 3]")
    assert caught.value.__cause__ is error


def test_an_exit_while_an_operator_is_built_is_located() -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()
        raise SystemExit(2)

    flow = jt.Flow("leaves")
    flow.input("in").unary(build, name="op")
    with pytest.raises(OperatorFailed, match=r"SystemExit\(2\) while building it \[operator 'op'"):
        flow.open()


def test_an_interrupt_ends_the_program() -> None:
    flow = jt.Flow("interrupted")
    # As Python raises it when the user presses Ctrl-C.
    interrupt = leaving(KeyboardInterrupt())
    flow.output("out", flow.input("in").filter(interrupt, name="op"))
    with flow.open() as run:
        run.input("in").send({"time": [3], "n": [1]})
        with pytest.raises(KeyboardInterrupt) as caught:
            run.run_to_rest()
        assert "operator 'op', worker 0, time 3" in caught.value.__notes__[0]
        with pytest.raises(FlowStalled, match="interrupted by KeyboardInterrupt"):
            run.run_to_rest()


def test_without_a_line_of_the_user_s_an_error_shows_where_the_operator_was_added() -> None:
    flow = jt.Flow("fails")
    # Nothing of the user's runs here but in the library.
    flow.input("in").key_by("k").running().sum("n")
    with pytest.raises(JetonError) as caught:
        flow.run({"in": {"time": [3], "n": [1]}})
    assert str(caught.value.line).endswith('flow.input("in").key_by("k").running().sum("n")')


def test_the_line_is_the_user_s_innermost() -> None:
    def check(value: str) -> int:
        return int(value)

    flow = jt.Flow("fails")
    flow.input("in").filter(lambda batch: [check("x") for _ in batch.rows()], name="op")
    with pytest.raises(OperatorFailed) as caught:
        flow.run({"in": {"time": [3], "n": [1]}})
    assert str(caught.value).splitlines()[-1].endswith(": return int(value)")
