"""Migration, as in Megaphone: state moves between workers at times that a control stream names.

Two operators. The first one *routes*: it has the records and a stream of reconfigurations, "from
time t on, bin b belongs to worker w", and sends each record to the worker that its bin belongs to
at the record's time. The second one has the *state*, and answers records in order of time. When
everything before t has been answered, which the routing operator sees by the frontier behind
the other, it takes the bins that leave out of the state of its own worker and sends them to their
new owners at t, with the token that it got with the reconfiguration. Records at t or later wait
there until that time is complete. So does the right to answer later for what is in a bin: the
message at t brings it.

Jeton itself moves the state of any keyed operator with `query.migrate`, without a control stream.
This is the same idea in user code, for those who want to see it, or to change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.errors import BatchError, GraphError, TimeError

WORKER: Final = "jeton.worker"
"""The column of what is routed that has the worker it goes to."""
ROUTED: Final = 0
"""The output of the routing operator for records."""
MOVED: Final = 1
"""Its output for state."""

Right: TypeAlias = jt.TokenRef | jt.TimestampToken
Key: TypeAlias = tuple[Any, ...]
Row: TypeAlias = dict[str, Any]
Call: TypeAlias = tuple[int, tuple[bool, str], int, int, Key, Row | None]
"""A call of ``fold`` that waits: its time, an order among those, a number, the bin, the key, and
the record, or nothing if it is a timer's."""
Fold: TypeAlias = Callable[
    [Any, Row | None, Callable[[int], None]], tuple[Any, Sequence[Mapping[str, Any]]]
]


class ToWorker(jt.Pact):
    """Records go to the worker that a column of them names."""

    def route(self, batch: jt.Batch, workers: int) -> Iterator[tuple[int, jt.Batch]]:
        """The rows of each worker."""
        to = np.asarray(batch.column(WORKER))
        for worker in np.unique(to).tolist():
            yield worker, batch.filter(to == worker)


