"""Frames: what goes in comes out, and what was damaged on the way is refused, not believed."""

from __future__ import annotations

import datetime as dt
import struct
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jeton as jt
from jeton.columns.batch import Batch
from jeton.columns.time_units import UNITS
from jeton.errors import ProtocolError, TimeError
from jeton.mesh.wire import HEADER, Buffer, Decoder, Encoder, Kind
from jeton.progress.protocol import ProgressBatch

WHEN = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901)

COLUMNS: dict[str, Any] = {
    **{f"int{bits}": np.array([-1, 0, 1], dtype=f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": np.array([0, 1, 255], dtype=f"uint{bits}") for bits in (8, 16, 32, 64)},
    "half": np.array([0.5, -1, 2], dtype=np.float16),
    "float": np.array([0.1, np.inf, -0.0], dtype=np.float32),
    "double": np.array([0.1, -np.inf, 1e300]),
    "big end first": np.array([1, 2, 3], dtype=">i8"),
    "strided": np.arange(9)[::3],
    "bool": np.array([True, False, True]),
    "moment": np.array(["2026-01-02", "1969-01-01", "2000-01-01"], dtype="datetime64[us]"),
    "duration": np.array([1, -1, 0], dtype="timedelta64[ns]"),
    "text": pa.array(["ä", "", "word"]),
    "empty texts": pa.array(["", "", ""]),
    "null texts": pa.array([None, None, None], pa.string()),
    "no data buffer": pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(b"\0" * 16), pa.py_buffer(b"")]
    ),
    "large text": pa.array(["a", None, "b"], pa.large_string()),
    "text view": pa.array(["a", None, "longer than twelve bytes"], pa.string_view()),
    "bytes": pa.array([b"\0", None, b""]),
    "large bytes": pa.array([b"\0", None, b""], pa.large_binary()),
    "fixed bytes": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "null ints": pa.array([1, None, 3]),
    "null bools": pa.array([True, None, False]),
    "null floats": pa.array([1.5, None, float("inf")]),
    "nulls": pa.nulls(3),
    "decimal": pa.array([Decimal("1.10"), None, Decimal("-0.01")], pa.decimal128(10, 2)),
    "large decimal": pa.array([Decimal(10**40), None, Decimal(-1)], pa.decimal256(50, 0)),
    "date": pa.array([dt.date(2026, 1, 2), None, dt.date(1969, 1, 1)]),
    "date64": pa.array([dt.date(2026, 1, 2), None, dt.date(1969, 1, 1)], pa.date64()),
    "time of day": pa.array([dt.time(1, 2, 3), None, dt.time(0)], pa.time64("us")),
    "zoned": pa.array([WHEN, None, WHEN], pa.timestamp("us", tz="Europe/Zurich")),
    "interval": pa.array([(1, 2, 3), None, (0, 0, 0)], pa.month_day_nano_interval()),
    "list": pa.array([[1, 2], None, []]),
    "large list": pa.array([["a"], None, []], pa.large_list(pa.string())),
    "fixed list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3]), pa.array(["x", "y"])),
}


def frames(buffers: list[Buffer]) -> list[tuple[int, int, bytes]]:
    """Headers and payloads, cut as a link would."""
    stream = b"".join(bytes(buffer) for buffer in buffers)
    found, at = [], 0
    while at < len(stream):
        kind, number, length = HEADER.unpack_from(stream, at)
        at += HEADER.size
        found.append((kind, number, stream[at : at + length]))
        at += length
    return found


def there_and_back(
    batch: Batch, time: Any, encoder: Encoder | None = None, decoder: Decoder | None = None
) -> tuple[Any, Batch]:
    encoder, decoder = encoder or Encoder(), decoder or Decoder()
    received = []
    for kind, number, payload in frames(encoder.message(7, time, batch)):
        if kind == Kind.LAYOUT:
            decoder.layout(number, payload)
        else:
            assert (kind, number) == (Kind.MESSAGE, 7)
            received.append(decoder.message(bytearray(payload)))
    (message,) = received
    return message


def assert_same(batch: Batch, other: Batch) -> None:
    assert other.names == batch.names
    assert other.time_name == batch.time_name
    np.testing.assert_array_equal(other.times, batch.times)
    for name in batch.names:
        one: Any = batch.column(name)
        two: Any = other[name]
        if isinstance(one, np.ndarray):
            assert one.dtype == two.dtype
            np.testing.assert_array_equal(one, two)
        else:
            two.validate(full=True)
            assert two.equals(one), name
            assert two.type == one.type


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_every_type_come_back(name: str) -> None:
    column = COLUMNS[name]
    batch = Batch.trusted({name: column}, np.array([5, 6, 7]), "ts")
    time, back = there_and_back(batch, 5)
    assert time == 5
    assert_same(batch, back)


