"""The mesh under load and at rest: memory stays bounded, idle workers cost next to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import jeton as jt
from jeton.mesh.shared_link import ring_size
from jeton.runtime.agent import MOST_OUT, Agent
from tests.mesh.harness import gathered, run

BATCH = 50_000
"""Rows of 8 bytes in a batch, and as many times."""


def pushing(batches: int) -> Callable[[jt.TimestampToken, jt.OperatorInfo], Any]:
    """A source on the first worker only, as fast as it is let."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
        left = batches if info.worker == 0 else 0

        def step(output: jt.Output) -> None:
            nonlocal left
            if left == 0:
                token.drop()
                return
            left -= 1
            with output.session(token) as session:
                columns = {"n": np.arange(BATCH)}
                session.give(jt.Batch(columns, times=np.full(BATCH, token.time)))
            token.downgrade(token.time + 1)
            info.activator.activate()

        return step

    return build


def slow_count(seconds: float) -> Callable[[jt.TimestampToken, jt.OperatorInfo], Any]:
    """Counts rows, and takes its time for each batch."""

    def build(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Output], None]:
        rows = 0

        def step(input: jt.Input, output: jt.Output) -> None:
            nonlocal rows
            for _, batch in input:
                rows += len(batch)
                time.sleep(seconds)
            if input.frontier.is_empty and not token.dropped:
                with output.session(token) as session:
                    session.give(rows=rows)
                token.drop()

        return step

    return build


class To(jt.Pact):
    """Everything to one worker."""

    def __init__(self, worker: int) -> None:
        self.worker = worker

    def route(self, batch: jt.Batch, workers: int) -> Any:
        yield self.worker % workers, batch


def peak(agent: Agent, stats: dict[str, Any]) -> None:
    """The most that was waiting, out and in, and how much memory the process took."""
    import resource

    mesh = agent.peers
    stats["backlog"] = max(stats.get("backlog", 0), mesh.backlog)
    stats["queued"] = max(stats.get("queued", 0), agent.worker.queued)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    stats.setdefault("memory_before", memory)
    stats["memory"] = memory


def slow_end() -> jt.Flow:
    flow = jt.Flow("slow end")
    counts = flow.source(pushing(400)).unary_frontier(slow_count(0.005), pact=To(1), name="slow")
    flow.output("rows", counts)
    return flow


def slow_end_behind_a_fast_middle() -> jt.Flow:
    """The source and the slow operator do not share a link: only the one between feels it."""
    flow = jt.Flow("slow end behind a fast middle")
    middle = flow.source(pushing(400)).unary_frontier(passing, pact=To(1), name="middle")
    flow.output("rows", middle.unary_frontier(slow_count(0.005), pact=To(2), name="slow"))
    return flow


def passing(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            with output.session(ref) as session:
                session.give(batch)

    return step


@pytest.mark.parametrize("workers", [2, 3])
def test_a_slow_consumer_slows_the_source_and_memory_stays_bounded(workers: int) -> None:
    make = slow_end if workers == 2 else slow_end_behind_a_fast_middle
    reports = run(make, workers=workers, watch=peak)
    assert sum(row[-1] for row in gathered(reports, "rows")) == 400 * BATCH
    sent = 400 * BATCH * 16
    for report in reports:
        stats = report.stats
        # What the source has sent before it hears that the one in the middle has enough.
        most = 2 * MOST_OUT + ring_size(workers) + 4 * BATCH * 16
        assert stats["backlog"] < most, stats
        grown = stats["memory"] - stats["memory_before"]
        assert grown < sent / 2, f"{grown >> 20} MB more, while {sent >> 20} MB passed"


def idle() -> jt.Flow:
    """Nothing to do for two seconds, though nobody knows that beforehand."""
    flow = jt.Flow("idle")

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
        began = time.monotonic()

        def step(output: jt.Output) -> None:
            if time.monotonic() - began < 2.0:
                info.activator.after(2.0)
                return
            with output.session(token) as session:
                session.give(n=1)
            token.drop()

        return step

    flow.output("n", flow.source(build).exchange("n"))
    return flow


def cpu(agent: Agent, stats: dict[str, Any]) -> None:
    """How busy the process was after its start."""
    now, used = time.monotonic(), time.process_time()
    if "began" not in stats:
        # The first turn is over: all that follows is waiting.
        stats["began"] = now, used
    began, used_before = stats["began"]
    if now - began < 1.9:
        stats["share"] = (used - used_before) / max(now - began, 1.0)


def test_idle_workers_use_next_to_no_processor() -> None:
    reports = run(idle, workers=3, watch=cpu)
    assert len(gathered(reports, "n")) == 3
    for report in reports:
        assert report.stats["share"] < 0.02, report.stats


def test_large_and_many_small_frames_arrive_whole() -> None:
    """Messages larger than any socket's buffer both ways at once, among thousands of tiny ones."""

    def make() -> jt.Flow:
        flow = jt.Flow("sizes")

        def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[[jt.Output], None]:
            sizes = [1] * 3000 + [2_000_000] + [1] * 3000

            def step(output: jt.Output) -> None:
                for _ in range(500):
                    if not sizes:
                        token.drop()
                        return
                    rows = sizes.pop()
                    with output.session(token) as session:
                        session.give(
                            jt.Batch(
                                {"n": np.arange(rows), "from": np.full(rows, info.worker)},
                                times=np.full(rows, token.time),
                            )
                        )
                info.activator.activate()

            return step

        sent = flow.source(build).broadcast()
        flow.output("sums", sent.key_by("from").tumbling(10).sum("n"))
        return flow

    reports = run(make, workers=2)
    total = 2_000_000 * 1_999_999 // 2
    assert gathered(reports, "sums") == [(10, 0, 2 * total), (10, 1, 2 * total)]


def test_both_ends_full_at_once_is_no_deadlock() -> None:
    """All workers send to all others far more than sockets hold, before any of them reads."""

    def make() -> jt.Flow:
        flow = jt.Flow("flood")
        numbers = flow.input("numbers")
        flood = numbers.flat_map(
            lambda batch: (
                {"k": np.arange(2000 * len(batch))},
                np.repeat(np.arange(len(batch)), 2000),
            )
        ).exchange("k")
        again = flood.with_columns(k=lambda batch: batch["k"] + 1).exchange("k")
        flow.output("rows", again.key_by().tumbling(10_000).count())
        return flow

    numbers = {"time": np.arange(2000), "n": np.arange(2000)}
    reports = run(make, {"numbers": pa.table(numbers)}, workers=3)
    assert gathered(reports, "rows") == [(10_000, 4_000_000)]
