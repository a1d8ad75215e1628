"""The reports of the workers of a batch, as the driver hears them while it runs."""

from __future__ import annotations

import socket
import threading
from typing import Any

from jeton.cluster.control import Control
from jeton.runtime.metrics import Totals, carried

Reports = dict[int, dict[str, Any]]
"""The latest report of each worker."""


class RunReports:
    """Listens to the workers of one plan, in all its runs.

    >>> reports = RunReports()
    >>> reports.is_running, reports.latest
    (False, {})
    """

    def __init__(self) -> None:
        self.latest: Reports = {}
        """Those of the latest run."""
        self.before: Totals = {}
        """The metrics of workers in the runs before that have ended."""
        self.runs = 0
        """How many runs have begun."""
        self._lock = threading.Lock()
        self._runs: dict[int, tuple[Reports, set[int]]] = {}
        """For each epoch the reports, and the workers that are connected."""

    @property
    def is_running(self) -> bool:
        """Whether any worker is connected."""
        return bool(self._runs)

    def take_over(self, rank: int, epoch: int, sock: socket.socket) -> None:
        """A worker has joined: listen to it from now on."""
        with self._lock:
            if epoch not in self._runs:
                if not any(reports is self.latest for reports, _ in self._runs.values()):
                    self.before = carried(self.before, self.latest)
                self.latest = {}
                self.runs += 1
                self._runs[epoch] = self.latest, set()
                self.began(epoch)
            self._runs[epoch][1].add(rank)
        listen = threading.Thread(
            target=self._listen, args=(rank, epoch, Control(sock)), daemon=True
        )
        listen.start()

    def _listen(self, rank: int, epoch: int, control: Control) -> None:
        reports, connected = self._runs[epoch]
        while (news := control.receive()) is not None:
            header: dict[str, Any] = {**news[0], "run": epoch}
            with self._lock:
                before = reports.get(rank)
                if before is not None and not header["metrics"].get("operators"):
                    # Not every report has the operators.
                    header["metrics"]["operators"] = before["metrics"]["operators"]
                reports[rank] = header
                self.heard(epoch, reports)
        control.close()
        with self._lock:
            connected.discard(rank)
            if not connected and epoch in self._runs:
                del self._runs[epoch]
                if reports is not self.latest:
                    self.before = carried(self.before, reports)
                self.ended(epoch)

    # What a subclass shows

    def began(self, epoch: int) -> None:
        """The first worker of a run has joined."""

    def heard(self, epoch: int, reports: Reports) -> None:
        """A worker has reported."""

    def ended(self, epoch: int) -> None:
        """The last worker of a run has left."""
