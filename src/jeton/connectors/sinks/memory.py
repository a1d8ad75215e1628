"""Memory: a table at the driver."""

from __future__ import annotations

import threading

import pyarrow as pa

from jeton.connectors.sinks.driver_sink import Delivery, DriverSink
from jeton.connectors.sinks.sink import concatenated


class Memory(DriverSink):
    """A table at the driver that grows; ``query.table(name)`` makes a DataFrame of it.

    >>> memory = Memory()
    >>> memory.receive(pa.table({"n": [1, 2]}), Delivery())
    >>> memory.table().num_rows
    2
    """

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._lock = threading.Lock()

    def receive(self, table: pa.Table, delivery: Delivery) -> None:
        """Keep the rows."""
        with self._lock:
            self._tables.append(table)

    def table(self) -> pa.Table | None:
        """All rows so far, or nothing if none has come."""
        with self._lock:
            return concatenated(self._tables, "rows in memory") if self._tables else None
