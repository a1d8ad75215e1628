"""The monitor: progress records, listeners, and the turnstile that lets it look."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

import jeton as jt
from jeton.inspector.view import View
from jeton.runtime.agent import Agent
from jeton.runtime.metrics import measure, operator_metrics
from jeton.runtime.monitor import Monitor, Observation
from jeton.runtime.turnstile import Turnstile
from tests.inspector.driven import stuck


class Listening:
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.progressed = threading.Event()

    def onQueryStarted(self, event: Any) -> None:
        self.calls.append(("started", event.name))

    def onQueryProgress(self, event: Any) -> None:
        self.calls.append(("progress", event.progress.numInputRows))
        self.progressed.set()

    def onQueryTerminated(self, event: Any) -> None:
        self.calls.append(("terminated", event.exception))


def observed(
    rows: int, wall: float, clock: float = 0.0, before: int = 0, **operator: Any
) -> Observation:
    each = {"name": "in", "tokens": 0, "queued": 0, "invocations": 0, "frontiers": [[rows]]}
    each |= {"state_rows": 0, "state_bytes": 0, **operator}
    metrics = {"rows_in": rows, "rows_out": 0, "late": 0, "seconds": wall, "operators": [each]}
    report = {"metrics": metrics, "frontiers": {"out": [rows]}, "inputs": {"in": [rows, False]}}
    return Observation(
        status="running", reports={0: report}, clock=clock, before={0: {"rows_in": before}}
    )


def test_a_listener_is_called_from_the_start_to_the_end() -> None:
    seen = iter(range(0, 1_000_000, 10))
    monitor = Monitor("q", lambda: observed(next(seen), 1.0), every=0.001)
    listening = Listening()
    monitor.add_listener(listening)
    monitor.start()
    assert listening.progressed.wait(60)
    monitor.stop("it broke")
    monitor.join()
    assert listening.calls[0] == ("started", "q")
    assert listening.calls[-1] == ("terminated", "it broke")
    assert listening.calls[1:3] == [("progress", 0), ("progress", 10)]


def test_watchers_are_called_by_one_thread_at_a_time() -> None:
    inside, most, taken = [0], [0], [0]

    def watch(now: Observation) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        met.wait(0.2) if taken[0] == 0 else None
        taken[0] += 1
        inside[0] -= 1

    met = threading.Event()
    clocks = iter(range(1, 100))
    monitor = Monitor("q", lambda: observed(1, 1.0, float(next(clocks))))
    monitor.watch(watch)
    threads = [threading.Thread(target=monitor.look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert monitor.seen is not None
    assert monitor.seen.clock == 8.0


def test_an_error_of_a_listener_is_logged_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def onQueryProgress(self, event: Any) -> None:
            raise ValueError("not today")

    monitor, listening = Monitor("q", lambda: observed(1, 1.0)), Listening()
    monitor.add_listener(Broken())
    monitor.add_listener(listening)
    with caplog.at_level(logging.ERROR):
        monitor.look()
    assert listening.calls == [("progress", 1)]
    assert "not today" in caplog.text


def test_rows_are_those_since_the_last_record_also_after_a_restart() -> None:
    seen = [observed(100, 1.0, 1.0), observed(150, 2.0, 3.0), observed(200, 0.5, 4.0, before=160)]
    monitor = Monitor("q", lambda: seen.pop(0))
    for _ in range(3):
        monitor.look()
    assert [record.numInputRows for record in monitor.recent] == [100, 50, 210]
    assert [record.inputRowsPerSecond for record in monitor.recent] == [0.0, 25.0, 210.0]
    assert monitor.recent[1]["frontiers"] == {"out": [150]}


def test_rates_are_by_the_clock_of_the_worker() -> None:
    flow = jt.Flow("f")
    flow.input("in")
    view = View(flow)
    view.take(observed(100, 2.0, 50.0, seconds=1.0, records_in=100))
    assert view.latest["workers"][0]["rates"]["rows_in"] == 50.0
    view.take(observed(400, 4.0, 50.1, seconds=2.5, records_in=400))
    assert view.latest["workers"][0]["rates"]["rows_in"] == 150.0
    assert view.latest["operators"][0]["rates"]["seconds"] == 0.75
    # A report without news leaves the rate as it was; a restarted worker counts from zero.
    view.take(observed(400, 4.0, 51.0, seconds=2.5, records_in=400))
    assert view.latest["workers"][0]["rates"]["rows_in"] == 150.0
    view.take(observed(30, 1.0, 52.0, seconds=0.5, records_in=30))
    assert view.latest["workers"][0]["rates"]["rows_in"] == 30.0


def test_skew_is_the_most_by_the_mean() -> None:
    flow = jt.Flow("f")
    flow.input("in")
    view = View(flow)
    reports = {0: observed(0, 1.0, records_in=90).reports[0]}
    reports[1] = observed(0, 1.0, records_in=30).reports[0]
    view.take(Observation(status="running", reports=reports))
    assert view.latest["operators"][0]["skew"] == 1.5


def test_the_lag_is_known_where_times_are_timestamps() -> None:
    flow = jt.Flow("f")
    flow.output("out", flow.input("in"))
    view = View(flow)
    report = {"metrics": {}, "frontiers": {"out": [98_000_000]}, "unit": "us UTC"}
    view.take(Observation(status="running", reports={0: report}, clock=100.0))
    bounds, bins = view.latest["lag"]["bounds"], view.latest["lag"]["outputs"]["out"]
    assert bounds[bins.index(1)] == 3.0
    assert sum(bins) == 1
    plain = View(flow)
    plain.take(observed(1, 1.0))
    assert plain.latest["lag"] is None


def test_the_operator_that_holds_back_is_behind_its_input() -> None:
    flow = stuck()
    with flow.open() as run:
        view = View(flow)
        for time in (1, 20, 35):
            run.input("readings").send({"time": [time], "k": [1], "v": [1.0]})
            run.run_to_rest()
            view.take(run.observe())
        found = {each["name"]: (each["behind"], each["still"]) for each in view.latest["operators"]}
        # The input is at 35 less its lateness, and the token is at the first time.
        assert found["keeper"][0] == 30 - view.latest["frontiers"]["high"]["value"] > 25
        assert found["keeper"][1] > 0
        for name in ("readings", "mean", "means", "high"):
            assert found[name] == (None, None)
        run.input("readings").close()
        run.run_to_rest()
        view.take(run.observe())
        keeper = view.latest["operators"][3]
        assert (keeper["behind"], keeper["still"] > 0) == (None, True)


def test_latencies_and_bytes_are_those_of_what_came_through() -> None:
    flow = stuck()
    with flow.open(workers=2) as run:
        run.inspect()
        view = View(flow)
        for time in range(40):
            for worker in range(2):
                run.input("readings", worker=worker).send({"time": [time], "k": [1], "v": [1.0]})
            run.run_to_rest()
            if time in (9, 39):
                view.take(run.observe())
        found = view.latest["latency"]["outputs"]
        # Both workers' inputs have advanced thirty times since the first look.
        assert sum(found["means"]["bins"]) == 60
        assert 0 < found["means"]["p50"] <= found["means"]["p99"] < 100
        # A token holds the other output.
        assert (sum(found["high"]["bins"]), found["high"]["p99"]) == (0, None)
        assert (run.agents[0].metrics().operators[2].latency_seconds or 0.0) > 0
        sent = [each.bytes_out for each in run.agents[0].metrics().operators]
        assert sent[0] == 40 * 3 * 8


def test_the_latency_of_an_output_is_that_of_its_own_inputs() -> None:
    flow = jt.Flow("two")
    flow.output("quick", flow.input("busy", lateness=0))
    flow.output("slow", flow.input("silent", lateness=0))
    with flow.open() as run:
        run.inspect()
        view = View(flow)
        view.take(run.observe())
        for time in range(10):
            run.input("busy").send({"time": [time]})
            run.run_to_rest()
        view.take(run.observe())
        found = view.latest["latency"]["outputs"]
        assert [sum(found[name]["bins"]) for name in ("quick", "slow")] == [10, 0]


def test_an_input_is_behind_the_furthest_one() -> None:
    flow = jt.Flow("two")
    left, right = flow.input("left", lateness=0), flow.input("right", lateness=0)
    flow.output("out", left.concat(right))
    with flow.open() as run:
        view = View(flow)
        run.input("left").send({"time": [3]})
        run.input("right").send({"time": [50]})
        run.run_to_rest()
        view.take(run.observe())
        assert [each["behind"] for each in view.latest["operators"][:2]] == [47.0, None]


def test_an_input_at_the_start_of_time_is_named_once_others_go_on() -> None:
    flow = jt.Flow("two")
    left, right = flow.input("left", lateness=0), flow.input("right")
    flow.output("out", left.concat(right))
    with flow.open() as run:
        run.inspect()
        view = View(flow)

        def waiting() -> list[Any]:
            view.take(run.observe())
            return [each["waiting"] for each in view.latest["operators"][:2]]

        assert waiting() == [None, None]
        run.input("left").send({"time": [3]})
        run.run_to_rest()
        assert waiting() == [None, "record"]
        run.input("right").send({"time": [3]})
        run.run_to_rest()
        assert waiting() == [None, "advance"]
        assert view.latest["operators"][1]["still"] > 0
        run.input("right").advance_to(4)
        run.run_to_rest()
        assert waiting() == [None, None]


def test_a_worker_that_does_not_report_is_silent() -> None:
    flow = jt.Flow("echo")
    flow.output("out", flow.input("in"))
    view = View(flow)
    for clock, wall in ((100.0, 1.0), (101.0, 2.0), (107.0, 2.0)):
        view.take(observed(1, wall, clock))
    assert view.latest["workers"][0]["silent"] == 6.0
    view.take(observed(1, 2.5, 108.0))
    assert view.latest["workers"][0]["silent"] == 0.0


def test_latencies_have_the_names_of_outputs() -> None:
    flow = jt.Flow("same name")
    flow.output("n", flow.input("in", lateness=0).named("n").map(lambda batch: batch))
    with flow.open() as run:
        run.inspect()
        run.input("in").send({"time": [3]})
        run.run_to_rest()
        view = View(flow)
        view.take(run.observe())
        assert flow.operators[2].name == "n-2"
        assert list(view.latest["latency"]["outputs"]) == ["n"]


def test_samples_are_the_latest_rows() -> None:
    flow = jt.Flow("echo")
    flow.output("out", flow.input("in").filter(jt.col("n") > 1, name="some"))
    with flow.open(workers=2) as run:
        assert run.sample("some").empty
        run.inspect()
        run.input("in", worker=1).send({"time": [1, 2, 3], "n": [1, 2, 3]})
        run.run_to_rest()
        assert run.sample("in", rows=2)["n"].tolist() == [1, 2]
        for name in ("some", "out"):
            sample = run.sample(name)
            assert (sample["worker"].tolist(), sample["n"].tolist()) == ([1, 1], [2, 3])
        with pytest.raises(jt.errors.GraphError, match="no operator 'any'"):
            run.sample("any")
        with pytest.raises(jt.errors.GraphError, match="1 row or more"):
            run.sample("out", rows=0)


def test_a_thread_that_waits_is_not_overtaken() -> None:
    turnstile = Turnstile()
    order: list[str] = []
    inside, waits = threading.Event(), threading.Event()

    def visit() -> None:
        inside.wait(60)
        waits.set()
        with turnstile:
            order.append("visitor")

    thread = threading.Thread(target=visit)
    thread.start()
    with turnstile:
        inside.set()
        waits.wait(60)
        while not turnstile._next.locked():
            pass
        order.append("first")
    with turnstile:
        order.append("second")
    thread.join()
    assert order == ["first", "visitor", "second"]


def test_a_run_is_measured_from_the_moment_it_is_inspected() -> None:
    flow = jt.Flow("echo")
    flow.output("out", flow.input("in").map(lambda batch: batch))
    with flow.open() as run:
        run.input("in").send({"n": [1, 2, 3]})
        run.run_to_rest()
        assert "records_in" not in run.agents[0].metrics().operators[1].to_json()
        run.inspect()
        run.input("in").send({"n": [4, 5]})
        run.run_to_rest()
        records = [each.records_in for each in run.agents[0].metrics().operators]
        assert records == [0, 2, 2]
        assert run.finish()["out"]["n"].to_pylist() == [1, 2, 3, 4, 5]


def test_records_are_counted_also_if_a_run_was_paused_when_it_was_first_looked_at() -> None:
    flow = jt.Flow("counted")
    flow.output("out", flow.input("in", lateness=0))
    with flow.open() as run:
        run.pause_at(5)
        run.input("in").send({"time": [1, 7], "n": [1, 2]})
        run.run_to_rest()
        measure(run.workers[0])
        run.input("in").send({"time": [8], "n": [3]})
        run.run_to_rest()
        assert [each.records_out for each in operator_metrics(run.workers[0])] == [0, 0]
        run.resume()
        run.input("in").send({"time": [9], "n": [4]})
        run.run_to_rest()
        found = operator_metrics(run.workers[0])
        assert [(each.records_in, each.records_out) for each in found] == [(0, 3), (3, 0)]


def test_an_agent_that_measures_counts_what_is_sent_while_operators_are_built() -> None:
    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        with token, info.outputs[0].session(token) as session:
            session.give(n=[1, 2, 3])
        return lambda input, output: None

    flow = jt.Flow("early")
    flow.output("out", flow.input("in").unary(build, name="early"))
    agent = Agent(flow, measured=True)
    agent.worker.handles[flow.handle("input", "in")].close()
    while not agent.is_complete:
        agent.turn(block=0.0)
    _, early, out = operator_metrics(agent.worker)
    assert (early.records_out, out.records_in) == (3, 3)
    assert early.bytes_out == out.bytes_in == 48
