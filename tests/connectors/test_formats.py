"""Formats: what is written can be read, and what others write is read as they mean it."""

from __future__ import annotations

import datetime
import json
import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from jeton.connectors.formats import JSON, Avro, Format, Protobuf, Raw, sift
from jeton.errors import BatchError, FormatFailed, GraphError, JetonError

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "x": pa.float64(),
        "flag": pa.bool_(),
        "word": pa.string(),
        "at": pa.timestamp("us"),
        "zoned": pa.timestamp("ms", "UTC"),
        "list": pa.list_(pa.int64()),
    }
)
stamps = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1))
rows = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.none() | st.booleans(),
        "word": st.none() | st.text(),
        "at": st.none() | stamps,
        "zoned": st.none() | stamps.map(lambda at: at.replace(microsecond=0, tzinfo=datetime.UTC)),
        "list": st.none() | st.lists(st.integers(-(2**63), 2**63 - 1)),
    }
)


@given(st.lists(rows, max_size=8))
def test_json_is_what_pythons_own_makes_of_it(found: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(found, SCHEMA)
    encoded = JSON().encode(table)
    for value, row in zip(encoded.to_pylist(), found, strict=True):
        read = json.loads(value)
        assert list(read) == SCHEMA.names
        for name in ("n", "x", "flag", "word", "list"):
            assert read[name] == row[name]
        for name in ("at", "zoned"):
            assert row[name] is None or datetime.datetime.fromisoformat(read[name]) == row[name]
    if found:
        assert JSON(SCHEMA).decode(encoded).to_pylist() == table.to_pylist()


def test_json_of_other_types() -> None:
    table = pa.table(
        {
            'a "name"\n': pa.array([b"\x00\xff"], pa.binary()),
            "d": pa.array([Decimal("1.10")]),
            "day": pa.array([datetime.date(2024, 5, 1)]),
            "inf": pa.array([float("inf")]),
            "nothing": pa.nulls(1),
            "kind": pa.array(["a"]).dictionary_encode(),
            "inner": pa.array([{"x": 1, "at": datetime.datetime(2024, 5, 1)}]),
        }
    )
    [value] = JSON().encode(table).to_pylist()
    assert json.loads(value, parse_float=Decimal) == {
        'a "name"\n': "AP8=",
        "d": Decimal("1.10"),
        "day": "2024-05-01",
        "inf": None,
        "nothing": None,
        "kind": "a",
        "inner": {"x": 1, "at": "2024-05-01T00:00:00"},
    }
    assert JSON().encode(table.select([])).to_pylist() == [b"{}"]


def test_json_has_no_numbers_that_are_not_finite() -> None:
    table = pa.table({"list": [[1.0, float("nan")]], "inner": [{"x": float("inf"), "y": [2.0]}]})
    [value] = JSON().encode(table).to_pylist()
    read = json.loads(value, parse_constant=lambda text: pytest.fail(text))
    assert read == {"list": [1.0, None], "inner": {"x": None, "y": [2.0]}}


def test_dates_are_read_as_they_are_written() -> None:
    day = datetime.date(2024, 5, 1)
    inner = pa.struct({"days": pa.list_(pa.date32()), "n": pa.int64()})
    schema = pa.schema({"day": pa.date32(), "inner": inner})
    rows = [
        {"day": day, "inner": {"days": [day, None], "n": 1}},
        {"day": None, "inner": None},
    ]
    encoded = JSON().encode(pa.Table.from_pylist(rows, schema))
    assert JSON(schema).decode(encoded).to_pylist() == rows
    values = pa.array([encoded[0].as_py(), b'{"day": "May 1st"}'])
    assert [each.at for each in sift(JSON(schema), values)[1]] == [1]


# A value, and what becomes of it between two good ones.
BAD = [
    b"",
    b" ",
    b"{",
    b"}",
    b"5",
    b"null",
    b"[]",
    b'{"n": 1}{"n": 2}',
    b'{"n": 1}\n{"n": 2}',
    b'1}\n{"m":2,"v":{}',
    b'{"n": 1}}\n{"m":1,"v":{"n": 2}',
    b'{"n": "text"}',
    b'{"n": 1.5}',
    b'{"n": 99999999999999999999}',
    b'{"n": {}}',
    b"\xff\xfe",
    b'{"word": "\xff"}',
    b'{"word": "\x01',
    None,
]


OF_OTHER_TYPES = [value for value in BAD if value is not None and value.startswith(b'{"n": ')]
"""Without a schema they are good, alone."""


@pytest.mark.parametrize("typed", [False, True])
@given(bad=st.lists(st.sampled_from([b'{"n": 7}', *BAD]), min_size=1, max_size=6))
def test_bad_json_harms_no_other_record(bad: list[bytes | None], typed: bool) -> None:
    form = JSON(pa.schema({"n": pa.int64()})) if typed else JSON()
    if not typed:
        bad = [value for value in bad if value not in OF_OTHER_TYPES]
    values = [b'{"n": 1}', *bad, b'{"n":\n 2}']
    good = {at for at, value in enumerate(values) if _reads(form, value)}
    table, rejected = sift(form, pa.array(values, pa.binary()))
    assert {0, len(values) - 1} <= good
    assert table is not None
    assert {each.at for each in rejected} == set(range(len(values))) - good
    expected = [json.loads(values[at] or b"")["n"] for at in sorted(good)]
    assert len(table) == len(expected)
    if typed:
        assert table["n"].to_pylist() == expected


def _reads(form: Format, value: bytes | None) -> bool:
    """Whether a value is read when it is alone, as one JSON object."""
    try:
        if not isinstance(json.loads(value or b""), dict):
            return False
        form.decode(pa.array([value], pa.binary()))
    except Exception:
        return False
    return True


def test_types_that_do_not_go_together_are_an_error() -> None:
    values = pa.array([b'{"n": 1}', b'{"n": "one"}', b"{"])
    with pytest.raises(JetonError, match="declare the columns of the input"):
        sift(JSON(), values)


def test_a_format_that_loses_rows_is_an_error() -> None:
    class Half(Raw):
        def decode(self, values: pa.Array) -> pa.Table:
            return super().decode(values[: len(values) // 2])

    with pytest.raises(JetonError, match="Half made 1 rows of 2 values"):
        sift(Half(), pa.array([b"a", b"b"]))


def test_raw() -> None:
    assert Raw("line").encode(pa.table({"line": ["a", None]})).to_pylist() == [b"a", None]
    with pytest.raises(BatchError, match="no column 'value' to be written"):
        Raw().encode(pa.table({"line": ["a"]}))


# Avro

POINT = {
    "type": "record",
    "name": "Point",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {
            "name": "inner",
            "type": {
                "type": "record",
                "name": "Inner",
                "fields": [{"name": "x", "type": "double"}, {"name": "kind", "type": "Kind"}],
            },
        },
    ],
}
AT = datetime.datetime(2024, 5, 1, 9, tzinfo=datetime.UTC)
INNER = {"x": 0.5, "kind": "B"}
POINTS = [
    {"id": n, "note": note, "at": AT, "tags": ["a"] * n, "kind": "A", "inner": INNER}
    for n, note in ((1, "first"), (2, None))
]


def test_avro_round_trip_and_framing() -> None:
    form = Avro(POINT)
    encoded = form.encode(pa.Table.from_pylist(POINTS, form.columns))
    assert form.decode(encoded).to_pylist() == POINTS
    for bad in (encoded[0].as_py() + b"\x00", encoded[0].as_py()[:-1], None):
        table, rejected = sift(form, pa.array([encoded[1].as_py(), bad], pa.binary()))
        assert table is not None
        assert (table.to_pylist(), [each.at for each in rejected]) == (POINTS[1:], [1])
    # Written with an earlier schema, which the number at the beginning tells.
    earlier = {"type": "record", "name": "Point", "fields": [{"name": "id", "type": "long"}]}
    wanted = {**earlier, "fields": [*earlier["fields"], POINT["fields"][1]]}
    asked = []

    def schema_of(number: int) -> Any:
        asked.append(number)
        return earlier

    framed = Avro(earlier, writers={7: earlier}, number=7).encode(pa.table({"id": [5, 6]}))
    assert framed[0].as_py() == b"\x00\x00\x00\x00\x07\x0a"
    reader = Avro(wanted, writers=schema_of)
    assert reader.decode(framed).to_pylist() == [{"id": n, "note": None} for n in (5, 6)]
    assert asked == [7]
    with pytest.raises(BatchError, match="no schema of number 7"):
        Avro(wanted, writers={8: earlier}).decode(framed)
    with pytest.raises(BatchError, match="begins with 10 instead of 0"):
        reader.decode(pa.array([b"\x0a\x00\x00\x00\x07\x0a"]))


def avro_of(kind: Any, **more: Any) -> Avro:
    """The format of records with one field."""
    schema = {"type": "record", "name": "One", "fields": [{"name": "x", "type": kind}]}
    return Avro({**schema, **more})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "string", "logicalType": "uuid"}, "6f9619ff-8b86-d011-b42d-00c04fc964ff"),
        ({"type": "map", "values": "long"}, [("a", 1), ("b", 2)]),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}, Decimal("1.23")),
        ({"type": "int", "logicalType": "date"}, datetime.date(2024, 5, 1)),
    ],
)
def test_avro_of_other_types(kind: Any, value: Any) -> None:
    form = avro_of(kind)
    encoded = form.encode(pa.Table.from_pylist([{"x": value}], form.columns))
    assert form.decode(encoded).to_pylist() == [{"x": value}]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("long", pa.array([1.5])),
        ("int", pa.array([2**40])),
        ("long", pa.array([2**64 - 1], pa.uint64())),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.array([1], pa.timestamp("us"))),
        ("long", pa.array([None], pa.int64())),
        ({"type": "enum", "name": "Kind", "symbols": ["A"]}, pa.array(["B"])),
    ],
)
def test_values_that_avro_cannot_hold_are_errors(kind: Any, values: pa.Array) -> None:
    with pytest.raises(BatchError, match="cannot be written as"):
        avro_of(kind).encode(pa.table({"x": values}))
    with pytest.raises(BatchError, match=r"no columns \['x'\] for the Avro record 'One'"):
        avro_of(kind).encode(pa.table({"y": values}))


