"""Pacts: how an edge moves messages between workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.column import Column, as_column, plain, to_arrow
from jeton.columns.keys import Hashes, deal_hashes, deal_spread, deal_words, hash_columns
from jeton.core.errors import BatchError, GraphError, SnapshotError
from jeton.state.bins import BINS, Placement
from jeton.state.key_place import Arrival
from jeton.state.key_slots import KeyColumnTypes
from jeton.state.snapshot import bins_of

Router: TypeAlias = "Callable[[Batch], Iterator[tuple[int, Batch]]]"
"""From a batch to its parts, each with the worker that it goes to."""

GUEST: Final = "jeton.guest"
"""The column of records of a hot key that come to another worker than its owner: nothing but nulls,
which take no room."""
HOT: Final = 8
"""A key is hot if it has more than an eighth of an even share of a worker's latest records."""
RECENT: Final = 1 << 17
"""Counts of the latest records are halved once there are as many."""
RECOUNT: Final = 1 << 14
"""Which keys are hot is found out again after as many records."""
FEW: Final = 1 << 10
"""Of batches with fewer records all are counted, of others one in some."""
ONE_IN: Final = 16

Dealt: TypeAlias = tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]
"""The place that each record goes to, and where each place starts among records in this order."""
Dealing: TypeAlias = Callable[[Batch], Dealt]


class Pact(ABC):
    """How an edge moves messages between workers."""

    local = False
    """Whether messages stay on the worker that sent them."""

    local_frontier = False
    """Whether the frontier of an input waits for nothing that other workers hold before it."""

    by_bins = False
    """Whether records go where the bins of their keys are, and follow them when these move."""

    arrival: Arrival = "anywhere"
    """Where records arrive: on the worker that owns their key, on the first, or on any worker."""

    announces = False
    """Whether each worker gets a message for each type of key, if only an empty one."""

    def announced(self, batch: Batch) -> Mapping[str, Column]:
        """The columns whose types are announced."""
        return batch.columns

    def guard(self) -> KeyGuard | None:
        """The check of messages at one worker's end of an edge, if the pact has one."""
        return None

    @abstractmethod
    def route(self, batch: Batch, workers: int) -> Iterator[tuple[int, Batch]]:
        """The parts of a batch, each with the worker that it goes to."""

    def router(self, placement: Placement, here: int) -> Router:
        """`route` on the worker ``here``, for some that own bins; most pacts know nothing of it."""
        return lambda batch: self.route(batch, placement.workers)

    def bins(self, batch: Batch, bins: int) -> npt.NDArray[np.uint16]:
        """The bin of each record, for pacts that go by them."""
        raise GraphError(f"{self!r} knows no bins")

    def placement(self, batch: Batch) -> list[Column]:
        """The columns that decide which worker each record belongs to."""
        raise SnapshotError(f"the operator's inputs come by {self!r}")


class Pipeline(Pact):
    """Messages stay on their worker.

    The frontier of the input waits for all workers all the same, so that an operator can act when
    all have come to a time. With ``local_frontier``, it is about messages of its own worker only,
    which is sooner: for operators that care about their own records and nothing else.

    >>> Pipeline(local_frontier=True)
    Pipeline(local_frontier=True)
    """

    local = True

    def __init__(self, *, local_frontier: bool = False) -> None:
        self.local_frontier = local_frontier

    def route(self, batch: Batch, workers: int) -> Iterator[tuple[int, Batch]]:
        """Never called: local messages are not routed."""
        raise GraphError("a pipeline edge does not route")

    def placement(self, batch: Batch) -> list[Column]:
        """No columns: restored records go to the first worker."""
        return []

    def __repr__(self) -> str:
        return "Pipeline(local_frontier=True)" if self.local_frontier else "Pipeline()"


