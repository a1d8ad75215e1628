"""Callback: a function of the user's at the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from jeton.connectors.sinks.driver_sink import Delivery, DriverSink, Retry
from jeton.core.checks import require_function


class Callback(DriverSink):
    """A function at the driver, called with each table of rows.

    If it raises, it is called again with the same table, as ``retry`` says; then the query fails
    with that exception. With ``delivery``, its second argument is a `Delivery`: with checkpoints,
    a function that takes each version and number once has every row exactly once.

    >>> taken = {}
    >>> def take(table, delivery):
    ...     taken[delivery.version, delivery.number] = table
    >>> sink = Callback(take, delivery=True, retry=Retry(times=10, first_wait=1.0))
    >>> sink.receive(pa.table({"n": [1, 2]}), Delivery(version=7))
    >>> taken[7, 0].num_rows
    2
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        delivery: bool = False,
        retry: Retry | None = None,
    ) -> None:
        require_function(function, "a Callback", "print")
        self._function = function
        self._delivery = delivery
        self.retry = retry or Retry()

    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        """Call the function."""
        if self._delivery:
            self._function(table, delivery)
        else:
            self._function(table)
