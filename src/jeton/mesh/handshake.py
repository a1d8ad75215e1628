"""The handshake: both ends prove that they know a secret, and identify themselves.

Each end sends 16 random bytes and answers the other's with a keyed hash (HMAC-SHA256) over both,
its role, its worker's number and its group: the epoch between workers, the number of the plan at
the rendezvous. The secret itself never travels, and an unauthenticated peer can send only a few
bytes, whose number is fixed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import random
import socket
import struct
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from jeton.core.errors import ProtocolError
from jeton.mesh.receive import receive_exactly

MAGIC: Final = b"JETON/4\0"
CROWDED: Final = b"CROWDED\0"
"""Sent instead of a proof by a listener that has too many connections to deal with."""
_HELLO: Final = struct.Struct("<8s16s")
_CLAIM: Final = struct.Struct("<16siiB")
_PROOF: Final = 32
CLAIM_SIZE: Final = _CLAIM.size + _PROOF
"""Bytes that the connecting end sends."""


class HandshakeError(ProtocolError):
    """The other end does not know the secret, or belongs to another epoch."""


class Crowded(HandshakeError):
    """The other end is flooded with connections: try again a moment later."""


class Claim(NamedTuple):
    """The identity that the connecting end claims."""

    worker: int
    group: int
    purpose: int


class Answer:
    """The accepting end of one handshake, without a socket: bytes in, bytes out.

    >>> here, there = socket.socketpair()
    >>> answer = Answer()
    >>> _ = here.send(answer.hello)
    >>> from threading import Thread
    >>> greeting = Thread(target=greet, args=(there, b"secret", 3, 7))
    >>> greeting.start()
    >>> claim = answer.read(here.recv(CLAIM_SIZE, socket.MSG_WAITALL))
    >>> claim
    Claim(worker=3, group=7, purpose=0)
    >>> _ = here.send(answer.check(b"secret"))
    >>> greeting.join()
    >>> for end in (here, there):
    ...     end.close()
    """

    def __init__(self) -> None:
        self._nonce = os.urandom(16)
        self.hello = _HELLO.pack(MAGIC, self._nonce)
        """To be sent first."""
        self._received = b""

    def read(self, received: bytes) -> Claim:
        """Read the `CLAIM_SIZE` bytes of the other end; nothing in them is proven yet."""
        self._received = received
        _, worker, group, purpose = _CLAIM.unpack_from(received)
        return Claim(worker, group, purpose)

    def check(self, secret: bytes) -> bytes:
        """Check the proof of the other end, and return the one to be sent."""
        claim, proof = self._received[: _CLAIM.size], self._received[_CLAIM.size :]
        if not hmac.compare_digest(proof, _prove(secret, b"connect", self._nonce, claim)):
            raise HandshakeError("the peer does not know this query's secret")
        return _prove(secret, b"accept", claim[:16], self._nonce)


def reach(
    connect: Callable[[float], socket.socket],
    introduce: Callable[[socket.socket, float], None],
    deadline: float,
) -> socket.socket:
    """Connect and `greet`; try again while strangers flood the listener.

    Both functions get the seconds that are left until ``deadline``, at least one.
    """
    while True:
        left = max(deadline - time.monotonic(), 1.0)
        sock = connect(left)
        try:
            introduce(sock, left)
            return sock
        except Crowded:
            sock.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.02, 0.2))
        except BaseException:
            sock.close()
            raise


def greet(
    sock: socket.socket,
    secret: bytes,
    worker: int,
    group: int,
    purpose: int = 0,
    timeout: float = 5.0,
) -> None:
    """The connecting end: claims to be ``worker`` and checks the proof of the other end."""
    deadline = time.monotonic() + timeout
    magic, nonce = _HELLO.unpack(_receive(sock, _HELLO.size, deadline))
    if magic != MAGIC:
        raise HandshakeError(f"the listener is not a worker of this version: {magic!r}")
    mine = os.urandom(16)
    claim = _CLAIM.pack(mine, worker, group, purpose)
    try:
        sock.sendall(claim + _prove(secret, b"connect", nonce, claim))
    except OSError as error:
        raise _broken(error) from error
    proof = _receive(sock, _PROOF, deadline)
    if not hmac.compare_digest(proof, _prove(secret, b"accept", mine, nonce)):
        raise HandshakeError("the listener does not know this query's secret")


def _prove(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, role + b"".join(parts), hashlib.sha256).digest()


def _receive(sock: socket.socket, size: int, deadline: float) -> bytes:
    """Exactly ``size`` bytes before the deadline, or an error."""
    try:
        received = receive_exactly(sock, size, deadline)
    except TimeoutError:
        raise HandshakeError("the other end said nothing in time") from None
    except OSError as error:
        raise _broken(error) from error
    if len(received) < size:
        if received.endswith(CROWDED):
            raise Crowded("the listener is flooded with connections")
        raise HandshakeError("the other end hung up in the handshake")
    return received


def _broken(error: OSError) -> HandshakeError:
    text = f"the connection broke in the handshake: {error}"
    # A listener that drops a connection before it has read everything resets it.
    return (Crowded if isinstance(error, ConnectionError) else HandshakeError)(text)
