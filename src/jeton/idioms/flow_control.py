"""Flow control, as in Faucet: an operator pours as much as fits, and goes on once that is gone.

One record may stand for any number of others: all rows of a file, all neighbours of a node, all
moves of a game. An operator that sends them all at once fills the memory with records that
no operator has read yet. `flat_map_bounded` stops at a limit, holding its token, and continues when
the part of the flow behind it has retired the records that it sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Final

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton.errors import BatchError, GraphError, JetonError, OperatorFailed, SnapshotError

Produce = Callable[[jt.Batch], Iterable["jt.Batch | Mapping[str, Any]"]]
"""Makes any number of pieces from a batch, one after the other."""

ROUNDS: Final = 4
"""How many rounds a limit is divided into: one is retired while the next ones are under way."""


def flat_map_bounded(
    stream: jt.Stream,
    produce: Produce,
    region: Callable[[jt.Stream], jt.Stream],
    *,
    limit: int,
    schema: Any = None,
    name: str = "flat_map_bounded",
) -> jt.Stream:
    """Any number of records from each record, at most ``limit`` of them under way at a time.

    ``produce(batch)`` gets the records of one exact time that came together in a message, and
    returns an iterator over pieces: batches, or columns by name. It is called once for each such
    batch, and asked for the next piece only when there is room for it. ``region``
    builds the part of the flow that the records are let into; what it returns comes out, at the
    times of the records that were asked for. The limit counts records on their way through the
    region, for each worker that produces. ``schema`` says which columns are produced, if the region
    shall be checked against them.

    The region is a loop whose rounds number the pieces: times are ``Product(time, round)``. So the
    frontier at its end shows which rounds have been retired, whatever is inside: filters,
    exchanges, state. It must not wait for the end of a time, since that comes only after the last
    round; ``each_time()`` inside means each round.

    >>> import jeton as jt
    >>> import numpy as np
    >>> def squares(batch):
    ...     for n in batch["n"]:
    ...         for start in range(0, n, 1000):
    ...             yield {"square": np.arange(start, min(start + 1000, n)) ** 2}
    >>> flow = jt.Flow("squares")
    >>> odd = flat_map_bounded(
    ...     flow.input("numbers"),
    ...     squares,
    ...     lambda made: made.filter(lambda batch: batch["square"] % 2 == 1),
    ...     limit=5000,
    ... )
    >>> flow.output("counts", odd.key_by().each_time().count())
    >>> flow.run({"numbers": {"time": [3, 4], "n": [10, 1_000_000]}})["counts"].to_pylist()
    [{'time': 3, 'count': 5}, {'time': 4, 'count': 500000}]
    """
    if limit < 1:
        raise GraphError(f"limit={limit} lets nothing through").located(operator=name)
    loop = stream.scope.loop(name)
    retired = loop.feedback(name="retired")
    builder = loop.operator("faucet", time=stream.time_name)
    asked = builder.input(stream.enter(loop))
    # It leads to no output: what has been retired is known by its frontier, and allows nothing.
    builder.input(retired.stream, observes=True)
    builder.output({asked: 0}, schema=schema)
    kind = stream.kind

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Callable[..., None]:
        tokens.pop().drop()
        faucet = Faucet(produce, limit, kind)
        info.keep(faucet)
        return faucet.step

    [made] = builder.build(build)
    done = region(made)
    if done.scope is not loop:
        raise GraphError(
            f"the region must return a stream of its own scope, {loop.path!r}, "
            f"not one of {done.scope.path!r}: leave only what you entered"
        ).located(operator=name)
    retired.connect(done.unary(_retire, name="end of region"))
    return done.leave()


def _retire(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
    """The end of a region: takes what comes, so that the frontier may move on."""
    token.drop()

    def step(input: jt.Input, output: jt.Output) -> None:
        for _ in input:
            pass

    return step


class Work:
    """The rest to produce at one time, and the token at its current round."""

    __slots__ = ("_batches", "_pieces", "_rest", "sent", "token")

    def __init__(self, token: jt.TimestampToken) -> None:
        self.token = token
        self.sent = 0
        """How many records of this round have been sent."""
        self._batches: deque[jt.Batch] = deque()
        self._pieces: Iterator[Any] = iter(())
        self._rest: jt.Batch | None = None

    def add(self, batch: jt.Batch) -> None:
        """More records to produce from."""
        self._batches.append(batch)

    def take(self, most: int, produce: Produce) -> jt.Batch | None:
        """The next records, at most ``most``; ``None`` if there are no more."""
        piece = self._rest if self._rest is not None else self._next(produce)
        if piece is None:
            return None
        self._rest = piece.slice(most, len(piece)) if len(piece) > most else None
        return piece.slice(0, most) if len(piece) > most else piece

    def _next(self, produce: Produce) -> jt.Batch | None:
        while True:
            for piece in self._pieces:
                batch = _as_batch(piece)
                if len(batch):
                    return batch
            if not self._batches:
                return None
            self._pieces = _pieces(produce(self._batches.popleft()))

    def next_round(self) -> None:
        """This round is full: give up the right to add to it."""
        time = self.token.time
        self.token.downgrade(jt.Product(time.outer, time.inner + 1))
        self.sent = 0


class Faucet:
    """The producing operator: pours one time after the other, as long as there is room."""

    def __init__(self, produce: Produce, limit: int, kind: Any) -> None:
        self._produce = produce
        self._limit = limit
        self._per_round = max(1, limit // ROUNDS)
        self._kind = kind
        self._work: jt.state.TimeMap[Work] = jt.state.TimeMap()
        self._under_way: deque[tuple[jt.Product, int]] = deque()
        """Rounds, in the order in which they were sent, with their numbers of records."""
        self._count = 0

    def step(self, inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
        """Take what is asked for, see what has been retired, and fill the room that there is."""
        asked, retired = inputs
        for ref, batch in asked.by_time():
            # The producing function need not know of rounds.
            times = [ref.time.outer] * len(batch)
            self._at(ref).add(
                jt.Batch(batch.columns, times, time_name=batch.time_name, kind=self._kind)
            )
        self._see(retired.frontier)
        while self._work:
            # Records under way are retired only once all earlier times are over. So nothing
            # earlier may ever have to wait for the room that they take: least times go first.
            time = _first(self._work.least())
            work = self._work[time]
            if not self._may_start(time, asked.frontier, retired.frontier):
                return
            if not self._pour(work, outputs[0]):
                return
            work.token.drop()
            del self._work[time]

    def _at(self, ref: jt.TokenRef) -> Work:
        def start() -> Work:
            # Behind the rounds of this time that are under way, or those could not be retired.
            last = self._under_way[-1][0] if self._under_way else None
            behind = last.inner + 1 if last is not None and last.outer == ref.time.outer else 0
            return Work(ref.retain(jt.Product(ref.time.outer, behind)))

        return self._work.get_or(ref.time.outer, start)

    def _see(self, retired: jt.Antichain) -> None:
        while self._under_way:
            time, count = self._under_way[0]
            # The feedback through which the end is seen adds a round.
            if not retired.passed(jt.Product(time.outer, time.inner + 1)):
                return
            self._under_way.popleft()
            self._count -= count

    def _may_start(self, time: Any, asked: jt.Antichain, retired: jt.Antichain) -> bool:
        """Whether nothing can come that would have to go before."""
        if self._kind.total:
            return not any(least.outer < time for least in asked)
        # Incomparable times could wait for each other's room on different workers, unless all
        # workers take them in one order.
        return all(least.outer.sort_key() >= time.sort_key() for least in retired)

    def _pour(self, work: Work, output: jt.Output) -> bool:
        """Produce while there is room; returns whether all is produced."""
        while True:
            if work.sent == self._per_round:
                work.next_round()
            room = min(self._limit - self._count, self._per_round - work.sent)
            if room == 0:
                return False
            time = work.token.time
            try:
                part = work.take(room, self._produce)
            except JetonError as error:
                error.located(time=time.outer)
                raise
            except Exception as error:
                failed = OperatorFailed.because(error, "producing")
                raise failed.located(time=time.outer) from error
            if part is None:
                return True
            with output.session(work.token) as session:
                session.give(part, times=time)
            if work.sent:
                self._under_way.pop()
            work.sent += len(part)
            self._under_way.append((time, work.sent))
            self._count += len(part)

    def snapshot(self) -> pa.Table:
        """Nothing: what is half produced cannot be kept."""
        if self._work:
            raise SnapshotError(
                f"records at {', '.join(map(str, self._work))} are half produced: "
                "advance the input, so that they can be retired, and run to rest"
            )
        return pa.table({"bin": pa.array([], pa.uint16())})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Begin anew: nothing was left."""


