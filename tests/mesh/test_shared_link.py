"""Links in shared memory: frames of any size, sleep and wake, peers that go, memory that lies."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import selectors
import socket
import time
from collections.abc import Iterator
from multiprocessing import get_context

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jeton.errors import JetonError, ProtocolError
from jeton.mesh import ring
from jeton.mesh.link import PeerLost
from jeton.mesh.ring import Ring, shared_size
from jeton.mesh.shared_link import SharedLink, accept_memory, offer_memory, ring_size
from jeton.mesh.wire import HEADER, Buffer, Kind

pytestmark = pytest.mark.skipif(not ring.SUPPORTED, reason="shared memory needs Linux on x86-64")

SIZE = 1 << 12
LIMIT = 20.0


def pair(size: int = SIZE) -> tuple[SharedLink, SharedLink]:
    """The two ends of a link."""
    here, there = socket.socketpair()
    return joined(here, size, first=True), joined(there, size, first=False)


def joined(sock: socket.socket, size: int, *, first: bool) -> SharedLink:
    if first:
        memory = offer_memory(sock, size)
    else:
        memory = accept_memory(sock, size, 0, time.monotonic() + LIMIT)
    assert memory is not None
    return SharedLink(sock, int(first), memory, first=first)


@pytest.fixture
def ends() -> Iterator[tuple[SharedLink, SharedLink]]:
    here, there = pair()
    yield here, there
    here.close()
    there.close()


def frame(payload: Buffer, kind: int = Kind.MESSAGE) -> list[Buffer]:
    return [HEADER.pack(kind, 7, len(payload)), payload]


def exchange(here: SharedLink, there: SharedLink, count: int) -> list[bytes]:
    """Have both act in turn until a number of frames has arrived."""
    found: list[bytes] = []
    while len(found) < count:
        here.flush()
        found += [bytes(payload) for _, _, payload in there.receive()]
    return found


@given(
    st.lists(st.binary(max_size=40), max_size=40),
    st.lists(st.integers(1, 30), min_size=1, max_size=20),
)
def test_a_ring_passes_all_bytes_on_in_order(parts: list[bytes], reads: list[int]) -> None:
    memory = bytearray(shared_size(16))
    writer, reader = Ring(memory, 1), Ring(memory, 1)
    left = memoryview(b"".join(parts))
    sent = bytes(left)
    found = b""
    at = 0
    while left or reader.has_bytes:
        # In pieces, as buffers come.
        left = left[writer.write([left[:3], left[3:10]]) :] if left else left
        into = bytearray(reads[at % len(reads)])
        found += bytes(into[: reader.read_into(memoryview(into))])
        at += 1
    assert found == sent


def test_the_two_rings_of_a_memory_do_not_touch() -> None:
    memory = bytearray(shared_size(8))
    one, other = Ring(memory, 0), Ring(memory, 1)
    assert one.write([b"12345678"]) == 8
    assert one.write([b"9"]) == 0
    assert not other.has_bytes
    assert other.write([b"abc"]) == 3
    into = bytearray(8)
    assert Ring(memory, 0).read_into(memoryview(into)) == 8
    assert bytes(into) == b"12345678"


@given(st.lists(st.integers(0, 3 * SIZE), min_size=1, max_size=8))
@settings(max_examples=40)
def test_frames_of_any_size_arrive_whole(sizes: list[int]) -> None:
    here, there = pair()
    try:
        sent = [os.urandom(size) for size in sizes]
        for payload in sent:
            here.send(frame(payload))
        assert exchange(here, there, len(sent)) == sent
        assert here.waiting == 0
        assert here.bytes_out == there.bytes_in
        there.send(frame(b"back"))
        assert exchange(there, here, 1) == [b"back"]
    finally:
        here.close()
        there.close()


def test_damaged_positions_are_refused(ends: tuple[SharedLink, SharedLink]) -> None:
    here, there = ends
    here.send(frame(b"x"))
    view = memoryview(here._memory).cast("Q")
    view[0] += 2 * SIZE
    view.release()
    with pytest.raises(ProtocolError, match=r"a ring of 4096 bytes cannot have"):
        there.receive()


def test_a_sleeping_peer_is_woken_once_for_bytes(ends: tuple[SharedLink, SharedLink]) -> None:
    here, there = ends
    there.before_waiting()
    here.send(frame(b"one"))
    here.send(frame(b"two"))
    assert len(there.sock.recv(100)) == 1
    there.after_waiting()
    here.send(frame(b"three"))
    with pytest.raises(BlockingIOError):
        there.sock.recv(100)
    assert exchange(here, there, 3) == [b"one", b"two", b"three"]


def test_a_peer_that_waits_for_room_is_woken_by_reading(
    ends: tuple[SharedLink, SharedLink],
) -> None:
    here, there = ends
    here.send(frame(b"x" * (SIZE + SIZE // 2)))
    assert here.waiting
    here.before_waiting()
    there.receive()
    assert len(here.sock.recv(100)) == 1
    # It does not wait for room any more, but would be woken by bytes.
    here.flush()
    here.before_waiting()
    there.receive()
    with pytest.raises(BlockingIOError):
        here.sock.recv(100)


def test_bytes_written_before_a_peer_went_are_read_first(
    ends: tuple[SharedLink, SharedLink],
) -> None:
    here, there = ends
    here.send(frame(b"last"))
    here.sock.close()
    there.listen()
    assert [bytes(payload) for *_, payload in there.receive()] == [b"last"]
    with pytest.raises(PeerLost, match="the connection to worker 0 broke without a good-bye"):
        there.receive()


def test_a_peer_that_has_left_needs_no_bytes(ends: tuple[SharedLink, SharedLink]) -> None:
    here, there = ends
    here.send(frame(b"x" * 2 * SIZE))
    there.sock.close()
    here.closing = True
    assert here.flush()
    assert here.waiting == 0


def test_a_full_ring_to_a_peer_that_was_lost_is_an_error(
    ends: tuple[SharedLink, SharedLink],
) -> None:
    here, there = ends
    here.send(frame(b"x" * 2 * SIZE))
    there.sock.close()
    assert not here.flush()
    here.listen()
    with pytest.raises(PeerLost, match="the connection to worker 1 broke"):
        here.flush()


def test_an_offer_that_cannot_be_mapped_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError("no room for a mapping")

    here, there = socket.socketpair()
    with here, there:
        monkeypatch.setattr(mmap, "mmap", refuse)
        assert offer_memory(here, SIZE) is None
        assert accept_memory(there, SIZE, 4, time.monotonic() + LIMIT) is None
        there.close()
        monkeypatch.undo()
        memory = offer_memory(here, SIZE)
        assert memory is not None
        memory.close()


def test_memory_of_another_size_or_that_could_shrink_is_refused() -> None:
    for size, seals in ((SIZE, 0), (2 * SIZE, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)):
        here, there = socket.socketpair()
        file = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(file, shared_size(size))
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        socket.send_fds(here, [b"m"], [file])
        with here, there, pytest.raises(ProtocolError, match="worker 4 offered"):
            accept_memory(there, SIZE, 4, time.monotonic() + LIMIT)
        os.close(file)


def test_a_peer_without_memory_and_one_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError("no memory")

    monkeypatch.setattr(os, "memfd_create", refuse)
    here, there = socket.socketpair()
    there.setblocking(False)
    with here, there:
        assert offer_memory(here, SIZE) is None
        assert accept_memory(there, SIZE, 4, time.monotonic() + LIMIT) is None
        # The link goes on by the socket, which must not block.
        assert there.gettimeout() == 0.0
        here.close()
        # Nor is it an error to make an offer to one that has gone: its loss shows by name later.
        assert offer_memory(there, SIZE) is None
        with pytest.raises(PeerLost, match="worker 4 hung up before"):
            accept_memory(there, SIZE, 4, time.monotonic() + LIMIT)


def test_rings_of_many_workers_stay_small() -> None:
    for workers in (2, 3, 16, 200, 5000):
        size = ring_size(workers)
        assert size & (size - 1) == 0
        assert size == 1 << 18 or 2 * (workers - 1) * size <= 1 << 26


def _answer(sock: socket.socket, count: int) -> None:
    link = joined(sock, SIZE, first=False)
    seen = 0
    while seen < count:
        frames = wait_for(link)
        for *_, payload in frames:
            link.send(frame(payload))
        seen += len(frames)
    while not link.flush():
        wait_for(link, once=True)


def wait_for(link: SharedLink, *, once: bool = False) -> list[tuple[int, int, Buffer]]:
    """Sleep as a worker does until frames arrive, or until it was woken."""
    with selectors.DefaultSelector() as selector:
        selector.register(link.sock, selectors.EVENT_READ)
        while True:
            # First it says that it will sleep, and then it looks again: not the other way round.
            link.before_waiting()
            link.flush()
            frames = link.receive()
            if not frames:
                assert selector.select(LIMIT), "nothing woke this process"
                link.listen()
            link.after_waiting()
            if frames or once:
                return frames


@pytest.mark.parametrize("lengths", [(1, 20), (900, 1000), (3000, 30_000)])
def test_two_processes_never_sleep_through_something(lengths: tuple[int, int]) -> None:
    """Each sleeps whenever it has nothing to do; a lost wake-up would hang it."""
    count = 3000
    here, there = socket.socketpair()
    process = get_context("fork").Process(target=_answer, args=(there, count), daemon=True)
    process.start()
    there.close()
    link = joined(here, SIZE, first=True)
    sent = [bytes([n % 251]) * (lengths[0] + n % (lengths[1] - lengths[0])) for n in range(count)]
    found: list[bytes] = []
    for at, payload in enumerate(sent):
        link.send(frame(payload))
        # Ahead by no more than a few, and sometimes by none: then both sleep by turns.
        while len(found) < at + 1 - at % 5:
            found += [bytes(each) for *_, each in wait_for(link)]
    while len(found) < count:
        found += [bytes(each) for *_, each in wait_for(link)]
    assert found == sent
    process.join(LIMIT)
    assert process.exitcode == 0
    link.close()


def test_memory_that_cannot_be_sent_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system lets a user have only so many files on their way."""
    here, there = socket.socketpair()

    def refuses(*_: object) -> int:
        raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")

    monkeypatch.setattr(socket, "send_fds", refuses)
    with here, there:
        assert offer_memory(here, SIZE) is None
        assert accept_memory(there, SIZE, 0, time.monotonic() + LIMIT) is None


def test_memory_that_a_worker_cannot_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()

    def full(*_: object) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with here, there:
        memory = offer_memory(here, SIZE)
        assert memory is not None
        monkeypatch.setattr(mmap, "mmap", full)
        with pytest.raises(JetonError, match=r"no memory for the .* shared with worker 3"):
            accept_memory(there, SIZE, 3, time.monotonic() + LIMIT)
        memory.close()
