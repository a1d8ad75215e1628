"""interval_join: pairs of records with equal keys whose times are near each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jeton.columns.batch import Batch
from jeton.columns.time_arithmetic import MOST, later, shifted, whole
from jeton.core.antichain import Antichain
from jeton.core.errors import GraphError
from jeton.core.times import TimeKind
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.dataflow.operators.binary import BinaryBuild
from jeton.dataflow.operators.joined import How, Joined, split_known
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.join_side import Clock, Expiry, JoinSide, gathered
from jeton.state.key_ids import KeyIds, KeyTypes
from jeton.state.record_queue import RecordQueue
from jeton.state.shapes import shape_of

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def add_interval_join(
    keyed: KeyedStream,
    other: KeyedStream,
    lower: int,
    upper: int,
    *,
    how: How,
    suffix: str,
) -> Stream:
    """Add the operator of `KeyedStream.interval_join`."""
    if not keyed.stream.kind.total:
        raise GraphError("interval_join needs integer times: inside a loop, use join()")
    lower = whole(lower, "the lower bound of an interval")
    upper = whole(upper, "the upper bound of an interval")
    if not -MOST <= lower <= upper <= MOST:
        raise GraphError(
            f"an interval from {lower} to {upper} is empty or longer than time itself"
        ).located(operator="interval_join")
    joined = Joined(keyed, other, how, suffix, "interval_join")
    return joined.add(keyed.stream, other.stream, pairing(joined, lower, upper))


def pairing(joined: Joined, lower: int, upper: int) -> BinaryBuild:
    """The logic of joins that send pairs as soon as both records are there."""

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Input, Output], None]:
        pairs = Pairs(joined, lower, upper, info.kind)
        bounds = f"records, partners from {lower} to {upper}"
        mine, others = shape_of(bounds, joined.left_key), shape_of(bounds, joined.right_key)
        info.keep(pairs.left, name="left", shape=mine)
        info.keep(pairs.right, name="right", shape=others)
        if joined.outer:
            info.keep(pairs.waiting, token, name="waiting", shape=mine)
        token.drop()
        return pairs.step

    return build


class Pairs:
    """Both sides of a join, and the left records that may yet stay without a partner.

    The record of a pair that comes last brings the right to send it, so records that wait for
    a partner need no token. Only left records that may be sent without one do.
    """

    def __init__(self, joined: Joined, lower: int, upper: int, kind: TimeKind) -> None:
        self._joined = joined
        self._lower, self._upper = lower, upper
        self._kind = kind
        self._delay = max(upper, 0)
        """From a left record's time to the time at which it is sent without a partner."""
        self._ids, self._clock = KeyIds(), Clock(kind)
        types = KeyTypes()
        self.left = JoinSide(joined.left_key, types, self._ids, self._clock, moved(upper))
        self.right = JoinSide(joined.right_key, types, self._ids, self._clock, moved(-lower))
        self.waiting = RecordQueue(kind, joined.left_key)

    def step(self, left: Input, right: Input, output: Output) -> None:
        """Take arrivals, send pairs and lonely records, and drop records that are over."""
        for ref, batch in left:
            self._from_left(ref, batch, output)
        for ref, batch in right:
            self._from_right(ref, batch, output)
        if self._joined.outer:
            self._emit_lonely(right.frontier, output)
        self._expire(left.frontier, right.frontier)

    def _from_left(self, ref: TokenRef, batch: Batch, output: Output) -> None:
        joined = self._joined
        self.left.learn(batch)
        batch, unknown = split_known(batch, joined.left_key)
        if joined.outer and unknown is not None:
            output.session(ref).give(joined.alone(self._delayed(unknown)))
        if len(batch) == 0:
            return
        run = self.left.run(batch)
        for rows, partners in self.right.pairs(run, self._lower, self._upper):
            values = joined.values(partners[0][0].batch)
            self._send(ref, run.batch.take(rows), gathered(partners, values), output)
        self.left.add(run)
        if joined.outer:
            self.waiting.push(ref, self._delayed(batch))

    def _from_right(self, ref: TokenRef, batch: Batch, output: Output) -> None:
        self.right.learn(batch)
        batch, _ = split_known(batch, self._joined.right_key)
        if len(batch) == 0:
            return
        run = self.right.run(batch)
        for rows, partners in self.left.pairs(run, -self._upper, -self._lower):
            values = run.batch.select(*self._joined.values(batch))
            self._send(ref, gathered(partners), values.take(rows), output)
        self.right.add(run)

    def _send(self, ref: TokenRef, left: Batch, right: Batch, output: Output) -> None:
        # Times that are not integers are equal in every pair.
        times = np.maximum(left.times, right.times) if self._kind.total else left.times
        output.session(ref).give(self._joined.pair(left, right, times))

    def _emit_lonely(self, frontier: Antichain, output: Output) -> None:
        waiting = self.waiting
        if self._upper < 0 and frontier.only is not None:
            frontier = Antichain([min(frontier.only - self._upper, MOST)])
        for time, batch in waiting.pop(frontier):
            own = batch.times - self._delay if self._delay else batch.times
            run = self.left.run(batch, own)
            alone = self.right.lonely(run, self._lower, self._upper)
            if alone.any():
                lonely = self._joined.alone(run.batch.filter(alone))
                output.session(waiting.right_for(time)).give(lonely)
        waiting.settle()

    def _expire(self, left: Antichain, right: Antichain) -> None:
        if not self._kind.total:
            over = self._clock.over(left, right)
            self.left.forget(over)
            self.right.forget(over)
        else:
            self.left.expire(right.only)
            limits = [left.only]
            if self._joined.outer:
                # Left records that still wait will ask once more for their partners.
                limits.append(None if right.only is None else right.only - self._upper)
            known = [limit for limit in limits if limit is not None]
            self.right.expire(min(known) if known else None)
        sides = self.left, self.right
        self._ids.sweep((run.ids for side in sides for run in side.runs), sum(map(len, sides)))

    def _delayed(self, batch: Batch) -> Batch:
        """Left records at the times at which they are sent without a partner."""
        if not self._delay:
            return batch
        return batch.at(
            later(batch.times, self._delay, f"its interval, up to {self._upper} later,")
        )


def moved(step: int) -> Expiry:
    """Positions ``step`` later, or at the end of time."""
    return lambda ids, at: shifted(at, step)
