"""Links: a header alone takes no memory, and a frame that cannot be meant is refused by name."""

from __future__ import annotations

import socket
import threading
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

import jeton as jt
from jeton.errors import ProtocolError
from jeton.mesh import link as link_module
from jeton.mesh import wire
from jeton.mesh.link import Link
from jeton.mesh.wire import HEADER, LONGEST, Buffer, Decoder, Encoder, Kind

MB = 1 << 20


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Link]]:
    there, here = socket.socketpair()
    with there, here:
        yield there, Link(here, peer=3)


def test_a_forged_header_takes_no_memory(ends: tuple[socket.socket, Link]) -> None:
    there, link = ends
    there.sendall(HEADER.pack(Kind.MESSAGE, 0, LONGEST[Kind.MESSAGE]) + b"\0" * 1000)
    tracemalloc.start()
    try:
        assert link.receive() == []
        there.sendall(b"\0" * 10_000)
        assert link.receive() == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80 * MB


@pytest.mark.parametrize("kind", [*Kind, 0, 77])
def test_a_frame_too_long_for_its_kind_is_refused_by_name(
    kind: int, ends: tuple[socket.socket, Link]
) -> None:
    there, link = ends
    size = LONGEST.get(kind, 0) + 1
    there.sendall(HEADER.pack(kind, 0, size))
    with pytest.raises(ProtocolError, match=rf"worker 3 announced .* with {size} bytes"):
        link.receive()


@pytest.mark.parametrize("size", [MB, MB + 1, 20 * MB])
def test_a_large_frame_arrives_whole(
    size: int, ends: tuple[socket.socket, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one for which more memory has to be taken, again and again."""
    monkeypatch.setattr(link_module, "_AT_FIRST", MB)
    there, link = ends
    sent = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)

    def send() -> None:
        there.sendall(HEADER.pack(Kind.MESSAGE, 7, size))
        there.sendall(sent.data)
        there.sendall(HEADER.pack(Kind.HEARTBEAT, 8, 0))

    sender = threading.Thread(target=send)
    sender.start()
    frames: list[tuple[int, int, Buffer]] = []
    link.sock.settimeout(30.0)
    while len(frames) < 2:
        frames += link.receive()
    sender.join()
    (kind, number, payload), last = frames
    assert (kind, number) == (Kind.MESSAGE, 7)
    assert np.array_equal(np.frombuffer(payload, np.uint8), sent)
    assert last == (Kind.HEARTBEAT, 8, b"")


def test_a_batch_too_large_to_be_read_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = jt.Batch({"n": np.arange(1000)}, np.zeros(1000, np.int64))
    encoder = Encoder()
    monkeypatch.setitem(wire.LONGEST, wire.MESSAGE, 20_000)
    first, message = (b"".join(encoder.message(0, 0, batch)) for _ in range(2))
    layout = first[HEADER.size : len(first) - len(message)]
    decoder = Decoder()
    decoder.layout(0, layout)
    assert len(decoder.message(message[HEADER.size :])[1]) == 1000
    monkeypatch.setitem(wire.LONGEST, wire.MESSAGE, 10_000)
    with pytest.raises(ProtocolError, match=r"a batch of 1[0-9]+ bytes .* at most 10000"):
        encoder.message(0, 0, batch)
