"""Flows on real processes: each worker in one of its own, joined by the mesh, without Spark."""

from __future__ import annotations

import logging
import multiprocessing as mp
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

import jeton as jt
from jeton.columns.batch import concat
from jeton.mesh.certificates import Credentials
from jeton.mesh.listener import Address, Listener
from jeton.mesh.mesh import Mesh, PeerFailed
from jeton.progress.relay import in_groups, in_groups_of
from jeton.runtime.agent import BEAT, Agent

pickling: Any = cloudpickle
SECRET = b"s" * 32
EPOCH = 5
LIMIT = 60.0
"""Seconds that a whole run may take."""

# A process forked from a server that has imported everything starts in milliseconds.
CONTEXT = mp.get_context("forkserver")
CONTEXT.set_forkserver_preload(["jeton", "jeton.runtime.agent", "pyspark.cloudpickle"])


@dataclass
class Report:
    """The report of one worker at its end."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    error: str = ""
    error_type: str = ""
    log: list[str] = field(default_factory=list)
    refused: int = 0
    stats: dict[str, Any] = field(default_factory=dict)


Watch = Callable[[Agent, dict[str, Any]], None]
"""Called at each turn, to measure something."""

Before = Callable[[int], None]
"""Called with its number before a worker joins the others."""


def work(
    index: int,
    workers: int,
    make: Callable[[], jt.Flow],
    inputs: Mapping[str, pa.Table],
    tcp: bool,
    watch: Watch | None,
    credentials: Credentials | None,
    group: int | None,
    before: Before | None,
    pipe: Connection,
) -> None:
    """The life of one worker's process."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("jeton").addHandler(handler)
    listener = Listener(SECRET, credentials=credentials)
    report = Report(log=lines)
    mesh: Mesh | None = None
    try:
        # Without a path, peers can only come by TCP.
        pipe.send(replace(listener.address, path="") if tcp else listener.address)
        addresses: dict[int, Address] = pipe.recv()
        if before is not None:
            before(index)
        mesh = Mesh(index, addresses, listener, EPOCH, timeout=20.0)
        report.stats["links"] = sorted({type(link).__name__ for link in mesh._data.values()})
        flow = make()
        hops = in_groups if group is None else in_groups_of(group)
        agent = Agent(flow, mesh, index=index, workers=workers, hops=hops)
        handles = agent.worker.handles
        for name, table in inputs.items():
            handle = handles[flow.handle("input", name)]
            mine = table.take(list(range(index, table.num_rows, workers)))
            for at in range(0, mine.num_rows, 1000):
                handle.send(mine.slice(at, 1000))
            handle.close()
        while not agent.is_complete:
            agent.turn(block=BEAT)
            if watch is not None:
                watch(agent, report.stats)
        for name in flow.outputs:
            collected = handles[flow.handle("output", name)]
            report.rows[name] = concat(collected).rows() if collected else []
        mesh.say_goodbye()
        report.stats["progress_batches"] = mesh.progress_batches
        report.stats["bytes_out"] = sum(link.bytes_out for link in mesh._data.values())
    except Exception as error:
        report.error_type = type(error).__name__
        report.error = traceback.format_exc()
        if mesh is not None:
            text = error.text if isinstance(error, PeerFailed) else report.error
            mesh.fail(error, text)
    finally:
        report.refused = listener.refused
        if mesh is not None:
            mesh.close()
        listener.close()
        pipe.send(vars(report))
        pipe.close()


class Shipped:
    """A function that travels by value: these modules cannot be imported elsewhere."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __reduce__(self) -> Any:
        for name in list(sys.modules):
            if name.startswith(("tests.mesh", "tests.runtime")):
                pickling.register_pickle_by_value(sys.modules[name])
        return pickling.loads, (pickling.dumps(self.function),)


@dataclass
class Running:
    """Workers that have been started."""

    processes: list[Any]
    pipes: list[Connection]
    addresses: dict[int, Address]
    started: float

    def go(self) -> None:
        """Tell all where the others are."""
        for pipe in self.pipes:
            pipe.send(self.addresses)

    def reports(self, *, without: Sequence[int] = ()) -> list[Report]:
        """Everyone's report, but for those that cannot give one."""
        deadline = time.monotonic() + LIMIT
        found: dict[int, Report] = {}
        wanted = [at for at in range(len(self.pipes)) if at not in without]
        while len(found) < len(wanted):
            left = deadline - time.monotonic()
            open_pipes = [self.pipes[at] for at in wanted if at not in found]
            ready = wait(open_pipes, timeout=max(left, 0.0))
            assert ready, f"workers {sorted(set(wanted) - set(found))} hang"
            for pipe in ready:
                assert isinstance(pipe, Connection)
                found[self.pipes.index(pipe)] = Report(**pipe.recv())
        return [found[at] for at in wanted]


def sending(
    go_on: Callable[[jt.TimestampToken, jt.OperatorInfo], None],
) -> Callable[[jt.TimestampToken, jt.OperatorInfo], Callable[[jt.Output], None]]:
    """A source that gives a hundred numbers at each time, and then continues when asked to."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
        def step(output: jt.Output) -> None:
            with output.session(token) as session:
                session.give(jt.Batch({"n": np.arange(100)}, times=[token.time] * 100))
            token.downgrade(token.time + 1)
            go_on(token, info)

        return step

    return build


@contextmanager
def started(
    make: Callable[[], jt.Flow],
    inputs: Mapping[str, Any] | None = None,
    *,
    workers: int = 2,
    tcp: bool = False,
    watch: Watch | None = None,
    credentials: Credentials | None = None,
    group: int | None = None,
    before: Before | None = None,
) -> Iterator[Running]:
    """Processes that wait for the addresses of their peers; they end with the fixture."""
    tables = {name: pa.table(data) for name, data in (inputs or {}).items()}
    processes, pipes = [], []
    for index in range(workers):
        ours, theirs = CONTEXT.Pipe()
        shipped = watch and Shipped(watch)
        settings = (tcp, shipped, credentials, group, before and Shipped(before))
        arguments = (index, workers, Shipped(make), tables, *settings, theirs)
        process = CONTEXT.Process(target=Shipped(work), args=arguments, daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    addresses: dict[int, Address] = {}
    try:
        for index, pipe in enumerate(pipes):
            assert pipe.poll(LIMIT), f"worker {index} did not start"
            addresses[index] = pipe.recv()
        yield Running(processes, pipes, addresses, time.monotonic())
    finally:
        for process in processes:
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join(5.0)
        for pipe in pipes:
            pipe.close()
        for address in addresses.values():
            # What a killed process could not remove itself.
            if address.path:
                shutil.rmtree(Path(address.path).parent, ignore_errors=True)


def run(
    make: Callable[[], jt.Flow],
    inputs: Mapping[str, Any] | None = None,
    *,
    workers: int = 2,
    tcp: bool = False,
    watch: Watch | None = None,
    group: int | None = None,
    before: Before | None = None,
) -> list[Report]:
    """Run a flow to its end on processes, with relays if there are groups."""
    with started(
        make, inputs, workers=workers, tcp=tcp, watch=watch, group=group, before=before
    ) as running:
        running.go()
        return running.reports()


def gathered(reports: Sequence[Report], name: str) -> list[tuple[Any, ...]]:
    """All rows of an output, sorted."""
    for report in reports:
        assert not report.error, report.error
    return in_order(row for report in reports for row in report.rows[name])


def in_order(rows: Any) -> list[tuple[Any, ...]]:
    """Rows as tuples, sorted: workers tell theirs in any order."""
    return sorted((tuple(row.values()) for row in rows), key=repr)
