"""Liveness: how a worker notices that the machine of a peer is gone, also while the peer is busy.

A process that ends has its sockets closed by its system. A machine that loses power or its network
closes nothing, so it has to be sent something that it must answer. The peer's worker cannot do
that: an operator may keep it from answering for minutes. Its system answers keepalives at any
time, but they are only sent on a connection where nothing else is under way; where data waits, be
it unacknowledged or held back by a full window, TCP tries for a quarter of an hour and more, and
its own limit for that (TCP_USER_TIMEOUT) cannot distinguish a busy reader from a dead machine.

So there is a third connection between workers on different machines, the *lifeline*, on which
nothing is ever sent. Its keepalives ask the other system, and that alone.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

from jeton.core.errors import ProtocolError
from jeton.mesh.link import machine_lost


class Keepalive(NamedTuple):
    """When a machine that does not answer is given up: here after 40 seconds.

    >>> Keepalive().patience
    40
    """

    idle: int = 10
    """Seconds without a sign of the other machine, after which it is probed."""
    interval: int = 5
    """Seconds between probes."""
    probes: int = 6
    """Probes that may remain without an answer."""

    @property
    def patience(self) -> int:
        """Seconds after which a machine that has vanished is given up."""
        return self.idle + self.interval * self.probes


def prepare(sock: socket.socket, keepalive: Keepalive) -> socket.socket:
    """Have the system send at once, and probe the machine at the other end while all is quiet."""
    if sock.family == socket.AF_UNIX:
        return sock
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every system has them all; that of macOS has another name for the first.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), keepalive.idle),
        (("TCP_KEEPINTVL",), keepalive.interval),
        (("TCP_KEEPCNT",), keepalive.probes),
    ):
        for name in names:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
                break
    return sock


class Lifeline:
    """A silent connection that breaks when the machine of a peer is gone.

    >>> here, there = socket.socketpair()
    >>> lifeline = Lifeline(here, peer=1)
    >>> lifeline.check()
    True
    >>> there.close()
    >>> lifeline.check()
    False
    >>> lifeline.close()
    """

    def __init__(self, sock: socket.socket, peer: int) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.peer = peer

    def check(self) -> bool:
        """Whether the peer still has it open; raises `PeerLost` if its machine is gone.

        A peer that closes it has left or died, which the other links report, with the reason.
        """
        try:
            received = self.sock.recv(1)
        except BlockingIOError:
            return True
        except OSError as error:
            raise machine_lost(self.peer, error) from error
        if received:
            raise ProtocolError(f"worker {self.peer} sent something on its lifeline")
        return False

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
