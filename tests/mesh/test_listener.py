"""The listener: peers come in through any crowd of strangers, and wait until the epoch is known."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from jeton.mesh import acceptor
from jeton.mesh.handshake import HandshakeError
from jeton.mesh.listener import Listener

SECRET = b"s" * 32
LIMIT = 60.0


def join(listeners: list[Listener], epochs: tuple[int, int] = (5, 5)) -> bytes:
    """Connect the first worker to the second by TCP, and send something through."""
    deadline = time.monotonic() + LIMIT
    # The first one comes before the second knows its epoch.
    listeners[0].open(epochs[0])
    late = threading.Timer(0.2, listeners[1].open, args=[epochs[1]])
    late.start()
    here = listeners[0].join(0, 1, replace(listeners[1].address, path=""), 7, deadline)
    there = listeners[1].join(1, 0, listeners[0].address, 7, deadline)
    late.join()
    with here, there:
        here.sendall(b"hello")
        there.settimeout(LIMIT)
        return there.recv(5, socket.MSG_WAITALL)


def test_peers_come_in_through_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "TIMEOUT", 3600.0)
    with ExitStack() as opened:
        listeners = [opened.enter_context(closing(Listener(SECRET))) for _ in range(2)]
        listeners[1]._acceptor._most = 8
        where = listeners[1].address
        for _ in range(40):
            opened.enter_context(socket.create_connection((where.host, where.port)))
        assert join(listeners) == b"hello"
        assert listeners[1].refused >= 32


def test_a_peer_of_another_epoch_is_refused_also_if_it_came_first() -> None:
    with closing(Listener(SECRET)) as first, closing(Listener(SECRET)) as second:
        with pytest.raises(HandshakeError):
            join([first, second], epochs=(4, 5))
        assert second.refused == 1


def test_closing_leaves_no_thread_no_socket_and_no_file() -> None:
    before = threading.active_count()
    listener = Listener(SECRET)
    address = listener.address
    with socket.create_connection((address.host, address.port), timeout=LIMIT) as stranger:
        listener.close()
        listener.close()
        assert threading.active_count() == before
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((address.host, address.port), timeout=LIMIT)
        # It is hung up on, with or without a greeting before.
        try:
            while stranger.recv(100):
                pass
        except ConnectionError:
            pass