class Exchange(Pact):
    """Records go to the worker that owns their key.

    The key is one or more columns, or a function from a batch to an array of integers. With
    ``announce``, the first batch with keys of certain types also goes, without its records, to
    the workers that get none of them: so all workers know all types, and can refuse what does
    not fit, however records happen to be divided.

    >>> batch = Batch({"word": ["a", "b", "a", "c"]}, times=[0, 0, 0, 0])
    >>> sum(len(part) for _, part in Exchange("word").route(batch, workers=2))
    4
    """

    arrival = "by key"
    by_bins = True

    def __init__(self, *key: str | Callable[[Batch], Any], announce: bool = False) -> None:
        if not key:
            raise GraphError("Exchange needs a key: column names, or a function of the batch")
        self.key = key
        self.announces = announce

    def route(self, batch: Batch, workers: int) -> Iterator[tuple[int, Batch]]:
        """Each record to the owner of its key's bin."""
        return self._deal(batch, workers, Placement.even(workers).owners)

    def router(self, placement: Placement, here: int) -> Router:
        """The same for any owners of bins."""
        workers, owners = placement.workers, placement.owners
        return lambda batch: self._deal(batch, workers, owners)

    def bins(self, batch: Batch, bins: int) -> npt.NDArray[np.uint16]:
        """The bins of the keys."""
        return bins_of(self.keys(batch)) & np.uint16(bins - 1)

    def keys(self, batch: Batch) -> list[Column]:
        """The key columns of a batch, or the results of a function of it."""
        return [
            batch.column(k) if isinstance(k, str) else self._computed(k, batch) for k in self.key
        ]

    def placement(self, batch: Batch) -> list[Column]:
        """The key columns."""
        missing = [key for key in self.key if isinstance(key, str) and key not in batch]
        if missing:
            raise SnapshotError(
                f"they have no column {missing[0]!r}, by which the operator's input is exchanged"
            )
        return self.keys(batch)

    def _deal(
        self, batch: Batch, workers: int, owners: npt.NDArray[np.uint16]
    ) -> Iterator[tuple[int, Batch]]:
        return _dealt(batch, *self.scatter(batch, workers, owners))

    def scatter(self, batch: Batch, places: int, to: npt.NDArray[np.uint16]) -> Dealt:
        """The place of each record, which its hash goes to, and where each place starts."""
        columns = self.keys(batch)
        first = columns[0] if len(columns) == 1 else None
        if isinstance(first, np.ndarray) and first.dtype == np.int64:
            found: Dealt = deal_words(plain(first), to, places)
        else:
            hashes = hash_columns(columns) if columns else np.zeros(len(batch), np.uint64)
            found = deal_hashes(hashes, to, places)
        return found

    @staticmethod
    def _computed(key: Callable[[Batch], Any], batch: Batch) -> Column:
        keys = as_column(key(batch))
        if len(keys) != len(batch):
            raise BatchError(
                f"an Exchange function must give one key for each of {len(batch)} records, "
                f"not {len(keys)}"
            )
        return keys

    def __repr__(self) -> str:
        return f"Exchange({', '.join(map(repr, self.key))})"


class KeyExchange(Exchange):
    """The exchange of a keyed stream, whose key columns have one type on all workers.

    Keys of types that are never equal, such as integers and floating-point numbers, have
    different owners: no worker need see both. So the types of keys are announced, and the guard
    at each worker's end refuses those that do not fit.

    Only some ``columns`` of the records travel, if the operator behind uses no others.

    >>> batch = Batch({"word": ["a", "b"], "line": [1, 2], "page": [1, 1]}, times=[0, 0])
    >>> [(_, part)] = KeyExchange("word", columns=frozenset(("word", "page"))).route(batch, 1)
    >>> part.names
    ('word', 'page')
    """

    def __init__(self, *key: str, columns: frozenset[str] | None = None) -> None:
        super().__init__(*key, announce=True)
        self._names = key
        self._columns = columns

    def announced(self, batch: Batch) -> Mapping[str, Column]:
        """The key columns."""
        return {name: batch.column(name) for name in self._names}

    def guard(self) -> KeyGuard:
        """A new guard, which knows no types yet."""
        return KeyGuard(self._names)

    def _deal(
        self, batch: Batch, workers: int, owners: npt.NDArray[np.uint16]
    ) -> Iterator[tuple[int, Batch]]:
        wanted = self._columns
        dealt = self.scatter(batch, workers, owners)
        # If one is missing, the operator says so, with the names of all that there are.
        if (
            wanted is not None
            and batch.columns.keys() != wanted
            and all(name in batch for name in wanted)
        ):
            batch = batch.select(*(name for name in batch.names if name in wanted))
        return _dealt(batch, *dealt)


