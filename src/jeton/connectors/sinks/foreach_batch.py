"""ForeachBatch: a function of the user's at the driver, called once for each version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from jeton.connectors.sinks.driver_sink import Delivery, DriverSink, Retry
from jeton.core.checks import require_function


class ForeachBatch(DriverSink):
    """A function at the driver, called with all rows of a version and its number.

    It is like ``foreachBatch`` of Structured Streaming, with checkpoints in the place of
    micro-batches. After a failure, the function may get the same rows with the same version again:
    one that stores the version with the rows, in one transaction, takes each row exactly once. If
    it raises, it is called again, as ``retry`` says; then the query fails with that exception.
    Without checkpoints, it is called with the tables as they come, and the version is ``None``.

    >>> stored = {}
    >>> sink = ForeachBatch(lambda table, version: stored.update({version: table.to_pylist()}))
    >>> sink.receive(pa.table({"n": [1, 2]}), Delivery(version=7))
    >>> stored
    {7: [{'n': 1}, {'n': 2}]}
    """

    whole_versions = True

    def __init__(
        self, function: Callable[[pa.Table, int | None], Any], *, retry: Retry | None = None
    ) -> None:
        require_function(function, "ForeachBatch", "lambda table, version: …")
        self._function = function
        self.retry = retry or Retry()

    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        """Call the function."""
        self._function(table, delivery.version)
