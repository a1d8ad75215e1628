"""The page's thread and that of the user take turns at a run in this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

import jeton as jt
from jeton.inspector.actions import act
from jeton.runtime.in_process import Run


@pytest.fixture
def run() -> Iterator[Run]:
    flow = jt.Flow("turns")
    flow.output("out", flow.input("in").key_by("k").tumbling(3).count())
    flow.output("late", flow.input("parted", lateness=0).late)
    with flow.open(workers=2) as run:
        run.input("parted").partition("a").send({"time": [3], "k": [1]})
        run.input("in").advance_to(1)
        run.run_to_rest()
        yield run


ACTS: dict[str, Callable[[Run], Any]] = {
    "send": lambda run: run.input("in").send({"time": [5], "k": [1]}),
    "advance": lambda run: run.input("in").advance_to(9),
    "close": lambda run: run.input("in").close(),
    "partition": lambda run: run.input("parted").partition("b"),
    "partition send": lambda run: run.input("parted").partitions[0].send({"time": [4], "k": [1]}),
    "partition advance": lambda run: run.input("parted").partitions[0].advance_to(9),
    "partition idle": lambda run: run.input("parted").partitions[0].mark_idle(),
    "partition close": lambda run: run.input("parted").partitions[0].close(),
    "feed": lambda run: run.feed({"in": {"time": [5], "k": [1]}}),
    "pause": lambda run: run.pause_at(20),
    "migrate": lambda run: run.migrate({0: 1}),
    "turn": lambda run: run.turn(),
    "rest": lambda run: run.run_to_rest(),
    "results": lambda run: run.results(),
    "snapshot": lambda run: run.snapshot(),
    "placement": lambda run: run.placement,
    "finish": lambda run: run.finish(),
}


@pytest.mark.parametrize("name", ACTS)
def test_an_act_of_the_user_waits_for_that_of_the_page(run: Run, name: str) -> None:
    done: list[str] = []

    def user() -> None:
        ACTS[name](run)
        done.append("user")

    thread = threading.Thread(target=user)
    with run.turnstile:
        thread.start()
        # Until it stands at the turnstile, or has gone past it.
        while thread.is_alive() and not run.turnstile._next.locked():
            pass
        done.append("page")
    thread.join()
    assert done == ["page", "user"]


@pytest.mark.parametrize("seed", range(4))
def test_buttons_pressed_at_any_moment_change_no_row(seed: int) -> None:
    random = Random(seed)
    flow = jt.Flow("race")
    flow.output("out", flow.input("in").key_by("k").tumbling(3).count())
    over, errors, times = threading.Event(), list[BaseException](), [0]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        # Each frontier is checked against the truth at every step.
        with flow.open(workers=2, check=True) as run:

            def drive() -> None:
                try:
                    while not over.is_set():
                        for worker in range(2):
                            end = run.input("in", worker=worker)
                            end.send({"time": np.full(2, times[0]), "k": [0, 1]})
                            end.advance_to(times[0] + 1)
                        run.run_to_rest()
                        times[0] += 1
                except BaseException as error:
                    errors.append(error)

            thread = threading.Thread(target=drive)
            thread.start()
            try:
                for _ in range(40):
                    _press(run, times[0], random)
            finally:
                over.set()
                thread.join()
            assert not errors
            counts = run.finish()["out"]["count"].to_pylist()
            assert sum(counts) == 2 * 2 * times[0]
    finally:
        sys.setswitchinterval(interval)


def _press(run: Run, time: int, random: Random) -> None:
    """Pause at some time, step, look, resume."""
    at = "" if random.random() < 0.5 else str(time + random.randint(0, 6))
    try:
        act(run, "pause", {"at": at})
    except jt.errors.TimeError:
        return  # the time has passed
    paused_at = run.paused_at
    act(run, "in_flight", {})
    assert all(end <= paused_at for end in run.results()["out"]["time"].to_pylist())
    for _ in range(random.randint(0, 3)):
        act(run, "step", {"at": str(run.paused_at + random.randint(1, 3))})
    act(run, "resume", {})


def test_finish_waits_while_the_page_has_paused_the_run(run: Run) -> None:
    page = threading.Thread(target=act, args=(run, "pause", {"at": "10"}))
    page.start()
    page.join()
    run.input("in").send({"time": [5, 50], "k": [1, 1]})
    results: list[Any] = []
    user = threading.Thread(target=lambda: results.append(run.finish()))
    user.start()
    while not run._woken._waiters:  # type: ignore[attr-defined]
        assert user.is_alive()
    assert run.is_paused
    act(run, "resume", {})
    user.join()
    assert sorted(results[0]["out"]["time"].to_pylist()) == [6, 51]


@pytest.mark.parametrize("pauses_again", [False, True])
@pytest.mark.parametrize("how", ["finish", "run_until"])
def test_buttons_pressed_as_a_run_comes_to_rest_do_not_end_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, how: str, pauses_again: bool
) -> None:
    def page(*acts: str) -> None:
        for name in acts:
            thread = threading.Thread(target=act, args=(run, name, {}))
            thread.start()
            thread.join()

    page("pause")
    run.input("in").send({"time": [5], "k": [1]})
    for worker in (0, 1):
        run.input("in", worker).close()
    came: list[str] = []
    wait = run._await_resume

    def resumed_before() -> bool:
        """The page resumes the run after its last step, before it waits for the page."""
        if not came:
            came.append("resume")
            page("resume")
            found = wait()
            if pauses_again:
                page("pause")
            return found
        if run.paused_at is not None:
            page("resume")
        return wait()

    monkeypatch.setattr(run, "_await_resume", resumed_before)
    if how == "finish":
        run.finish()
    else:
        run.run_until(lambda: run.results()["out"].num_rows > 0)
    assert run.results()["out"]["time"].to_pylist() == [6]
    assert came == ["resume"]


def test_a_breakpoint_of_the_user_s_own_is_an_error_at_the_end(run: Run) -> None:
    run.pause_at(10)
    with pytest.raises(jt.errors.FlowStalled, match="breakpoint at 10: resume"):
        run.finish()


def test_why_answers_while_an_operator_does_not_return() -> None:
    began, over = threading.Event(), threading.Event()

    def endless(batch: Any) -> Any:
        began.set()
        over.wait(60)
        return batch

    flow = jt.Flow("busy")
    flow.output("out", flow.input("in").map(endless))
    with flow.open() as run:
        run.monitor.every = 0.01
        run.inspect()
        run.input("in").send({"time": [1], "k": [1]})
        user = threading.Thread(target=run.run_to_rest)
        user.start()
        began.wait(60)
        try:
            answer = act(run, "why", {"name": "out"})
            assert "over.wait(60)" in answer["text"]
            with run.monitor.changed:
                seen = run.monitor.changed.wait_for(
                    lambda: run.monitor.seen is not None and run.monitor.seen.status == "busy", 60
                )
            assert seen
        finally:
            over.set()
            user.join()
        assert run.monitor.look().status == "running"
