"""Schemas between Arrow, as flows have them, and Spark."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from jeton.core.errors import GraphError

# Spark has no unsigned integers: the next wider ones hold their values.
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """A DataFrame's schema in Arrow: what ``flow.input(…, schema=…)`` wants to know.

    >>> arrow_schema(spark.sql("select current_timestamp() as ts, 'a' as word").schema)
    ts: timestamp[us, tz=UTC] not null
    word: string not null
    """
    # Some versions of Spark want to be told, others know.
    asks = "timezone" in inspect.signature(to_arrow_schema).parameters
    options: dict[str, Any] = {"timezone": "UTC"} if asks else {}
    found: pa.Schema = to_arrow_schema(schema, **options)
    return found


def spark_schema(schema: pa.Schema) -> StructType:
    """A table's schema in Spark.

    >>> spark_schema(pa.schema([("n", pa.int16()), ("word", pa.large_string())])).simpleString()
    'struct<n:smallint,word:string>'
    """
    found: StructType = from_arrow_schema(schema)
    return found


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
