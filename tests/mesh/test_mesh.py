"""The mesh: the same rows as in one process, whatever connects the workers, and fair failures."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.errors import ProtocolError
from jeton.mesh.handshake import greet
from jeton.mesh.listener import Address, connect
from jeton.mesh.mesh import Mesh
from jeton.progress.protocol import ProgressBatch
from jeton.runtime.agent import Agent
from tests.mesh.harness import EPOCH, SECRET, Running, gathered, in_order, run, sending, started

ROWS = 5_000
NUMBERS = {
    "time": np.arange(ROWS) // 7,
    "n": np.arange(ROWS) % 97,
    "word": pa.array([None if n % 11 == 0 else f"w{n % 13}" for n in range(ROWS)]),
}


def exchanged() -> jt.Flow:
    flow = jt.Flow("exchanged")
    numbers = flow.input("numbers")
    flow.output("counts", numbers.key_by("word").tumbling(100).count())
    return flow


def broadcast() -> jt.Flow:
    flow = jt.Flow("broadcast")
    flow.output("sums", flow.input("numbers").broadcast().key_by("n").tumbling(1000).sum("n"))
    return flow


def looped() -> jt.Flow:
    flow = jt.Flow("collatz")
    loop = flow.loop()
    again = loop.feedback()
    numbers = flow.input("numbers").enter(loop).concat(again.stream)
    done, more = numbers.branch(lambda batch: batch["n"] > 1)
    more = more.exchange("n")
    again.connect(
        more.map(
            lambda batch: {
                "n": np.where(batch["n"] % 2 == 0, batch["n"] // 2, 3 * batch["n"] + 1),
                "word": batch["word"],
            }
        )
    )
    flow.output("done", done.leave())
    return flow


def joined() -> jt.Flow:
    flow = jt.Flow("joined")
    numbers, names = flow.input("numbers"), flow.input("names")
    flow.output("joined", numbers.key_by("n").join(names.key_by("n")))
    flow.output("counts", numbers.key_by("word").tumbling(500).count())
    return flow


NAMES = {
    "time": np.zeros(50, dtype=np.int64),
    "n": np.arange(50),
    "name": [f"n{n}" for n in range(50)],
}

FEW = {name: column[:200] for name, column in NUMBERS.items()}

FLOWS: dict[str, tuple[Callable[[], jt.Flow], dict[str, Any]]] = {
    "exchange": (exchanged, {"numbers": NUMBERS}),
    "broadcast": (broadcast, {"numbers": NUMBERS}),
    "loop": (looped, {"numbers": FEW}),
    "join": (joined, {"numbers": NUMBERS, "names": NAMES}),
}


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("name", FLOWS)
def test_same_rows_as_in_one_process(name: str, workers: int, tcp: bool) -> None:
    make, inputs = FLOWS[name]
    reports = run(make, inputs, workers=workers, tcp=tcp)
    expected = make().run({k: pa.table(v) for k, v in inputs.items()}, workers=workers)
    for output in make().outputs:
        assert gathered(reports, output) == in_order(expected[output].to_pylist())
    assert all(report.stats["bytes_out"] > 0 for report in reports)


@pytest.mark.parametrize("group", [2, 4], ids=["three groups", "an odd group"])
@pytest.mark.parametrize("name", ["exchange", "loop"])
def test_same_rows_through_relays(name: str, group: int) -> None:
    make, inputs = FLOWS[name]
    reports = run(make, inputs, workers=6, group=group)
    expected = make().run({k: pa.table(v) for k, v in inputs.items()}, workers=2)
    for output in make().outputs:
        assert gathered(reports, output) == in_order(expected[output].to_pylist())


@pytest.mark.long
def test_many_short_runs_end_well() -> None:
    """Good-byes cross each other on the way: nobody takes them for a loss."""
    numbers = {"time": np.arange(6), "n": np.arange(6), "word": ["a"] * 6}
    for group in (1, 1, 1, 1, 2, 2, 2, 2):
        reports = run(exchanged, {"numbers": numbers}, workers=3, group=group)
        assert gathered(reports, "counts") == [(100, "a", 6)]


def waiting() -> jt.Flow:
    """A flow that never ends by itself: its source holds its token and sends now and then."""
    flow = jt.Flow("waiting")
    now_and_then = sending(lambda token, info: info.activator.after(0.01))
    flow.output("n", flow.source(now_and_then).exchange("n"))
    return flow


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_a_killed_peer_fails_the_others_at_once_by_name(tcp: bool) -> None:
    with started(waiting, workers=3, tcp=tcp, watch=tell_when_all_have_sent) as running:
        running.go()
        for pipe in running.pipes:
            assert pipe.poll(30.0)
            assert pipe.recv() == "sent"
        os.kill(running.processes[1].pid, signal.SIGKILL)
        reports = running.reports(without=[1])
    for report in reports:
        assert report.error_type == "PeerLost", report.error
        # At once: nobody waited for an answer that did not come.
        assert "the connection to worker 1 broke" in report.error.splitlines()[-1]


@pytest.mark.parametrize("victim", [2, 3], ids=["relay", "member"])
def test_a_killed_relay_or_member_fails_all_others(victim: int) -> None:
    with started(waiting, workers=5, watch=tell_when_all_have_sent, group=2) as running:
        running.go()
        for pipe in running.pipes:
            assert pipe.poll(30.0)
            assert pipe.recv() == "sent"
        os.kill(running.processes[victim].pid, signal.SIGKILL)
        reports = running.reports(without=[victim])
    for report in reports:
        assert report.error_type == "PeerLost", report.error
        assert f"worker {victim}" in report.error.splitlines()[-1]


def tell_when_all_have_sent(agent: Agent, stats: dict[str, Any]) -> None:
    import sys

    mesh = agent.peers
    assert isinstance(mesh, Mesh)
    heard = sum(link.bytes_in > 0 for link in mesh._data.values())
    if heard == mesh.workers - 1 and "reported" not in stats:
        stats["reported"] = True
        # The pipe is a local of the function that calls this.
        frame = sys._getframe(1)
        while "pipe" not in frame.f_locals and frame.f_back is not None:
            frame = frame.f_back
        frame.f_locals["pipe"].send("sent")


def speak_for_another(agent: Agent, stats: dict[str, Any]) -> None:
    if agent.worker.index == 1 and "spoke" not in stats:
        stats["spoke"] = True
        agent.peers.send_progress(0, ProgressBatch(2, 0, ()))


def test_no_worker_speaks_for_another() -> None:
    first, *_ = run(waiting, workers=3, watch=speak_for_another)
    assert first.error_type == "ProtocolError", first.error
    assert "worker 1 sent a progress batch of worker 2" in first.error


def failing() -> jt.Flow:
    flow = jt.Flow("failing")

    def check(batch: jt.Batch) -> dict[str, Any]:
        if (batch["n"] == 42).any():
            raise ValueError("forty-two is not allowed")
        return {"n": batch["n"]}

    flow.output("n", flow.input("numbers").exchange("n").map(check, name="checking"))
    return flow


@pytest.mark.parametrize("workers", [1, 3])
def test_a_flow_that_holds_a_token_for_ever_fails_and_says_who(workers: int) -> None:
    def make() -> jt.Flow:
        def hoard(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
            if info.worker:
                token.drop()
            return lambda input, output: [token for _ in input]

        flow = jt.Flow("hoarding")
        flow.output("out", flow.input("numbers").exchange("n").unary(hoard, name="hoarder"))
        return flow

    for report in run(make, {"numbers": NUMBERS}, workers=workers):
        assert "FlowStalled: all workers came to rest" in report.error
        assert "'hoarder' holds 1 token at the start of time" in report.error


@pytest.mark.parametrize("workers", [2, 4])
def test_a_failing_operator_fails_all_with_the_first_cause(workers: int) -> None:
    numbers = {"time": np.arange(ROWS), "n": np.arange(ROWS)}
    reports = run(failing, {"numbers": numbers}, workers=workers)
    kinds = [report.error_type for report in reports]
    assert sorted(kinds) == ["OperatorFailed", *["PeerFailed"] * (workers - 1)]
    first = kinds.index("OperatorFailed")
    for report in reports:
        assert report.error.count("forty-two is not allowed") >= 1
        assert "checking" in report.error
        if report.error_type == "PeerFailed":
            assert f"worker {first} failed" in report.error
            # Told once, with the traceback of the one whose fault it was.
            assert report.error.count("in check") == 1


# Strangers


def tcp_to(address: Address) -> socket.socket:
    return socket.create_connection((address.host, address.port), timeout=10.0)


def refused(sock: socket.socket) -> bool:
    """Whether the other end hangs up."""
    sock.settimeout(20.0)
    try:
        while sock.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def without_the_secret(running: Running, at: int) -> None:
    with tcp_to(running.addresses[at]) as sock:
        with pytest.raises(ProtocolError):
            greet(sock, b"x" * 32, 0, EPOCH)
        assert refused(sock)


def with_garbage(running: Running, at: int) -> None:
    with tcp_to(running.addresses[at]) as sock:
        sock.sendall(os.urandom(4096))
        assert refused(sock)


def of_another_epoch(running: Running, at: int) -> None:
    sock = connect(running.addresses[at])
    with sock:
        with pytest.raises(ProtocolError):
            greet(sock, SECRET, 0, EPOCH - 1)
        assert refused(sock)


def in_silence(running: Running, at: int) -> None:
    with tcp_to(running.addresses[at]) as sock:
        assert refused(sock)


STRANGERS = {
    "no secret": (without_the_secret, "does not know this query's secret"),
    "garbage": (with_garbage, "does not know this query's secret"),
    "another epoch": (of_another_epoch, "epoch 4 connected to epoch 5"),
    "silence": (in_silence, "said nothing in time"),
}


@pytest.mark.parametrize("who", STRANGERS)
def test_strangers_are_refused_and_the_run_goes_on(who: str) -> None:
    """They come while a worker still waits for one of its peers: afterwards nothing listens."""
    come, complaint = STRANGERS[who]
    with started(exchanged, {"numbers": NUMBERS}, workers=3, tcp=True) as running:
        for pipe in running.pipes[:2]:
            pipe.send(running.addresses)
        come(running, 0)
        running.pipes[2].send(running.addresses)
        reports = running.reports()
    expected = exchanged().run({"numbers": pa.table(NUMBERS)})
    assert gathered(reports, "counts") == in_order(expected["counts"].to_pylist())
    assert [report.refused for report in reports] == [1, 0, 0]
    assert any("refused a connection" in line and complaint in line for line in reports[0].log)


def test_nothing_listens_once_all_have_joined() -> None:
    with started(waiting, workers=2, watch=tell_when_all_have_sent) as running:
        running.go()
        for pipe in running.pipes:
            assert pipe.poll(30.0)
            assert pipe.recv() == "sent"
        for address in running.addresses.values():
            assert not Path(address.path).parent.exists()
            with pytest.raises(ConnectionRefusedError):
                tcp_to(address)
        os.kill(running.processes[1].pid, signal.SIGKILL)
        running.reports(without=[1])


def test_strangers_that_come_first_are_refused_too() -> None:
    """Before workers know of each other, a connection waits; then it must prove itself."""
    with (
        started(exchanged, {"numbers": NUMBERS}, workers=2, tcp=True) as running,
        tcp_to(running.addresses[1]) as stranger,
        tcp_to(running.addresses[0]) as liar,
    ):
        for sock in (stranger, liar):
            # Once it is greeted, it is counted, whenever what it says is read.
            assert sock.recv(1)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        liar.sendall(b"\0" * 100)
        running.go()
        reports = running.reports()
        assert refused(stranger)
        assert refused(liar)
    expected = exchanged().run({"numbers": pa.table(NUMBERS)})
    assert gathered(reports, "counts") == in_order(expected["counts"].to_pylist())
    assert [report.refused for report in reports] == [1, 1]


def test_a_dead_peer_at_the_start_is_named() -> None:
    with started(exchanged, {"numbers": NUMBERS}, workers=3) as running:
        os.kill(running.processes[2].pid, signal.SIGKILL)
        running.processes[2].join(10.0)
        for pipe in running.pipes[:2]:
            pipe.send(running.addresses)
        reports = running.reports(without=[2])
    for report in reports:
        assert report.error_type in ("PeerLost", "HandshakeError"), report.error
    assert any("worker 2" in report.error for report in reports)
