"""Readers of marks: what the marks of several senders come to, one by one."""

from __future__ import annotations

import jeton as jt
from jeton.idioms.watermark_ports import ACTIVE, CLOSED, IDLE, MarkReader


def read(reader: MarkReader, *marks: tuple[int, int, int]) -> tuple[int, int]:
    for sender, status, time in marks:
        reader.read(0, sender * 4 + status, time)
    return reader.mark, reader.status


def test_a_sender_that_comes_back_counts_once_it_has_caught_up() -> None:
    reader = MarkReader([2], least=0)
    assert read(reader, (0, ACTIVE, 5), (1, ACTIVE, 3)) == (3, ACTIVE)
    assert read(reader, (1, IDLE, 3), (0, ACTIVE, 10)) == (10, ACTIVE)
    assert read(reader, (1, ACTIVE, 3), (0, ACTIVE, 12)) == (12, ACTIVE)
    assert read(reader, (1, ACTIVE, 12), (0, ACTIVE, 20)) == (12, ACTIVE)
    assert read(reader, (1, ACTIVE, 13)) == (13, ACTIVE)


def test_all_idle_is_idle_and_the_mark_stays() -> None:
    reader = MarkReader([1, 1], least=0)
    reader.read(0, ACTIVE, 5)
    reader.read(1, ACTIVE, 7)
    reader.read(0, IDLE, 5)
    assert (reader.mark, reader.status) == (7, ACTIVE)
    reader.read(1, IDLE, 7)
    assert (reader.mark, reader.status) == (7, IDLE)
    reader.changed = False
    reader.read(0, ACTIVE, 6)
    assert (reader.mark, reader.status, reader.changed) == (7, ACTIVE, True)


def test_the_end_needs_all_senders() -> None:
    reader = MarkReader([3], least=0)
    assert read(reader, (0, CLOSED, 4), (1, ACTIVE, 2), (2, ACTIVE, 9)) == (2, ACTIVE)
    assert read(reader, (1, IDLE, 2), (2, CLOSED, 9)) == (jt.END_OF_TIME, IDLE)
    # What comes now is late; the end is the end only with the last one's word.
    assert read(reader, (1, ACTIVE, 2)) == (jt.END_OF_TIME, ACTIVE)
    assert read(reader, (1, CLOSED, 2)) == (jt.END_OF_TIME, CLOSED)


def test_a_lagging_sender_puts_the_end_off() -> None:
    reader = MarkReader([2], least=0)
    read(reader, (1, IDLE, 0), (0, ACTIVE, 10), (1, ACTIVE, 4))
    assert read(reader, (0, CLOSED, 10)) == (10, ACTIVE)
    assert read(reader, (1, ACTIVE, 11)) == (11, ACTIVE)
    assert read(reader, (1, CLOSED, 11)) == (11, CLOSED)


def test_marks_that_say_nothing_new_change_nothing() -> None:
    reader = MarkReader([2], least=0)
    read(reader, (0, ACTIVE, 5), (1, ACTIVE, 3))
    reader.changed = False
    read(reader, (0, ACTIVE, 6), (1, ACTIVE, 3))
    assert not reader.changed
