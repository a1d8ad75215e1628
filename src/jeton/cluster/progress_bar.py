"""A progress bar at the driver while a flow runs as a batch."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from jeton.cluster.run_reports import Reports, RunReports


class ProgressBar(RunReports):
    """Counts the rows that the workers of one plan have read, over all its runs.

    The number of rows is not known beforehand, so the bar shows a count and a rate.

    >>> ProgressBar("counts").take_over.__doc__
    'A worker has joined: listen to it from now on.'
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._bars: dict[int, tqdm[Any]] = {}

    @staticmethod
    def is_wanted() -> bool:
        """Whether standard error is a terminal."""
        return sys.stderr.isatty()

    def began(self, epoch: int) -> None:
        """Show a bar."""
        self._bars[epoch] = tqdm(desc=self._name, unit=" rows", unit_scale=True, leave=False)

    def heard(self, epoch: int, reports: Reports) -> None:
        """Show the rows so far."""
        bar, counts = self._bars[epoch], [report["metrics"] for report in reports.values()]
        bar.n = sum(each["rows_in"] for each in counts)
        out = sum(each["rows_out"] for each in counts)
        bar.set_postfix_str(f"{out:,} rows out, {len(counts)} workers")

    def ended(self, epoch: int) -> None:
        """Remove the bar."""
        self._bars.pop(epoch).close()
