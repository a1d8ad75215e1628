"""interval_join: pairs of records with equal keys whose times are near each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from jeton.columns.batch import Batch
from jeton.columns.column import plain, take
from jeton.columns.durations import Length
from jeton.columns.time_arithmetic import MOST, later, shifted
from jeton.core.antichain import Antichain
from jeton.core.errors import GraphError
from jeton.core.times import Time, TimeKind
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.operators.binary import BinaryBuild
from jeton.dataflow.operators.joined import How, Joined, split_known
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.chained_side import ChainedSide, Chaining
from jeton.state.join_side import MOST_PAIRS, Clock, Expiry, JoinSide, gathered
from jeton.state.key_ids import KeyIds, KeyTypes
from jeton.state.record_queue import RecordQueue
from jeton.state.row_chains import Found, RowChains
from jeton.state.shapes import shape_of

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def add_interval_join(
    keyed: KeyedStream,
    other: KeyedStream,
    lower: Length,
    upper: Length,
    *,
    how: How,
    suffix: str,
) -> Stream:
    """Add the operator of `KeyedStream.interval_join`."""
    if not keyed.stream.kind.total:
        raise GraphError("interval_join needs integer times: inside a loop, use join()")
    domain = keyed.stream.flow.domain
    least = domain.length(lower, "interval_join(…, {}, …)", "lower bound")
    most = domain.length(upper, "interval_join(…, {})", "upper bound")
    if not -MOST <= least <= most <= MOST:
        raise GraphError(
            f"an interval from {lower!r} to {upper!r} is empty or longer than time itself"
        ).located(operator="interval_join")
    joined = Joined(keyed, other, how, suffix, "interval_join")
    for side in (keyed, other):
        if how != "inner" and side.stream.time_name in side.key:
            raise GraphError(
                f"the key {side.stream.time_name!r} is the time column, and records without a "
                "partner come at another time: copy it first, with_columns(at=…), and use that"
            ).located(operator="interval_join")
    return joined.add(keyed.stream, other.stream, pairing(joined, least, most))


def pairing(joined: Joined, lower: int, upper: int) -> BinaryBuild:
    """The logic of joins that send pairs as soon as both records are there."""

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Input, Output], None]:
        pairs = Pairs(joined, lower, upper, info.kind)
        bounds = f"records, partners from {lower} to {upper}"
        mine, others = shape_of(bounds, joined.left_key), shape_of(bounds, joined.right_key)
        info.keep(pairs.left.kept, name="left", shape=mine, lazy=True)
        info.keep(pairs.right.kept, name="right", shape=others, lazy=True)
        if pairs.left.outer:
            info.keep(pairs.left.waiting, token, name="waiting", shape=mine, lazy=True)
        if pairs.right.outer:
            info.keep(pairs.right.waiting, token, name="waiting right", shape=others, lazy=True)
        token.drop()
        return pairs.step

    return build


class PairSide:
    """One side of a join: its records, and those of them that may yet stay without a partner.

    Partners lie from ``lower`` to ``upper`` from its records.
    """

    def __init__(
        self, kept: ChainedSide, waiting: RecordQueue, lower: int, upper: int, *, outer: bool
    ) -> None:
        self.kept = kept
        self.waiting = waiting
        self.lower, self.upper = lower, upper
        self.outer = outer
        """Whether records without a partner are sent."""
        self._delay = max(upper, 0)
        """From a record's time to the time at which it is sent without a partner."""

    def delayed(self, batch: Batch) -> Batch:
        """Records at the times at which they are sent without a partner."""
        if not self._delay:
            return batch
        return batch.at(later(batch.times, self._delay, f"its interval, up to {self.upper} later,"))

    def pop_lonely(self, other: JoinSide, frontier: Antichain) -> Iterator[tuple[Time, Batch]]:
        """Take out the records that have found no partner and cannot any more."""
        if self.upper < 0 and frontier.only is not None:
            frontier = Antichain([min(frontier.only - self.upper, MOST)])
        for time, batch in self.waiting.pop(frontier):
            own = batch.times - self._delay if self._delay else batch.times
            run = self.kept.run(batch, own)
            alone = other.lonely(run, self.lower, self.upper)
            if alone.any():
                yield time, run.batch.filter(alone)

    def limit(self, mine: Antichain, others: Antichain) -> int | None:
        """The least time from which on this side may still ask for partners; ``None``: it is over.

        Its records to come are at its frontier or later, and those that wait will ask once more.
        """
        if not self.outer:
            return mine.only
        limits = [mine.only]
        if others.only is not None:
            limits.append(others.only - self.upper)
        known = [limit for limit in limits if limit is not None]
        return min(known) if known else None