def movable_map(
    records: jt.Stream,
    key: str | Sequence[str],
    fold: Fold,
    initial: Any,
    *,
    moves: jt.Stream,
    schema: Any = None,
    state_codec: jt.state.StateCodec = "plain",
    name: str = "movable_map",
) -> jt.Stream:
    """A state for each key, which ``fold(state, row, timer)`` moves on, on workers of your choice.

    It returns the next state and a list of rows to send at the record's time, to which the key's
    columns are added. ``timer(delay)`` has it called again later, with ``None`` for a row. Records
    come in order of time; those of the same time by their text; then timers.

    ``moves`` is the control stream: its columns ``bin`` and ``worker`` say where the state of a
    bin is from the record's time on. The bins are those of the flow (``jt.Flow(…, bins=256)``),
    and at first those of `Run.placement`. If a bin goes to two workers at the same time, the
    greater number counts. Records wait until this stream has passed their time: let it advance.

    States are plain Python values, or ``state_codec=`` says how they are stored and sent, as in
    `KeyedValues`.

    >>> import jeton as jt
    >>> def count(state, row, timer):
    ...     return state + 1, [{"count": state + 1}]
    >>> flow = jt.Flow("counts", bins=256)
    >>> words, moves = flow.input("words"), flow.input("moves")
    >>> flow.output("counts", movable_map(words, "word", count, 0, moves=moves))
    >>> rows = {"time": [1, 2, 8, 9], "word": ["a", "b", "a", "b"]}
    >>> to_worker_1 = {"time": [5] * 256, "bin": range(256), "worker": [1] * 256}
    >>> result = flow.run({"words": rows, "moves": to_worker_1}, workers=2)
    >>> result["counts"]["count"].to_pylist()
    [1, 1, 2, 2]
    """
    key = (key,) if isinstance(key, str) else tuple(key)
    records.require_columns(*key, operator=name)
    if not records.kind.total:
        raise GraphError("records inside a loop cannot be moved: their times have no order")
    share = object()

    def state_on(info: jt.OperatorInfo) -> State:
        """The state of a worker, which both of its operators have."""
        return info.shared(share, lambda: State(key, fold, initial, info.bins, state_codec))

    answered = records.scope.feedback(name=f"{name}-answered")
    builder = records.operator(f"{name}-route")
    data = builder.input(records)
    control = builder.input(moves, jt.Broadcast())
    # It leads to no output: it shows what has been answered, and gives no right to speak.
    builder.input(answered.stream, observes=True)
    builder.output({data: 0})
    builder.output({control: 0})

    def build_route(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Callable[..., None]:
        router = Router(key, info, state_on(info))
        info.keep(router.waiting, tokens[ROUTED], name="waiting")
        info.keep(router, tokens[MOVED], name="moves")
        for token in tokens:
            token.drop()
        return router.step

    def build_state(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        state = state_on(info)
        info.keep(state, token, shape=f"states by {', '.join(key)}")
        token.drop()

        def step(records: jt.Input, states: jt.Input, output: jt.Output) -> None:
            for ref, batch in states:
                state.add(ref, batch["state"].to_list())
            for ref, batch in records:
                state.receive(ref, batch)
            state.answer(jt.Antichain([*records.frontier, *states.frontier]), output)

        return step

    routed, moved = builder.build(build_route)
    to_worker = ToWorker()
    answers = routed.binary_frontier(
        moved, build_state, pact=to_worker, other_pact=to_worker, schema=schema, name=name
    )
    answered.connect(answers.filter(lambda batch: np.zeros(len(batch), bool)))
    return answers


class Router:
    """The routing operator: records, reconfigurations, and the bins that leave this worker."""

    def __init__(self, key: Sequence[str], info: jt.OperatorInfo, state: State) -> None:
        assert info.placement is not None
        self._key = key
        self._state = state
        self._worker, self._workers = info.worker, info.workers
        self._owners = info.placement().owners.astype(np.int64)
        """The owners of bins after all reconfigurations whose state has moved."""
        self._moves: jt.state.TimeMap[tuple[jt.TimestampToken, dict[int, int]]]
        self._moves = jt.state.TimeMap()
        self.waiting = jt.state.RecordQueue(info.kind, key)
        """Records at times that have no final configuration yet."""

    def step(self, inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
        """Take what has come, and send what is ready."""
        records, moves, answered = inputs
        for ref, batch in moves:
            columns = (batch.times, batch["bin"], batch["worker"])
            for move in zip(*(column.tolist() for column in columns), strict=True):
                self._learn(ref, *move)
        for ref, batch in records:
            self.waiting.push(ref, batch)
        for time, batch in self.waiting.pop(moves.frontier):
            to = self._routes(batch)
            outputs[ROUTED].session(self.waiting.right_for(time)).give(
                batch.with_columns({WORKER: to})
            )
        self.waiting.settle()
        # The feedback adds one: once it has passed t, everything before t has been answered.
        for _, (token, changes) in self._moves.pop_before(moves.frontier, answered.frontier):
            with token, outputs[MOVED].session(token) as session:
                for bin, worker in changes.items():
                    if self._owners[bin] == self._worker != worker:
                        session.give({"state": [self._state.take(bin)], WORKER: [worker]})
                    self._owners[bin] = worker

    def _learn(self, right: Right, at: int, bin: int, to: int) -> None:
        """From a time on, a bin belongs to a worker."""
        if not (0 <= bin < len(self._owners) and 0 <= to < self._workers):
            raise BatchError(
                f"bin {bin} cannot go to worker {to}: there are {len(self._owners)} bins and "
                f"{self._workers} workers, which are numbered from 0"
            )
        _, changes = self._moves.get_or(at, lambda: (_token(right, at), {}))
        changes[bin] = max(to, changes.get(bin, 0))

    def _routes(self, batch: jt.Batch) -> npt.NDArray[np.int64]:
        """The owner of each record's bin at its own time."""
        bins = jt.state.bins_of([batch.column(name) for name in self._key]) % len(self._owners)
        owners, to = self._owners.copy(), self._owners[bins]
        for at in sorted(self._moves):
            changes = self._moves[at][1]
            owners[list(changes)] = list(changes.values())
            to = np.where(batch.times >= at, owners[bins], to)
        return to

    def snapshot(self) -> pa.Table:
        """The reconfigurations to come, which all workers know.

        Those in force are not needed: state is restored where the flow has its bins.
        """
        rows = [(at, *move) for at in self._moves for move in self._moves[at][1].items()]
        times, bins, workers = zip(*rows, strict=True) if rows else ((), (), ())
        columns = {"time": times, "to": bins, "worker": workers}
        table = pa.table({name: pa.array(each, pa.int64()) for name, each in columns.items()})
        none = pa.array(np.zeros(len(rows), np.uint16))
        return jt.state.for_everyone(table.append_column("bin", none))

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Learn them again, but for those with workers that are no longer there."""
        for row in state.to_pylist():
            if row["worker"] < self._workers:
                self._learn(tokens[0], row["time"], row["to"], row["worker"])


class State:
    """One worker's states of keys, by bins, and the calls that wait for their times."""

    def __init__(
        self,
        key: Sequence[str],
        fold: Fold,
        initial: Any,
        bins: int,
        codec: jt.state.StateCodec,
    ) -> None:
        self._key = key
        self._fold = fold
        self._codec = codec
        self._initial = initial
        self._number = bins
        self._bins: dict[int, dict[Key, Any]] = {}
        self._calls: list[Call] = []
        self._tokens = jt.state.TokenSet()
        """The rights to answer the calls that wait."""
        self._numbers = count()

    def receive(self, ref: jt.TokenRef, batch: jt.Batch) -> None:
        """Records have come, which wait for their times."""
        bins = jt.state.bins_of([batch.column(name) for name in self._key]) % self._number
        rows = batch.select(*(name for name in batch.names if name != WORKER)).rows()
        for at, bin, row in zip(batch.times.tolist(), bins.tolist(), rows, strict=True):
            self._wait(ref, at, bin, tuple(row[name] for name in self._key), row)

    def answer(self, frontier: jt.Antichain, output: jt.Output) -> None:
        """Make the calls at times at which neither records nor state can come any more."""
        while self._calls and frontier.passed(at := self._calls[0][0]):
            _, _, _, bin, key, row = heappop(self._calls)
            right, states = self._tokens.token_for(at), self._bins.setdefault(bin, {})
            timer = partial(self._set_timer, right, at, bin, key)
            states[key], rows = self._fold(states.get(key, self._initial), row, timer)
            for each in rows:
                output.session(right, at).give(**dict(zip(self._key, key, strict=True)), **each)
        self._tokens.settle([self._calls[0][0]] if self._calls else [])

    def take(self, bin: int) -> bytes:
        """Take the state of a bin out, with the calls that wait in it for later times."""
        stored = self._stored(bin)
        self._bins.pop(bin, None)
        self._calls = [call for call in self._calls if call[3] != bin]
        heapify(self._calls)
        return stored

    def add(self, right: Right, stored: Iterable[bytes]) -> None:
        """Put bins in, with the right to answer the calls that wait in them."""
        for each in stored:
            bin, states, calls = jt.state.decode_value(each, "plain")
            # A snapshot may have records that wait at the new owner for state of the old one.
            self._bins.setdefault(bin, {}).update(
                {key: jt.state.decode_value(state, self._codec) for key, state in states.items()}
            )
            for at, key, row in calls:
                self._wait(right, at, bin, key, row)

    def snapshot(self) -> pa.Table:
        """All bins, as they would move."""
        bins = sorted({*self._bins, *(call[3] for call in self._calls)})
        stored = pa.array(map(self._stored, bins), pa.large_binary())
        return pa.table({"bin": pa.array(bins, pa.uint16()), "state": stored})

    def restore(self, state: pa.Table, tokens: Sequence[jt.TimestampToken]) -> None:
        """Put them in again."""
        self.add(tokens[0], state.column("state").to_pylist())

    def _stored(self, bin: int) -> bytes:
        calls = [(at, key, row) for at, _, _, of, key, row in self._calls if of == bin]
        states = {
            key: jt.state.encode_value(state, self._codec)
            for key, state in self._bins.get(bin, {}).items()
        }
        return jt.state.encode_value((bin, states, calls), "plain")

    def _set_timer(self, right: Right, at: int, bin: int, key: Key, delay: int) -> None:
        if delay < 1:
            raise TimeError(
                f"a timer is for a later time, at least 1 after {at}, not {delay} after"
            )
        self._wait(right, at + delay, bin, key, None)

    def _wait(self, right: Right, at: int, bin: int, key: Key, row: Row | None) -> None:
        self._tokens.hold(right, at)
        # Timers come behind the records of their time.
        order = (row is None, str(row))
        heappush(self._calls, (at, order, next(self._numbers), bin, key, row))


def _token(right: Right, at: int) -> jt.TimestampToken:
    """A token for state that moves at a time, from a reference, or from the initial token."""
    if isinstance(right, jt.TokenRef):
        return right.retain(at, output=MOVED)
    token = right.clone()
    token.downgrade(at)
    return token
