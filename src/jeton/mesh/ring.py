"""Rings: bytes that two processes of one machine pass on in memory that they share.

A ring has one writer and one reader. Each publishes how far it is, and reads how far the other is,
without a system call. That needs a processor on which stores become visible in order, so there are
rings on x86-64 only; elsewhere workers use their sockets.

A process that goes to sleep says so, checks its rings once more, and then waits at its socket: the
other one sends a byte there after it has written something, or has made room if that was waited
for. Between the store and the check there is a fence on both sides, so that one of them sees the
other.
"""

from __future__ import annotations

import mmap
import os
import platform
import struct
from collections.abc import Sequence
from threading import Lock
from typing import Any, Final

from jeton.core.errors import ProtocolError
from jeton.mesh.wire import Buffer

SUPPORTED: Final = hasattr(os, "memfd_create") and platform.machine() in ("x86_64", "AMD64")

_LINE: Final = 8
"""Words in a line of the processor's cache: what different processes write is on different ones."""
_WRITTEN, _READ, _AWAITED = 0, _LINE, 2 * _LINE
"""Of a ring: bytes ever written and ever read, and what its reader sleeps for."""
_WORDS: Final = 3 * _LINE
_CONTROL: Final = 4096
"""Bytes for the words of both rings, before their data."""

AWAKE, FOR_BYTES, FOR_BYTES_OR_ROOM = range(3)
"""The events that a sleeping process waits for."""

_fence = Lock()
"""To take a lock is a fence."""


def shared_size(size: int) -> int:
    """The bytes of memory for two rings of ``size`` bytes each, a power of two."""
    return _CONTROL + 2 * size


class Ring:
    """One direction between two processes; one of them uses `write`, the other one `read_into`.

    >>> memory = bytearray(shared_size(8))
    >>> writer, reader = Ring(memory, 0), Ring(memory, 0)
    >>> writer.write([b"hello", b", you"])
    8
    >>> into = bytearray(6)
    >>> reader.read_into(memoryview(into)), bytes(into)
    (6, b'hello,')
    >>> writer.write([b"ou all"]), reader.read_into(memoryview(into)), bytes(into)
    (6, 6, b' you a')
    """

    def __init__(self, memory: mmap.mmap | bytearray, number: int) -> None:
        """``number`` is 0 or 1: which of the two rings in the memory it is."""
        view = memoryview(memory)
        size = (len(view) - _CONTROL) // 2
        words = 8 * _WORDS
        start = _CONTROL + number * size
        self._words = view[number * words : (number + 1) * words].cast("Q")
        self._data = view[start : start + size]
        self._size = size
        self._at = 0
        """How far this process is."""

    @property
    def has_bytes(self) -> bool:
        """Whether there is something to read."""
        return self._words[_WRITTEN] != self._at

    @property
    def available(self) -> int:
        """The bytes to read."""
        return self._between(self._at, self._words[_WRITTEN])

    def write(self, buffers: Sequence[Buffer]) -> int:
        """Write as much as there is room for; returns how many bytes."""
        data, size, at = self._data, self._size, self._at
        room = size - self._between(self._words[_READ], at)
        for buffer in buffers:
            length = len(buffer)
            if length > room:
                buffer, length = memoryview(buffer)[:room], room
            place = at % size
            first = size - place
            if length <= first:
                data[place : place + length] = buffer
            else:
                view = memoryview(buffer)
                data[place:] = view[:first]
                data[: length - first] = view[first:]
            at += length
            room -= length
            if not room:
                break
        written = at - self._at
        self._words[_WRITTEN] = self._at = at
        return written

    def unpack(self, form: struct.Struct, ahead: int) -> tuple[Any, ...]:
        """Values ``ahead`` of what has been read, of bytes that are available; each read once."""
        place = (self._at + ahead) % self._size
        if place + form.size <= self._size:
            return form.unpack_from(self._data, place)
        return form.unpack(self.copy(ahead, form.size))

    def copy(self, ahead: int, length: int) -> bytearray:
        """A copy of bytes ``ahead`` of what has been read, all of which are available."""
        data, size = self._data, self._size
        place = (self._at + ahead) % size
        stop = place + length
        if stop <= size:
            return bytearray(data[place:stop])
        return bytearray().join((data[place:], data[: stop - size]))

    def advance(self, length: int) -> None:
        """Bytes have been read: there is room for others."""
        self._words[_READ] = self._at = self._at + length

    def read_into(self, into: memoryview) -> int:
        """Read what has been written, as far as it fits; returns how many bytes."""
        data, size, at = self._data, self._size, self._at
        length = min(self._between(at, self._words[_WRITTEN]), len(into))
        place = at % size
        first = size - place
        if length <= first:
            into[:length] = data[place : place + length]
        else:
            into[:first] = data[place:]
            into[first:length] = data[: length - first]
        self._words[_READ] = self._at = at + length
        return length

    def _between(self, read: int, written: int) -> int:
        """The bytes that are in the ring."""
        inside = written - read
        if not 0 <= inside <= self._size:
            raise ProtocolError(f"a ring of {self._size} bytes cannot have {inside} bytes in it")
        return inside

    def sleep(self, awaited: int) -> None:
        """The reader is about to sleep, or is awake again."""
        self._words[_AWAITED] = awaited
        with _fence:
            pass

    def wakes(self, least: int) -> bool:
        """Whether the reader sleeps for this, or for more: then it has to be woken, once."""
        with _fence:
            pass
        if self._words[_AWAITED] < least:
            return False
        self._words[_AWAITED] = AWAKE
        return True

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._data.release()
