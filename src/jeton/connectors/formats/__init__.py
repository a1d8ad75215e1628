"""Formats: how records are written as bytes, in messages of Kafka, sockets and HTTP.

A format decodes and encodes whole batches: an array of bytes to a table, and a table to an array.

>>> import pyarrow as pa
>>> from jeton.connectors import formats
>>> encoded = formats.JSON().encode(pa.table({"n": [1, 2], "word": ["a", None]}))
>>> encoded.to_pylist()
[b'{"n":1,"word":"a"}', b'{"n":2,"word":null}']
>>> formats.JSON().decode(encoded)["n"].to_pylist()
[1, 2]
"""

from jeton.connectors.formats.avro import Avro
from jeton.connectors.formats.format import Format, FormatFailed, Raw, Rejected, sift, with_times
from jeton.connectors.formats.json_format import JSON
from jeton.connectors.formats.protobuf import Protobuf

__all__ = [
    "JSON",
    "Avro",
    "Format",
    "FormatFailed",
    "Protobuf",
    "Raw",
    "Rejected",
    "sift",
    "with_times",
]
