"""The cost of a message between two worker processes, compared with a raw socket.

The one benchmark that looks behind the public API, since it measures the wire itself.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from time import perf_counter
from typing import Any

import numpy as np

import jeton as jt
from jeton.mesh.link import Link
from jeton.mesh.receive import receive_exactly
from jeton.mesh.wire import Decoder, Encoder, Kind
from jeton_evaluation.bench.harness import Line, Say, in_turn


def mesh(say: Say) -> Line:
    """Round trips and throughput of a link between two processes, and of a raw socket."""
    figures: Line = {}
    for size, label in ((8, "64 B"), (8192, "64 KB"), (131_072, "1 MB")):
        batch = jt.Batch({}, np.arange(size))
        count = 3000 if size == 8 else 300
        raw, link = in_turn(3, partial(_raw, batch, count), partial(_link, batch, count))
        bytes_moved = size * 8 * 2
        figures[f"round_trip_us_{size * 8}"] = link * 1e6
        figures[f"round_trip_raw_us_{size * 8}"] = raw * 1e6
        say(
            f"round trip of {label}: a raw socket {raw * 1e6:.0f} µs, a link {link * 1e6:.0f} µs "
            f"({bytes_moved / link / 1e6:,.0f} MB/s)"
        )
    return figures


def _raw(batch: jt.Batch, count: int) -> float:
    data = batch.times.tobytes()

    def echo(sock: socket.socket) -> None:
        for _ in range(count):
            sock.sendall(receive_exactly(sock, len(data)))

    def ask(sock: socket.socket) -> None:
        sock.sendall(data)
        receive_exactly(sock, len(data))

    return _between(echo, ask, count)


def _link(batch: jt.Batch, count: int) -> float:
    def echo(sock: socket.socket) -> None:
        link, encoder, decoder = Link(sock, 0), Encoder(), Decoder()
        for _ in range(count):
            _send(link, encoder.message(1, *_next(link, decoder)))

    state: list[Any] = []

    def ask(sock: socket.socket) -> None:
        if not state:
            state.extend((Link(sock, 1), Encoder(), Decoder()))
        link, encoder, decoder = state
        _send(link, encoder.message(1, 0, batch))
        _next(link, decoder)

    return _between(echo, ask, count)


def _between(
    echo: Callable[[socket.socket], None], ask: Callable[[socket.socket], None], count: int
) -> float:
    """Seconds for one round trip between two processes."""
    here, there = socket.socketpair()
    child = get_context("fork").Process(target=echo, args=(there,))
    child.start()
    start = perf_counter()
    for _ in range(count):
        ask(here)
    seconds = (perf_counter() - start) / count
    child.join(10)
    here.close()
    there.close()
    return seconds


def _send(link: Link, buffers: list[Any]) -> None:
    link.send(buffers)
    while link.waiting:
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
        if message is None:
            select.select([link.sock], [], [])
    return message
