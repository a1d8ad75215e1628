"""The control channel: large payloads pass, frames that cannot be read are errors."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from jeton.cluster.control import Control
from jeton.errors import ProtocolError
from jeton.mesh.open_files import make_room_for


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Control]]:
    there, here = socket.socketpair()
    control = Control(here)
    with there:
        yield there, control
    control.close()


def frame(text: bytes) -> bytes:
    return len(text).to_bytes(4, "little") + text


@pytest.mark.parametrize(
    "sent",
    [
        frame(b"no JSON"),
        frame(b"[1]"),
        frame(b"{}"),
        frame(b'{"kind": "report", "size": null}'),
        frame(b'{"kind": "report", "size": -1}'),
        frame(b'{"kind": "report", "size": 1099511627776}'),
        b"\xff" * 4,
    ],
)
def test_a_frame_that_cannot_be_read_is_a_protocol_error(
    sent: bytes, ends: tuple[socket.socket, Control]
) -> None:
    there, control = ends
    there.sendall(sent)
    with pytest.raises(ProtocolError, match="a control frame"):
        control.receive()


def test_a_large_payload_passes(ends: tuple[socket.socket, Control]) -> None:
    there, control = ends
    payload = os.urandom(1 << 20) * 40
    sender = threading.Thread(target=Control(there).send, args=("rows", payload))
    sender.start()
    received = control.receive()
    sender.join()
    assert received is not None
    assert received[1] == payload


def test_news_are_seen_with_a_thousand_files_open() -> None:
    """As a worker with hundreds of peers has them: select() would refuse."""
    make_room_for(1200)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1200:
        pytest.skip("this process may not have as many files open")
    there, here = socket.socketpair()
    os.dup2(here.fileno(), 1100)
    here.close()
    with there:
        control = Control(socket.socket(fileno=1100))
        assert not control.has_news()
        there.sendall(b"x")
        assert control.has_news()
        control.close()
