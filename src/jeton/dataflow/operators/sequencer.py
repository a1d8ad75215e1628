"""sequencer: all workers get the same commands in the same order.

Each worker holds a token. A command is sent to all workers at its sender's time; a worker that
sees a command moves its own token past it, as Lamport's clocks do. Once the frontier has passed a
command's time, nothing can come before it any more, so it may be handed out: in order of time,
then worker, then number.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jeton.core.tokens import ActivatingToken, TimestampToken
from jeton.dataflow.pacts import Broadcast
from jeton.dataflow.plan import OperatorInfo, Step
from jeton.dataflow.ports import Input, Output, PostedOutput

if TYPE_CHECKING:
    from jeton.dataflow.scope import Scope


class SequencerHandle:
    """One worker's end of a sequencer: give commands, and take them all in the common order."""

    def __init__(self, token: ActivatingToken, output: PostedOutput, worker: int) -> None:
        self._token = token
        self._output = output
        self._worker = worker
        self._given = 0
        self._ready: deque[Any] = deque()

    def push(self, command: Any) -> None:
        """Give a command: anything that JSON can hold."""
        self._output.session(self._token).give(
            worker=self._worker, number=self._given, command=json.dumps(command)
        )
        self._given += 1
        self._token.downgrade(self._token.time + 1)

    def next(self) -> Any | None:
        """The next command in the common order, or ``None`` if it is not known yet."""
        return self._ready.popleft() if self._ready else None

    @property
    def closed(self) -> bool:
        """Whether no more commands are given from here."""
        return self._token.dropped

    def close(self) -> None:
        """Give no more commands from here."""
        if not self._token.dropped:
            self._token.drop()

    def _saw(self, time: int) -> None:
        """Order the commands that are given here from now on after one at ``time``."""
        if not self._token.dropped and self._token.time <= time:
            self._token.downgrade(time + 1)


def add_sequencer(scope: Scope, name: str) -> None:
    """Add the operators of `Flow.sequencer`."""
    handles: dict[int, SequencerHandle] = {}
    giving = scope.operator(name)
    giving.output()

    def build_giving(tokens: list[TimestampToken], info: OperatorInfo) -> None:
        output = PostedOutput(info.outputs[0], info.post)
        handle = SequencerHandle(tokens.pop().activating(), output, info.worker)
        handles[info.worker] = handle
        info.publish(handle)

    commands = giving.build(build_giving)[0]
    taking = scope.operator(f"{name}-order")
    taking.input(commands, Broadcast())

    def build_taking(tokens: list[TimestampToken], info: OperatorInfo) -> Step:
        handle = handles[info.worker]
        waiting: list[tuple[int, int, int, str]] = []

        def step(inputs: Sequence[Input], outputs: Sequence[Output]) -> None:
            for _, batch in inputs[0]:
                for row in batch.rows():
                    waiting.append((row["time"], row["worker"], row["number"], row["command"]))
                    handle._saw(row["time"])
            frontier = inputs[0].frontier
            waiting.sort()
            ready = sum(1 for time, *_ in waiting if frontier.passed(time))
            handle._ready.extend(json.loads(command) for *_, command in waiting[:ready])
            del waiting[:ready]

        return step

    taking.build(build_taking, notify="always")
