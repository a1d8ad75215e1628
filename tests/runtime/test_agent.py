"""The agent: one loop around a worker, which reads, steps, writes, reports and obeys."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import jeton as jt
from jeton.errors import JetonError, ProtocolError
from jeton.runtime.agent import Agent
from jeton.runtime.attachments import NoFeed, NoSink
from jeton.runtime.commands import Advance, Checkpoint, Command, Fail, QuiescentCommand, Stop, Taken
from jeton.runtime.metrics import add_metrics


class Driver:
    """A worker's end of a connection: what the driver has sent, and what it has received."""

    def __init__(self) -> None:
        self.inbox: deque[dict[str, Any]] = deque()
        self.received: list[dict[str, Any]] = []

    def command(self, command: Command) -> None:
        self.inbox.append(json.loads(json.dumps({"kind": command.kind, **command.to_json()})))

    def send(self, kind: str, payload: bytes = b"", **header: Any) -> None:
        self.received.append({"kind": kind, **header})

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        return self.inbox.popleft(), b""

    def has_news(self, timeout: float = 0.0) -> bool:
        return bool(self.inbox)

    def close(self) -> None:
        pass

    def kinds(self) -> list[str]:
        return [sent["kind"] for sent in self.received if sent["kind"] != "report"]


class Numbers(NoFeed):
    """Sends one number after the other, until it is closed."""

    def __init__(self, agent: Agent) -> None:
        self.handle = agent.worker.handles[agent.flow.handle("input", "n")]
        self.sent = 0

    @property
    def ended(self) -> bool:
        return bool(self.handle.closed)

    def read(self, busy: bool) -> bool:
        if self.handle.closed:
            return False
        self.handle.send({"time": [self.sent]})
        self.handle.advance_to(self.sent + 1)
        self.sent += 1
        return True

    def patience(self, idle: float) -> float:
        return 0.0

    def advance(self, inputs: Mapping[str, int]) -> None:
        self.handle.advance_to(inputs["n"])

    def positions(self) -> dict[str, Any]:
        return {"n": {"0": {"position": self.sent}}}

    def close(self) -> None:
        self.handle.close()


