"""Inquiry: the driver's side of the question why, for the workers of one attempt.

Workers answer between their turns, and the watch of a busy one answers in its place. A worker that
does neither within some seconds is silent: its process is stopped, or in a call that holds Python's
interpreter.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jeton.connectors.sinks.driver_sink import hand_over
from jeton.connectors.waiting import Waiting
from jeton.runtime.commands import CollectFacts
from jeton.runtime.why import Holder
from jeton.runtime.worker_facts import WorkerFacts, stack_of

if TYPE_CHECKING:
    from jeton.cluster.checkpoint_committer import CheckpointCommitter
    from jeton.cluster.coordinator import Coordinator

PATIENCE: Final = 2.5
"""Seconds in which workers answer: a watch may take two for it."""
SLOW: Final = 1.0
"""Seconds for which rows wait, from which on a sink counts as slow."""


class Inquiry:
    """The latest facts of each worker.

    >>> import socket
    >>> import jeton as jt
    >>> from jeton.cluster.control import Control
    >>> from jeton.cluster.coordinator import Coordinator
    >>> from jeton.runtime.agent import Agent
    >>> from jeton.runtime.worker_facts import collect
    >>> coordinator = Coordinator(workers=1)
    >>> here, there = (Control(end) for end in socket.socketpair())
    >>> coordinator.join(0, here)
    >>> flow = jt.Flow("echo")
    >>> flow.output("out", flow.input("in"))
    >>> facts = collect([Agent(flow)])[0].to_json()
    >>> coordinator.inquiry.hear(0, {"kind": "facts", "number": 1, "facts": facts})
    >>> [each.worker for each in coordinator.inquiry.ask(coordinator)]
    [0]
    >>> here.close(), there.close()
    (None, None)
    """

    def __init__(self) -> None:
        self._answers: dict[int, tuple[int, WorkerFacts]] = {}
        """The latest answer of each worker, and the number of the command that it answers."""
        self._busy: dict[int, tuple[float, WorkerFacts]] = {}
        """The last words of each worker's watch, and when they came."""
        self._errors: dict[int, tuple[int, str]] = {}
        """Why a worker could not answer, and the number of the command."""
        self._heard: dict[int, tuple[float, str]] = {}
        """When each worker last reported, and which process it is."""
        self._changed = threading.Condition()

    def hear(self, worker: int, header: Mapping[str, Any]) -> None:
        """Take note of a report, of an answer, or of what a watch says."""
        kind, now = header["kind"], time.monotonic()
        with self._changed:
            if kind == "report":
                self._heard[worker] = now, header.get("process", "")
            elif kind == "busy":
                self._busy[worker] = now, WorkerFacts.from_json(header["facts"])
            elif "error" in header:
                self._errors[worker] = header["number"], header["error"]
            else:
                facts = WorkerFacts.from_json(header["facts"])
                self._answers[worker] = header["number"], facts
                self._errors.pop(worker, None)
            self._changed.notify_all()

    def ask(self, coordinator: Coordinator, patience: float = PATIENCE) -> list[WorkerFacts]:
        """The facts of the workers that answer in time."""
        asked = time.monotonic()
        number = coordinator.send(CollectFacts()).number

        def came() -> dict[int, WorkerFacts]:
            found = {w: facts for w, (when, facts) in self._busy.items() if when >= asked}
            return found | {w: facts for w, (n, facts) in self._answers.items() if n >= number}

        def is_over() -> bool:
            failed = {w for w, (n, _) in self._errors.items() if n >= number}
            return came().keys() | failed | coordinator.gone >= coordinator.controls.keys()

        with self._changed:
            self._changed.wait_for(is_over, patience)
            found = came()
        return [found[worker] for worker in sorted(found)]

    def silent(self, coordinator: Coordinator, answered: list[WorkerFacts]) -> list[Holder]:
        """The workers that have joined but have not answered, unless they are done."""
        missing = coordinator.controls.keys() - {facts.worker for facts in answered}
        missing -= {worker for worker in coordinator.gone if coordinator.is_done(worker)}
        now, holders = time.monotonic(), []
        for worker in sorted(missing):
            heard, process = self._heard.get(worker, (None, ""))
            seconds = None if heard is None else round(now - heard, 1)
            last = "it has never reported" if seconds is None else f"silent for {seconds:.1f} s"
            detail = f"{process}, {last}" if process else last
            _, why = self._errors.get(worker, (0, ""))
            why = why or "its process is stopped, or in a call that holds Python's interpreter"
            text = f"worker {worker} does not answer ({detail}): {why}"
            if worker in coordinator.gone:
                text = f"worker {worker} has left ({detail})"
            holders.append(
                Holder(
                    what="silent",
                    text=text,
                    workers=(worker,),
                    since=seconds,
                    detail=detail,
                )
            )
        return holders


def slow_sinks(waiting: Iterable[Waiting]) -> list[Holder]:
    """The sinks at the driver that have not taken rows for some time."""
    holders = []
    for each in waiting:
        delay = each.delay(at_least=SLOW)
        if delay is not None:
            line, stack = stack_of(delay.thread, hand_over.__code__)
            holders.append(
                Holder(
                    what="sink",
                    text=f"{delay}, at {line}" if line is not None else str(delay),
                    operator=delay.output,
                    count=delay.tables,
                    line=line,
                    since=round(delay.seconds, 3),
                    detail=delay.error,
                    stack=stack,
                )
            )
    return holders


def uncommitted(
    committer: CheckpointCommitter | None, facts: Iterable[WorkerFacts]
) -> list[Holder]:
    """The outputs whose rows wait for the next checkpoint, which brings them to their sinks."""
    if committer is None:
        return []
    rows: Counter[str] = Counter()
    for each in facts:
        rows.update(each.uncommitted)
    seconds = time.monotonic() - committer.committed_at
    last = f"the last one was {seconds:.1f} s ago"
    if committer.version is None:
        last = f"there was none for {seconds:.1f} s"
    every = committer.every
    following = "checkpoint() takes one" if every is None else f"one is taken every {every:g} s"
    holders = []
    for output, count in rows.items():
        wait = f"{count:,} row{' of' if count == 1 else 's of'} output {output!r} wait"
        text = f"{wait}{'s' if count == 1 else ''} for the next checkpoint: {last}, {following}"
        holders.append(Holder(what="checkpoint", text=text, operator=output, count=count))
    return holders
