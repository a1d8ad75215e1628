"""Links in shared memory: whole frames like on any link, between workers of one machine.

The bytes are in two rings, one for each direction. The socket that the workers have opened to each
other stays: it wakes a worker that sleeps, and it closes when a worker ends.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from jeton.core.errors import ProtocolError
from jeton.mesh import ring
from jeton.mesh.link import AT_A_TIME, Frame, Link, PeerLost
from jeton.mesh.ring import Ring
from jeton.mesh.wire import HEADER, Buffer

log = logging.getLogger(__name__)

_MEMORY, _NONE = b"m", b"n"
"""The first byte on a socket: memory comes with it, or none."""
_YES, _NO = b"y", b"n"
"""The answer to an offer: the peer has mapped the memory, or cannot."""
_BELL: Final = b"!"
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Memory that became smaller would kill the process that touches what is gone."""
_ALL_RINGS: Final = 1 << 26
"""Bytes of all rings between a worker and its peers, as a rule."""
_SMALLEST, _LARGEST = 1 << 18, 1 << 22


def ring_size(workers: int) -> int:
    """Bytes of a ring for data, by the number of workers, which may be on one machine.

    >>> [ring_size(workers) >> 10 for workers in (2, 8, 32, 1024)]
    [4096, 4096, 1024, 256]
    """
    share = _ALL_RINGS // max(2 * (workers - 1), 1)
    return min(max(1 << (share.bit_length() - 1), _SMALLEST), _LARGEST)


