"""TLS between workers: rows arrive, and a man in the middle neither reads nor changes them."""

from __future__ import annotations

import datetime as dt
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.cluster.control import Control
from jeton.errors import PeerLost, ProtocolError, TlsError
from jeton.mesh import acceptor
from jeton.mesh.certificates import Credentials, issue
from jeton.mesh.link import Link
from jeton.mesh.listener import Listener
from jeton.mesh.liveness import Lifeline
from jeton.mesh.tls import Tls, TlsSocket
from jeton.mesh.tls_link import TlsLink, link_over
from jeton.mesh.wire import HEADER, Kind
from tests.mesh import harness
from tests.mesh.proxy import APPLICATION_DATA, Change, Proxy, is_data, records_of
from tests.mesh.test_listener import LIMIT, join

SECRET = b"s" * 32
ROWS = 20_000
MARKER = "only-for-workers"
NOT_SENT = "broke: bytes arrived that the other end did not send"


def words() -> jt.Flow:
    """A flow that sends all rows from the first worker to the second, and back."""
    flow = jt.Flow("words")
    there = flow.input("words").exchange("n")
    flow.output("counts", there.key_by("word").tumbling(10).count())
    return flow


def inputs() -> dict[str, object]:
    words = np.array([f"{MARKER}-{n % 50}" for n in range(ROWS)])
    return {"words": {"time": np.zeros(ROWS, np.int64), "n": np.arange(ROWS), "word": words}}


def through_proxy(
    credentials: Credentials | None, change: Change | None = None
) -> tuple[list[harness.Report], Proxy]:
    """Run the flow on two processes, with a proxy in front of the second worker."""
    with harness.started(words, inputs(), tcp=True, credentials=credentials) as running:
        proxy = Proxy(running.addresses[1].port, change)
        try:
            running.addresses[1] = replace(running.addresses[1], port=proxy.port)
            running.go()
            return running.reports(), proxy
        finally:
            proxy.close()


