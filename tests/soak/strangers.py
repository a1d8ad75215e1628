"""Strangers who flood a rendezvous, while tasks that know the secret meet there."""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random

from jeton.cluster.rendezvous import Rendezvous, meet
from jeton.mesh.handshake import MAGIC
from jeton.mesh.listener import Address

WITHIN = 5.0
"""Seconds within which tasks must have met after a flood."""
CONNECTIONS = 600


def silent(sock: socket.socket, random: Random) -> None:
    """Connect and say nothing."""


def garbage(sock: socket.socket, random: Random) -> None:
    """Send anything."""
    sock.sendall(random.randbytes(random.randrange(1, 400)))


def half(sock: socket.socket, random: Random) -> None:
    """Send the beginning of a handshake."""
    sock.sendall(MAGIC + random.randbytes(random.randrange(0, 12)))


def forged(sock: socket.socket, random: Random) -> None:
    """Announce more than any message has."""
    sock.sendall(random.randbytes(57) + struct.pack("<Q", 1 << 34))


def gone(sock: socket.socket, random: Random) -> None:
    """Hang up at once."""
    sock.close()


FLOODS: dict[str, Callable[[socket.socket, Random], None]] = {
    act.__name__: act for act in (silent, garbage, half, forged, gone)
}


def main(folder: str, seed: str, seconds: str) -> None:
    """Flood again and again for a while; print what was seen as JSON."""
    logging.disable(logging.CRITICAL)
    random = Random(int(seed))
    server = Rendezvous("127.0.0.1")
    hits: Counter[str] = Counter()
    wrong: list[str] = []
    deadline = time.monotonic() + float(seconds)
    stage = 0
    while time.monotonic() < deadline:
        stage += 1
        name = random.choice(list(FLOODS))
        came = flood(server, FLOODS[name], random)
        took = time_to_meet(server, stage)
        hits[name] += came > CONNECTIONS // 2
        if took is None or took > WITHIN:
            wrong.append(f"after a {name} flood, tasks met within {took} s (seed {seed})")
    server.close()
    print(json.dumps({"hits": hits, "rows": 0, "lost": 0, "doubled": 0, "wrong": wrong}))


def flood(server: Rendezvous, act: Callable[[socket.socket, Random], None], random: Random) -> int:
    """Open many connections, and leave them open for as long as the server lets them be."""
    opened = []
    for _ in range(CONNECTIONS):
        with suppress(OSError):
            sock = socket.create_connection((server.host, server.port), timeout=2.0)
            opened.append(sock)
            act(sock, random)

    def leave() -> None:
        for sock in opened:
            sock.close()

    threading.Timer(2.0, leave).start()
    return len(opened)


def time_to_meet(server: Rendezvous, stage: int) -> float | None:
    """Seconds until two tasks of a new stage have met; nothing if they cannot."""
    meeting = server.meeting(f"stage {stage}")
    met: list[int] = []

    def come(rank: int) -> None:
        here = Address("machine", "", "127.0.0.1", os.getpid() % 60000 + 1)
        with suppress(OSError, ValueError):
            epoch, _, connection = meet(
                meeting,
                rank=rank,
                workers=2,
                stage=stage,
                attempt=2 * stage + rank,
                address=here,
            )
            connection.close()
            met.append(epoch)

    began = time.monotonic()
    tasks = [threading.Thread(target=come, args=(rank,), daemon=True) for rank in range(2)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join(6 * WITHIN)
    server.forget(meeting.plan)
    return time.monotonic() - began if len(met) == 2 and met[0] == met[1] else None


if __name__ == "__main__":
    main(*sys.argv[1:])
