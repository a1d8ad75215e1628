"""The rendezvous under TLS: tasks of a plan meet, and nobody reads or changes what they say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from jeton.cluster.control import Control
from jeton.cluster.rendezvous import Meeting, Rendezvous, meet
from jeton.errors import HandshakeError, JetonError, TlsError
from jeton.mesh.binding import Binding, port_range
from jeton.mesh.certificates import issue
from jeton.mesh.listener import Address
from tests.mesh.proxy import APPLICATION_DATA, Change, Proxy

WORD = "only-for-the-driver"


@pytest.fixture
def server() -> Iterator[Rendezvous]:
    made = Rendezvous("127.0.0.1")
    yield made
    made.close()


class Heard:
    """The driver's end: the first report of each task, answered with the same word."""

    def __init__(self) -> None:
        self.frames: list[object] = []
        self.errors: list[Exception] = []
        self.done = threading.Event()

    def __call__(self, rank: int, epoch: int, sock: socket.socket) -> None:
        threading.Thread(target=self._listen, args=(Control(sock),), daemon=True).start()

    def _listen(self, control: Control) -> None:
        try:
            frame = control.receive()
            self.frames.append(frame)
            if frame is not None:
                control.send("answer", frame[1], text=frame[0]["text"])
        except Exception as error:
            self.errors.append(error)
        control.close()
        self.done.set()


def attend(meeting: Meeting) -> tuple[dict[str, object], bytes] | None:
    """A task alone in its stage, which sends a report and waits for the answer."""
    where = Address("machine", f"/{WORD}", "127.0.0.1", 1)
    _, _, sock = meet(meeting, rank=0, workers=1, stage=3, attempt=0, address=where)
    control = Control(sock)
    try:
        control.send("report", WORD.encode() * 1000, text=WORD)
        return control.receive()
    finally:
        control.close()


@pytest.mark.parametrize("tls", [True, False])
def test_reports_and_answers_pass_and_are_not_seen_under_tls(server: Rendezvous, tls: bool) -> None:
    heard = Heard()
    meeting = server.meeting("plan", heard, tls=tls)
    proxy = Proxy(meeting.port)
    answer = attend(replace(meeting, port=proxy.port))
    assert answer is not None
    assert answer[1] == WORD.encode() * 1000
    assert (WORD.encode() in proxy.recorded) is not tls
    proxy.close()


def test_plans_with_and_without_tls_share_a_driver(server: Rendezvous) -> None:
    plans = [server.meeting(f"plan {n}", Heard(), tls=n != 1) for n in range(3)]
    assert plans[0].port == plans[2].port != plans[1].port
    assert all(attend(plan) is not None for plan in plans)


def changed(proxy: Proxy, connection: int, record: bytes) -> Iterable[bytes]:
    """Change the report, which is the first long record."""
    if record[0] == APPLICATION_DATA and len(record) > 4000:
        proxy.done.set()
        return [record[:-1], bytes([record[-1] ^ 1])]
    return [record]


def doubled(proxy: Proxy, connection: int, record: bytes) -> Iterable[bytes]:
    """Send the first part of the report twice."""
    if record[0] == APPLICATION_DATA and len(record) > 4000:
        proxy.done.set()
        return [record, record]
    return [record]


@pytest.mark.parametrize("change", [changed, doubled])
def test_a_report_that_is_changed_on_the_way_is_an_error(
    server: Rendezvous, change: Change
) -> None:
    heard = Heard()
    meeting = server.meeting("plan", heard, tls=True)
    proxy = Proxy(meeting.port, change)
    assert attend(replace(meeting, port=proxy.port)) is None
    assert heard.done.wait(60)
    assert "did not send" in str(heard.errors)
    assert heard.frames == []
    proxy.close()


def test_another_plans_certificate_or_secret_or_none_is_refused(server: Rendezvous) -> None:
    meeting, other = (server.meeting(name, Heard(), tls=True) for name in ("one", "other"))
    plain = server.meeting("plain", Heard())
    assert meeting.credentials is not None
    assert other.credentials is not None
    foreign = issue(meeting.number)[1]
    with pytest.raises(TlsError):
        attend(replace(meeting, credentials=foreign))
    # Signed by somebody else, though it trusts the query's own authority.
    with pytest.raises(TlsError):
        attend(
            replace(
                meeting,
                credentials=replace(foreign, authority=meeting.credentials.authority),
            )
        )
    with pytest.raises(HandshakeError):
        attend(replace(meeting, credentials=other.credentials))
    # At the port without TLS, its secret is worth nothing.
    with pytest.raises(HandshakeError):
        attend(replace(meeting, credentials=None, port=plain.port))
    assert attend(meeting) is not None
    server.forget("one")
    with pytest.raises(TlsError, match="over"):
        attend(meeting)


def test_nothing_secret_is_printed(server: Rendezvous) -> None:
    meeting = server.meeting("plan", tls=True)
    assert meeting.credentials is not None
    assert "PRIVATE KEY" in meeting.credentials.key
    assert "PRIVATE" not in repr(meeting) + repr(meeting.credentials)


def test_ports_are_of_the_range_and_an_exhausted_range_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        binding = Binding(ports=port_range(str(port), "spark.jeton.port.range"))
        with pytest.raises(JetonError, match=f"from {port} to {port} .*spark.jeton.port.range"):
            binding.listen("127.0.0.1")
    with binding.listen("127.0.0.1") as sock:
        assert sock.getsockname()[1] == port


@pytest.mark.parametrize("text", ["", "x", "0-5", "9-8", "1-70000", "1-2-3"])
def test_what_is_no_range_is_an_error(text: str) -> None:
    with pytest.raises(JetonError, match=r"spark\.jeton\.port\.range is"):
        port_range(text, "spark.jeton.port.range")


def test_an_address_that_this_machine_lacks_is_advertised_and_another_bound() -> None:
    server = Rendezvous("192.0.2.7", Binding("127.0.0.1"))
    meeting = server.meeting("plan", Heard(), tls=True)
    assert meeting.host == "192.0.2.7"
    assert attend(replace(meeting, host="127.0.0.1")) is not None
    server.close()
