"""Schemas between Arrow, as flows have them, and Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from jeton.core.errors import GraphError
from jeton.spark.internals import arrow_schema, spark_schema

log = logging.getLogger(__name__)

BYTEWISE: Final = "UTF8_BINARY"
"""The collation that compares text byte by byte, as flows do."""

# Spark has no unsigned integers: the next wider ones hold their values.
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def as_spark_has_it(schema: pa.Schema, what: str) -> pa.Schema:
    """The same columns in the one Arrow type that Spark takes for each of its own.

    >>> as_spark_has_it(pa.schema([("n", pa.uint8()), ("at", pa.timestamp("ns"))]), "it")
    n: int16
    at: timestamp[us]
    """
    signed = [field.with_type(_WIDER.get(field.type, field.type)) for field in schema]
    try:
        return arrow_schema(spark_schema(pa.schema(signed)))
    except PySparkTypeError as error:
        raise GraphError(f"Spark has no type for a column of {what}: {error}") from error


def warn_of_collations(flow: str, name: str, schema: StructType) -> None:
    """Warn if an input has text that Spark compares otherwise than flows do."""
    found = {
        field.name: sorted(set(collations(field.dataType)))
        for field in schema.fields
        if any(collations(field.dataType))
    }
    if found:
        log.warning(
            "input %r of flow %r has text with a collation (%s). Flows compare text byte by byte, "
            "so that values which Spark takes for equal are different keys, and outputs have no "
            "collation: normalise the text before, as lower(column) does for UTF8_LCASE",
            name,
            flow,
            ", ".join(f"{column}: {' and '.join(names)}" for column, names in found.items()),
        )


def collations(kind: DataType) -> Iterator[str]:
    """The collations in a type that are not bytewise.

    >>> list(collations(spark.sql("select 'a' collate UTF8_LCASE as word").schema))
    ['UTF8_LCASE']
    """
    if isinstance(kind, StringType):
        collation = getattr(kind, "collation", BYTEWISE)
        if collation != BYTEWISE:
            yield collation
    elif isinstance(kind, ArrayType):
        yield from collations(kind.elementType)
    elif isinstance(kind, MapType):
        yield from collations(kind.keyType)
        yield from collations(kind.valueType)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            yield from collations(field.dataType)
