"""Sources of long-lived queries, which the workers read by themselves.

>>> from jeton.connectors import sources
>>> source = sources.Batches(lambda partition, partitions: iter([{"time": [1], "n": [1]}]))
>>> source.open(0, 1).read()
{'time': [1], 'n': [1]}
"""

from jeton.connectors.sources.batches import Batches
from jeton.connectors.sources.files import Files
from jeton.connectors.sources.rate import Rate
from jeton.connectors.sources.source import Reader, Source

__all__ = ["Batches", "Files", "Rate", "Reader", "Source"]
