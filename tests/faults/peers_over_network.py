"""Two workers on a network of their own, one of which stalls or vanishes: what happens?

`stall` runs one such case and returns an `Outcome`. Each worker gets a network namespace, as if it
were a machine; they are joined by a virtual cable that can be pulled. That needs root and iproute2
(`can_have_machines` tells); workers that only stall can do with the loopback interface.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from jeton.mesh.liveness import Keepalive

ROOT = Path(__file__).parents[2]
BATCHES, ROWS = 80, 50_000
"""The bytes that the first worker sends to the second: 64 MB, far more than their sockets hold."""

Fault = Literal["busy", "stopped", "cable pulled", "cable pulled for a while"]
Load = Literal["idle", "flowing", "full"]
_names = itertools.count()


@dataclass
class Outcome:
    """The result of one case."""

    fault: Fault
    load: Load
    seconds: float
    """How long the stall lasted, or was to last."""
    hit: bool
    """Whether the fault was there while the workers were connected and at work."""
    rows: int | None
    """Rows that arrived at the second worker, if both came to their end."""
    errors: dict[int, str] = field(default_factory=dict)
    """The error of each worker that failed."""
    noticed: dict[int, float] = field(default_factory=dict)
    """Seconds from the fault to each error."""

    @property
    def complete(self) -> bool:
        """Whether every row arrived, and no worker failed."""
        expected = ROWS if self.load == "idle" else BATCHES * ROWS
        return not self.errors and self.rows == expected


def stall(
    fault: Fault,
    seconds: float = 0.0,
    *,
    load: Load = "full",
    keepalive: Keepalive | None = None,
    machines: bool = True,
    limit: float = 120.0,
) -> Outcome:
    """Stall the second of two workers for ``seconds``, or pull its cable.

    ``load`` says what is under way then: nothing; data; or so much data that the second worker's
    receive window is closed. ``limit`` is for the time after the fault, beside ``seconds``.
    """
    if fault == "busy" and load != "full":
        raise ValueError("a busy worker does not read: its load is 'full'")
    plan = {
        "keepalive": keepalive or Keepalive(),
        "batches": 1 if load == "idle" else BATCHES,
        # With a cable pulled for good, the one that does not read never reads again.
        "hold": {"full": seconds or 3600.0, "flowing": 0.0, "idle": 0.0}[load],
        "pace": 0.05 if load == "flowing" else 0.0,
        "wait": load == "idle",
    }
    with _network(machines) as network, _Workers(network, plan) as workers:
        workers.connect()
        workers.until("first", worker=1)
        if load == "full":
            workers.until("full", worker=0)
        began = time.monotonic()
        hit = workers.alive
        if fault == "stopped":
            workers.signal(1, signal.SIGSTOP)
        elif fault != "busy":
            network.pull()
        if fault != "cable pulled":
            workers.collect(seconds)
            if fault == "stopped":
                workers.signal(1, signal.SIGCONT)
            elif fault != "busy":
                network.plug_in()
        workers.release()
        workers.collect(limit, without=[1] if fault == "cable pulled" and load == "full" else [])
        outcome = Outcome(fault, load, seconds, hit, workers.rows)
        for worker, (error, when) in workers.errors.items():
            outcome.errors[worker], outcome.noticed[worker] = error, when - began
        return outcome


class _Network:
    """The network of the two workers: the loopback interface, or a cable between namespaces."""

    def __init__(self, names: tuple[str, str] | None) -> None:
        self.names = names

    def host(self, worker: int) -> str:
        return f"10.77.0.{worker + 1}" if self.names else "127.0.0.1"

    def prefix(self, worker: int) -> list[str]:
        return ["ip", "netns", "exec", self.names[worker]] if self.names else []

    def pull(self) -> None:
        self._set("down")

    def plug_in(self) -> None:
        self._set("up")

    def _set(self, state: str) -> None:
        assert self.names is not None, "the loopback interface has no cable"
        _ip("-n", self.names[1], "link", "set", "cable1", state)


@contextmanager
def _network(machines: bool) -> Iterator[_Network]:
    if not machines:
        yield _Network(None)
        return
    number = next(_names)
    names = f"jeton-{os.getpid()}-{number}-0", f"jeton-{os.getpid()}-{number}-1"
    try:
        for name in names:
            _ip("netns", "add", name)
        ends = [["name", f"cable{at}", "netns", name] for at, name in enumerate(names)]
        _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for at, name in enumerate(names):
            _ip("-n", name, "addr", "add", f"10.77.0.{at + 1}/24", "dev", f"cable{at}")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", f"cable{at}", "up")
        yield _Network(names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@functools.cache
def can_have_machines() -> bool:
    """Whether this user can make network namespaces here."""
    if shutil.which("ip") is None:
        return False
    try:
        with _network(True):
            return True
    except subprocess.CalledProcessError:
        return False


class _Workers:
    """The processes of two workers, and what they tell."""

    def __init__(self, network: _Network, plan: dict[str, Any]) -> None:
        self._events: list[dict[str, Any]] = []
        self.errors: dict[int, tuple[str, float]] = {}
        self.rows: int | None = None
        self._ended: set[int] = set()
        self._processes: list[subprocess.Popen[bytes]] = []
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        for index in (0, 1):
            what = json.dumps({**plan, "index": index, "host": network.host(index)})
            command = [sys.executable, "-m", "tests.faults.peers_over_network", what]
            self._processes.append(
                subprocess.Popen(
                    network.prefix(index) + command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": path},
                )
            )
        self._lines = [b"", b""]

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    @property
    def alive(self) -> bool:
        return not self._ended and all(process.poll() is None for process in self._processes)

    def connect(self) -> None:
        addresses = [self.until("address", worker)["address"] for worker in (0, 1)]
        for process in self._processes:
            _say(process.stdin, {"addresses": addresses})

    def release(self) -> None:
        """Let a source that waits go on to its end."""
        for process in self._processes:
            if process.poll() is None:
                _say(process.stdin, {"release": True})

    def signal(self, worker: int, number: int) -> None:
        # In a namespace too, "ip netns exec" becomes the process that it starts.
        os.kill(self._processes[worker].pid, number)

    def until(self, event: str, worker: int, limit: float = 120.0) -> dict[str, Any]:
        deadline = time.monotonic() + limit
        while True:
            for known in self._events:
                if known["event"] == event and known["worker"] == worker:
                    return known
            left = deadline - time.monotonic()
            assert left > 0, f"worker {worker} did not report {event!r}: {self._events}"
            assert worker not in self._ended, self.errors
            self._read(left)

    def collect(self, seconds: float, without: list[int] | None = None) -> None:
        """Take note of what workers tell, until all have ended or the time is over."""
        deadline = time.monotonic() + seconds
        wanted = {0, 1} - set(without or [])
        while not wanted <= self._ended and (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def _read(self, seconds: float) -> None:
        files = {
            process.stdout.fileno(): worker
            for worker, process in enumerate(self._processes)
            if process.stdout is not None and worker not in self._ended
        }
        for file in select.select(list(files), [], [], seconds)[0]:
            worker = files[file]
            received = os.read(file, 1 << 16)
            *lines, self._lines[worker] = (self._lines[worker] + received).split(b"\n")
            for line in lines:
                self._note(worker, json.loads(line))
            if not received:
                self._ended.add(worker)

    def _note(self, worker: int, event: dict[str, Any]) -> None:
        self._events.append({**event, "worker": worker})
        if event["event"] == "error":
            self.errors[worker] = event["error"], time.monotonic()
            self._ended.add(worker)
        elif event["event"] == "end":
            self._ended.add(worker)
            if worker == 1:
                self.rows = event["rows"]


def _say(pipe: IO[bytes] | None, what: dict[str, Any]) -> None:
    assert pipe is not None
    pipe.write(json.dumps(what).encode() + b"\n")
    pipe.flush()


# The program of one worker


def _work(plan: dict[str, Any]) -> None:
    from dataclasses import asdict, replace

    from jeton.mesh.listener import Address, Listener
    from jeton.mesh.mesh import Mesh
    from jeton.runtime.agent import BEAT, Agent

    index = plan["index"]
    listener = Listener(b"s" * 32, plan["host"])
    # Without a path, peers can only come by TCP.
    _tell("address", address=asdict(replace(listener.address, path="")))
    addresses = [Address(**each) for each in json.loads(sys.stdin.readline())["addresses"]]
    keepalive = Keepalive(*plan["keepalive"])
    mesh = Mesh(index, dict(enumerate(addresses)), listener, 1, timeout=60.0, keepalive=keepalive)
    flow = _flow(plan)
    agent = Agent(flow, mesh, index=index, workers=2)
    full = False
    try:
        while not agent.is_complete:
            agent.turn(block=BEAT)
            if index == 0 and agent.is_held_up and not full:
                full = True
                _tell("full")
        mesh.say_goodbye()
        collected = agent.worker.handles[flow.handle("output", "rows")]
        _tell("end", rows=sum(int(batch["rows"].sum()) for batch in collected))
    except Exception as error:
        mesh.fail(error)
        _tell("error", error="".join(traceback.format_exception_only(error)).strip())
    mesh.close()


def _flow(plan: dict[str, Any]) -> Any:
    """A source on the first worker, and a count of its rows on the second, which may hold it up."""
    import numpy as np

    import jeton as jt

    class ToTheSecond(jt.Pact):
        def route(self, batch: jt.Batch, workers: int) -> Any:
            yield 1, batch

    def source(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
        left = plan["batches"] if info.worker == 0 else 0

        def step(output: jt.Output) -> None:
            nonlocal left
            if left:
                left -= 1
                with output.session(token) as session:
                    columns = {"n": np.arange(ROWS)}
                    session.give(jt.Batch(columns, times=np.full(ROWS, token.time)))
                token.downgrade(token.time + 1)
                info.activator.activate()
            elif info.worker == 0 and plan["wait"] and not _released():
                info.activator.after(0.1)
            else:
                token.drop()

        return step

    def count(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Output], None]:
        rows = 0

        def step(input: jt.Input, output: jt.Output) -> None:
            nonlocal rows
            for _, batch in input:
                if not rows:
                    _tell("first")
                    time.sleep(plan["hold"])
                rows += len(batch)
                time.sleep(plan["pace"])
            if input.frontier.is_empty and not token.dropped:
                if info.worker == 1:
                    with output.session(token) as session:
                        session.give(rows=rows)
                token.drop()

        return step

    flow = jt.Flow("stalled")
    flow.output("rows", flow.source(source).unary_frontier(count, pact=ToTheSecond(), name="count"))
    return flow


def _tell(event: str, **what: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **what}) + "\n")
    sys.stdout.flush()


def _released() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
