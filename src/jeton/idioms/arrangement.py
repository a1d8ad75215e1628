"""Arrangements, as in differential dataflow: an index over time that many operators share.

`arrange` indexes a stream by key, on the worker that owns the key, and keeps what it was at each
time that a reader may still ask for. Any number of operators on that worker read the one index,
each at times of its own; once all of them have moved on, history is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton.errors import GraphError, TimeError
from jeton.idioms.arranged_runs import Content, Times, not_later
from jeton.idioms.grouping import Integers
from jeton.idioms.intervals import Intervals
from jeton.idioms.spine import Spine


def arrange(
    stream: jt.Stream,
    *key: str,
    diff: str | None = None,
    upsert: bool = False,
    effort: int = 50_000,
    name: str = "arrange",
) -> Arrangement:
    """Index a stream by one or more columns, for any number of readers.

    What a reader finds under a key, as of a time:

    - all records that are not later;
    - with a ``diff`` column, which says how often a record is added (or removed, if negative): each
      record as often as it has been added more than removed, records with equal values being one;
    - with ``upsert=True`` the latest record only. Of several at the same time, the one with the
      greatest values counts, comparing columns from the first to the last; those of lists and
      structures, which have no order, do not take part. With a ``diff`` column too, a record whose
      ``diff`` is not above zero removes its key.

    `lookup_join` reads an arrangement; so can operators of your own, see `Arrangement.reader`.
    ``effort`` is how many records it moves at a time, beyond what comes in, to put its index in
    order: less lets others run sooner, more costs fewer invocations.

    >>> import jeton as jt
    >>> from jeton.idioms.lookup_join import lookup_join
    >>> flow = jt.Flow("prices")
    >>> prices = arrange(flow.input("prices"), "item", upsert=True)
    >>> flow.output("orders", lookup_join(flow.input("orders"), prices))
    >>> flow.output("returns", lookup_join(flow.input("returns"), prices))
    >>> result = flow.run(
    ...     {
    ...         "prices": {"time": [1, 5], "item": ["pen", "pen"], "price": [2.0, 2.5]},
    ...         "orders": {"time": [6, 3], "item": ["pen", "pen"], "n": [10, 1]},
    ...         "returns": {"time": [4], "item": ["pen"], "reason": ["broken"]},
    ...     }
    ... )
    >>> result["orders"]["price"].to_pylist(), result["returns"]["price"].to_pylist()
    ([2.0, 2.5], [2.0])
    """
    kind = stream.kind
    coordinates = kind.minimum if isinstance(kind.minimum, jt.Product) else (kind.minimum,)
    if not key:
        raise _refused("arrange needs a key: one or more columns", name)
    if not all(isinstance(one, int) for one in coordinates):
        raise _refused("arrange needs integer times, or products of them", name)
    if upsert and not kind.total:
        raise _refused("upsert=True needs a latest record, but times in a loop have none", name)
    stream.require_columns(*key, *([] if diff is None else [diff]), operator=name)
    # An object of its own, that the operators of this flow know and no others.
    share = object()

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        content = Content(key, diff, upsert)
        index = info.shared(share, lambda: Index(content, info, effort))
        info.keep(index.waiting, token, name="waiting", shape=f"records by {', '.join(key)}")
        info.keep(index.spine, name="spine", shape=content.shape)
        for run in index.spine.runs:
            index.learn(run.batch)
        token.drop()
        return index.step

    pact = jt.Exchange(*key, announce=True)
    sealed = stream.unary_frontier(build, pact=pact, name=name, schema=stream.schema)
    return Arrangement(sealed, key, diff, share)


def _refused(text: str, operator: str) -> GraphError:
    return GraphError(text).located(operator=operator)


class Arrangement:
    """A stream that is indexed by key, for operators to look things up in.

    `stream` has a message for each sealed interval: what was indexed, by key. Its frontier shows up
    to where the index is complete.
    """

    def __init__(
        self, stream: jt.Stream, key: tuple[str, ...], diff: str | None, share: object
    ) -> None:
        self.stream = stream
        self.key = key
        self.diff = diff
        self._share = share

    def enter(self, scope: jt.Scope) -> Arrangement:
        """The same index for operators in an inner scope: in a loop, each round finds the same.

        Nothing is copied: readers inside ask with their own times, of which the outer part counts.
        """
        return Arrangement(self.stream.enter(scope), self.key, self.diff, self._share)

    def reader(self, info: jt.OperatorInfo) -> Reader:
        """A reader for an operator that is being built.

        The operator takes `stream` as an input, only to observe it: it may ask for a time once
        that input's frontier has passed it.

        >>> import jeton as jt
        >>> flow = jt.Flow("how many")
        >>> words = arrange(flow.input("words"), "word")
        >>> builder = flow.operator("ask")
        >>> asked = builder.input(flow.input("asked"), jt.Exchange("word"))
        >>> complete = builder.input(words.stream, observes=True)
        >>> _ = builder.output({asked: 0})
        >>> def build(tokens, info):
        ...     reader = words.reader(info)
        ...     waiting = jt.state.RecordQueue(info.kind)
        ...     tokens.pop().drop()
        ...
        ...     def step(inputs, outputs):
        ...         for ref, batch in inputs[asked]:
        ...             waiting.push(ref, batch)
        ...         for time, batch in waiting.pop(inputs[complete].frontier):
        ...             asking, _ = reader.lookup(batch)
        ...             counts = np.bincount(asking, minlength=len(batch))
        ...             with outputs[0].session(waiting.right_for(time)) as session:
        ...                 session.give(batch.with_columns({"count": counts}))
        ...         waiting.settle()
        ...
        ...     return step
        >>> flow.output("counts", *builder.build(build))
        >>> texts = {"time": [1, 2, 3, 4], "word": ["a", "b", "a", "a"]}
        >>> questions = {"time": [2, 3], "word": ["a", "a"]}
        >>> flow.run({"words": texts, "asked": questions})["counts"]["count"].to_pylist()
        [1, 2]
        """
        index: Index | None = info.shared(self._share, lambda: None)
        if index is None:
            raise GraphError("a reader must be built after its arrangement, in the same flow")
        return Reader(index, info.kind.depth, self.key)


class Index:
    """The index that the operators of one worker share: waiting records, the spine, the readers."""

    def __init__(self, content: Content, info: jt.OperatorInfo, effort: int) -> None:
        self.waiting = Intervals(info.kind, content.key)
        self.spine = Spine(content)
        self.readers: list[Reader] = []
        self.depth = info.kind.depth
        self.minimum = info.kind.minimum
        self.types = jt.state.KeyTypes()
        """The types of the keys that are arranged, and of those that readers ask with."""
        self._info = info
        self._effort = effort

    @property
    def since(self) -> jt.Antichain:
        """From where on some reader may still look."""
        return jt.Antichain(time for reader in self.readers for time in reader.since)

    def learn(self, batch: jt.Batch) -> None:
        """Refuse records whose keys are never equal to those that readers ask with."""
        key = self.spine.content.key
        self.types.learn("arranged", key, [batch.column(name) for name in key])

    def step(self, input: jt.Input, output: jt.Output) -> None:
        """Seal the records that are complete, send them, and merge a bounded piece."""
        new = 0
        for ref, batch in input:
            self.learn(batch)
            self.waiting.push(ref, batch)
        since = self.since
        for sealed in self.waiting.seal(input.frontier):
            run = self.spine.content.run(sealed.batch)
            new += len(run)
            self.spine.insert(run, since)
            output.session(sealed.token).give(self.spine.content.with_diffs(run))
        self.waiting.settle()
        # More than what came, so that merges keep up with it.
        if self.spine.work(self._effort + 8 * new, since):
            self._info.activator.activate()

    def moved(self) -> None:
        """A reader has moved on: there may be something to forget."""
        if self.spine.wants_work(self.since):
            self._info.activator.activate()

    def require_complete(self, at: Times) -> None:
        """Refuse to look at times for which records may still come."""
        [input] = self._info.inputs
        for time in _greatest(at):
            if input.frontier.less_equal(time) or self.waiting.waits(time):
                raise TimeError(
                    f"arrangement {self._info.name!r} is not complete at {time}: wait until the "
                    "frontier of its stream has passed the time"
                )


class Reader:
    """Looks things up in an arrangement, and says from when on it still will."""

    def __init__(self, index: Index, depth: int, key: tuple[str, ...]) -> None:
        self._index = index
        self._inner = depth - index.depth
        self._key = key
        self.since = jt.Antichain([index.minimum])
        """The least times that it may still ask for, as times of the arrangement."""
        index.readers.append(self)

    def learn(self, batch: jt.Batch, *, on: Sequence[str] = ()) -> None:
        """Refuse records whose keys are never equal to those arranged; `lookup` does it too.

        A reader whose input announces (``jt.Exchange(…, announce=True)``) should look at each
        batch that comes, the empty ones too: then all workers refuse what one of them does.
        """
        names = on or self._key
        self._index.types.learn("asked", names, [batch.column(name) for name in names])

    def lookup(
        self, batch: jt.Batch, *, on: Sequence[str] = (), at: Any = None
    ) -> tuple[Integers, jt.Batch | None]:
        """For each record of a batch, the arranged records with its key as of its time.

        ``on`` names the columns of the batch that make the key (default: those that the
        arrangement has), ``at`` a time for all records instead of their own. Returns who asked (the
        record's number in the batch) and what was found, side by side: a batch of the
        arrangement's columns at the asking records' times; ``None`` while nothing has ever been
        arranged here. A null in a key equals nothing; keys of types that are never equal to those
        arranged are refused.
        """
        self.learn(batch, on=on)
        columns = [batch.column(name) for name in on or self._key]
        asking = np.arange(len(batch))
        for column in columns:
            if isinstance(column, pa.Array) and column.null_count:
                asking = asking[column.is_valid().to_numpy(zero_copy_only=False)[asking]]
        if at is None:
            times = self._outer_times(batch.times)
        else:
            times = np.tile(np.array(self._outer(at), dtype=np.int64), (len(batch), 1))
            times = times[:, 0] if self._index.depth == 0 else times
        self._require_since(times)
        self._index.require_complete(times)
        if len(asking) < len(batch):
            columns = [c[asking] if isinstance(c, np.ndarray) else c.take(asking) for c in columns]
        arranged = dict(zip(self._index.spine.content.key, columns, strict=True))
        found = self._index.spine.lookup(arranged, times[asking])
        who = asking[found.asking]
        rows = found.batch()
        return who, None if rows is None else rows.at(batch.times[who])

    def advance(self, since: Iterable[Any]) -> None:
        """Promise to ask for no times but those at ``since`` or later; none at all if it is empty.

        A promise that was made before stays: ``since`` may be earlier, and then says nothing new.

        >>> import jeton as jt
        >>> flow = jt.Flow("no questions")
        >>> arranged = arrange(flow.input("n"), "n")
        >>> def build(tokens, info):
        ...     arranged.reader(info).advance(())
        >>> _ = flow.operator("reader").build(build)
        """
        moved = jt.Antichain(self._outer(time) for time in since)
        if moved != self.since and self.since.dominates(moved):
            self.since = moved
            self._index.moved()

    @property
    def size(self) -> int:
        """How many records the index keeps on this worker, history included."""
        return len(self._index.spine)

    def _outer(self, time: Any) -> Any:
        """A time of the reading operator as a time of the arrangement."""
        for _ in range(self._inner):
            time = time.outer
        return time

    def _outer_times(self, times: Times) -> Times:
        if not self._inner:
            return times
        outer = times[:, : -self._inner]
        return outer[:, 0] if outer.shape[1] == 1 else outer

    def _require_since(self, times: Times) -> None:
        gone = np.ones(len(times), dtype=bool)
        for least in self.since:
            gone &= ~not_later(np.array([least]), times)
        if gone.any():
            raise TimeError(
                f"a reader that has moved on to {self.since} cannot look at "
                f"{times[gone][0].tolist()} any more"
            )


def _greatest(times: Times) -> list[Any]:
    """Times that are complete only if all of them are."""
    if len(times) == 0:
        return []
    if times.ndim == 1:
        return [int(times.max())]
    return [jt.Product.of(tuple(row)) for row in np.unique(times, axis=0).tolist()]
