"""Workers in processes of their own come to rest together, again and again."""

from __future__ import annotations

import time
from typing import Any

import pytest

import jeton as jt
from jeton.runtime.agent import Agent
from tests.mesh.harness import run, sending
from tests.runtime.rest import go_on, rest

ROUNDS = 10
STEPS = 300


def pouring() -> jt.Flow:
    """Each worker sends as much as it can, to all, for as long as it is let."""
    flow = jt.Flow("pouring")

    def go_on(token: jt.TimestampToken, info: jt.OperatorInfo) -> None:
        if token.time >= STEPS:
            token.drop()
        else:
            info.activator.activate()

    again = flow.source(sending(go_on)).exchange("n").map(lambda batch: {"n": batch["n"] * 7 + 1})
    flow.output("n", again.exchange("n"))
    return flow


@pytest.mark.parametrize(
    ("tcp", "group"),
    [(False, None), (True, None), (False, 2)],
    ids=["unix", "tcp", "through relays"],
)
def test_at_rest_nothing_is_under_way(tcp: bool, group: int | None) -> None:
    def watch(agent: Agent, stats: dict[str, Any]) -> None:
        number = stats.get("round", 0) + 1
        # One of them begins, the others hear of it.
        begins = agent.worker.index == number % 3
        if number <= ROUNDS and (begins or agent.peers.rounds.begun >= number):
            began = time.monotonic()
            assert rest(agent, number)
            agent.worker.snapshot()
            stamps = agent.worker.tracker.pointstamps()
            stats.setdefault("seen", []).append(sorted(map(repr, stamps.items())))
            # Some take longer for what they want rest for: nobody may act before they are done.
            busy_until = time.monotonic() + 0.002 * (agent.worker.index % 2)
            while time.monotonic() < busy_until:
                agent.turn()
                assert agent.worker.tracker.pointstamps() == stamps
            go_on(agent)
            stats.setdefault("pauses", []).append(time.monotonic() - began)
            stats["round"] = number

    reports = run(pouring, workers=3, tcp=tcp, watch=watch, group=group)
    assert not any(report.error for report in reports), reports[0].error
    # No message is anywhere, and all have heard of everything that anybody did.
    first = reports[0].stats["seen"]
    assert len(first) == ROUNDS
    for report in reports:
        assert report.stats["seen"] == first
    rows = sum(len(report.rows["n"]) for report in reports)
    assert rows == 3 * 100 * STEPS
    pauses = sorted(pause for report in reports for pause in report.stats["pauses"])
    print(f"pause: median {pauses[len(pauses) // 2] * 1e3:.1f} ms, longest {pauses[-1] * 1e3:.1f}")