@pytest.mark.parametrize("name", COLUMNS)
def test_slices_come_back_and_carry_no_more_than_they_need(name: str) -> None:
    column = COLUMNS[name]
    many = (
        np.tile(column, 10_000)
        if isinstance(column, np.ndarray)
        else pa.concat_arrays([column] * 10_000)
    )
    for start, stop in ((0, 2), (1, 3), (29_997, 30_000), (1, 1)):
        batch = Batch.trusted({name: many}, np.arange(30_000), "ts").slice(start, stop)
        _, back = there_and_back(batch, 0)
        assert_same(batch, back)
        size = sum(len(memoryview(buffer)) for buffer in Encoder().message(0, 0, batch))
        assert size < 10_000, f"{size} bytes for {stop - start} rows"


def test_layouts_are_sent_once_each() -> None:
    encoder, decoder = Encoder(), Decoder()
    one = Batch({"n": [1, 2]}, times=[0, 1])
    two = Batch({"n": ["a"]}, times=[3])
    sent = [len(frames(encoder.message(0, 0, batch))) for batch in (one, two, one, two)]
    assert sent == [2, 2, 1, 1]
    encoder = Encoder()
    for batch in (one, two, one, two):
        assert_same(batch, there_and_back(batch, 0, encoder, decoder)[1])


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_times_of_loops_come_back(rows: int, depth: int) -> None:
    times = np.arange(rows * (depth + 1), dtype=np.int64).reshape(rows, depth + 1)
    time = jt.Product.of(tuple(range(depth + 1)))
    batch = Batch.trusted({"n": np.arange(rows)}, times)
    back_time, back = there_and_back(batch, time)
    assert back_time == time
    assert isinstance(back_time, jt.Product)
    assert_same(batch, back)


@pytest.mark.parametrize("names", [["int64"], ["double", "moment"], ["int64", "bool", "text"]])
@pytest.mark.parametrize("rows", [300, 1001, 30_000])
def test_small_and_large_batches_come_back(names: list[str], rows: int) -> None:
    columns = {
        name: np.resize(column, rows)
        if isinstance(column, np.ndarray)
        else pa.concat_arrays([column] * rows)[:rows]
        for name, column in COLUMNS.items()
        if name in names
    }
    encoder, decoder = Encoder(), Decoder()
    batch = Batch.trusted(columns, np.arange(rows))
    for part in (batch, batch.slice(7, rows - 7), batch.slice(0, 3), batch):
        assert_same(part, there_and_back(part, 0, encoder, decoder)[1])


@pytest.mark.parametrize("rows", [0, 2, 4, 2**31])
@pytest.mark.parametrize("names", [["int64"], ["int64", "bool", "text"]])
def test_a_message_with_another_number_of_rows_is_refused(names: list[str], rows: int) -> None:
    sent, decoder = sample(names)
    payload = bytearray(sent[1][2])
    struct.pack_into("<I", payload, 4, rows)
    with pytest.raises(ProtocolError, match=r"a message|offsets"):
        decoder.message(payload)


def test_a_layout_with_objects_is_refused() -> None:
    field = pa.field("n", pa.null(), metadata={"numpy": "|O"})
    text = pa.schema([field], metadata={"time": "time", "width": "0", "unit": ""}).serialize()
    with pytest.raises(ProtocolError, match="a column of type object cannot leave a process"):
        Decoder().layout(0, text.to_pybytes())


def test_received_columns_can_be_written_to() -> None:
    _, back = there_and_back(Batch({"n": [1, 2]}, times=[0, 1]), 0)
    assert back.column("n").flags.writeable


def test_times_of_the_users_own_cannot_leave() -> None:
    times = np.empty(1, dtype=object)
    times[:] = [object()]
    with pytest.raises(TimeError, match="cannot leave a process"):
        Encoder().message(0, 0, Batch.trusted({}, times))
    with pytest.raises(TimeError, match="cannot leave a process"):
        Encoder().progress(ProgressBatch(0, 0, (((0, "noon"), 1),)))


int64 = st.integers(-(2**63), 2**63 - 1)
stamps = st.one_of(int64, st.lists(int64, min_size=2, max_size=4).map(tuple).map(jt.Product.of))
changes = st.lists(st.tuples(st.tuples(st.integers(0, 10**6), stamps), int64), max_size=20).map(
    tuple
)
named = st.tuples(st.integers(0, 5000), st.tuples(st.integers(0, 10**6), stamps))
progress_batches = st.builds(
    ProgressBatch,
    st.integers(0, 1000),
    st.integers(0, 2**40),
    changes,
    changes,
    st.sampled_from([None, *UNITS]),
    st.lists(st.tuples(named, int64), max_size=10).map(tuple),
    st.integers(0, 2**40),
)


@given(progress_batches)
def test_progress_batches_come_back(batch: ProgressBatch) -> None:
    ((kind, number, payload),) = frames(Encoder().progress(batch))
    assert kind == Kind.PROGRESS
    back = Decoder().progress(payload, number)
    assert back == batch
    for (_, old), (_, new) in zip(
        (change[0] for change in (*batch.changes, *batch.yours)),
        (change[0] for change in (*back.changes, *back.yours)),
        strict=True,
    ):
        assert type(new) is type(old)
    for ((_, (_, old)), _), ((_, (_, new)), _) in zip(batch.named, back.named, strict=True):
        assert type(new) is type(old)