def test_timestamps_without_a_zone_are_those_of_utc_in_avro(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    form = avro_of({"type": "long", "logicalType": "timestamp-micros"})
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        [value] = form.encode(pa.table({"x": pa.array([1], pa.timestamp("us"))})).to_pylist()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert value == b"\x02"


def test_avro_names_have_namespaces() -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": "long"}]}
    other = {"type": "enum", "name": "org.other.Inner", "symbols": ["A"]}
    fields = [("a", inner), ("b", "com.shop.Inner"), ("c", ["null", "Inner"]), ("d", other)]
    schema = {
        "type": "record",
        "name": "Order",
        "namespace": "com.shop",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
    }
    struct = pa.struct({"n": pa.int64()})
    assert Avro(schema).columns.types == [struct, struct, struct, pa.string()]
    again = [{"name": "next", "type": ["null", "Order"]}]
    with pytest.raises(GraphError, match=r"'com\.shop\.Order' can contain another one of it"):
        Avro({**schema, "fields": again})


def test_a_registry_that_does_not_answer_makes_no_record_a_bad_one() -> None:
    def unreachable(number: int) -> Any:
        raise ConnectionError("refused")

    def unknown(number: int) -> Any:
        raise KeyError(number)

    values = pa.array([b"\x00\x00\x00\x00\x07\x0a", b"\x00\x00\x00\x00\x08\x0a"])
    schema = {"type": "record", "name": "One", "fields": [{"name": "x", "type": "long"}]}
    with pytest.raises(FormatFailed, match="schema of number 7: ConnectionError: refused"):
        sift(Avro(schema, writers=unreachable), values)
    assert len(sift(Avro(schema, writers=unknown), values)[1]) == 2


def test_avro_that_has_no_columns_is_refused() -> None:
    with pytest.raises(GraphError, match=r"is a dictionary, such as json\.loads"):
        Avro(json.dumps(POINT))  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="is of a record, not 'array'"):
        Avro({"type": "array", "items": "long"})
    field = {"name": "either", "type": ["long", "string"]}
    with pytest.raises(GraphError, match=r"union of .* has no type in Arrow"):
        Avro({"type": "record", "name": "Odd", "fields": [field]})


