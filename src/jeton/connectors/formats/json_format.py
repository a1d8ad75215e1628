"""JSON: an object for each record."""

from __future__ import annotations

import base64
import json
import math
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from jeton.connectors.formats.format import Format
from jeton.core.errors import BatchError

_CONTROL: Final = r"[\x00-\x1f]"


class JSON(Format):
    """An object for each record, whose members are its columns.

    Values are read by Arrow, a batch at a time. Declare the columns of the input, with that of its
    time: members that are not declared are skipped, and a value of another type makes the record a
    bad one. Otherwise types are those of the values in each batch. Timestamps and dates are
    texts of ISO 8601. Bytes are written in base64, and what is read as bytes is the text as it is.
    Numbers that JSON does not have (NaN, infinities) are written as null.

    >>> form = JSON().typed(pa.schema({"n": pa.int64(), "at": pa.timestamp("ms")}))
    >>> form.decode(pa.array([b'{"at": "2024-05-01T09:00:00.25", "n": 1, "x": 2}'])).to_pylist()
    [{'n': 1, 'at': datetime.datetime(2024, 5, 1, 9, 0, 0, 250000)}]
    >>> form.decode(pa.array([b'{"n": "one"}']))
    Traceback (most recent call last):
    pyarrow.lib.ArrowInvalid: JSON parse error: Column(...) changed from number to string ...
    """

    def __init__(self, schema: pa.Schema | None = None, *, only: bool = True) -> None:
        self.schema = schema
        self.only = only
        """Whether members that the schema does not have are skipped."""

    def typed(self, schema: pa.Schema, *, only: bool = True) -> JSON:
        """The format with the types of an input, unless it has its own."""
        return self if self.schema is not None else JSON(schema, only=only)

    def decode(self, values: pa.Array) -> pa.Table:
        """The members of each object as columns."""
        if values.null_count:
            raise BatchError("there is no value, which is not a JSON object")
        # Arrow does not check texts within values.
        values.cast(pa.binary()).cast(pa.string())
        # With its number around each value, so that no two can be taken for one, or one for two.
        numbers = pa.array(range(len(values)), pa.int64())
        lines = pc.binary_join_element_wise(
            b'{"m":', _as_bytes(numbers), b',"v":', values.cast(pa.binary()), b"}\n", b""
        )
        data = lines.buffers()[2]
        options: dict[str, Any] = {}
        if self.schema is not None:
            inner = _read_as(pa.struct(list(self.schema)))
            options = {
                "explicit_schema": pa.schema({"m": pa.int64(), "v": inner}),
                "unexpected_field_behavior": "ignore" if self.only else "infer",
            }
        table = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
            parse_options=pj.ParseOptions(**options),
        )
        objects = table.column("v").combine_chunks()
        if not table.column("m").combine_chunks().equals(numbers):
            raise BatchError("some values are not one JSON object each")
        if objects.null_count or not pa.types.is_struct(objects.type):
            raise BatchError("some values are not JSON objects")
        made = pa.Table.from_arrays(
            [objects.field(at) for at in range(objects.type.num_fields)],
            schema=pa.schema(list(objects.type)),
        )
        for field in self.schema or ():
            if made.schema.field(field.name).type != field.type:
                at = made.schema.get_field_index(field.name)
                made = made.set_column(at, field, made.column(at).cast(field.type))
        return made

    def encode(self, table: pa.Table) -> pa.Array:
        """An object for each row, without spaces."""
        pieces: list[Any] = []
        before = "{"
        for name, column in zip(table.column_names, table.columns, strict=True):
            pieces += [f"{before}{json.dumps(name, ensure_ascii=False)}:", _texts(column)]
            before = ","
        pieces.append("}" if table.num_columns else "{}")
        if not table.num_columns:
            return pa.array([b"{}"] * table.num_rows, pa.binary())
        return pc.binary_join_element_wise(*pieces, "").cast(pa.binary())


def _read_as(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow's reader is asked for: it takes dates for numbers."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_read_as(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_read_as(kind.value_type)))
    return kind


def _as_bytes(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string()).cast(pa.binary())


def _texts(column: pa.ChunkedArray) -> pa.Array:
    """The values of a column as JSON."""
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_null(kind):
        return pa.array(["null"] * len(values), pa.string())
    if pa.types.is_boolean(kind):
        texts = pc.if_else(values, "true", "false")
    elif pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        texts = values.cast(pa.string())
    elif pa.types.is_floating(kind):
        # JSON has no infinities.
        values = values.cast(pa.float64())
        texts = pc.if_else(pc.is_finite(values), values.cast(pa.string()), "null")
    elif pa.types.is_timestamp(kind):
        # In the zone of the column, Arrow's values are those of UTC.
        plain = values.cast(pa.timestamp(kind.unit))
        texts = pc.strftime(plain, format="%Y-%m-%dT%H:%M:%S")
        texts = _quoted(texts if kind.tz is None else _joined(texts, "Z"))
    elif pa.types.is_date(kind) or pa.types.is_time(kind):
        texts = _quoted(values.cast(pa.string()))
    elif _is_text(kind):
        texts = _escaped(values.cast(pa.string()))
    else:
        found = [json.dumps(_finite(each), default=_plain) for each in values.to_pylist()]
        texts = pa.array(found, pa.string())
    return pc.fill_null(texts, "null")


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _escaped(values: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(values, _CONTROL)).as_py():
        found = [None if text is None else json.dumps(text) for text in values.to_pylist()]
        return pa.array(found, pa.string())
    values = pc.replace_substring(values, "\\", "\\\\")
    return _quoted(pc.replace_substring(values, '"', '\\"'))


def _quoted(values: pa.Array) -> pa.Array:
    return _joined('"', values, '"')


def _joined(*pieces: Any) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, "")


def _finite(value: Any) -> Any:
    """A value without numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """A value that JSON has no word for."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