def offer_memory(sock: socket.socket, size: int) -> mmap.mmap | None:
    """Make memory for two rings of ``size`` bytes, and send it to the peer; ``None`` if it fails.

    It has no name by which another process could open it. It is in use once `is_accepted`.
    """
    try:
        file = os.memfd_create("jeton", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        _offer_none(sock)
        return None
    try:
        try:
            os.ftruncate(file, ring.shared_size(size))
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            memory = mmap.mmap(file, ring.shared_size(size))
        except OSError:
            _offer_none(sock)
            return None
        try:
            socket.send_fds(sock, [_MEMORY], [file])
        except (BrokenPipeError, ConnectionResetError):
            # A peer that has gone is found missing where its answer is read.
            pass
        except OSError:
            # As where more files are on their way than the system lets a user have.
            memory.close()
            _offer_none(sock)
            return None
        return memory
    finally:
        os.close(file)


def _offer_none(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.sendall(_NONE)


def accept_memory(sock: socket.socket, size: int, peer: int, deadline: float) -> mmap.mmap | None:
    """Map the memory that a peer offers for two rings of ``size`` bytes, and answer whether it is.

    ``None`` if the peer offers none, or if this process cannot map it: the socket is used then.
    """
    sock.settimeout(max(deadline - time.monotonic(), 1e-3))
    try:
        said, files, _, _ = socket.recv_fds(sock, 1, 1)
    except OSError as error:
        raise PeerLost(f"worker {peer} offered no memory to share: {error}", peer) from error
    try:
        if said == _NONE:
            return None
        if said != _MEMORY:
            raise PeerLost(f"worker {peer} hung up before it offered memory to share", peer)
        memory = _mapped(files, size, peer)
        # A peer that has gone is found missing where its worker is read.
        with suppress(OSError):
            sock.sendall(_NO if memory is None else _YES)
        return memory
    finally:
        sock.setblocking(False)
        for file in files:
            os.close(file)


def _mapped(files: Sequence[int], size: int, peer: int) -> mmap.mmap | None:
    """The memory of a peer's file, ``None`` if the system does not let this process have it."""
    if not files:
        # The system drops a file for which a process has no number left.
        _warn(peer, "this process has too many open files")
        return None
    length = os.fstat(files[0]).st_size
    if length != ring.shared_size(size) or fcntl.fcntl(files[0], fcntl.F_GET_SEALS) != _SEALS:
        raise ProtocolError(
            f"worker {peer} offered {length} bytes of memory to share, and not "
            f"{ring.shared_size(size)} whose number is fixed"
        )
    try:
        return mmap.mmap(files[0], length)
    except OSError as error:
        _warn(peer, f"there is no room for {length} bytes: {error}")
        return None


def _warn(peer: int, why: str) -> None:
    log.warning(
        "no memory is shared with worker %s, so that bytes go through a socket (%s): give the "
        "process more memory and files, or run fewer workers on this machine",
        peer,
        why,
    )


def is_accepted(sock: socket.socket, peer: int, deadline: float) -> bool:
    """Whether a peer has mapped the memory that was offered; otherwise the socket is used."""
    sock.settimeout(max(deadline - time.monotonic(), 1e-3))
    try:
        answer = sock.recv(1)
    except OSError as error:
        text = f"worker {peer} did not answer an offer of memory to share: {error}"
        raise PeerLost(text, peer) from error
    finally:
        sock.setblocking(False)
    if not answer:
        raise PeerLost(f"worker {peer} hung up before it answered an offer of memory", peer)
    if answer not in (_YES, _NO):
        raise ProtocolError(
            f"worker {peer} answered an offer of memory to share with {answer!r}, and not with "
            f"{_YES!r} or {_NO!r}"
        )
    return answer == _YES


class SharedLink(Link):
    """A link whose bytes go through memory; ``first`` is true at one of its two ends."""

    def __init__(self, sock: socket.socket, peer: int, memory: mmap.mmap, *, first: bool) -> None:
        super().__init__(sock, peer)
        self._memory = memory
        self._outgoing, self._incoming = Ring(memory, int(not first)), Ring(memory, int(first))
        self._hung_up = False
        self._error: OSError | None = None

    @property
    def has_bytes(self) -> bool:
        """Whether there is something to receive."""
        return self._incoming.has_bytes

    def before_waiting(self) -> None:
        """Have the peer wake this worker when there is something to do."""
        room = ring.FOR_BYTES_OR_ROOM if self.waiting else ring.FOR_BYTES
        self._incoming.sleep(room)

    def after_waiting(self) -> None:
        """The worker is awake: the peer need not wake it."""
        self._incoming.sleep(ring.AWAKE)

    def listen(self) -> None:
        """Take what has come on the socket: the peer woke this worker, or has hung up."""
        try:
            self._hung_up = self._hung_up or not self.sock.recv(4096)
        except BlockingIOError:
            pass
        except OSError as error:
            self._hung_up, self._error = True, error

    def _put(self, buffers: Sequence[Buffer]) -> int:
        sent = self._outgoing.write(buffers)
        if sent:
            self.bytes_out += sent
            if self._outgoing.wakes(ring.FOR_BYTES):
                self._wake_peer()
        elif self.closing:
            # No selector watches its socket any more.
            self.listen()
            if self._hung_up:
                return sum(map(len, buffers))
        elif self._hung_up:
            # The peer makes no more room.
            raise self._lost(self._error)
        return sent

    def receive(self) -> list[Frame]:
        """The frames that have arrived, up to a bound.

        Each is copied out of the memory once, before anything in it is looked at but its header.
        """
        frames: list[Frame] = []
        enough = self.bytes_in + AT_A_TIME
        try:
            if self._payload is None:
                self._take_frames(frames)
            while self._payload is not None and self._finish_payload(frames):
                if self.bytes_in < enough:
                    self._take_frames(frames)
        except PeerLost:
            # Its earlier messages come first; the next call will find it gone again.
            if not frames:
                raise
        return frames

    def _take_frames(self, frames: list[Frame]) -> None:
        """Take whole frames out of the memory, and begin a payload that is not there as a whole."""
        # What the peer wrote before it hung up is there by the time that this is known.
        hung_up = self._hung_up
        incoming = self._incoming
        available = incoming.available
        at = 0
        while available - at >= HEADER.size and at < AT_A_TIME:
            kind, number, length = incoming.unpack(HEADER, at)
            at += HEADER.size
            if length > available - at:
                self._begin_payload(kind, number, length)
                break
            self._require_allowed(kind, length)
            frames.append((kind, number, incoming.copy(at, length)))
            at += length
        if at:
            incoming.advance(at)
            self._has_read(at)
        elif hung_up and not self.closing:
            raise self._lost(self._error)

    def _has_read(self, size: int) -> None:
        """Bytes were read: wake the peer if it waits for room."""
        self.bytes_in += size
        if self._outgoing.wakes(ring.FOR_BYTES_OR_ROOM):
            self._wake_peer()

    def _read(self, into: memoryview) -> int:
        # What the peer wrote before it hung up is there by the time that this is known.
        hung_up = self._hung_up
        size = self._incoming.read_into(into)
        if size:
            self._has_read(size)
        elif hung_up:
            if self.closing:
                return -1
            raise self._lost(self._error)
        return size

    def _wake_peer(self) -> None:
        try:
            self.sock.send(_BELL)
        except BlockingIOError:
            # It has more than enough bytes that wake it.
            pass
        except OSError as error:
            self._hung_up, self._error = True, error

    def close(self) -> None:
        """Close the socket, and let go of the memory."""
        super().close()
        self._outgoing.close()
        self._incoming.close()
        self._memory.close()
