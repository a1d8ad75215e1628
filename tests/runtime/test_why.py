"""Why: planted stalls in this process, the answer in its three forms, and busy workers."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import jeton as jt
from jeton.cluster.control import Control
from jeton.errors import GraphError
from jeton.runtime.agent import Agent, NoSink
from jeton.runtime.commands import CollectFacts
from jeton.runtime.worker_facts import BusyWatch, WorkerFacts, collect
from tests import stalls
from tests.stalls import STALLS, headline

Fill = Callable[[jt.Run], None]


def fill(run: jt.Run, source: Any, batches: int = 6) -> None:
    """What the partitions of a source have, each on its own worker."""
    for worker in range(2):
        partition = run.input("in", worker).partition(worker)
        for batch in islice(source(worker, 2), batches):
            if batch is not None:
                partition.send(batch)


@pytest.mark.parametrize(
    "name",
    [
        "token in a dictionary",
        "token in a closure",
        "input never advanced",
        "one idle partition",
        "cyclic token",
    ],
)
def test_planted_stall(name: str, tmp_path: Path) -> None:
    stall = STALLS[name](tmp_path)
    with stall.flow.open(workers=2) as run:
        fill(run, stall.source)
        run.run_to_rest()
        why = run.why("out")
        says = re.sub(r" for \[1-9\]", "", stall.says)  # the clock of this host stands still
        assert re.search(says, headline(why)), str(why)
        assert json.loads(json.dumps(why.to_dict()))["places"][0]["headline"] == headline(why)


def test_dead_async_call(tmp_path: Path) -> None:
    stall = STALLS["token of a dead async call"](tmp_path)
    with stall.flow.open(workers=2) as run:
        fill(run, stall.source)
        # The call begins in a thread of its own.
        deadline = time.monotonic() + stalls.LIMIT
        while not re.search(stall.says, headline(why := run.why("out"))):
            assert time.monotonic() < deadline, str(why)
            run.run_to_rest()


def stubborn(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
    token.drop()
    return lambda input, output: None


def test_messages_wait_at_a_hot_key() -> None:
    flow = stalls.with_lateness(
        lambda stream: stream.unary(stubborn, pact=jt.Exchange("user"), name="slow")
    )
    with flow.open(workers=2) as run:
        fill(run, stalls.hot)
        run.run_to_rest()
        why = run.why("out")
    says = (
        r"'out' is at 0: 2 messages at 0 wait at 'slow' on worker \d: 12 messages with 5\d\d rows"
    )
    assert re.search(f"{says} in its queue; 9\\d% of their rows have user=7", headline(why)), str(
        why
    )
    assert why.holders[0].what == "message"


class Full(NoSink):
    is_full = True
    waits_for = "waits for a sink that takes nothing"


def test_a_full_sink_comes_before_the_input_that_it_holds_up() -> None:
    flow = stalls.with_lateness(lambda stream: stream)
    with flow.open(workers=2) as run:
        run.attach(1, sink=Full())
        why = run.why("out")
    assert headline(why).endswith(": worker 1 waits for a sink that takes nothing")
    assert [holder.what for holder in why.holders] == ["sink", "input", "input"]
    assert why.holders[0].workers == (1,)


def test_a_worker_in_an_endless_loop_is_seen_from_another_thread(tmp_path: Path) -> None:
    stall = STALLS["worker in an endless loop"](tmp_path)
    with stall.flow.open(workers=2) as run:
        fill(run, stall.source)
        thread = threading.Thread(target=run.run_to_rest)
        thread.start()
        try:
            says = r"worker \d runs 'spinner', at .*stalls.py:\d+: time.sleep\(0.01\)"
            deadline = time.monotonic() + stalls.LIMIT
            while not re.search(says, headline(why := run.why("out"))):
                assert time.monotonic() < deadline, str(why)
        finally:
            stall.release()
            thread.join()
    busy = why.holders[0]
    assert (busy.what, busy.operator) == ("busy", "spinner")
    assert any("in step: time.sleep(0.01)" in line for line in busy.stack)
    assert "in step: time.sleep(0.01)" in why._repr_html_()


# The answer


def miser(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
    token.downgrade(5)

    def step(input: jt.Input, output: jt.Output, kept: Any = token) -> None:
        for ref, batch in input:
            output.session(ref).give(batch)

    return step


def two_outputs() -> jt.Flow:
    flow = jt.Flow("two outputs")
    numbers = flow.input("in")
    flow.output("plain", numbers.probe("seen"))
    flow.output("held", numbers.unary(miser, name="miser"))
    return flow


def test_all_outputs_one_output_a_probe_and_an_operator() -> None:
    with two_outputs().open() as run:
        run.input("in").advance_to(9)
        run.run_to_rest()
        both = run.why()
        assert [place.name for place in both.places] == ["plain", "held"]
        assert [holder.what for holder in both.holders] == ["input", "token"]
        assert [place.frontier for place in both.places] == [(9,), (5,)]
        assert headline(run.why("seen")).startswith(
            "'seen' is at 9: input 'in' on worker 0 is at 9"
        )
        (held,) = run.why("miser").holders
        assert (held.what, held.operator, held.port, held.time, held.count, held.workers) == (
            "token", "miser", 0, 5, 1, (0,),
        )  # fmt: skip
        assert held.line is not None
        assert "unary(miser" in held.line.code
        # Later times are held by the input too.
        assert [holder.what for holder in run.why("held", at=9).holders] == ["token", "input"]
        assert str(run.why("held", at=4)) == "'held' is complete up to 4"
        with pytest.raises(GraphError, match=r"no output, probe or operator 'hold'.*'held'"):
            run.why("hold")


def test_a_complete_output_says_so() -> None:
    flow = stalls.with_lateness(lambda stream: stream)
    with flow.open() as run:
        run.finish()
        assert str(run.why("out")) == "'out' is complete"
        assert run.why("out").holders == []


def test_times_are_shown_as_timestamps() -> None:
    flow = stalls.with_lateness(lambda stream: stream)
    with flow.open() as run:
        run.input("in").send({"time": [datetime(2024, 5, 6, 7, 8, 9)], "n": [1]})
        run.run_to_rest()
        why = run.why("out", at=datetime(2024, 5, 7))
        assert headline(why).startswith("'out' is at 2024-05-06 07:08:09: input 'in'")
        assert why.to_dict()["places"][0]["frontier"] == [1714979289000000]
        assert not run.why("out", at=datetime(2024, 5, 5)).holders


def test_a_state_that_waits_comes_after_what_it_waits_for() -> None:
    flow = jt.Flow("window")
    flow.output("sums", flow.input("in").key_by("n").tumbling(10).count())
    with flow.open(workers=2) as run:
        run.input("in").send({"time": [3], "n": [1]})
        run.input("in", 0).advance_to(10)
        run.run_to_rest()
        why = run.why("sums", at=10)
        assert [(holder.what, holder.workers) for holder in why.holders[:1]] == [("input", (1,))]
        assert why.holders[-1].operator == "count"
        assert why.holders[-1].detail == "it waits for its input"


def test_a_timer_is_named() -> None:
    def later(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.downgrade(7)
        info.activator.after(30.0)
        return lambda input, output, kept=token: [None for _ in input]

    flow = jt.Flow("timer")
    flow.output("out", flow.input("in").unary(later, name="later"))
    with flow.open() as run:
        run.input("in").close()
        while run.turn():
            pass
        assert "its timer is due in 30.0 s" in headline(run.why("out"))


# The worker's side


def test_facts_travel_as_json_also_from_loops(tmp_path: Path) -> None:
    stall = STALLS["cyclic token"](tmp_path)
    with stall.flow.open(workers=2) as run:
        fill(run, stall.source)
        run.run_to_rest()
        for facts in collect(run.agents):
            assert WorkerFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_a_question_that_cannot_be_answered_does_not_end_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, there = (Control(end) for end in socket.socketpair())
    agent = Agent(stalls.with_lateness(lambda stream: stream))
    agent.attach(driver=there)

    def fails(agents: Any) -> Any:
        raise RuntimeError("no such thing")

    monkeypatch.setattr("jeton.runtime.commands.collect", fails)
    agent.obey(CollectFacts(number=3))
    header, _ = driver.receive() or ({}, b"")
    assert (header["number"], header["error"]) == (3, "RuntimeError: no such thing")
    driver.close()
    there.close()
    agent.close()


def test_the_watch_answers_for_a_busy_worker_when_it_is_asked(
    tmp_path: Path, no_thread_is_left: None
) -> None:
    stall = STALLS["worker in an endless loop"](tmp_path)
    driver, there = (Control(end) for end in socket.socketpair())
    agent = Agent(stall.flow)
    numbers = agent.worker.handles[stall.flow.handle("input", "in")]
    numbers.send({"time": [20], "n": [2]})
    agent.attach(driver=there)

    def work() -> None:
        with BusyWatch(agent, every=0.05):
            while not agent.is_stopped:
                agent.turn(block=0.01)

    thread = threading.Thread(target=work)
    thread.start()
    while "runs 'spinner'" not in agent.looks:
        assert thread.is_alive()
    driver.send("facts", number=1)
    kinds = []
    while (frame := driver.receive()) is not None and frame[0]["kind"] != "busy":
        kinds.append(frame[0]["kind"])
    assert set(kinds) <= {"report"}
    assert frame is not None
    facts = WorkerFacts.from_json(frame[0]["facts"])
    assert facts.busy is not None
    assert facts.busy.operator == "spinner"
    assert facts.busy.seconds is not None
    assert facts.pointstamps
    # Once it is free again, it answers itself.
    stall.release()
    while (frame := driver.receive()) is not None and frame[0]["kind"] != "facts":
        pass
    assert frame is not None
    assert WorkerFacts.from_json(frame[0]["facts"]).busy is None
    driver.send("stop", number=2)
    thread.join()
    driver.close()
    there.close()
    agent.close()


def test_a_breakpoint_left_on_is_named() -> None:
    flow = jt.Flow("paused")
    flow.output("out", flow.input("numbers").key_by("k").tumbling(10).sum("n"))
    with flow.open(workers=2) as run:
        run.pause_at(20)
        for worker in range(2):
            rows = {"time": [5, 25], "k": [1, 1], "n": [1, 2]}
            run.input("numbers", worker).send(rows)
            run.input("numbers", worker).advance_to(30)
        run.run_to_rest()
        why = run.why("out")
        first = why.holders[0]
        assert (first.what, first.operator, first.time) == ("breakpoint", "numbers", 20)
        assert first.workers == (0, 1)
        assert "a breakpoint holds 'numbers' at 20 on workers 0 and 1: step() or" in str(why)
        run.resume()
        run.run_to_rest()
        assert not [each for each in run.why("out").holders if each.what == "breakpoint"]
