"""Avro: records in binary, whose schema is elsewhere."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from jeton.connectors.formats.format import Format
from jeton.core.errors import BatchError, GraphError

_PRIMITIVE: Final[dict[str, Any]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final[dict[str, Any]] = {
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "uuid": pa.string(),
}
_FRAMED: Final = struct.Struct(">bI")


class Avro(Format):
    r"""Records of an Avro schema, each a message of its own (``pip install 'jeton[kafka]'``).

    ``schema`` is the one that the flow reads and writes, as a dictionary. With ``writers``, values
    begin with the number of the schema that they were written with, as those of Confluent's schema
    registry do: ``writers`` maps numbers to schemas, or is a function that finds one, which is
    asked once for each number. Avro's rules adapt a record to the schema that is read. ``number``
    is the one to write.

    >>> fields = [{"name": "n", "type": "long"}, {"name": "word", "type": ["null", "string"]}]
    >>> form = Avro({"type": "record", "name": "Word", "fields": fields})
    >>> encoded = form.encode(pa.table({"n": [1, 2], "word": ["a", None]}))
    >>> encoded.to_pylist()
    [b'\x02\x02\x02a', b'\x04\x00']
    >>> form.decode(encoded).to_pylist()
    [{'n': 1, 'word': 'a'}, {'n': 2, 'word': None}]
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        *,
        writers: Mapping[int, Any] | Callable[[int], Any] | None = None,
        number: int | None = None,
    ) -> None:
        if schema.get("type") != "record":
            raise GraphError(f"an Avro schema for rows is of a record, not {schema.get('type')!r}")
        self.schema = dict(schema)
        self.writers = writers
        self.number = number
        self.columns = pa.schema(list(_arrow_type(self.schema, {})))
        self._parsed: dict[int | None, Any] = {}

    def decode(self, values: pa.Array) -> pa.Table:
        """The fields of each record as columns."""
        from fastavro import schemaless_reader

        reader = self._schema(None)
        rows = []
        for value in values.to_pylist():
            if value is None:
                raise BatchError("there is no value, which is not an Avro record")
            writer, start = reader, 0
            if self.writers is not None:
                magic, number = _FRAMED.unpack_from(value)
                if magic != 0:
                    raise BatchError(f"the value begins with {magic} instead of 0 and a number")
                writer, start = self._schema(number), _FRAMED.size
            stream = io.BytesIO(value)
            stream.seek(start)
            rows.append(schemaless_reader(stream, writer, reader))
            if stream.tell() != len(value):
                raise BatchError(f"{len(value) - stream.tell()} bytes follow the record")
        return pa.Table.from_pylist(rows, self.columns)

    def encode(self, table: pa.Table) -> pa.Array:
        """A record for each row."""
        from fastavro import schemaless_writer

        schema, found = self._schema(None), []
        head = b"" if self.number is None else _FRAMED.pack(0, self.number)
        for row in table.select(self.columns.names).to_pylist():
            stream = io.BytesIO()
            stream.write(head)
            schemaless_writer(stream, schema, row)
            found.append(stream.getvalue())
        return pa.array(found, pa.binary())

    def _schema(self, number: int | None) -> Any:
        """A schema in fastavro's own form: that of the flow, or of a number."""
        if number not in self._parsed:
            from fastavro import parse_schema

            schema: Any = self.schema
            if number is not None:
                assert self.writers is not None
                known = self.writers
                if isinstance(known, Mapping) and number not in known:
                    raise BatchError(f"writers= has no schema of number {number}")
                schema = known[number] if isinstance(known, Mapping) else known(number)
            self._parsed[number] = parse_schema(schema)
        return self._parsed[number]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parsed": {}}


def _arrow_type(schema: Any, known: dict[str, Any]) -> Any:
    """The type of an Avro schema's values in Arrow; ``known`` has the named ones."""
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise GraphError(f"an Avro union of {schema} has no type in Arrow: one of null and one")
        return _arrow_type(kinds[0], known)
    if isinstance(schema, str):
        found = known.get(schema, _PRIMITIVE.get(schema))
        if found is None:
            raise GraphError(f"{schema!r} is not the name of an Avro type")
        return found
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        made: Any = pa.struct(
            [pa.field(each["name"], _arrow_type(each["type"], known)) for each in schema["fields"]]
        )
    elif kind == "array":
        made = pa.list_(_arrow_type(schema["items"], known))
    elif kind == "map":
        made = pa.map_(pa.string(), _arrow_type(schema["values"], known))
    elif kind == "enum":
        made = pa.string()
    elif kind == "fixed":
        made = pa.binary(schema["size"])
    else:
        return _arrow_type(kind, known)
    if "name" in schema:
        known[schema["name"]] = made
    return made
