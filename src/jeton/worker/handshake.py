"""The handshake: both ends prove that they know the query's secret, and say who they are.

Each end sends 16 random bytes and answers the other's with a keyed hash (HMAC-SHA256) over both,
its role, its worker's number and the epoch. The secret itself never travels, and everything that a
stranger can send before it is refused has a fixed, small size.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
from typing import Final

from jeton.core.errors import ProtocolError

MAGIC: Final = b"JETON/1\0"
_HELLO: Final = struct.Struct("<8s16s")
_CLAIM: Final = struct.Struct("<16siiB")
_PROOF: Final = 32


class HandshakeError(ProtocolError):
    """Whoever is at the other end does not know the secret, or is of another epoch."""


def answer(sock: socket.socket, secret: bytes, epoch: int, timeout: float = 5.0) -> tuple[int, int]:
    """The accepting end: returns the number and the purpose that the other end claims."""
    deadline = time.monotonic() + timeout
    sock.settimeout(timeout)
    nonce = os.urandom(16)
    sock.sendall(_HELLO.pack(MAGIC, nonce))
    claim = _receive(sock, _CLAIM.size, deadline)
    proof = _receive(sock, _PROOF, deadline)
    theirs, worker, their_epoch, purpose = _CLAIM.unpack(claim)
    if not hmac.compare_digest(proof, _prove(secret, b"connect", nonce, claim)):
        raise HandshakeError("a stranger connected who does not know this query's secret")
    if their_epoch != epoch:
        raise HandshakeError(f"worker {worker} of epoch {their_epoch} connected to epoch {epoch}")
    sock.sendall(_prove(secret, b"accept", theirs, nonce))
    return worker, purpose


def greet(
    sock: socket.socket,
    secret: bytes,
    worker: int,
    epoch: int,
    purpose: int = 0,
    timeout: float = 5.0,
) -> None:
    """The connecting end: claims to be ``worker`` and checks that the other end is no stranger."""
    deadline = time.monotonic() + timeout
    sock.settimeout(timeout)
    magic, nonce = _HELLO.unpack(_receive(sock, _HELLO.size, deadline))
    if magic != MAGIC:
        raise HandshakeError(f"what answered is no worker of this version: {magic!r}")
    mine = os.urandom(16)
    claim = _CLAIM.pack(mine, worker, epoch, purpose)
    sock.sendall(claim + _prove(secret, b"connect", nonce, claim))
    proof = _receive(sock, _PROOF, deadline)
    if not hmac.compare_digest(proof, _prove(secret, b"accept", mine, nonce)):
        raise HandshakeError("what answered does not know this query's secret")


def _prove(secret: bytes, role: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, role + b"".join(parts), hashlib.sha256).digest()


def _receive(sock: socket.socket, size: int, deadline: float) -> bytes:
    """Exactly so many bytes, or an error: also if they come, but one by one for ever."""
    received = b""
    while len(received) < size:
        try:
            sock.settimeout(max(deadline - time.monotonic(), 1e-3))
            part = sock.recv(size - len(received))
        except TimeoutError:
            raise HandshakeError("the other end said nothing in time") from None
        except OSError as error:
            raise HandshakeError(f"the connection broke in the handshake: {error}") from error
        if not part:
            raise HandshakeError("the other end hung up in the handshake")
        received += part
    return received
