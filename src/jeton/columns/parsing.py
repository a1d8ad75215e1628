"""Parsing: timestamps from texts, with no date that the calendar does not have."""

from __future__ import annotations

import datetime
import re
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns.column import Column, from_arrow, is_text, to_arrow
from jeton.columns.durations import NANOSECONDS
from jeton.core.errors import BatchError, ColumnTypeError

_SHORT: Final = {"%F": "%Y-%m-%d", "%T": "%H:%M:%S", "%R": "%H:%M", "%D": "%m/%d/%y"}
_KNOWN: Final = "YymdHIMSfzpbBaA%"
"""The directives that Arrow and Python read in the same way, and ``%f``."""

_DAY: Final = 86_400
_SHORT_BEFORE: Final = np.isin(np.arange(12), [2, 4, 6, 9, 11])
"""The months, from 0 for January, that follow one of less than 31 days."""

Mask = npt.NDArray[np.bool_]
Seconds = npt.NDArray[np.int64]


def to_datetime(column: Column, format: str, unit: str, strict: bool) -> Column:
    """The timestamps that texts show in a format; other texts are an error, or null.

    >>> to_datetime(pa.array(["2024-02-30", "2024-03-01"]), "%Y-%m-%d", "s", False).to_pylist()
    [None, datetime.datetime(2024, 3, 1, 0, 0)]
    """
    array = to_arrow(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (is_text(array.type) or pa.types.is_null(array.type)):
        raise ColumnTypeError(f"functions of .str need text, not {array.type}: cast(str) makes it")
    format = _checked(format)
    per_second = NANOSECONDS["s"] // NANOSECONDS[unit]
    texts = array.cast(pa.string())
    whole, plain = texts, format
    known = np.ones(len(texts), dtype=bool)
    fraction = np.zeros(len(texts), dtype=np.int64)
    if "%f" in format:
        whole, plain, fraction, known = _split(texts, format, NANOSECONDS[unit])
    parsed = pc.strptime(whole, format=plain, unit="s", error_is_null=True)
    seconds = parsed.cast(pa.int64()).fill_null(0).to_numpy()
    known &= parsed.is_valid().to_numpy(zero_copy_only=False)
    known &= np.abs(seconds) < (2**63 - 1) // per_second
    known &= ~_spaced(whole, plain)
    known &= ~_impossible(whole, seconds, plain, known)
    wrong = ~known & texts.is_valid().to_numpy(zero_copy_only=False)
    if strict and wrong.any():
        raise BatchError(
            f"to_datetime: {texts[int(wrong.argmax())].as_py()!r} does not show a time of unit "
            f"{unit} in the format {format!r}: strict=False makes null of such texts"
        )
    with np.errstate(over="ignore"):  # where nothing is known
        made = pa.array(seconds * per_second + fraction, mask=~known)
    return from_arrow(made.view(pa.timestamp(unit, parsed.type.tz)))


def _checked(format: str) -> str:
    """A format with its abbreviations written out; unknown directives are refused."""
    for short, long in _SHORT.items():
        format = re.sub(f"(?<!%)((?:%%)*){short}", rf"\1{long}", format)
    for directive in re.findall(r"%(.?)", format, re.DOTALL):
        if not directive or directive not in _KNOWN:
            raise BatchError(
                f"to_datetime does not know %{directive} in {format!r}: there are "
                + ", ".join(f"%{known}" for known in "YymdHIMSfzpbBaAFTRD%")
            )
    if format.count("%f") > 1:
        raise BatchError(f"to_datetime takes one %f, not several, as in {format!r}")
    return format


def _split(
    texts: pa.Array, format: str, unit: int
) -> tuple[pa.Array, str, npt.NDArray[np.int64], Mask]:
    """Texts and their format without the fractions of a second, these, and which are known."""
    before, after = format.split("%f")
    sign = before[-1:]
    if not sign or sign.isalnum() or before.endswith("%%"):
        raise BatchError(
            f"to_datetime needs a sign before %f, as in '%S.%f', which {format!r} does not have"
        )
    pattern = rf"(?s)^(?P<before>.*){re.escape(sign)}(?P<digits>[0-9]{{1,9}})(?P<after>[^0-9].*)?$"
    parts = pc.extract_regex(texts, pattern=pattern)
    found = parts.is_valid()
    head, digits, tail = (
        pc.if_else(found, pc.struct_field(parts, name), "")
        for name in ("before", "digits", "after")
    )
    whole = pc.if_else(found, pc.binary_join_element_wise(head, tail.fill_null(""), ""), None)
    padded = pc.utf8_rpad(digits, width=9, padding="0").cast(pa.int64()).to_numpy()
    known = found.to_numpy(zero_copy_only=False) & (padded % unit == 0)
    return whole, before[:-1] + after, padded // unit, known


def _spaced(texts: pa.Array, format: str) -> Mask:
    """Which texts have white space where the format has none, which Arrow passes over."""
    where = r"^\s|\s$" if re.search(r"\s", format) else r"\s"
    found: Mask = (
        pc.match_substring_regex(texts, where).fill_null(False).to_numpy(zero_copy_only=False)
    )
    return found


def _impossible(texts: pa.Array, seconds: Seconds, format: str, known: Mask) -> Mask:
    """Which texts show a 30 February, or a second of 60, that Arrow took for the time after it."""
    suspect = np.zeros(len(texts), dtype=bool)
    if "%d" in format:
        # The date that was written may be that of the day before or after in UTC.
        for shift in (-1, 0, 1) if "%z" in format else (0,):
            suspect |= _after_short_months(seconds + shift * _DAY)
    if "%S" in format:
        sixty = pc.match_substring_regex(texts, "6[01]").fill_null(False)
        suspect |= sixty.to_numpy(zero_copy_only=False) & (seconds % 60 <= 1)
    rows = np.flatnonzero(suspect & known)
    wrong = np.zeros(len(texts), dtype=bool)
    for row, text in zip(rows, texts.take(pa.array(rows)).to_pylist(), strict=True):
        try:
            datetime.datetime.strptime(text, format)
        except ValueError:
            wrong[row] = True
    return wrong


def _after_short_months(seconds: Seconds) -> Mask:
    """Which times are on the first days of March, or on the day after a month of 30 days.

    >>> days = np.array(["2024-03-03", "2024-05-01", "2024-05-02", "2024-06-01"], "M8[s]")
    >>> _after_short_months(days.astype(np.int64))
    array([ True,  True, False, False])
    """
    days = seconds // _DAY
    months = days.view("M8[D]").astype("M8[M]")
    day = days - months.astype("M8[D]").astype(np.int64)  # from 0 on
    month = months.astype(np.int64) % 12  # 0 for January
    found: Mask = (day <= 2) & _SHORT_BEFORE[month] & ((day == 0) | (month == 2))
    return found
