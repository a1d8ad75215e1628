"""Sinks of long-lived queries, to which the rows of an output go while the query runs.

>>> import pyarrow as pa
>>> from jeton.connectors import sinks
>>> memory = sinks.Memory()
>>> memory.receive(pa.table({"n": [1, 2]}), sinks.Delivery())
>>> memory.table().num_rows
2
"""

from jeton.connectors.sinks.callback import Callback
from jeton.connectors.sinks.console import Console
from jeton.connectors.sinks.delta import Delta
from jeton.connectors.sinks.driver_sink import Delivery, DriverSink, Retry
from jeton.connectors.sinks.foreach_batch import ForeachBatch
from jeton.connectors.sinks.iceberg import Iceberg
from jeton.connectors.sinks.kafka import DirectKafka, Kafka
from jeton.connectors.sinks.memory import Memory
from jeton.connectors.sinks.parquet import Parquet
from jeton.connectors.sinks.postgres import Postgres
from jeton.connectors.sinks.server_sent_events import ServerSentEvents
from jeton.connectors.sinks.sink import DirectSink, Guarantee, Sink, SinkContext, Writer
from jeton.connectors.sinks.socket import Socket

__all__ = [
    "Callback",
    "Console",
    "Delivery",
    "Delta",
    "DirectKafka",
    "DirectSink",
    "DriverSink",
    "ForeachBatch",
    "Guarantee",
    "Iceberg",
    "Kafka",
    "Memory",
    "Parquet",
    "Postgres",
    "Retry",
    "ServerSentEvents",
    "Sink",
    "SinkContext",
    "Socket",
    "Writer",
]
