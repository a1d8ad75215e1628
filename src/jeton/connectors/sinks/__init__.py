"""Sinks of long-lived queries, to which the rows of an output go while the query runs.

>>> import pyarrow as pa
>>> from jeton.connectors import sinks
>>> memory = sinks.Memory()
>>> memory.receive(pa.table({"n": [1, 2]}), sinks.Delivery())
>>> memory.table().num_rows
2
"""

from jeton.connectors.sinks.callback import Callback
from jeton.connectors.sinks.memory import Memory
from jeton.connectors.sinks.parquet import Parquet
from jeton.connectors.sinks.sink import (
    Delivery,
    DriverSink,
    Retry,
    Sink,
    StagedSink,
    StagedWriter,
    WorkerSink,
    Writer,
)

__all__ = [
    "Callback",
    "Delivery",
    "DriverSink",
    "Memory",
    "Parquet",
    "Retry",
    "Sink",
    "StagedSink",
    "StagedWriter",
    "WorkerSink",
    "Writer",
]
