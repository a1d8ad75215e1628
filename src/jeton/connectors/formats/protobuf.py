"""Protobuf: messages of a generated class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from jeton.connectors.formats.format import Format
from jeton.core.errors import BatchError, GraphError

_SCALARS: Final = {
    "double": pa.float64(),
    "float": pa.float32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "int32": pa.int32(),
    "fixed64": pa.uint64(),
    "fixed32": pa.uint32(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "uint32": pa.uint32(),
    "enum": pa.string(),
    "sfixed32": pa.int32(),
    "sfixed64": pa.int64(),
    "sint32": pa.int32(),
    "sint64": pa.int64(),
}
_TIMESTAMP: Final = "google.protobuf.Timestamp"


class Protobuf(Format):
    r"""Messages of a class that ``protoc`` has made (``pip install 'jeton[kafka]'``).

    Fields are columns: messages in them are structs, repeated ones are lists, maps are maps, enums
    are the names of their values, and ``google.protobuf.Timestamp`` is a timestamp. A field without
    a value is null where Protobuf knows that, and its default otherwise. Rows are written with the
    columns that are fields of the message, and others are left out.

    >>> from google.protobuf.source_context_pb2 import SourceContext
    >>> form = Protobuf(SourceContext)
    >>> encoded = form.encode(pa.table({"file_name": ["a.proto"]}))
    >>> encoded.to_pylist()
    [b'\n\x07a.proto']
    >>> form.decode(encoded).to_pylist()
    [{'file_name': 'a.proto'}]
    """

    def __init__(self, message: type[Any]) -> None:
        self.message = message
        descriptor = message.DESCRIPTOR
        self.columns = pa.schema(
            [_field(each, (descriptor.full_name,)) for each in _of(descriptor)]
        )

    def decode(self, values: pa.Array) -> pa.Table:
        """The fields of each message as columns."""
        if values.null_count:
            raise BatchError("there is no value, which is not a Protobuf message")
        messages = [self.message.FromString(value) for value in values.to_pylist()]
        return pa.table(
            [
                pa.array([*map(_getter(field), messages)], self.columns.field(field.name).type)
                for field in _of(self.message.DESCRIPTOR)
            ],
            schema=self.columns,
        )

    def encode(self, table: pa.Table) -> pa.Array:
        """A message for each row."""
        fields = [f for f in _of(self.message.DESCRIPTOR) if f.name in table.column_names]
        if not fields:
            raise BatchError(
                f"the message {self.message.DESCRIPTOR.full_name} has none of the columns "
                f"{table.column_names}, only fields {self.columns.names}"
            )
        found = []
        for row in table.select([field.name for field in fields]).to_pylist():
            message = self.message()
            for field in fields:
                _set(message, field, row[field.name])
            found.append(message.SerializeToString())
        return pa.array(found, pa.binary())


def _of(descriptor: Any) -> list[Any]:
    return list(descriptor.fields)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_message(field: Any) -> bool:
    return field.message_type is not None


def _field(field: Any, above: tuple[str, ...]) -> pa.Field:
    if _is_map(field):
        key, value = _of(field.message_type)
        return pa.field(field.name, pa.map_(_type(key, above), _type(value, above)))
    kind = _type(field, above)
    return pa.field(field.name, pa.list_(kind) if field.is_repeated else kind)


def _type(field: Any, above: tuple[str, ...]) -> Any:
    """The type of one value of a field."""
    if not _is_message(field):
        return _SCALARS[_kind(field)]
    inner = field.message_type
    if inner.full_name == _TIMESTAMP:
        return pa.timestamp("ns", "UTC")
    if inner.full_name in above:
        raise GraphError(
            f"a message of {inner.full_name} can contain another one of it, which no column can "
            "hold: decode it yourself from formats.Raw()"
        )
    return pa.struct([_field(each, (*above, inner.full_name)) for each in _of(inner)])


def _kind(field: Any) -> str:
    from google.protobuf.descriptor import FieldDescriptor

    names = {getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name for name in _SCALARS}
    if field.type not in names:
        raise GraphError(f"field {field.full_name} has a type that Protobuf has given up: a group")
    return names[field.type]


def _getter(field: Any) -> Callable[[Any], Any]:
    """A function that returns the value of a field in a message."""
    name = field.name
    if _is_map(field):
        value = _converter(_of(field.message_type)[1])
        return lambda message: [(key, value(each)) for key, each in getattr(message, name).items()]
    convert = _converter(field)
    if field.is_repeated:
        return lambda message: [convert(each) for each in getattr(message, name)]
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    if field.enum_type is None and not _is_message(field):
        return lambda message: getattr(message, name)
    return lambda message: convert(getattr(message, name))


def _converter(field: Any) -> Callable[[Any], Any]:
    """A function that makes a value for Arrow of one in a message."""
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if not _is_message(field):
        return lambda value: value
    if field.message_type.full_name == _TIMESTAMP:
        return lambda value: value.seconds * 1_000_000_000 + value.nanos
    getters = {each.name: _getter(each) for each in _of(field.message_type)}
    return lambda value: {name: get(value) for name, get in getters.items()}


def _set(message: Any, field: Any, value: Any) -> None:
    if value is None:
        return
    name = field.name
    if _is_map(field):
        into = getattr(message, name)
        inner = _of(field.message_type)[1]
        for key, each in dict(value).items():
            if _is_message(inner):
                _fill(into[key], inner, each)
            else:
                into[key] = _number(inner, each)
    elif field.is_repeated and _is_message(field):
        for each in value:
            _fill(getattr(message, name).add(), field, each)
    elif field.is_repeated:
        getattr(message, name).extend(_number(field, each) for each in value)
    elif _is_message(field):
        _fill(getattr(message, name), field, value)
    else:
        setattr(message, name, _number(field, value))


def _fill(message: Any, field: Any, value: Any) -> None:
    """Fill in a message within another one."""
    message.SetInParent()
    if field.message_type.full_name == _TIMESTAMP:
        nanoseconds = value.value if hasattr(value, "value") else _nanoseconds(value)
        message.seconds, message.nanos = divmod(nanoseconds, 1_000_000_000)
        return
    for each in _of(field.message_type):
        _set(message, each, value.get(each.name))


def _nanoseconds(value: Any) -> int:
    return int(pa.scalar(value, pa.timestamp("ns", "UTC")).value)


def _number(field: Any, value: Any) -> Any:
    """A value as Protobuf has it: enums are numbers there."""
    if field.enum_type is None:
        return value
    found = field.enum_type.values_by_name.get(value)
    return int(value) if found is None else found.number