def _first(times: Sequence[Any]) -> Any:
    """The first of some times, in an order that extends theirs."""
    return times[0] if len(times) == 1 else min(times, key=lambda time: time.sort_key())


def _pieces(produced: Any) -> Iterator[Any]:
    """The produced records, piece by piece."""
    if isinstance(produced, (Mapping, jt.Batch)) or not isinstance(produced, Iterable):
        raise BatchError(
            f"produce gave {_named(produced)}, but it must yield pieces, one after the other: "
            'yield columns, such as {"n": [1, 2]}, or return a list of them'
        )
    return iter(produced)


def _as_batch(piece: Any) -> jt.Batch:
    """A piece as a batch; its times are set when it is sent."""
    if isinstance(piece, jt.Batch):
        return piece
    if not isinstance(piece, Mapping):
        raise BatchError(
            f'produce yielded {_named(piece)}, not columns: yield columns, such as {{"n": [1, 2]}}'
        )
    for name, column in piece.items():
        if not isinstance(column, (Sized, pa.ChunkedArray)) or isinstance(column, (str, bytes)):
            raise BatchError(
                f"produce yielded {_named(column)} as column {name!r}: yield columns, with one "
                f"value for each record, such as {{{name!r}: [1, 2]}}"
            )
    length = max((len(column) for column in piece.values()), default=0)
    return jt.Batch(piece, np.zeros(length, dtype=np.int64))


def _named(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
