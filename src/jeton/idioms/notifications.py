"""Notifications, as in Naiad: ask to be called when a time is complete, and answer it then.

Naiad's operators never see a frontier. They ask for a notification at a time, and the system calls
them back, one time for each call, when no more messages can come for it. With tokens this is a
small data structure in the operator's own hands: a notification is a token that is kept until the
frontier has passed its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.errors import GraphError, SnapshotError, TimeError

Mode: TypeAlias = Literal["strict", "relaxed"]
"""One time for each invocation, as Naiad does it; or all that are complete."""


class Notificator:
    """Notifications that were asked for and not delivered yet, each with its token.

    Call `ready` in every step, after what the step asks for, with the frontiers of all inputs
    that a notification waits for. Times come in an order that extends theirs. A time that is
    asked for twice is delivered once: Naiad counts requests, but its operators, too, are called
    once for a time.

    It can be kept, ``info.keep(notificator, token, name="notifications")``, beside the state that
    notifications are about. Where that is kept by key, ask with the keys, so that both are found
    on the same workers after a restart: `notify_at`. With ``keyed=True`` a snapshot is refused
    that has requests without keys.

    >>> def sizes(token, info):  # how many records there are of each time
    ...     token.drop()
    ...     sizes, notificator = {}, Notificator(info, mode="relaxed")
    ...
    ...     def step(input, output):
    ...         for ref, batch in input.by_time():
    ...             notificator.notify_at(ref)
    ...             sizes[ref.time] = sizes.get(ref.time, 0) + len(batch)
    ...         for token in notificator.ready(input.frontier):
    ...             output.session(token).give(size=sizes.pop(token.time))
    ...
    ...     return step
    >>> flow = jt.Flow("sizes")
    >>> flow.output("sizes", flow.input("n").unary_frontier(sizes))
    >>> flow.run({"n": {"time": [7, 3, 7], "n": [1, 2, 3]}})["sizes"].to_pylist()
    [{'time': 3, 'size': 1}, {'time': 7, 'size': 2}]
    """

    __slots__ = ("_activator", "_bins", "_due", "_due_times", "_frontiers", "_in_hand", "_keyed",
                 "_kind", "_name", "_strict", "_ties", "_waiting")  # fmt: skip

    def __init__(
        self, info: jt.OperatorInfo, *, mode: Mode = "strict", keyed: bool = False
    ) -> None:
        if mode not in ("strict", "relaxed"):
            raise GraphError(f"a notificator is 'strict' or 'relaxed', not {mode!r}")
        self._name = info.name
        self._kind = info.kind
        self._keyed = keyed
        self._bins: dict[Any, set[int]] = {}
        """The bins of the keys with which times were asked for."""
        self._strict = mode == "strict"
        self._activator = info.activator
        self._waiting: jt.state.TimeMap[jt.TimestampToken] = jt.state.TimeMap()
        # Complete but not delivered, least first, in an order that extends that of times.
        self._due: list[tuple[Any, int, jt.TimestampToken]] = []
        self._due_times: set[Any] = set()
        self._ties = count()
        self._frontiers: tuple[jt.Antichain, ...] | None = None
        self._in_hand: jt.TimestampToken | None = None

    def notify_at(
        self,
        right: jt.TokenRef | jt.TimestampToken,
        time: Any = None,
        *,
        key: Sequence[npt.NDArray[Any] | pa.Array] = (),
    ) -> None:
        """Ask for a notification at the right's time, or at a later ``time``.

        A token is taken over, also the one that is just being delivered. A reference is retained
        only if that time was not asked for yet. The frontier may have passed the time: then
        the notification is due at once, in its turn.

        ``key`` are the columns of the keys that it is about. After a restart from a snapshot it
        is delivered on all workers that own one of them; without a key, on the first.
        """
        at = right.time if time is None else time
        if key:
            self._bins.setdefault(at, set()).update(np.unique(jt.state.bins_of(key)).tolist())
        known = at in self._waiting or at in self._due_times
        if isinstance(right, jt.TokenRef):
            if known:
                return
            token = right.retain(at)
        else:
            token = right
            if token is self._in_hand:
                self._in_hand = None
            if known:
                token.drop()
                return
            token.downgrade(at)
        if self._frontiers is not None and all(f.passed(at) for f in self._frontiers):
            self._put_due(token)
            self._activator.activate()
        else:
            self._waiting[at] = token

    def ready(self, *frontiers: jt.Antichain) -> Iterator[jt.TimestampToken]:
        """Deliver what all of these frontiers have passed: a token for each time, in order.

        The token is dropped after its step of the loop; clone it to keep it. In strict mode one
        time is delivered, and the operator is invoked again for the next: as it is in relaxed
        mode if the loop is left early.
        """
        self._pass(frontiers)
        while self._due:
            _, _, token = heappop(self._due)
            self._due_times.discard(token.time)
            self._bins.pop(token.time, None)
            self._in_hand = token
            whole = False
            try:
                yield token
                whole = not self._strict
            finally:
                if self._in_hand is token and not token.dropped:
                    token.drop()
                self._in_hand = None
                if self._due and not whole:
                    self._activator.activate()
            if self._strict:
                return

    @contextmanager
    def together(self, *frontiers: jt.Antichain) -> Iterator[Sequence[jt.TimestampToken]]:
        """Deliver all that these frontiers have passed in one call: a token for each time.

        They are in order, and are dropped at the end of the ``with`` block. A request, a token
        and a notification for each time remain, but not a call in Python for each: an operator
        that answers whole batches processes them in one pass.

        >>> def sizes(token, info):
        ...     token.drop()
        ...     sizes, notificator = {}, Notificator(info)
        ...
        ...     def step(input, output):
        ...         for ref, batch in input:
        ...             for time, part in batch.by_time():
        ...                 notificator.notify_at(ref, time)
        ...                 sizes[time] = sizes.get(time, 0) + len(part)
        ...         with notificator.together(input.frontier) as tokens:
        ...             if tokens:
        ...                 times = [token.time for token in tokens]
        ...                 found = [sizes.pop(time) for time in times]
        ...                 batch = jt.Batch({"size": found}, times=times)
        ...                 output.session(tokens[0]).give(batch)
        ...
        ...     return step
        >>> flow = jt.Flow("sizes")
        >>> flow.output("sizes", flow.input("n").unary_frontier(sizes))
        >>> flow.run({"n": {"time": [7, 3, 7], "n": [1, 2, 3]}})["sizes"].to_pylist()
        [{'time': 3, 'size': 1}, {'time': 7, 'size': 2}]
        """
        self._pass(frontiers)
        due, self._due = self._due, []
        self._due_times.clear()
        tokens = [token for _, _, token in sorted(due)]
        for token in tokens if self._bins else ():
            self._bins.pop(token.time, None)
        try:
            yield tokens
        finally:
            for token in tokens:
                if not token.dropped:
                    token.drop()

    def _pass(self, frontiers: tuple[jt.Antichain, ...]) -> None:
        """Note what is complete."""
        if not frontiers:
            raise TimeError(
                "ready() must know what is complete: give it the frontiers of all inputs that "
                "notifications wait for, such as ready(input.frontier)"
            )
        self._frontiers = frontiers
        if len(self._waiting):
            for _, token in self._waiting.pop_before(*frontiers):
                self._put_due(token)

    def _put_due(self, token: jt.TimestampToken) -> None:
        time = token.time
        rank = time if type(time) is int else time.sort_key()
        heappush(self._due, (rank, next(self._ties), token))
        self._due_times.add(time)

    def __len__(self) -> int:
        """How many notifications are still to be delivered."""
        return len(self._waiting) + len(self._due)

    def snapshot(self) -> pa.Table:
        """The times that are still to be delivered, for each bin of the keys they are about."""
        times = [*self._waiting, *self._due_times]
        if times and not self._kind.total:
            raise SnapshotError(
                "notifications inside a loop wait: let it come to rest before"
            ).located(operator=self._name)
        alone = [time for time in times if time not in self._bins]
        if self._keyed and alone:
            raise SnapshotError(
                f"notifications at {', '.join(map(str, sorted(alone)))} were asked for without a "
                "key, so which workers they are for after a restart is not known: say "
                "notify_at(…, key=[batch[…]])"
            ).located(operator=self._name)
        rows = [(bin, time) for time in times for bin in sorted(self._bins.get(time, {0}))]
        return pa.table(
            {
                "bin": pa.array([bin for bin, _ in rows], pa.uint16()),
                "time": pa.array([time for _, time in rows], pa.int64()),
            }
        )

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Ask for the times again."""
        bins, times = state.column("bin").to_pylist(), state.column("time").to_pylist()
        for bin, time in zip(bins, times, strict=True):
            self._bins.setdefault(time, set()).add(bin)
            self.notify_at(tokens[0].clone(), time)


