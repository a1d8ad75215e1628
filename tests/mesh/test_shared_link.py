"""Links in shared memory: frames of any size, sleep and wake, peers that go, memory that lies."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import selectors
import signal
import socket
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import ProtocolError
from jeton.mesh import ring
from jeton.mesh.link import Link, PeerLost
from jeton.mesh.ring import Ring, shared_size
from jeton.mesh.shared_link import SharedLink, accept_memory, is_accepted, offer_memory, ring_size
from jeton.mesh.wire import HEADER, Buffer, Kind
from tests.mesh.harness import gathered, in_order, run, started

pytestmark = pytest.mark.skipif(not ring.SUPPORTED, reason="shared memory needs Linux on x86-64")

SIZE = 1 << 12
LIMIT = 20.0


def pair(size: int = SIZE) -> tuple[SharedLink, SharedLink]:
    """The two ends of a link."""
    here, there = socket.socketpair()
    offered = offer_memory(here, size)
    mapped = accept_memory(there, size, 0, soon())
    assert offered is not None
    assert mapped is not None
    assert is_accepted(here, 1, soon())
    return SharedLink(here, 1, offered, first=True), SharedLink(there, 0, mapped, first=False)


def soon() -> float:
    """The time until which one end waits for the other."""
    return time.monotonic() + LIMIT


def joined(sock: socket.socket, size: int, *, first: bool) -> SharedLink:
    if first:
        memory = offer_memory(sock, size)
        assert is_accepted(sock, 1, soon())
    else:
        memory = accept_memory(sock, size, 0, soon())
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


@pytest.mark.parametrize("left", range(1, HEADER.size + 20))
def test_a_frame_goes_on_at_the_start_of_the_ring(left: int) -> None:
    """Whether the end of the ring is in its header, in its payload or between them."""
    here, there = pair()
    first, second = os.urandom(SIZE - HEADER.size - left), os.urandom(50)
    try:
        here.send(frame(first))
        assert exchange(here, there, 1) == [first]
        here.send(frame(second))
        assert exchange(here, there, 1) == [second]
    finally:
        here.close()
        there.close()


def test_received_frames_do_not_change_with_the_memory(ends: tuple[SharedLink, SharedLink]) -> None:
    here, there = ends
    sent = [os.urandom(size) for size in (10, 3000, 2 * SIZE)]
    found: list[Buffer] = []
    for payload in sent:
        here.send(frame(payload))
        while len(found) < sent.index(payload) + 1:
            here.flush()
            found += [payload for *_, payload in there.receive()]
            if not here.waiting:
                here._memory[-2 * SIZE :] = os.urandom(2 * SIZE)
    assert [bytes(payload) for payload in found] == sent


@pytest.mark.parametrize("kind", [Kind.HEARTBEAT, Kind.REST, 77])
def test_a_frame_too_long_for_its_kind_is_refused_in_memory_too(
    kind: int, ends: tuple[SharedLink, SharedLink]
) -> None:
    here, there = ends
    here.send([HEADER.pack(kind, 0, 1 << 40)])
    with pytest.raises(ProtocolError, match=r"worker 0 announced a frame of kind .* at most"):
        there.receive()


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
        assert accept_memory(there, SIZE, 4, soon()) is None
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
            accept_memory(there, SIZE, 4, soon())
        os.close(file)


def test_a_peer_without_memory_and_one_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError("no memory")

    monkeypatch.setattr(os, "memfd_create", refuse)
    here, there = socket.socketpair()
    there.setblocking(False)
    with here, there:
        assert offer_memory(here, SIZE) is None
        assert accept_memory(there, SIZE, 4, soon()) is None
        # The link goes on by the socket, which must not block.
        assert there.gettimeout() == 0.0
        here.close()
        # Nor is it an error to make an offer to one that has gone: its loss shows by name later.
        assert offer_memory(there, SIZE) is None
        with pytest.raises(PeerLost, match="worker 4 hung up before"):
            accept_memory(there, SIZE, 4, soon())


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
        assert accept_memory(there, SIZE, 0, soon()) is None


def test_memory_that_the_peer_cannot_map_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    here, there = socket.socketpair()
    memory = offer_memory(here, SIZE)
    assert memory is not None
    monkeypatch.setattr(mmap, "mmap", full)
    assert accept_memory(there, SIZE, 3, soon()) is None
    assert not is_accepted(here, 4, soon())
    assert "no memory is shared with worker 3" in caplog.text
    memory.close()
    # Nothing of the agreement is left on the socket, which must not block.
    one, other = Link(here, 4), Link(there, 3)
    try:
        assert one.receive() == other.receive() == []
        one.send(frame(b"there"))
        other.send(frame(b"back"))
        assert [bytes(payload) for *_, payload in other.receive()] == [b"there"]
        assert [bytes(payload) for *_, payload in one.receive()] == [b"back"]
    finally:
        one.close()
        other.close()


def test_a_file_for_which_there_is_no_number_is_not_used() -> None:
    """The system drops a file on its way to a process that has as many open as it may."""
    here, there = socket.socketpair()
    with here, there:
        memory = offer_memory(here, SIZE)
        assert memory is not None
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
        try:
            assert accept_memory(there, SIZE, 3, soon()) is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert not is_accepted(here, 4, soon())
        memory.close()


def test_a_peer_that_goes_before_its_answer_is_named() -> None:
    for takes in (False, True):
        here, there = socket.socketpair()
        with here, there:
            memory = offer_memory(here, SIZE)
            assert memory is not None
            if takes:
                _, [file], *_ = socket.recv_fds(there, 1, 1)
                os.close(file)
            there.close()
            with pytest.raises(
                PeerLost, match=r"worker 4 .* answer(ed)? an offer of memory"
            ) as lost:
                is_accepted(here, 4, soon())
            assert lost.value.peer == 4
            memory.close()


def test_a_peer_that_never_answers_is_named_at_the_deadline() -> None:
    here, there = socket.socketpair()
    with here, there:
        with pytest.raises(PeerLost, match="worker 4 did not answer an offer of memory to share"):
            is_accepted(here, 4, time.monotonic())
        assert here.gettimeout() == 0.0


def test_a_peer_that_goes_after_its_offer_shows_where_it_is_read() -> None:
    here, there = socket.socketpair()
    memory = offer_memory(here, SIZE)
    assert memory is not None
    here.close()
    mapped = accept_memory(there, SIZE, 0, soon())
    assert mapped is not None
    link = SharedLink(there, 0, mapped, first=False)
    link.listen()
    with pytest.raises(PeerLost, match="the connection to worker 0 broke"):
        link.receive()
    link.close()
    memory.close()


@pytest.mark.parametrize("answer", [b"m", b"!", b"\0"])
def test_garbage_in_place_of_an_answer_is_refused(answer: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(answer)
        with pytest.raises(ProtocolError, match="worker 4 answered an offer of memory to share"):
            is_accepted(here, 4, soon())


NUMBERS = {"time": np.arange(6000), "n": np.arange(6000) % 7}


def counts() -> jt.Flow:
    """A flow of which every worker sends to every other; its process may have any memory again."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    flow = jt.Flow("counts")
    flow.output("counts", flow.input("numbers").key_by("n").tumbling(1000).count())
    return flow