class SpreadExchange(KeyExchange):
    """Records go to the worker that owns their key; those of hot keys to several workers.

    These are the owner and those after it, ``spread`` in all, or all workers if there are fewer.
    A key is hot if it has a large share of the latest records of the sending worker. What comes to
    another worker than the owner has a column of nulls more, `GUEST`. Without key columns, all
    records are one key, which the first worker owns. With ``stays``, records of a hot key stay
    where they are if that is one of its workers, which saves most of the traffic. Without, they are
    divided evenly, also if one worker reads them all.

    >>> batch = Batch({"word": ["a"] * 100}, times=[0] * 100)
    >>> parts = list(SpreadExchange("word", spread=2).route(batch, workers=2))
    >>> [(worker, GUEST in part) for worker, part in parts]
    [(1, False), (0, True)]
    """

    # Records of one key come to several workers: the bins of such operators stay where they are.
    by_bins = False

    def __init__(self, *key: str, spread: int, stays: bool = False) -> None:
        if key:
            super().__init__(*key)
        else:
            # There are no types to announce; the guard has nothing to refuse.
            self.key = self._names = key
        self.spread = spread
        self.stays = stays

    def route(self, batch: Batch, workers: int) -> Iterator[tuple[int, Batch]]:
        """Each record to the owner of its key, or to another worker of a hot key."""
        return self.router(Placement.even(workers, BINS), 0)(batch)

    def router(self, placement: Placement, here: int) -> Router:
        """The same, counting keys from batch to batch, since a batch may have few records."""
        deal = (self._staying if self.stays else self._dividing)(placement, here)
        workers = placement.workers

        def route(batch: Batch) -> Iterator[tuple[int, Batch]]:
            for place, part in _dealt(batch, *deal(batch)):
                if place < workers:
                    yield place, part
                else:
                    yield place - workers, part.with_columns({GUEST: pa.nulls(len(part))})

        return route

    def _dividing(self, placement: Placement, here: int) -> Dealing:
        """Records of a hot key go to each of its workers in turn."""
        workers, owners = placement.workers, placement.owners
        spread = min(self.spread, workers)
        # So many that keys with equal shares are far from hot.
        counts = np.zeros(_places(workers), dtype=np.int64)
        total = turn = 0

        def deal(batch: Batch) -> Dealt:
            nonlocal total, turn
            to, starts, total = deal_spread(
                self._hashes(batch),
                *(owners, workers, spread, turn, counts, total, HOT * workers, RECENT),
            )
            turn += len(batch)
            return to, starts

        return deal

    def _staying(self, placement: Placement, here: int) -> Dealing:
        """Records of a hot key stay here, or go to the same one of its workers.

        So where a record goes follows from its hash alone, until other keys are hot: one table of
        destinations serves for owners and guests, and costs no more than that of owners.
        """
        workers, spread = placement.workers, min(self.spread, placement.workers)
        owners = np.resize(placement.owners, max(placement.bins, _places(workers)))
        last = np.uint64(len(owners) - 1)
        near = (here - owners.astype(np.int64)) % workers
        # Where this worker is none of a key's, all workers like it choose different ones.
        away = np.where(near < spread, near, here % spread)
        guests = (owners + away) % workers + np.where(away > 0, workers, 0)
        counts = np.zeros(len(owners), dtype=np.int64)
        chosen = np.random.default_rng(here)
        total, new, to = 0, RECOUNT, owners

        def deal(batch: Batch) -> Dealt:
            nonlocal total, new, to
            rows = len(batch)
            if rows < FEW:
                np.add.at(counts, self._hashes(batch) & last, 1)
            else:
                some = batch.select(*self._names).take(chosen.integers(0, rows, rows // ONE_IN))
                counts[:] += ONE_IN * np.bincount(self._hashes(some) & last, minlength=len(counts))
            total, new = total + rows, new + rows
            if new >= RECOUNT or total < RECOUNT:
                new = 0
                hot = counts * (HOT * workers) > total
                to = np.where(hot, guests, owners).astype(np.uint16)
                if total >= RECENT:
                    counts[:] //= 2
                    total //= 2
            return self.scatter(batch, 2 * workers, to)

        return deal

    def _hashes(self, batch: Batch) -> Hashes:
        return hash_columns(self.keys(batch)) if self.key else np.zeros(len(batch), np.uint64)

    def __repr__(self) -> str:
        return f"SpreadExchange({', '.join([*map(repr, self.key), f'spread={self.spread}'])})"


def _places(workers: int) -> int:
    """The number of places by which records are counted: a power of two."""
    return max(4096, 1 << (64 * workers - 1).bit_length())


def _dealt(
    batch: Batch, to: npt.NDArray[np.uint16], starts: npt.NDArray[np.int64]
) -> Iterator[tuple[int, Batch]]:
    """The parts of a batch for each worker, from the worker of each record."""
    bounds = starts.tolist()
    rows = len(batch.times)
    together: Batch | None = None
    for worker in range(len(bounds) - 1):
        start, stop = bounds[worker], bounds[worker + 1]
        if stop - start == rows:
            yield worker, batch
        elif start < stop:
            if together is None:
                together = batch.scattered(to, starts)
            yield worker, together.slice(start, stop)


class KeyGuard:
    """The types of the keys that reach one worker: those that are never equal are refused.

    A message without records only announces the types of keys that other workers have got.

    >>> guard = KeyGuard(("k",))
    >>> guard.admits(Batch({"k": [1, 2]}, times=[0, 0]))
    True
    >>> guard.admits(Batch({"k": np.array([], np.int32)}, times=[]))
    False
    >>> guard.admits(Batch({"k": [0.5]}, times=[0]))
    Traceback (most recent call last):
        ...
    jeton.core.errors.BatchError: a key column is of type double, but it was int64 before: ...
    """

    __slots__ = ("_key", "_last", "_seen", "_types")

    def __init__(self, key: Sequence[str]) -> None:
        self._key = tuple(key)
        self._types = KeyColumnTypes(len(self._key))
        self._last: dict[str, object] = dict.fromkeys(self._key)
        """The latest type of each column, which is most often that of the next one too."""
        self._seen: dict[str, set[object]] = {name: set() for name in self._key}

    def admits(self, batch: Batch) -> bool:
        """Whether a message has records; raises if their keys are not of one type."""
        last = self._last
        for name, before in last.items():
            column = batch.columns.get(name)
            if column is None:
                column = batch.column(name)
            kind = column.dtype if isinstance(column, np.ndarray) else column.type
            if kind is not before:
                if kind not in self._seen[name]:
                    self._types.learn(self._key.index(name), to_arrow(column[:0]).type)
                    self._seen[name].add(kind)
                last[name] = kind
        return len(batch.times) > 0

    def learn(self, stored: pa.Schema) -> None:
        """Record the types of the keys in the state that a run goes on from."""
        for at, name in enumerate(self._key):
            for column in (f"key.{name}", f"value.{name}"):
                if column in stored.names:
                    self._types.learn(at, stored.field(column).type)


class Gather(Pact):
    """All records go to one worker, the first, unless its first bin has moved.

    >>> batch = Batch({"x": [1]}, times=[0])
    >>> [worker for worker, _ in Gather().route(batch, workers=3)]
    [0]
    """

    by_bins = True
    arrival = "at the first"

    def route(self, batch: Batch, workers: int) -> Iterator[tuple[int, Batch]]:
        """The whole batch to the first worker."""
        yield 0, batch

    def router(self, placement: Placement, here: int) -> Router:
        """The whole batch to the owner of the first bin, which state without a key is in."""
        owner = int(placement.owners[0])
        return lambda batch: iter([(owner, batch)])

    def bins(self, batch: Batch, bins: int) -> npt.NDArray[np.uint16]:
        """The first bin for all."""
        return np.zeros(len(batch), dtype=np.uint16)

    def placement(self, batch: Batch) -> list[Column]:
        """No columns: all records belong to the first worker."""
        return []

    def __repr__(self) -> str:
        return "Gather()"


class Broadcast(Pact):
    """Every worker gets every record.

    >>> batch = Batch({"x": [1]}, times=[0])
    >>> [worker for worker, _ in Broadcast().route(batch, workers=3)]
    [0, 1, 2]
    """

    def route(self, batch: Batch, workers: int) -> Iterator[tuple[int, Batch]]:
        """The whole batch to each."""
        for worker in range(workers):
            yield worker, batch

    def __repr__(self) -> str:
        return "Broadcast()"