@given(progress_batches, st.binary(max_size=400), st.integers(-5, 40))
def test_garbled_progress_is_refused_or_is_a_batch(
    batch: ProgressBatch, garbage: bytes, number: int
) -> None:
    ((_, _, payload),) = frames(Encoder().progress(batch))
    for damaged in (garbage, bytes(payload)[:-8], bytes(payload)):
        with suppress(ProtocolError):
            assert isinstance(Decoder().progress(damaged, number), ProgressBatch)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ((0, 0, 4, 3, 1, 1, 9), -1),
        ((0, 0, 4, 3, 1, 1, 9), 2),
        ((0, 0, 4, 3, 1, 0), 1),
        ((0, 0, 4, 3, 1, 5, 9), 1),
        ((0, 0, 4, 3), 1),
        ((0, 0, -1, 3, 1, 7), 0),
        ((0, 0, -1, -1, 1, 0), 0),
        ((0, 0, -1, len(UNITS), 1, 0), 0),
        ((0, 0, -1, 0, 1, 1), 0),
        ((0, 0, -1, -3, 1, 1), 0),
        ((0, 0, 4, -1, 1, 1, 9), 1),
        ((0, 0, -4, 3, 1, 1, 9), 1),
    ],
)
def test_named_changes_and_notes_that_cannot_be_read(words: tuple[int, ...], number: int) -> None:
    """The first word after worker and sequence is the named worker, or a note."""
    with pytest.raises(ProtocolError, match="progress batch"):
        Decoder().progress(struct.pack(f"<{len(words)}q", *words), number)


values = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30),
    st.lists(st.one_of(st.none(), st.text(max_size=10)), max_size=30),
    st.lists(st.one_of(st.none(), st.booleans()), max_size=30),
    st.lists(st.floats(allow_nan=False), max_size=30),
    st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=30),
)


@given(st.lists(values, max_size=4), st.data())
def test_any_batch_comes_back(columns: list[list[Any]], data: st.DataObject) -> None:
    rows = min((len(values) for values in columns), default=0)
    batch = Batch(
        {f"c{at}": pa.array(values[:rows]) for at, values in enumerate(columns)},
        times=np.arange(rows),
    )
    start = data.draw(st.integers(0, rows))
    part = batch.slice(start, data.draw(st.integers(start, rows)))
    assert_same(part, there_and_back(part, 0)[1])


MIXED = ["int64", "bool", "text", "null ints", "list", "dictionary", "large text", "nulls"]
WORDS = ["int64", "double", "moment"]
"""Columns of eight bytes, which are read all at once."""


def sample(names: list[str] = MIXED) -> tuple[list[tuple[int, int, bytes]], Decoder]:
    batch = Batch.trusted({name: COLUMNS[name] for name in names}, np.array([1, 2, 3]))
    sent = frames(Encoder().message(0, 1, batch))
    decoder = Decoder()
    decoder.layout(sent[0][1], sent[0][2])
    return sent, decoder


def read_all(batch: Batch) -> None:
    """Touch every value, where a bad offset would show."""
    for name in batch.names:
        column = batch.column(name)
        assert len(column.tolist()) == len(batch)


@given(st.data())
def test_truncated_messages_are_refused(data: st.DataObject) -> None:
    sent, decoder = sample(data.draw(st.sampled_from([MIXED, WORDS])))
    payload = sent[1][2]
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    with pytest.raises(ProtocolError):
        decoder.message(bytearray(cut))


@given(st.data())
def test_garbled_messages_are_refused_or_read_but_never_crash(data: st.DataObject) -> None:
    sent, decoder = sample(data.draw(st.sampled_from([MIXED, WORDS])))
    payload = bytearray(sent[1][2])
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    try:
        _, batch = decoder.message(payload)
        read_all(batch)
    except ProtocolError:
        pass
    except UnicodeDecodeError:
        pass  # Other text than was sent: bytes that only their reader can judge.


@given(st.binary(max_size=200), st.sampled_from([MIXED, WORDS]))
def test_garbage_is_refused(payload: bytes, names: list[str]) -> None:
    _, decoder = sample(names)
    with pytest.raises(ProtocolError):
        decoder.message(payload)
    with pytest.raises(ProtocolError):
        decoder.layout(5, payload)


@given(st.lists(int64, max_size=12).map(lambda words: struct.pack(f"<{len(words)}q", *words)))
def test_garbled_progress_is_refused_or_read_but_never_hangs(payload: bytes) -> None:
    with suppress(ProtocolError):
        Decoder().progress(payload)


@pytest.mark.parametrize("width", [-1, -4, 0, 5, 2**40])
def test_progress_with_an_impossible_time_is_refused(width: int) -> None:
    payload = struct.pack("<7q", 0, 0, 1, 1, width, 9, 9)
    with pytest.raises(ProtocolError, match="coordinates"):
        Decoder().progress(payload)


def test_a_message_of_an_unknown_layout_is_refused() -> None:
    sent, _ = sample()
    with pytest.raises(ProtocolError, match="layout 0, which was not sent"):
        Decoder().message(sent[1][2])
