"""Timestamps from texts, compared with Python's own parser."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.columns import parsing
from jeton.errors import BatchError, ColumnTypeError

FORMATS = [
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S.%f",
    "%d.%m.%y %I:%M %p",
    "%b %d %Y",
    "%Y%m%d%H%M%S",
    "%Y-%m-%dT%H:%M:%S.%f%z",
    "%Y-%m-%d %H:%M%z",
]


def parsed(texts: list[str | None], format: str, **options: Any) -> list[Any]:
    batch = jt.Batch({"x": pa.array(texts, pa.string())}, times=[0] * len(texts))
    found: list[Any] = batch["x"].str.to_datetime(format, **options).to_list()
    return found


def by_python(text: str, format: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.strptime(text, format)
    except ValueError:
        return None


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(FORMATS))
def test_texts_mean_what_python_says(data: st.DataObject, format: str) -> None:
    def number(low: int, high: int, digits: int = 2) -> str:
        return f"{data.draw(st.integers(low, high)):0{digits}d}"

    texts = []
    for _ in range(data.draw(st.integers(1, 6))):
        text = format
        for directive, value in {
            "%Y": number(1700, 2200, 4),
            "%y": number(0, 99),
            "%m": number(1, 13),
            "%d": number(1, 32),
            "%H": number(0, 24),
            "%I": number(1, 12),
            "%M": number(0, 60),
            "%S": number(0, 61),
            "%f": number(0, 999_999, 6),
            "%p": data.draw(st.sampled_from(["AM", "PM"])),
            "%b": data.draw(st.sampled_from(["Jan", "Feb", "Dec"])),
            "%z": data.draw(st.sampled_from(["+0100", "-11:30", "Z"])),
        }.items():
            text = text.replace(directive, value)
        texts.append(text)
    assert parsed([*texts, None], format, strict=False) == [
        *(by_python(text, format) for text in texts),
        None,
    ]


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("2024-02-30", "%Y-%m-%d"),
        ("2023-02-29", "%F"),
        ("2024-04-31", "%Y-%m-%d"),
        ("2024-01-01 10:11:60", "%F %T"),
        ("2024-02-30T23:00:00+0100", "%Y-%m-%dT%H:%M:%S%z"),
        ("2024-01-01 ", "%Y-%m-%d"),
        ("2024- 1-01", "%Y-%m-%d"),
        ("junk", "%Y-%m-%d"),
        ("2024-01-01 10:11:12", "%Y-%m-%d %H:%M:%S.%f"),
        ("10:11:12.", "%H:%M:%S.%f"),
    ],
)
def test_what_is_not_a_time_is_an_error_or_null(text: str, format: str) -> None:
    with pytest.raises(BatchError, match=r"does not show a time.*strict=False makes null") as error:
        parsed([text], format)
    assert repr(text) in str(error.value)
    assert parsed([text, None], format, strict=False) == [None, None]


def test_fractions_have_as_many_digits_as_the_unit() -> None:
    format = "%H:%M:%S.%f"
    found = parsing.to_datetime(pa.array(["00:00:01.123456789"]), format, "ns", True)
    assert int(found.astype("int64")[0]) % 10**9 == 123_456_789
    assert parsed(["00:00:01.123000", "00:00:01.5"], format, unit="ms")[0].microsecond == 123_000
    with pytest.raises(BatchError, match="a time of unit ms"):
        parsed(["00:00:01.1234"], format, unit="ms")
    assert parsed(["2024-05-06 07:08:09.5 Z"], "%Y-%m-%d %T.%f Z") == [
        datetime.datetime(2024, 5, 6, 7, 8, 9, 500_000)
    ]


def test_a_time_outside_the_unit_is_an_error_or_null() -> None:
    with pytest.raises(BatchError, match="'9999-01-01' does not show a time of unit ns"):
        parsed(["9999-01-01"], "%Y-%m-%d", unit="ns")
    assert parsed(["9999-01-01"], "%Y-%m-%d", unit="ns", strict=False) == [None]
    assert parsed(["9999-01-01"], "%Y-%m-%d") == [datetime.datetime(9999, 1, 1)]


def test_formats_that_are_refused() -> None:
    with pytest.raises(BatchError, match="does not know %j"):
        parsed(["366 2024"], "%j %Y")
    with pytest.raises(BatchError, match="does not know %Q"):
        parsed(["x"], "%Q")
    with pytest.raises(BatchError, match="needs a sign before %f"):
        parsed(["011"], "%S%f")
    with pytest.raises(BatchError, match="one %f"):
        parsed(["0.1.1"], "%S.%f.%f")
    with pytest.raises(ColumnTypeError, match="unit='D' is not one of"):
        parsed(["2024"], "%Y", unit="D")
    with pytest.raises(ColumnTypeError, match="need text, not int64"):
        jt.Batch({"x": [1]}, times=[0])["x"].str.to_datetime("%Y")
    flow = jt.Flow("texts")
    stream = flow.input("in", schema={"x": str}).with_columns(
        at=jt.col("x").str.to_datetime("%Y-%m-%dT%H:%M:%S%z", unit="ms")
    )
    assert stream.schema is not None
    assert stream.schema.field("at").type == pa.timestamp("ms", "UTC")