# Protobuf


def made_class() -> Any:
    """A message class, as protoc makes it of a file."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="reading.proto", package="test", syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )  # fmt: skip
    enum = file.enum_type.add(name="Kind")
    for number, name in enumerate(("UNKNOWN", "WARM", "COLD")):
        enum.value.add(name=name, number=number)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL)
    reading = file.message_type.add(name="Reading")
    entry = reading.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    for number, (name, kind, label, of) in enumerate(
        (
            ("id", kinds.TYPE_INT64, one, ""),
            ("kind", kinds.TYPE_ENUM, one, ".test.Kind"),
            ("inner", kinds.TYPE_MESSAGE, one, ".test.Inner"),
            ("more", kinds.TYPE_MESSAGE, many, ".test.Inner"),
            ("names", kinds.TYPE_STRING, many, ""),
            ("counts", kinds.TYPE_MESSAGE, many, ".test.Reading.CountsEntry"),
            ("at", kinds.TYPE_MESSAGE, one, ".google.protobuf.Timestamp"),
            ("data", kinds.TYPE_BYTES, one, ""),
        ),
        1,
    ):
        field = reading.field.add(name=name, number=number, type=kind, label=label)
        if of:
            field.type_name = of
    assert Timestamp, "its file is in the pool"
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Reading"))


def test_protobuf_round_trip() -> None:
    reading = made_class()
    form = Protobuf(reading)
    message = reading(id=3, kind=2, names=["a", "b"], counts={"x": 5}, data=b"\xff")
    message.inner.x = 1.5
    message.more.add(x=2.5)
    message.at.FromJsonString("2024-05-01T09:00:00.000000001Z")
    values = pa.array([message.SerializeToString(), b""], pa.binary())
    table = form.decode(values)
    assert table["at"].cast(pa.int64()).to_pylist() == [1_714_554_000_000_000_001, None]
    assert table.drop_columns(["at"]).to_pylist() == [
        {
            "id": 3,
            "kind": "COLD",
            "inner": {"x": 1.5},
            "more": [{"x": 2.5}],
            "names": ["a", "b"],
            "counts": [("x", 5)],
            "data": b"\xff",
        },
        {
            "id": 0,
            "kind": "UNKNOWN",
            "inner": None,
            "more": [],
            "names": [],
            "counts": [],
            "data": b"",
        },
    ]
    assert form.decode(form.encode(table)).equals(table)
    assert [each.at for each in sift(form, pa.array([values[0].as_py(), b"\xff"]))[1]] == [1]
    with pytest.raises(BatchError, match=r"has none of the columns \['ident'\], only fields"):
        form.encode(pa.table({"ident": [1]}))


def test_a_message_within_itself_has_no_columns() -> None:
    with pytest.raises(GraphError, match=r"google\.protobuf\.Struct can contain another one of it"):
        Protobuf(Struct)