class Pairs:
    """Both sides of a join, whose pairs are sent as soon as both records are there.

    The record of a pair that comes last brings the right to send it, so records that wait for
    a partner need no token. Only those that may be sent without one do.
    """

    def __init__(self, joined: Joined, lower: int, upper: int, kind: TimeKind) -> None:
        self._joined = joined
        self._kind = kind
        self._ids, self._clock = KeyIds(), Clock(kind)
        types = KeyTypes()
        self._chaining = Chaining(self._ids)
        outer = joined.left_outer or joined.right_outer
        if outer or not kind.total or not joined.left_key:
            self._chaining.give_up()

        def side(key: tuple[str, ...], lower: int, upper: int, outer: bool) -> PairSide:
            kept = ChainedSide(
                key, types, self._ids, self._clock, moved(upper), upper, self._chaining
            )
            return PairSide(kept, RecordQueue(kind, key), lower, upper, outer=outer)

        self.left = side(joined.left_key, lower, upper, joined.left_outer)
        self.right = side(joined.right_key, -upper, -lower, joined.right_outer)

    def step(self, left: Input, right: Input, output: Output) -> None:
        """Take arrivals, send pairs and lonely records, and drop records that are over."""
        for ref, batch in left:
            self._from_left(ref, batch, output)
        for ref, batch in right:
            self._from_right(ref, batch, output)
        if self.left.outer:
            lonely = self.left.pop_lonely(self.right.kept, right.frontier)
            self._emit(self.left, lonely, self._joined.left_alone, output)
        if self.right.outer:
            lonely = self.right.pop_lonely(self.left.kept, left.frontier)
            self._emit(self.right, lonely, self._joined.right_alone, output)
        self._expire(left.frontier, right.frontier)

    def _through_chains(
        self, mine: PairSide, other: PairSide, ref: TokenRef, batch: Batch, output: Output
    ) -> Batch | None:
        """Find pairs by chains of rows, as long as these are good for it; returns the other rows.

        Nothing, if there are none.
        """
        slots = mine.kept.usual_slots(batch)
        if slots is None:
            batch = mine.kept.known(batch)
            slots = mine.kept.slots(batch)
        if slots is None:
            if len(batch):
                self._chaining.give_up()
            return batch
        times, rows = plain(batch.times), len(batch)
        others, lower, upper = other.kept.chains, mine.lower, mine.upper
        done, slow = 0, False
        while done < rows and not slow:
            found = others.partners(slots, times, lower, upper, done, MOST_PAIRS)
            done, slow = found.stop, found.is_slow
            if len(found.asking):
                self._send_found(mine, batch, others, found, ref, output)
        some = batch if done == rows else batch.slice(0, done)
        if not mine.kept.chain(slots[:done], some) or slow:
            self._chaining.give_up()
        return None if done == rows else batch.slice(done, rows)

    def _send_found(
        self,
        mine: PairSide,
        batch: Batch,
        others: RowChains,
        found: Found,
        ref: TokenRef,
        output: Output,
    ) -> None:
        joined, asking = self._joined, found.asking
        right_key = joined.right_key
        if mine is self.left:
            left = {name: take(column, asking) for name, column in batch.columns.items()}
            right = others.take(found.rows, right_key)
        else:
            left = others.take(found.rows)
            right = {n: take(c, asking) for n, c in batch.columns.items() if n not in right_key}
        # Pairs are not earlier than the record that came last.
        output.session(ref).give(joined.side_by_side(left, right, found.times, ref.time))

    def _from_left(self, ref: TokenRef, batch: Batch, output: Output) -> None:
        joined, left = self._joined, self.left
        if self._chaining.is_on:
            rest = self._through_chains(left, self.right, ref, batch, output)
            if rest is None:
                return
            batch = rest
        left.kept.learn(batch)
        batch, unknown = split_known(batch, joined.left_key)
        if left.outer and unknown is not None:
            output.session(ref).give(joined.left_alone(left.delayed(unknown)))
        if len(batch) == 0:
            return
        run = left.kept.run(batch)
        for rows, partners in self.right.kept.pairs(run, left.lower, left.upper):
            values = joined.values(partners[0][0].batch)
            self._send(ref, run.batch.take(rows), gathered(partners, values), output)
        left.kept.add(run)
        if left.outer:
            left.waiting.push(ref, left.delayed(batch))

    def _from_right(self, ref: TokenRef, batch: Batch, output: Output) -> None:
        joined, right = self._joined, self.right
        if self._chaining.is_on:
            rest = self._through_chains(right, self.left, ref, batch, output)
            if rest is None:
                return
            batch = rest
        right.kept.learn(batch)
        batch, unknown = split_known(batch, joined.right_key)
        if right.outer and unknown is not None:
            output.session(ref).give(joined.right_alone(right.delayed(unknown)))
        if len(batch) == 0:
            return
        run = right.kept.run(batch)
        for rows, partners in self.left.kept.pairs(run, right.lower, right.upper):
            values = run.batch.select(*joined.values(batch))
            self._send(ref, gathered(partners), values.take(rows), output)
        right.kept.add(run)
        if right.outer:
            right.waiting.push(ref, right.delayed(batch))

    def _send(self, ref: TokenRef, left: Batch, right: Batch, output: Output) -> None:
        # Times that are not integers are equal in every pair.
        times = np.maximum(left.times, right.times) if self._kind.total else left.times
        output.session(ref).give(self._joined.pair(left, right, times))

    def _emit(
        self,
        side: PairSide,
        lonely: Iterator[tuple[Time, Batch]],
        alone: Callable[[Batch], Batch],
        output: Output,
    ) -> None:
        for time, batch in lonely:
            output.session(side.waiting.right_for(time)).give(alone(batch))
        side.waiting.settle()

    def _expire(self, left: Antichain, right: Antichain) -> None:
        sides = self.left.kept, self.right.kept
        if self._kind.total:
            # The limit of a side is for the rows that serve it: those of the other one.
            self.left.kept.expire(self.right.limit(right, left))
            self.right.kept.expire(self.left.limit(left, right))
            if self._chaining.is_on:
                self._chaining.sweep()
                return
        else:
            over = self._clock.over(left, right)
            for side in sides:
                side.forget(over)
        self._ids.sweep((run.ids for side in sides for run in side.runs), sum(map(len, sides)))


def moved(step: int) -> Expiry:
    """Positions ``step`` later, or at the end of time."""
    return lambda ids, at: shifted(at, step)
