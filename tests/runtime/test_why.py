"""Why: planted stalls in this process, the answer in its three forms, and busy workers."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import jeton as jt
from jeton.cluster.control import Control
from jeton.errors import GraphError, TimeError, TokenError
from jeton.runtime.agent import Agent
from jeton.runtime.attachments import NoSink
from jeton.runtime.commands import CollectFacts
from jeton.runtime.why import Question
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
        assert why.to_dict()["places"][0]["frontier"] == ["2024-05-06T07:08:09"]
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


def test_a_breakpoint_is_named_where_inputs_have_not_ended() -> None:
    flow = jt.Flow("ended")
    flow.output("out", flow.input("in"))
    with flow.open(workers=2) as run:
        run.input("in", 0).close()
        run.run_to_rest()
        run.pause_at(20)
        run.input("in", 1).advance_to(30)
        run.run_to_rest()
        (held,) = run.why("out").holders
        assert (held.what, held.workers, held.time) == ("breakpoint", (1,), 20)


# Inputs that have not advanced


def test_an_input_with_a_lateness_is_behind_its_latest_record() -> None:
    flow = jt.Flow("late")
    flow.output("out", flow.input("in", lateness=5))
    with flow.open() as run:
        run.input("in").send({"time": [3, 10, 7], "n": [1, 2, 3]})
        run.run_to_rest()
        assert headline(run.why("out")) == (
            "'out' is at 5: input 'in' on worker 0 is at 5: its latest record is at 10, and its "
            "lateness is 5"
        )


def test_a_partition_with_a_lateness_is_behind_its_latest_record() -> None:
    flow = jt.Flow("late")
    flow.output("out", flow.input("in", lateness="10s"))
    with flow.open() as run:
        slow, fast = (run.input("in").partition(name) for name in "ab")
        slow.send({"time": [datetime(2024, 5, 6, 7)], "n": [1]})
        fast.send({"time": [datetime(2024, 5, 6, 8)], "n": [1]})
        run.run_to_rest()
        assert headline(run.why("out")) == (
            "'out' is at 2024-05-06 06:59:50: input 'in' on worker 0 is at 2024-05-06 06:59:50: "
            "partition a of its source has had no record after 2024-05-06 07:00:00, and the "
            "lateness is 0:00:10, while 1 partition is at 2024-05-06 07:59:50: give the input "
            "idle_after= if it need not wait"
        )
        snapshot = run.snapshot()
    with flow.open(restore=snapshot) as run:
        for name in "ab":
            run.input("in").partition(name)
        run.run_to_rest()
        says = "partition a of its source is at 2024-05-06 06:59:50, and has had no record, while"
        assert says in headline(run.why("out"))


def test_a_partition_whose_source_knows_better_is_not_behind_by_its_lateness() -> None:
    flow = jt.Flow("known")
    flow.output("out", flow.input("in", lateness=10))
    with flow.open() as run:
        partition = run.input("in").partition("a")
        partition.send({"time": [20], "n": [1]})
        partition.advance_to(21)
        run.run_to_rest()
        assert headline(run.why("out")) == (
            "'out' is at 21: input 'in' on worker 0 is at 21: partition a of its source has had no "
            "record after 20"
        )


def test_a_source_that_has_passed_a_breakpoint_is_not_read() -> None:
    flow = jt.Flow("passed")
    flow.output("out", flow.input("in", lateness=0))
    with flow.open() as run:
        run.pause_at(10)
        run.input("in").partition("a").send({"time": [10, 15], "n": [1, 2]})
        run.run_to_rest()
        (first, second) = run.why("out", at=15).holders
        assert first.what == "breakpoint"
        assert second.detail == "its source is not read further, since it has passed the breakpoint"


# Times as the flow has them


BERLIN = ZoneInfo("Europe/Berlin")


def zoned() -> jt.Flow:
    flow = jt.Flow("zoned")
    rows = flow.input("in", lateness="1s")
    flow.output("out", rows.key_by("n").tumbling("1h").count())
    flow.output("loop", rows.iterate(stalls.around))
    return flow


def test_times_of_holders_are_those_of_records() -> None:
    start = datetime(2024, 5, 6, 7, tzinfo=BERLIN)
    with zoned().open() as run:
        run.input("in").send({"time": [start], "n": [2]})
        run.run_to_rest()
        why = run.why("out", at=start + timedelta(hours=1))
        second = timedelta(seconds=1)
        assert [each.time for each in why.holders] == [start - second, start + timedelta(hours=1)]
        (place,) = why.places
        assert (place.frontier, place.at) == ((start - second,), start + timedelta(hours=1))
        (shown,) = json.loads(json.dumps(why.to_dict()))["places"]
        assert shown["frontier"] == ["2024-05-06T06:59:59+02:00"]
        assert [each["time"] for each in shown["holders"]] == [
            "2024-05-06T06:59:59+02:00",
            "2024-05-06T08:00:00+02:00",
        ]
        held = [each for each in run.why("loop", at=start).holders if each.what == "token"]
        assert [each.time for each in held] == [jt.Product(start, 0)]
        assert "2024-05-06 07:00:00+02:00 in round 0" in held[0].text
        assert held[0].to_dict()["time"] == ["2024-05-06T07:00:00+02:00", 0]
        inside = run.why("iterate.turning", at=(start, 0))
        assert inside.places[0].at == jt.Product(start, 0)
        run.pause_at(start + timedelta(minutes=1))
        run.input("in").send({"time": [start + timedelta(minutes=2)], "n": [3]})
        run.run_to_rest()
        (paused,) = [each for each in run.why("out").holders if each.what == "breakpoint"]
        assert paused.time == start + timedelta(minutes=1)


@pytest.mark.parametrize("at", [5, datetime(2024, 5, 6), "2024-05-06", 2.5, True])
def test_a_time_of_another_kind_is_refused(at: Any) -> None:
    with zoned().open() as run:
        run.input("in").send({"time": [datetime(2024, 5, 6, tzinfo=BERLIN)], "n": [2]})
        with pytest.raises(TimeError, match=r"why\(…, at=…\)"):
            run.why("out", at=at)


def test_times_beyond_those_of_python() -> None:
    flow = jt.Flow("far", unit="s")
    flow.output("out", flow.input("in", lateness="0s"))
    with flow.open() as run:
        far = np.array([2**60], "datetime64[s]")
        run.input("in").send({"time": far, "n": [1]})
        run.run_to_rest()
        why = run.why("out")
        assert headline(why).startswith("'out' is at 36534630048-05-13T13:56:16: input 'in'")
        assert why.holders[0].time.year == 9999
        assert json.dumps(why.to_dict())


def test_errors_of_inputs_and_tokens_show_timestamps() -> None:
    start = datetime(2024, 5, 6, 7)

    def early(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, _ in input:
                held = ref.retain()
                with held:
                    held.downgrade(held.time - 1_000_000)

        return step

    flow = jt.Flow("errors")
    flow.output("out", flow.input("in").unary(early, name="early"))
    with flow.open() as run:
        handle = run.input("in")
        handle.send({"time": [start], "n": [1]})
        handle.advance_to(start)
        with pytest.raises(TimeError) as went_back:
            handle.advance_to(datetime(2023, 5, 6))
        assert str(went_back.value) == (
            "input 'in' is at 2024-05-06 07:00:00 and cannot go back to 2023-05-06 00:00:00 "
            "[operator 'in', worker 0, time 2024-05-06 07:00:00]"
        )
        part = handle.partition("a", floor=handle.time)
        with pytest.raises(TimeError, match="is at 2024-05-06 07:00:00 and cannot go back to 2023"):
            part.advance_to(datetime(2023, 5, 6))
        says = "token at 2024-05-06 07:00:00 for .* cannot be downgraded to 2024-05-06 06:59:59"
        with pytest.raises(TokenError, match=says):
            run.run_to_rest()


def test_the_time_that_messages_wait_is_seen_by_the_watch(no_thread_is_left: None) -> None:
    flow = stalls.with_lateness(lambda stream: stream.unary(stubborn, name="slow"))
    agent = Agent(flow)
    agent.worker.handles[flow.handle("input", "in")].send({"time": [3], "n": [1]})
    while agent.turn():
        pass
    with BusyWatch(agent, every=0.01):
        while not agent.heads:
            pass
        agent.turn()
        question = Question(flow, agent.worker.graph, collect([agent]))
        (waits,) = [each for each in question.why("out").holders if each.what == "message"]
    assert waits.since is not None
    agent.close()


def test_a_run_that_has_failed_says_so() -> None:
    flow = stalls.with_lateness(lambda stream: stream.map(lambda batch: {"n": batch["nix"]}))
    with flow.open() as run:
        run.input("in").send({"time": [1], "n": [1]})
        with pytest.raises(jt.errors.MissingColumn):
            run.run_to_rest()
        assert "the run has failed: MissingColumn: there is no column 'nix'" in str(run.why("out"))
        assert run.why("out").holders[0].what == "query"


def test_many_tokens_elsewhere_do_not_hide_what_holds_an_output() -> None:
    def keeping(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()
        kept: list[jt.TimestampToken] = []

        def step(input: Any, output: Any) -> None:
            for ref, batch in input:
                kept.extend(ref.retain(int(time)) for time in batch.times)

        return step

    flow = jt.Flow("many")
    flow.output("kept", flow.input("many").unary(keeping, name="keeper"))
    flow.output("out", flow.input("one", lateness=0))
    with flow.open() as run:
        run.input("many").send({"time": np.arange(1500), "n": np.arange(1500)})
        run.input("many").close()
        run.input("one").send({"time": [5000], "n": [1]})
        run.run_to_rest()
        why = run.why("out")
        assert str(why).startswith("'out' is at 5000: input 'one' on worker 0 is at 5000")
        assert run.why("kept").holders[0].operator == "keeper"


def test_all_outputs_of_an_operator_are_asked_about() -> None:
    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Any:
        first, second = tokens
        first.drop()

        def step(inputs: Any, outputs: Any) -> None:
            for _ in inputs[0]:
                second.downgrade(7)

        return step

    flow = jt.Flow("two")
    builder = flow.operator("both")
    builder.input(flow.input("in"))
    builder.output()
    builder.output()
    first, second = builder.build(build)
    flow.output("first", first)
    flow.output("second", second)
    with flow.open() as run:
        run.input("in").send({"time": [3], "n": [1]})
        run.input("in").close()
        run.run_to_rest()
        assert str(run.why("first")) == "'first' is complete"
        [holder] = run.why("both").holders
        assert (holder.operator, holder.port, holder.time) == ("both", 1, 7)
        assert str(run.why("both", at=6)) == "'both' is complete up to 6"


def test_the_late_records_of_an_input_wait_for_that_input() -> None:
    flow = jt.Flow("late")
    rows = flow.input("in", lateness=2)
    flow.output("late", rows.late)
    flow.output("out", rows)
    with flow.open() as run:
        run.input("in").send({"time": [9], "n": [1]})
        run.run_to_rest()
        says = "input 'in' on worker 0 is at 7: its latest record is at 9, and its lateness is 2"
        assert [place.holders[0].text for place in run.why().places] == [says, says]
        assert [holder.text for holder in run.why("in").holders] == [says]


def test_a_run_that_was_closed_says_so() -> None:
    flow = jt.Flow("closed")
    flow.output("out", flow.input("in"))
    with flow.open() as run:
        run.run_to_rest()
    assert run.why("out").holders[0].text == "the run was closed"
    with flow.open() as run:
        run.finish()
    assert str(run.why("out")) == "'out' is complete"


def test_a_breakpoint_comes_before_workers_that_read() -> None:
    flow = jt.Flow("paused")
    flow.output("out", flow.input("in", lateness=0))
    with flow.open() as run:
        run.pause_at(5)
        run.input("in").send({"time": [9], "n": [1]})
        run.run_to_rest()
        facts = collect(run.agents)
        facts[0].looks = ["reads from the source of 'in'"] * 10
        held = Question(flow, run.graph, facts).why("out").holders
        assert [each.what for each in held] == ["breakpoint", "busy"]


def test_one_look_at_a_worker_is_not_often() -> None:
    flow = jt.Flow("seen")
    flow.output("out", flow.input("in", lateness=0))
    with flow.open() as run:
        run.input("in").send({"time": [9], "n": [1]})
        run.run_to_rest()
        facts = collect(run.agents)
        for looks, seen in ((1, ["input"]), (10, ["busy", "input"])):
            facts[0].looks = ["reads from the source of 'in'"] * looks
            held = Question(flow, run.graph, facts).why("out").holders
            assert [each.what for each in held] == seen
