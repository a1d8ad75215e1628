"""The workers of one attempt at a long-lived query, as the driver knows them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from jeton.cluster.commits import Attempt
from jeton.cluster.control import Control
from jeton.connectors.deliveries import Inbox
from jeton.core.errors import JetonError
from jeton.dataflow.partitions import least_of_active


@dataclass(slots=True)
class Presence:
    """The workers of one attempt at a query, as far as they have come.

    >>> present = Presence()
    >>> present.reports = {0: {"inputs": {"n": (7, False)}}, 1: {"inputs": {"n": (3, True)}}}
    >>> present.to_follow(1, workers=2)  # its partitions are idle
    {'n': 7}
    """

    attempt: Attempt | None = None
    """The checkpoints that they take."""
    controls: dict[int, Control] = field(default_factory=dict)
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)
    listeners: list[threading.Thread] = field(default_factory=list)
    cause: str | None = None
    """What a worker said went wrong first."""
    lost: str | None = None
    """What a worker said of another that has gone."""
    failure: JetonError | None = None
    """What went wrong at the driver, so that the attempt was given up."""
    inboxes: dict[str, Inbox] = field(default_factory=dict)
    """Rows for sinks at the driver, if there are no checkpoints to commit them."""

    def to_follow(self, rank: int, workers: int) -> dict[str, int]:
        """How far inputs, all of whose partitions at a worker are idle, may follow the others."""
        told = [report.get("inputs", {}) for report in self.reports.values()]
        found: dict[str, int] = {}
        if len(told) == workers:
            for name, (time, idle) in self.reports[rank].get("inputs", {}).items():
                least = least_of_active(inputs[name] for inputs in told if name in inputs)
                if idle and least is not None and time < least:
                    found[name] = least
        return found
