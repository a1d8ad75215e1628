"""Avro: records in binary, whose schema is elsewhere."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from jeton.connectors.formats.format import Format, FormatFailed
from jeton.core import checks
from jeton.core.errors import BatchError, GraphError, summary

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
}
_FRAMED: Final = struct.Struct(">bI")


class Avro(Format):
    r"""Records of an Avro schema, each a message of its own (``pip install 'jeton[kafka]'``).

    ``schema`` is the one that the flow reads and writes, as a dictionary. With ``writers``, values
    begin with the number of the schema that they were written with, as those of Confluent's schema
    registry do: ``writers`` maps numbers to schemas, or is a function that finds one, which is
    asked once for each number. If it raises `LookupError`, records of that number cannot be read;
    any other error fails the query. Avro's rules adapt a record to the schema that is read.
    ``number`` is the one to write.

    Rows are written with the columns of the schema, and others are left out. Timestamps without a
    zone are taken for UTC. A value that its field cannot hold is an error.

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
        if not isinstance(schema, Mapping):
            raise GraphError(
                "an Avro schema is a dictionary, such as json.loads(text) returns, not "
                f"{checks.described(schema)}"
            )
        if schema.get("type") != "record":
            raise GraphError(f"an Avro schema for rows is of a record, not {schema.get('type')!r}")
        self.schema = dict(schema)
        self.writers = writers
        self.number = number
        self.columns = pa.schema(list(_arrow_type(self.schema, {}, "")))
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
        for at, row in enumerate(self._fitted(table).to_pylist(maps_as_pydicts="strict")):
            stream = io.BytesIO()
            stream.write(head)
            try:
                schemaless_writer(stream, schema, row)
            except (TypeError, ValueError) as error:
                raise BatchError(
                    f"row {at} cannot be written as the Avro record {self.schema.get('name')!r}: "
                    f"{error}"
                ) from error
            found.append(stream.getvalue())
        return pa.array(found, pa.binary())

    def _fitted(self, table: pa.Table) -> pa.Table:
        """The columns of the schema, in its types."""
        missing = [name for name in self.columns.names if name not in table.column_names]
        if missing:
            raise BatchError(
                f"the rows have no columns {missing} for the Avro record "
                f"{self.schema.get('name')!r}, only {table.column_names}"
            )
        columns = []
        for field in self.columns:
            column = table.column(field.name)
            try:
                columns.append(column.cast(field.type))
            except pa.ArrowException as error:
                raise BatchError(
                    f"column {field.name!r} is {column.type}, and cannot be written as {field.type}"
                    f", which the Avro record {self.schema.get('name')!r} has: {error}. Cast or "
                    "round it before the output"
                ) from error
        return pa.table(columns, self.columns)

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
                schema = known[number] if isinstance(known, Mapping) else _found(known, number)
            self._parsed[number] = parse_schema(_without_uuids(schema))
        return self._parsed[number]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parsed": {}}


def _found(find: Callable[[int], Any], number: int) -> Any:
    try:
        return find(number)
    except LookupError as error:
        raise BatchError(f"writers= finds no schema of number {number}: {error}") from error
    except Exception as error:
        raise FormatFailed(
            f"writers= could not look for the Avro schema of number {number}: {summary(error)}"
        ) from error


def _without_uuids(schema: Any) -> Any:
    """A schema whose UUIDs are the texts that they are written as: no column holds the others."""
    if isinstance(schema, list):
        return [_without_uuids(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    left_out = "logicalType" if schema.get("logicalType") == "uuid" else None
    return {key: _without_uuids(each) for key, each in schema.items() if key != left_out}


def _arrow_type(schema: Any, known: dict[str, Any], namespace: str) -> Any:
    """The type of an Avro schema's values in Arrow; ``known`` has the named ones so far.

    A name without a namespace is in the one of the definition around it.
    """
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise GraphError(f"an Avro union of {schema} has no type in Arrow: one of null and one")
        return _arrow_type(kinds[0], known, namespace)
    if isinstance(schema, str):
        return _named_type(schema, known, namespace)
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return _decimal(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    full = ""
    if "name" in schema:
        full = _full_name(schema["name"], schema.get("namespace", namespace))
        # Until it is complete.
        known[full] = None
        namespace = full.rpartition(".")[0]
    if kind == "record":
        made: Any = pa.struct(
            [
                pa.field(each["name"], _arrow_type(each["type"], known, namespace))
                for each in schema["fields"]
            ]
        )
    elif kind == "array":
        made = pa.list_(_arrow_type(schema["items"], known, namespace))
    elif kind == "map":
        made = pa.map_(pa.string(), _arrow_type(schema["values"], known, namespace))
    elif kind == "enum":
        made = pa.string()
    elif kind == "fixed":
        made = pa.binary(schema["size"])
    else:
        return _arrow_type(kind, known, namespace)
    if full:
        known[full] = made
    return made


def _named_type(name: str, known: Mapping[str, Any], namespace: str) -> Any:
    """The type that a name stands for."""
    if name in _PRIMITIVE:
        return _PRIMITIVE[name]
    full = _full_name(name, namespace)
    if full not in known:
        raise GraphError(f"{name!r} is not the name of an Avro type")
    if known[full] is None:
        raise GraphError(
            f"an Avro record {full!r} can contain another one of it, which no column can hold: "
            "decode it yourself from formats.Raw()"
        )
    return known[full]


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _decimal(precision: int, scale: int) -> pa.DataType:
    if precision > 76:
        raise GraphError(f"an Avro decimal of {precision} digits has no type in Arrow: 76 at most")
    made = pa.decimal128 if precision <= 38 else pa.decimal256
    return made(precision, scale)
