"""Sources and activators: operators that speak unasked, now, later, or when a thread says so."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import pytest
from tests.helpers import UnaryStep, consume, keeping, seeded, stamped

import jeton as jt
from jeton import Antichain
from jeton.dataflow.activator import ThreadActivator
from jeton.errors import FlowStalled

SourceStep = Callable[[jt.Output], None]


def counting(upto: int) -> Callable[[jt.TimestampToken, jt.OperatorInfo], SourceStep]:
    """A source that sends one record at each time below ``upto``, one for each invocation."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> SourceStep:
        def step(output: jt.Output) -> None:
            if token.time == upto:
                token.drop()
                return
            with output.session(token) as session:
                session.give(n=info.worker)
            token.downgrade(token.time + 1)
            info.activator.activate()

        return step

    return build


@seeded
@pytest.mark.parametrize("workers", [1, 3])
def test_source_runs_on_every_worker(workers: int, seed: int | None) -> None:
    flow = jt.Flow("sources")
    flow.output("out", flow.source(counting(4)))
    result = flow.run(workers=workers, seed=seed)
    assert stamped(result["out"]) == [(t, w) for t in range(4) for w in range(workers)]


def test_source_advances_as_it_goes() -> None:
    flow = jt.Flow("source")
    flow.source(counting(3)).probe("after")
    with flow.open() as run:
        shown = []
        while run.turn():
            shown.append(run.probe("after").frontier)
    assert shown == [*(Antichain([t]) for t in (1, 2, 3)), Antichain()]


def test_source_that_does_not_ask_is_not_invoked_again() -> None:
    calls: list[int] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> SourceStep:
        def step(output: jt.Output) -> None:
            calls.append(token.time)

        return step

    flow = jt.Flow("once")
    flow.source(build)
    flow.input("in")
    with flow.open() as run:
        run.run_to_rest()
        run.input("in").advance_to(5)
        run.run_to_rest()
    assert calls == [0]


@seeded
def test_activator_after_a_delay_on_the_simulated_clock(seed: int | None) -> None:
    moments: list[float] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> SourceStep:
        def step(output: jt.Output) -> None:
            moments.append(run.now)
            if len(moments) == 4:
                token.drop()
            else:
                info.activator.after(1000.0)

        return step

    flow = jt.Flow("timer")
    flow.source(build)
    run = flow.open(seed=seed)
    with run:
        run.finish()
    assert moments == [0.0, 1000.0, 2000.0, 3000.0]


@seeded
def test_timers_go_off_in_order_whoever_set_them(seed: int | None) -> None:
    order: list[tuple[float, str]] = []

    def waking(name: str, *delays: float) -> Callable[..., SourceStep]:
        def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> SourceStep:
            for delay in delays:
                info.activator.after(delay)
            token.drop()

            def step(output: jt.Output) -> None:
                if run_box and run_box[0].now:
                    order.append((run_box[0].now, name))

            return step

        return build

    flow = jt.Flow("timers")
    flow.source(waking("a", 3.0, 1.0), name="a")
    flow.source(waking("b", 2.0, 4.0), name="b")
    run_box: list[jt.Run] = []
    with flow.open(seed=seed) as run:
        run_box.append(run)
        run.run_to_rest()
        assert run.now == 4.0
    assert order == [(1.0, "a"), (2.0, "b"), (3.0, "a"), (4.0, "b")]


@pytest.mark.parametrize("workers", [1, 2])
def test_thread_wakes_an_operator_that_the_flow_waits_for(workers: int) -> None:
    threads: list[Thread] = []
    mail: list[int] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> SourceStep:
        arrived: list[int] = []
        closed = Event()

        def work(activator: ThreadActivator) -> None:
            with activator:
                for n in range(5):
                    arrived.append(n)
                    activator.activate()
                closed.set()
                activator.activate()

        threads.append(Thread(target=work, args=(info.activator.for_thread(),)))
        threads[-1].start()

        def step(output: jt.Output) -> None:
            ended = closed.is_set()
            while arrived:
                mail.append(arrived.pop(0))
                with output.session(token) as session:
                    session.give(n=mail[-1])
            if ended and not token.dropped:
                token.drop()

        return step

    flow = jt.Flow("mail")
    flow.output("out", flow.source(build))
    result = flow.run(workers=workers)
    for thread in threads:
        thread.join()
    assert stamped(result["out"]) == sorted((0, n) for n in range(5) for _ in range(workers))


def test_activating_token_in_a_thread_keeps_the_flow_going() -> None:
    asked, threads = Event(), []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        mine = token.activating()
        awaited = info.activator.for_thread()

        def work() -> None:
            with awaited, mine:
                asked.wait()
                mine.downgrade(5)

        threads.append(Thread(target=work))
        threads[0].start()

        def step(input: jt.Input, output: jt.Output) -> None:
            for _ in input:
                asked.set()

        return step

    flow = jt.Flow("outside agent")
    flow.input("in").unary(build).probe("after")
    with flow.open() as run:
        run.input("in").send({"time": [1], "n": [1]})
        run.finish()
        threads[0].join()
        assert run.probe("after").done


def test_run_until_waits_for_threads_and_stalls_without_them() -> None:
    flow = jt.Flow("stall")
    flow.input("in").probe("seen")
    with (
        flow.open() as run,
        pytest.raises(FlowStalled, match=r"input 'in' on worker 0 is at the start of time"),
    ):
        run.run_until(lambda: run.probe("seen").done)


@seeded
def test_operator_yields_and_resumes(seed: int | None) -> None:
    """The paper's §5.1: a long answer in pieces, holding the right to go on."""
    pieces: list[int] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()
        work: list[tuple[jt.TimestampToken, int]] = []

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                work.extend((ref.retain(), n) for n in batch["n"].tolist())
            if work:
                pieces.append(len(work))
                mine, n = work.pop()
                with mine, output.session(mine) as session:
                    session.give(n=list(range(n)))
                if work:
                    info.activator.activate()

        return step

    flow = jt.Flow("pieces")
    flow.output("out", flow.input("in").unary(build))
    result = flow.run({"in": {"time": [3, 3, 3], "n": [1, 2, 3]}}, seed=seed)
    assert result["out"].num_rows == 6
    assert set(result["out"]["time"].to_pylist()) == {3}
    assert len(pieces) == 3


def test_activator_invokes_an_operator_that_has_no_input() -> None:
    calls: list[bool] = []

    def step(token: jt.TimestampToken, input: jt.Input, output: jt.Output) -> None:
        calls.append(bool(input))
        consume(input)
        token.drop() if not token.dropped else None

    flow = jt.Flow("no input")
    flow.input("in").unary(keeping(step))
    flow.run({"in": {"time": []}})
    assert calls == [False]