@pytest.mark.parametrize("poor", [[1], [0, 1, 2]], ids=str)
def test_workers_without_room_for_shared_memory_use_sockets(poor: list[int]) -> None:
    """Address space is limited as batch systems do it: there is some left, but not for a ring."""

    def before(worker: int) -> None:
        if worker in poor:
            _, most = resource.getrlimit(resource.RLIMIT_AS)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
            resource.setrlimit(resource.RLIMIT_AS, (used + ring_size(3), most))

    reports = run(counts, {"numbers": NUMBERS}, workers=3, before=before)
    expected = counts().run({"numbers": NUMBERS})["counts"].to_pylist()
    assert gathered(reports, "counts") == in_order(expected)
    for worker, report in enumerate(reports):
        others = {0, 1, 2} - {worker}
        kinds = {"Link" if {worker, other} & set(poor) else "SharedLink" for other in others}
        assert report.stats["links"] == sorted(kinds)


def test_a_worker_that_dies_before_its_answer_fails_the_others_by_name() -> None:
    def before(worker: int) -> None:
        def die(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        if worker == 2:
            pytest.MonkeyPatch().setattr(socket, "recv_fds", die)

    with started(counts, {"numbers": NUMBERS}, workers=3, before=before) as running:
        running.go()
        reports = running.reports(without=[2])
    for report in reports:
        assert report.error_type == "PeerLost"
        assert "worker 2" in report.error


def test_a_whole_frame_may_not_be_longer_than_its_kind_allows() -> None:
    here, there = pair()
    here.send([HEADER.pack(Kind.HEARTBEAT, 0, 8), b"8 bytes."])
    with pytest.raises(ProtocolError, match=r"a frame of kind .* with 8 bytes: at most 0"):
        there.receive()
    for end in (here, there):
        end.close()
