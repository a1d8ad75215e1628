"""The cost of a message between two worker processes: memory, sockets, TCP, TLS.

The one benchmark that looks behind the public API, since it measures the wire itself. Memory is
polled, as by workers that are busy; at sockets both processes sleep until something comes.
"""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from time import monotonic, perf_counter
from typing import Any

import numpy as np

import jeton as jt
from jeton.mesh.certificates import issue
from jeton.mesh.link import Link
from jeton.mesh.liveness import Keepalive, prepare
from jeton.mesh.receive import receive_exactly
from jeton.mesh.ring import SUPPORTED
from jeton.mesh.shared_link import SharedLink, accept_memory, is_accepted, offer_memory, ring_size
from jeton.mesh.tls import Tls
from jeton.mesh.tls_link import link_over
from jeton.mesh.wire import Decoder, Encoder, Kind
from jeton_evaluation.bench.harness import Line, Say, in_turn

Connect = Callable[[], tuple[socket.socket, socket.socket]]
MakeLink = Callable[[socket.socket, bool], Link]
"""A link over a socket; says whether it is the end that asks."""


def mesh(say: Say) -> Line:
    """Round trips and throughput of links between two processes, and of a raw Unix socket."""
    figures: Line = {}
    kinds: dict[str, tuple[str, Connect, MakeLink]] = {
        "": ("a link", socket.socketpair, _plain),
        "_tcp": ("by TCP", _tcp, _plain),
        "_tls": ("with TLS", _tcp, partial(_secret, Tls(issue(1)[1]))),
    }
    if SUPPORTED:
        kinds["_memory"] = ("in memory, polled", socket.socketpair, _shared)
    for size, label in ((8, "64 B"), (8192, "64 KB"), (131_072, "1 MB")):
        batch = jt.Batch({}, np.arange(size))
        count = 3000 if size == 8 else 300
        raw, *links = in_turn(
            3,
            partial(_raw, batch, count),
            *(partial(_link, batch, count, connect, make) for _, connect, make in kinds.values()),
        )
        figures[f"round_trip_raw_us_{size * 8}"] = raw * 1e6
        said = [f"a raw socket {raw * 1e6:.0f} µs"]
        for (suffix, (name, *_)), link in zip(kinds.items(), links, strict=True):
            figures[f"round_trip{suffix}_us_{size * 8}"] = link * 1e6
            said.append(f"{name} {link * 1e6:.0f} µs ({size * 16 / link / 1e6:,.0f} MB/s)")
        say(f"round trip of {label}: {', '.join(said)}")
    return figures


def _tcp() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection over the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there = server.accept()[0]
    for sock in (here, there):
        prepare(sock, Keepalive())
    return here, there


def _raw(batch: jt.Batch, count: int) -> float:
    data = batch.times.tobytes()

    def echo(sock: socket.socket) -> None:
        for _ in range(count):
            sock.sendall(receive_exactly(sock, len(data)))

    def ask(sock: socket.socket) -> None:
        sock.sendall(data)
        receive_exactly(sock, len(data))

    return _between(echo, ask, count, socket.socketpair)


def _plain(sock: socket.socket, asks: bool) -> Link:
    return link_over(sock, int(asks))


def _secret(tls: Tls, sock: socket.socket, asks: bool) -> Link:
    if asks:
        sock = tls.to_worker(sock)
        sock.sendall(b"!")
        sock.recv(1)
    else:
        sock = tls.accept(sock)
        sock.sendall(sock.recv(1))
    return link_over(sock, int(asks))


def _shared(sock: socket.socket, asks: bool) -> Link:
    size, deadline = ring_size(2), monotonic() + 10
    memory = offer_memory(sock, size) if asks else accept_memory(sock, size, 0, deadline)
    assert memory is not None, "this machine has no memory to share"
    assert not asks or is_accepted(sock, 1, deadline), "the peer cannot map this memory"
    return SharedLink(sock, int(asks), memory, first=asks)


def _link(batch: jt.Batch, count: int, connect: Connect, make: MakeLink) -> float:
    def echo(sock: socket.socket) -> None:
        link, encoder, decoder = make(sock, False), Encoder(), Decoder()
        for _ in range(count):
            _send(link, encoder.message(1, *_next(link, decoder)))

    state: list[Any] = []

    def ask(sock: socket.socket) -> None:
        if not state:
            state.extend((make(sock, True), Encoder(), Decoder()))
        link, encoder, decoder = state
        _send(link, encoder.message(1, 0, batch))
        _next(link, decoder)

    seconds = _between(echo, ask, count, connect)
    state[0].close()
    return seconds


def _between(
    echo: Callable[[socket.socket], None],
    ask: Callable[[socket.socket], None],
    count: int,
    connect: Connect,
) -> float:
    """Seconds for one round trip between two processes."""
    here, there = connect()
    child = get_context("fork").Process(target=_alone, args=(echo, there), daemon=True)
    child.start()
    start = perf_counter()
    for _ in range(count):
        ask(here)
    seconds = (perf_counter() - start) / count
    child.join(10)
    here.close()
    there.close()
    return seconds


def _alone(echo: Callable[[socket.socket], None], sock: socket.socket) -> None:
    """Echo, whatever Ctrl-C says: the process that has started this one ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    echo(sock)


def _send(link: Link, buffers: list[Any]) -> None:
    link.send(buffers)
    while link.waiting:
        if type(link) is not SharedLink:
            select.select([], [link.sock], [])
        link.flush()


def _next(link: Link, decoder: Decoder) -> tuple[Any, jt.Batch]:
    message = None
    while message is None:
        for kind, number, payload in link.receive():
            if kind == Kind.LAYOUT:
                decoder.layout(number, payload)
            else:
                message = decoder.message(payload)
        if message is None and type(link) is not SharedLink:
            select.select([link.sock], [], [])
    return message
