"""Marks: how watermarks are written into a channel, travel between workers, and are read.

A mark is a message of one row, sent on the same channel as the data: its time is the watermark,
its one column says who sent it and whether that sender is active, idle or at its end. A mark at
``t`` promises that its sender sends nothing before ``t`` any more. Data messages are not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

import jeton as jt

MARK: Final = "jeton.mark"
"""The column by which a mark is known: four times the sender's number, plus its status."""

ACTIVE, IDLE, CLOSED = range(3)
"""The status of a sender: it may hold the minimum back; it does not; it will never send again."""

_LAGGING: Final = -1
_END: Final = jt.END_OF_TIME + 1


class MarkWriter:
    """One worker's watermark on one output: a single token, and marks in the channel.

    Its holder promises by marks downstream, and by the token's time to the system, that
    nothing comes before `mark` any more. Sources use it as operators do.

    >>> def ticks(token, info):
    ...     writer = MarkWriter(token, info)
    ...
    ...     def step(output):
    ...         output.session(token).give(n=writer.mark)
    ...         if writer.mark == 2:
    ...             writer.close(output)
    ...         else:
    ...             writer.advance(output, writer.mark + 1)
    ...             info.activator.activate()
    ...
    ...     return step
    >>> from jeton.idioms.watermarks import MarkedStream, unmarked
    >>> flow = jt.Flow("ticks")
    >>> flow.output("ticks", unmarked(MarkedStream(flow.source(ticks))))
    >>> flow.run()["ticks"]["n"].to_pylist()
    [0, 1, 2]
    """

    __slots__ = ("_codes", "mark", "status", "token")

    def __init__(self, token: jt.TimestampToken, info: jt.OperatorInfo) -> None:
        self.token = token
        self.mark: int = token.time
        self.status = ACTIVE
        self._codes = [np.array([info.worker * 4 + status]) for status in (ACTIVE, IDLE, CLOSED)]

    def advance(self, output: jt.Output, mark: int) -> None:
        """Send nothing before ``mark`` any more; an idle writer is active again."""
        self.token.downgrade(mark)
        self.mark = mark
        self._send(output, ACTIVE)

    def idle(self, output: jt.Output) -> None:
        """Do not hold others back; the right to send from `mark` on is kept all the same."""
        self._send(output, IDLE)

    def resume(self, output: jt.Output) -> None:
        """Be active again, at the same mark: before the data that has come."""
        self._send(output, ACTIVE)

    def close(self, output: jt.Output) -> None:
        """Say that nothing more comes, and give up the token."""
        self._send(output, CLOSED)
        self.token.drop()

    def _send(self, output: jt.Output, status: int) -> None:
        self.status = status
        times = np.array([self.mark])
        mark = jt.Batch.trusted({MARK: self._codes[status]}, times, output.time_name, self.mark)
        output.session(self.token).give(mark)


class MarkReader:
    """The watermark of an operator: the minimum over all senders of all its inputs.

    Idle senders are left out. One that comes back counts again once its marks have reached the
    operator's own, which never goes back. Senders at their end hold back no operator. Until
    a sender's first mark has come, all times are to be expected from it, from the ``least`` on.

    >>> reader = MarkReader([2], least=0)  # one input, marks from two workers
    >>> reader.read(0, 0 * 4 + ACTIVE, 5)
    >>> reader.mark
    0
    >>> reader.read(0, 1 * 4 + ACTIVE, 3)
    >>> reader.mark
    3
    >>> reader.read(0, 1 * 4 + IDLE, 3)
    >>> reader.mark, reader.status == ACTIVE
    (5, True)
    """

    __slots__ = ("_bases", "_marks", "_states", "changed", "mark", "status")

    def __init__(self, senders: list[int], *, least: int) -> None:
        self._bases = [sum(senders[:port]) for port in range(len(senders))]
        self._marks = [least] * sum(senders)
        """Of those that are counted; beyond all times for the others."""
        self._states = [ACTIVE] * sum(senders)
        self.mark = least
        self.status = ACTIVE
        self.changed = False
        """Whether mark or status have changed; the operator that acts on it resets it."""

    def read(self, port: int, code: int, time: int) -> None:
        """A mark has come on an input."""
        sender = self._bases[port] + (code >> 2)
        state = code & 3
        if state == ACTIVE and time < self.mark:
            state = _LAGGING
        marks, states = self._marks, self._states
        marks[sender] = time if state == ACTIVE else _END
        if states[sender] != state:
            states[sender] = state
        elif state != ACTIVE:
            return
        mark = min(marks)
        if mark == _END:
            self._none_counts()
        elif mark != self.mark or self.status != ACTIVE:
            self.mark, self.status, self.changed = mark, ACTIVE, True

    def _none_counts(self) -> None:
        """All senders are idle, catching up, or at their end."""
        states = self._states
        if _LAGGING in states:
            status = ACTIVE
        elif IDLE in states:
            status = IDLE
            if CLOSED in states:
                # Those that are not idle will send nothing more: everything is complete.
                self.changed |= self.mark != jt.END_OF_TIME
                self.mark = jt.END_OF_TIME
        else:
            status = CLOSED
        self.changed |= status != self.status
        self.status = status


class WithMarks(jt.Pact):
    """Data goes as another pact says, marks go to every worker: in the same channel.

    >>> pact = WithMarks(jt.Gather())
    >>> data, mark = jt.Batch({"n": [1]}, times=[0]), jt.Batch({MARK: [0]}, times=[5])
    >>> [[to for to, _ in pact.route(batch, workers=3)] for batch in (data, mark)]
    [[0], [0, 1, 2]]
    """

    def __init__(self, data: jt.Pact) -> None:
        self._data = data

    def route(self, batch: jt.Batch, workers: int) -> Iterator[tuple[int, jt.Batch]]:
        """A mark to each worker; data where it belongs."""
        if MARK in batch.columns:
            for worker in range(workers):
                yield worker, batch
        else:
            yield from self._data.route(batch, workers)

    def __repr__(self) -> str:
        return f"WithMarks({self._data!r})"
