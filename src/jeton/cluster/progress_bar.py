"""A progress bar at the driver while a flow runs as a batch."""

from __future__ import annotations

import socket
import sys
import threading
from typing import Any

from tqdm import tqdm

from jeton.cluster.control import Control


class ProgressBar:
    """Counts the rows that the workers of one plan have read, over all its runs.

    The number of rows is not known beforehand, so the bar shows a count and a rate.

    >>> ProgressBar("counts").take_over.__doc__
    'A worker has joined: listen to it from now on.'
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._bars: dict[int, tuple[tqdm[Any], dict[int, dict[str, int]]]] = {}

    @staticmethod
    def is_wanted() -> bool:
        """Whether standard error is a terminal."""
        return sys.stderr.isatty()

    def take_over(self, rank: int, epoch: int, sock: socket.socket) -> None:
        """A worker has joined: listen to it from now on."""
        with self._lock:
            if epoch not in self._bars:
                bar = tqdm(desc=self._name, unit=" rows", unit_scale=True, leave=False)
                self._bars[epoch] = bar, {}
            self._bars[epoch][1][rank] = {"rows_in": 0, "rows_out": 0}
        listen = threading.Thread(
            target=self._listen, args=(rank, epoch, Control(sock)), daemon=True
        )
        listen.start()

    def _listen(self, rank: int, epoch: int, control: Control) -> None:
        bar, counts = self._bars[epoch]
        while (news := control.receive()) is not None:
            header, _ = news
            with self._lock:
                counts[rank] = header["metrics"]
                bar.n = sum(each["rows_in"] for each in counts.values())
                out = sum(each["rows_out"] for each in counts.values())
                bar.set_postfix_str(f"{out:,} rows out, {len(counts)} workers")
        with self._lock:
            counts.pop(rank, None)
            if not counts and epoch in self._bars:
                del self._bars[epoch]
                bar.close()