@pytest.mark.parametrize("tls", [True, False])
def test_rows_arrive_and_the_wire_shows_none_of_them_under_tls(tls: bool) -> None:
    reports, proxy = through_proxy(issue(3)[1] if tls else None)
    rows = harness.gathered(reports, "counts")
    assert rows == sorted(((10, f"{MARKER}-{n}", ROWS // 50) for n in range(50)), key=repr)
    assert [report.stats["links"] for report in reports] == [["TlsLink" if tls else "Link"]] * 2
    # That the same proxy sees the words without TLS shows that it would.
    assert (MARKER.encode() in proxy.recorded) is not tls
    assert len(proxy.recorded) > 100_000


def flipped(proxy: Proxy, connection: int, record: bytes) -> Iterable[bytes]:
    if is_data(record) and not proxy.done.is_set():
        proxy.done.set()
        return [record[:-1], bytes([record[-1] ^ 1])]
    return [record]


def from_another_connection(proxy: Proxy, connection: int, record: bytes) -> Iterable[bytes]:
    if is_data(record):
        proxy.seen.append((connection, record))
    elif record[0] == APPLICATION_DATA and proxy.seen and connection != proxy.seen[0][0]:
        proxy.done.set()
        return [proxy.seen.pop()[1], record]
    return [record]


@pytest.mark.parametrize("change", [flipped, from_another_connection])
def test_records_that_are_changed_on_the_way_end_the_run(change: Change) -> None:
    reports, proxy = through_proxy(issue(3)[1], change)
    assert proxy.done.is_set()
    assert "PeerLost" in [report.error_type for report in reports], reports
    assert any(f"worker 0 {NOT_SENT}" in report.error for report in reports), [
        report.error for report in reports
    ]


FORGED = HEADER.pack(Kind.GOODBYE, 0, 0) * 4
CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "flipped": lambda r: [r[0], r[1][:-1] + bytes([r[1][-1] ^ 1]), *r[2:]],
    "replayed": lambda r: [r[0], r[1], r[1], *r[2:]],
    "dropped": lambda r: [r[0], *r[2:]],
    "swapped": lambda r: [r[0], r[2], r[1], *r[3:]],
    "cut off": lambda r: [r[0], r[1][:3] + (25).to_bytes(2, "big") + r[1][5:30], *r[2:]],
    "forged": lambda r: [r[0], b"\x17\x03\x03" + len(FORGED).to_bytes(2, "big") + FORGED],
    "plain text": lambda r: [r[0], FORGED, *r[1:]],
    "an alert": lambda r: [r[0], b"\x15\x03\x03\x00\x02\x01\x00"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_as_it_was_sent_is_never_received(change: str) -> None:
    here, there = tls_pair()
    sender, receiver = link_over(here, 1), link_over(there, 7)
    # The records go another way, and come back changed.
    sender.close()
    receiver.close()
    middle, sender.sock = socket.socketpair()
    for number in range(4):
        sender.send([HEADER.pack(Kind.MESSAGE, number, 3), b"abc"])
    records, rest = records_of(middle.recv(65_536))
    assert (len(records), rest) == (4, b"")
    here_again = socket.socketpair()
    receiver.sock = here_again[0]
    receiver.sock.setblocking(False)
    here_again[1].sendall(b"".join(CHANGES[change](records)))
    # What came before is not lost, and a selector still reports the socket.
    numbers = [number for _, number, _ in receiver.receive()]
    assert numbers in ([0], [0, 1])
    assert select.select([receiver.sock], [], [], 0)[0]
    with pytest.raises(PeerLost, match="worker 7"):
        receiver.send([b"abc"])
    with pytest.raises(PeerLost, match="worker 7"):
        receiver.receive()
    for sock in (middle, sender, receiver, here_again[1]):
        sock.close()


def expired(plan: int) -> Credentials:
    return issue(plan, now=dt.datetime.now(dt.UTC) - dt.timedelta(days=1000))[1]


@pytest.mark.parametrize("reversed_roles", [False, True])
@pytest.mark.parametrize("stranger", ["another query's", "none", "expired"])
def test_a_peer_without_a_certificate_of_the_query_is_refused(
    stranger: str, reversed_roles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A peer without TLS and one with it wait for each other.
    monkeypatch.setattr(acceptor, "TIMEOUT", 0.5)
    own: Credentials | None = issue(3)[1]
    other = {"another query's": issue(3)[1], "none": None, "expired": expired(3)}[stranger]
    if stranger == "expired":
        own = other
    kinds = [own, other] if reversed_roles else [other, own]
    with ExitStack() as opened:
        ends = [opened.enter_context(closing(Listener(SECRET, credentials=each))) for each in kinds]
        with pytest.raises((ProtocolError, PeerLost)) as caught:
            join(ends)
        deadline = time.monotonic() + LIMIT
        while not ends[1].refused:
            assert time.monotonic() < deadline, "nobody was refused"
            time.sleep(0.001)
    if stranger == "expired":
        assert "expired" in str(caught.value)
    elif stranger != "none":
        assert isinstance(caught.value, TlsError)


def test_peers_come_in_through_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "TIMEOUT", 3600.0)
    credentials = issue(3)[1]
    with ExitStack() as opened:
        ends = [
            opened.enter_context(closing(Listener(SECRET, credentials=credentials)))
            for _ in range(2)
        ]
        ends[1]._acceptor._most = 8
        where = ends[1].address
        for _ in range(40):
            opened.enter_context(socket.create_connection((where.host, where.port)))
        assert join(ends) == b"hello"
        assert ends[1].refused >= 32


def tls_pair() -> tuple[TlsSocket, TlsSocket]:
    """Two connected sockets that have exchanged a byte under TLS."""
    tls = Tls(issue(3)[1])
    client, server = socket.socketpair()
    here, there = tls.to_worker(client), tls.accept(server)
    for sock in (here, there):
        sock.settimeout(LIMIT)
    greeting = threading.Thread(target=here.sendall, args=(b"!",))
    greeting.start()
    assert there.recv(1) == b"!"
    greeting.join()
    there.sendall(b"!")
    assert here.recv(1) == b"!"
    return here, there


@settings(max_examples=25, deadline=None)
@given(
    frames=st.lists(
        st.lists(st.sampled_from([0, 1, 15, 4096, 16_384, 70_000, 1_200_000]), max_size=3),
        max_size=6,
    ),
    narrow=st.booleans(),
)
def test_frames_come_out_as_they_went_in(frames: list[list[int]], narrow: bool) -> None:
    here, there = tls_pair()
    if narrow:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sender, receiver = link_over(here, 1), link_over(there, 0)
    assert type(sender) is TlsLink
    sent: list[tuple[int, int, bytes]] = []
    received: list[tuple[int, int, bytes]] = []
    for number, sizes in enumerate(frames):
        parts = [np.random.default_rng(number + at).bytes(n) for at, n in enumerate(sizes)]
        payload = b"".join(parts)
        sent.append((int(Kind.MESSAGE), number, payload))
        sender.send([HEADER.pack(Kind.MESSAGE, number, len(payload)), *parts])
    deadline = time.monotonic() + LIMIT
    while len(received) < len(sent):
        assert time.monotonic() < deadline
        sender.flush()
        received += [(kind, number, bytes(data)) for kind, number, data in receiver.receive()]
    assert received == sent
    assert receiver.bytes_in == sender.bytes_out
    sender.close()
    receiver.close()


def test_all_that_was_read_from_the_socket_is_delivered() -> None:
    """More frames than one call of `receive` takes: none waits where no selector sees it."""
    here, there = tls_pair()
    sender, receiver = link_over(here, 1), link_over(there, 0)
    payload = b"x" * 1000
    frame = [HEADER.pack(Kind.MESSAGE, 7, len(payload)), payload]
    count = 3000
    received = 0

    def read() -> int:
        return len(receiver.receive())

    for _ in range(count):
        sender.send(frame)
        if sender.waiting:
            received += read()
            sender.flush()
    while sender.waiting:
        received += read()
        sender.flush()
    while select.select([receiver.sock], [], [], 0.2)[0]:
        received += read()
    assert received == count
    sender.close()
    receiver.close()


def test_a_lost_peer_is_noticed_as_without_tls() -> None:
    here, there = tls_pair()
    link: Link = link_over(here, 5)
    there.close()
    assert select.select([link.sock], [], [], LIMIT)[0]
    with pytest.raises(PeerLost, match="worker 5"):
        link.receive()
    link.close()


def test_something_on_a_lifeline_is_an_error() -> None:
    here, there = tls_pair()
    lifeline = Lifeline(here, peer=5)
    assert lifeline.check()
    plain = socket.socket(fileno=there.detach())
    plain.sendall(b"\x17\x03\x03\x00\x13" + b"x" * 19)
    lifeline.sock.settimeout(LIMIT)
    with pytest.raises(ProtocolError, match="did not send"):
        lifeline.check()
    plain.close()
    lifeline.close()


def test_a_control_channel_works_both_ways_at_once() -> None:
    here, there = tls_pair()
    one, other = Control(here), Control(there)
    payload = np.random.default_rng(1).bytes(3_000_000)

    def send(control: Control) -> None:
        for number in range(5):
            control.send("rows", payload, number=number)

    threads = [threading.Thread(target=send, args=(each,)) for each in (one, other)]
    for thread in threads:
        thread.start()
    found: dict[int, list[int]] = {0: [], 1: []}

    def hear(at: int, control: Control) -> None:
        for _ in range(5):
            frame = control.receive()
            assert frame is not None
            assert frame[1] == payload
            found[at].append(frame[0]["number"])

    hearing = [threading.Thread(target=hear, args=pair) for pair in ((0, one), (1, other))]
    # A worker's watch asks from a thread of its own.
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            other.has_news()

    asking = threading.Thread(target=ask)
    for thread in (*hearing, asking):
        thread.start()
    for thread in threads + hearing:
        thread.join(LIMIT)
    over.set()
    asking.join(LIMIT)
    assert found == {0: list(range(5)), 1: list(range(5))}
    one.close()
    other.close()


def test_frames_in_one_record_are_all_news() -> None:
    here, there = tls_pair()
    control = Control(there)
    text = b'{"kind":"report","size":0}'
    frame = len(text).to_bytes(4, "little") + text
    here.sendall(frame * 3)
    for _ in range(3):
        assert control.has_news(LIMIT)
        assert control.receive() is not None
    assert not control.has_news()
    control.close()
    here.close()


def test_sending_goes_on_where_a_full_socket_stopped_it() -> None:
    here, there = tls_pair()
    here.setblocking(False)
    data = np.random.default_rng(7).bytes(3_000_000)
    sent, refused, received = 0, 0, bytearray()
    while sent < len(data):
        try:
            sent += here.send(memoryview(data)[sent:])
        except BlockingIOError:
            refused += 1
            received += there.recv(1 << 20)
    here.close()
    while part := there.recv(1 << 20):
        received += part
    there.close()
    assert refused
    assert received == data
