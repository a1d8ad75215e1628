"""A command for tests: rest, and stay so until the test lets the workers go on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from jeton.runtime.agent import BEAT, Agent
from jeton.runtime.commands import QuiescentCommand


@dataclass(frozen=True, kw_only=True)
class Rest(QuiescentCommand):
    kind = "rest, for a test"
    hold: bool = True

    def at_rest(self, agent: Agent) -> Any:
        return None


def rest(agent: Agent, number: int, patience: float | None = None) -> bool:
    """Come to rest together; whether it came to that in time."""
    agent.obey(Rest(number=number, patience=patience))
    while agent.is_engaged and not agent.is_held:
        agent.turn(block=min(BEAT, 1.0 if patience is None else patience))
    return agent.is_held


def go_on(agent: Agent) -> None:
    """End a rest together."""
    agent.resume()
    while agent.is_engaged:
        agent.turn(block=BEAT)


def run_until(agent: Agent, reached: Any, limit: float = 60.0) -> None:
    """Take turns until a condition holds."""
    deadline = time.monotonic() + limit
    while not reached():
        assert time.monotonic() < deadline
        agent.turn(block=BEAT)