class Parts:
    """Notes the checkpoints that were taken."""

    tokens: ClassVar[dict[tuple[str, str], str]] = {}
    """It knows no earlier state, of which changes would do."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []

    def keep(self, command: Checkpoint, state: Any, positions: Any, pause: float) -> None:
        self.taken.append((command.version, positions["n"]["0"]["position"]))

    def check(self) -> None:
        pass


class Full(NoSink):
    is_full = True

    def taken(self, output: str, size: int) -> None:
        self.is_full = size < 3


def passing() -> jt.Flow:
    flow = jt.Flow("passing")
    flow.output("out", flow.input("n").probe("seen"))
    return flow


def made(**ends: Any) -> tuple[Agent, Driver, Numbers]:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.05
        return now[0]

    agent, driver = Agent(passing(), clock=clock), Driver()
    feed = Numbers(agent)
    agent.attach(feed=feed, driver=driver, **ends)
    return agent, driver, feed


def turns(agent: Agent, until: Callable[[], bool]) -> None:
    for _ in range(1000):
        if until():
            return
        agent.turn()
    raise AssertionError("it does not come to that")


def test_commands_travel_as_json() -> None:
    for command in (
        Checkpoint(number=3, version=7, patience=60.0),
        Checkpoint(number=4, version=8, settle=True, hold=True),
        Advance(number=5, inputs={"n": 9}),
        Taken(number=6, output="out", bytes=10),
        Stop(number=7, drain=True),
        Fail(number=8, text="no"),
    ):
        sent = json.loads(json.dumps({"kind": command.kind, "size": 0, **command.to_json()}))
        assert Command.from_json(sent) == command


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (
            {"kind": "dance"},
            r"the driver sent 'dance', but the commands are \['add partitions', ",
        ),
        ({"kind": []}, r"the driver sent \[\]"),
        ({"kind": "checkpoint"}, "bad command 'checkpoint': .*'version'"),
    ],
)
def test_a_command_that_is_not_known_is_refused(header: dict[str, Any], text: str) -> None:
    agent, driver, _ = made()
    driver.inbox.append(header)
    with pytest.raises(ProtocolError, match=text):
        turns(agent, lambda: False)
    agent.close()


def test_it_reads_until_it_is_stopped_and_reports_at_the_end() -> None:
    agent, driver, feed = made()
    turns(agent, lambda: feed.sent >= 5)
    driver.command(Stop(drain=True))
    agent.run()
    assert agent.is_complete
    last = driver.received[-1]
    assert last["kind"] == "report"
    assert last["frontiers"] == {"seen": [], "out": []}
    assert last["metrics"]["rows_in"] == feed.sent
    assert len(last["metrics"]["operators"]) == len(agent.flow.operators)
    agent.close()


def test_it_stops_at_once_without_draining() -> None:
    agent, driver, _ = made()
    driver.command(Stop())
    turns(agent, lambda: agent.is_over)
    agent.close()


def test_checkpoints_are_taken_in_order_and_the_flow_goes_on() -> None:
    parts = Parts()
    agent, driver, feed = made(parts=parts)
    for number in (1, 2):
        driver.command(Checkpoint(number=number, version=number + 10))
    turns(agent, lambda: len(parts.taken) == 2)
    sent = feed.sent
    turns(agent, lambda: feed.sent > sent)
    assert [version for version, _ in parts.taken] == [11, 12]
    agent.close()


def test_with_checkpoints_it_stays_until_the_driver_has_committed_the_last_one() -> None:
    parts = Parts()
    agent, driver, feed = made(parts=parts)
    driver.command(Stop(drain=True, number=1))
    turns(agent, lambda: driver.kinds() == ["complete"])
    assert not agent.is_over
    driver.command(Checkpoint(number=2, version=1))
    turns(agent, lambda: parts.taken == [(1, feed.sent)])
    assert not agent.is_over, "a peer may have missed it"
    driver.command(Stop(number=3))
    agent.run()
    assert driver.kinds() == ["complete"], "once"
    agent.close()


def test_a_hold_lasts_until_it_is_let_go() -> None:
    parts = Parts()
    agent, driver, feed = made(parts=parts)
    driver.command(Checkpoint(number=1, version=0, hold=True))
    turns(agent, lambda: agent.is_held)
    assert not parts.taken, "the host may take rows before the part is written"
    sent = feed.sent
    for _ in range(20):
        agent.turn()
    assert parts.taken == [(0, sent)]
    assert feed.sent == sent
    agent.resume()
    turns(agent, lambda: feed.sent > sent)
    assert len(parts.taken) == 1
    agent.close()


def test_nothing_is_read_while_the_sink_is_full() -> None:
    agent, driver, feed = made(sink=Full())
    for _ in range(20):
        agent.turn()
    assert feed.sent == 0
    driver.command(Taken(output="out", bytes=5))
    turns(agent, lambda: feed.sent > 0)
    agent.close()


def test_the_driver_tells_why_it_fails_and_how_far_inputs_are() -> None:
    agent, driver, feed = made(sink=Full())
    driver.command(Advance(inputs={"n": 40}))
    turns(agent, lambda: feed.handle.time == 40)
    driver.command(Fail(text="the store is gone"))
    with pytest.raises(JetonError, match="the store is gone"):
        turns(agent, lambda: False)
    agent.close()


def test_a_command_that_needs_rest_is_not_done_without() -> None:
    """An operator that always wants to be invoked again never rests."""

    @dataclass(frozen=True, kw_only=True)
    class Never(QuiescentCommand):
        kind = "never, for a test"

        def at_rest(self, agent: Agent) -> Any:
            raise AssertionError("it does not rest")

    def restless(token: jt.TimestampToken, info: jt.OperatorInfo) -> object:
        token.drop()
        info.activator.activate()
        return lambda input, output: info.activator.activate()

    flow = jt.Flow("restless")
    flow.output("out", flow.input("n").unary(restless))  # type: ignore[arg-type]
    agent, driver = Agent(flow), Driver()
    agent.attach(driver=driver, reports=False)
    agent.obey(Never(number=1, patience=0.0))
    turns(agent, lambda: not agent.is_engaged)
    [missed] = driver.received
    assert (missed["kind"], missed["number"]) == ("missed", 1)
    assert missed["why"] == "worker 0 did not come to rest"
    agent.close()


def test_the_size_of_state_is_not_known_before_a_snapshot() -> None:
    flow = jt.Flow("counts")
    flow.output("counts", flow.input("words").key_by("word").running().count())
    with flow.open() as run:
        run.input("words").send({"word": ["a", "b", "a"]})
        run.run_to_rest()
        before = run.agents[0].metrics().operators
        assert {(each.state_rows, each.state_bytes) for each in before} == {(None, None)}
        assert all("state_rows" not in each.to_json() for each in before)
        run.snapshot()
        source, count, output = run.agents[0].metrics().operators
        assert (source.state_rows, count.state_rows, output.state_rows) == (1, 2, 0)
        assert (count.state_bytes or 0) > 0
        one, other = (run.agents[0].metrics().to_json() for _ in range(2))
        assert add_metrics(one, other)["operators"][1]["state_rows"] == 4
        unknown = {"operators": [each.to_json() for each in before]}
        assert add_metrics(one, unknown)["operators"][1]["state_rows"] == 2
