"""A flow that a thread drives, as a user's program does, while a page looks at it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import jeton as jt
from jeton.runtime.in_process import Run

PERIOD = 0.01
"""Seconds between two batches."""


def stuck() -> jt.Flow:
    """Means that come out, and an output that a token holds: it is kept in a list."""
    flow = jt.Flow("sensors <&>")

    def keeping(token: jt.TimestampToken, info: jt.OperatorInfo) -> Any:
        token.drop()
        info.keep_nothing()
        kept: list[jt.TimestampToken] = []

        def step(input: Any, output: Any) -> None:
            for ref, batch in input:
                if not kept:
                    kept.append(ref.retain())
                output.session(ref).give(batch)

        return step

    readings = flow.input("readings", lateness=5)
    flow.output("means", readings.key_by("k").tumbling(10).mean("v"))
    flow.output("high", readings.unary(keeping, name="keeper"))
    return flow


@contextmanager
def driven(flow: jt.Flow, workers: int = 2) -> Iterator[Run]:
    """A run with a page, which goes on by itself: one time for each batch."""
    over = threading.Event()
    with flow.open(workers=workers) as run:
        run.monitor.every = 0.05
        run.inspect()

        def drive() -> None:
            time = 0
            while not over.wait(PERIOD):
                for worker in range(workers):
                    rows = {"time": np.full(8, time), "k": np.arange(8), "v": np.ones(8)}
                    run.input("readings", worker=worker).send(rows)
                run.run_to_rest()
                time += 1

        thread = threading.Thread(target=drive)
        thread.start()
        try:
            yield run
        finally:
            over.set()
            thread.join()
