"""Sources of long-lived queries, which the workers read by themselves.

>>> from jeton.connectors import sources
>>> source = sources.Batches(lambda partition, partitions: iter([{"time": [1], "n": [1]}]))
>>> source.open("0/1", None).read()
{'time': [1], 'n': [1]}
"""

from jeton.connectors.sources.batches import Batches
from jeton.connectors.sources.delta import Delta
from jeton.connectors.sources.files import Files
from jeton.connectors.sources.iceberg import Iceberg
from jeton.connectors.sources.kafka import Kafka
from jeton.connectors.sources.parquet import Parquet
from jeton.connectors.sources.rate import Rate
from jeton.connectors.sources.socket import Socket
from jeton.connectors.sources.source import Reader, Source, number_of, numbered
from jeton.connectors.sources.webhook import Webhook

__all__ = [
    "Batches",
    "Delta",
    "Files",
    "Iceberg",
    "Kafka",
    "Parquet",
    "Rate",
    "Reader",
    "Socket",
    "Source",
    "Webhook",
    "number_of",
    "numbered",
]