class Vertex(Protocol):
    """An operator as Naiad sees it: called with messages, and with times that are complete."""

    def on_receive(self, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
        """Records have come: answer them with ``ref``, or ask for a notification."""
        ...

    def on_notify(self, token: jt.TimestampToken, output: jt.Output) -> None:
        """The token's time is complete: nothing more comes at it."""
        ...


def unary_notify(
    stream: jt.Stream,
    build: Callable[[Notificator, jt.OperatorInfo], Vertex],
    *,
    pact: jt.Pact | None = None,
    mode: Mode = "strict",
    schema: Any = None,
    name: str = "unary_notify",
) -> jt.Stream:
    """An operator with Naiad's two callbacks, built once for each worker.

    Notifications are a part of snapshots; the vertex keeps the state that it needs then. If
    an ``Exchange`` brings records to the workers of their keys, it asks with the keys: see
    `Notificator.notify_at`. ``schema`` says which columns come out.

    >>> class Sum:  # of each time
    ...     def __init__(self, notificator, info):
    ...         self.notificator, self.sums = notificator, {}
    ...
    ...     def on_receive(self, ref, batch, output):
    ...         for time, part in batch.by_time():
    ...             self.notificator.notify_at(ref, time)
    ...             self.sums[time] = self.sums.get(time, 0) + int(part["n"].sum())
    ...
    ...     def on_notify(self, token, output):
    ...         output.session(token).give(sum=self.sums.pop(token.time))
    >>> flow = jt.Flow("sums")
    >>> flow.output("sums", unary_notify(flow.input("n"), Sum, pact=jt.Gather()))
    >>> flow.run({"n": {"time": [7, 3, 7], "n": [1, 2, 3]}}, workers=2)["sums"].to_pylist()
    [{'time': 3, 'sum': 2}, {'time': 7, 'sum': 4}]
    """

    def start(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Output], None]:
        notificator = Notificator(info, mode=mode, keyed=isinstance(pact, jt.Exchange))
        vertex = build(notificator, info)
        info.keep(notificator, token, name="notifications")
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                vertex.on_receive(ref, batch, output)
            for token in notificator.ready(input.frontier):
                vertex.on_notify(token, output)

        return step

    return stream.unary_frontier(start, pact=pact, name=name, schema=schema)


def distinct_times(batch: jt.Batch) -> list[Any]:
    """The times that occur in a batch, each once.

    >>> distinct_times(jt.Batch({"n": [1, 2, 3]}, times=[7, 3, 7]))
    [3, 7]
    """
    times = batch.times
    if times.ndim > 1 or times.dtype == object:
        return [time for time, _ in batch.by_time()]
    found: list[Any] = np.unique(times).tolist()
    return found
