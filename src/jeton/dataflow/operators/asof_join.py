"""asof_join: each record with the latest one of another stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

import numpy as np

from jeton.columns.batch import Batch
from jeton.columns.durations import Length
from jeton.columns.ordering import tie_breakers
from jeton.columns.time_arithmetic import FARTHEST, MOST, Integers
from jeton.core.antichain import Antichain
from jeton.core.errors import GraphError
from jeton.core.times import TimeKind
from jeton.core.tokens import TimestampToken
from jeton.dataflow.operators.interval_join import moved
from jeton.dataflow.operators.joined import AsofHow, Joined, split_known
from jeton.dataflow.plan import OperatorInfo
from jeton.dataflow.ports import Input, Output
from jeton.state.join_side import Clock, JoinRun, JoinSide, find_last, gathered
from jeton.state.key_ids import KeyIds, KeyTypes
from jeton.state.record_queue import RecordQueue
from jeton.state.shapes import shape_of

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def add_asof_join(
    keyed: KeyedStream,
    other: KeyedStream,
    *,
    tolerance: Length | None,
    how: AsofHow,
    suffix: str,
) -> Stream:
    """Add the operator of `KeyedStream.asof_join`."""
    if not keyed.stream.kind.total:
        raise GraphError("asof_join needs integer times: inside a loop, use join()")
    allowed = None
    if tolerance is not None:
        allowed = keyed.stream.flow.domain.length(
            tolerance, "asof_join(…, tolerance={})", "tolerance"
        )
        if allowed < 0:
            raise GraphError(f"a tolerance cannot be negative, as {tolerance!r} is")
    joined = Joined(keyed, other, how, suffix, "asof_join", hows=get_args(AsofHow))
    far = FARTHEST if allowed is None else min(allowed, FARTHEST)

    def build(token: TimestampToken, info: OperatorInfo) -> Callable[[Input, Input, Output], None]:
        asof = Asof(joined, far, info.kind)
        mine, others = shape_of("records", keyed.key), shape_of("latest", other.key)
        info.keep(asof.latest, name="latest", shape=others, lazy=True)
        info.keep(asof.waiting, token, name="waiting", shape=mine, lazy=True)
        token.drop()
        return asof.step

    return joined.add(keyed.stream, other.stream, build)


class Asof:
    """Left records that wait until the right side is complete, and the right ones to give them."""

    def __init__(self, joined: Joined, tolerance: int, kind: TimeKind) -> None:
        self._joined = joined
        self._tolerance = tolerance
        self._ids = KeyIds()
        types, clock = KeyTypes(), Clock(kind)
        self._left = JoinSide(joined.left_key, types, self._ids, clock, moved(0))
        """Never filled: it makes runs of left records."""
        self.latest = JoinSide(
            joined.right_key, types, self._ids, clock, self._expiry, unify=without_equals
        )
        self.waiting = RecordQueue(kind, joined.left_key)

    def step(self, left: Input, right: Input, output: Output) -> None:
        """Take arrivals, answer complete records, and drop records that are over."""
        joined, waiting = self._joined, self.waiting
        for ref, batch in left:
            self._left.learn(batch)
            batch, unknown = split_known(batch, joined.left_key)
            if joined.left_outer and unknown is not None:
                output.session(ref).give(joined.left_alone(unknown))
            waiting.push(ref, batch)
        for _, batch in right:
            self.latest.learn(batch)
            batch, _ = split_known(batch, joined.right_key)
            if len(batch):
                self.latest.add(self.latest.run(batch))
        for time, batch in waiting.pop(right.frontier):
            self._answer(waiting.right_for(time), batch, output)
        waiting.settle()
        self._expire(left.frontier, right.frontier)

    def _answer(self, token: TimestampToken, batch: Batch, output: Output) -> None:
        run = self._left.run(batch)
        chosen, found = self._find(run)
        rows, partners = [], []
        for number, (others, latest) in enumerate(zip(found, self.latest.runs, strict=True)):
            asked = np.flatnonzero(chosen == number)
            if len(asked):
                rows.append(asked)
                partners.append((latest, others[asked]))
        if partners:
            left = run.batch.take(np.concatenate(rows))
            right = gathered(partners, self._joined.values(partners[0][0].batch))
            output.session(token).give(self._joined.pair(left, right, left.times))
        if self._joined.left_outer and (chosen < 0).any():
            output.session(token).give(self._joined.left_alone(run.batch.filter(chosen < 0)))

    def _find(self, asking: JoinRun) -> tuple[Integers, list[Integers]]:
        """For each asking row the run that has its partner, or -1; and for each run the rows."""
        runs = self.latest.runs
        if not runs:
            return np.full(len(asking), -1), []
        far = np.uint64(self._tolerance)
        both = [find_last(r.ids, r.at, asking.ids, asking.at, far) for r in runs]
        found = [rows for rows, _ in both]
        if len(runs) == 1:
            return np.where(found[0] < 0, -1, 0), found
        positions = np.stack([at for _, at in both])
        equal = (positions == positions.max(axis=0)) & (np.stack(found) >= 0)
        chosen: Integers = np.where(equal.any(axis=0), equal.argmax(axis=0), -1)
        tied = equal.sum(axis=0) > 1
        if tied.any():
            # Equal keys and times in several runs: the greatest of those rows.
            number, row = np.nonzero(equal & tied)
            others = [(run, found[n][row[number == n]]) for n, run in enumerate(runs)]
            winners = greatest(row, gathered(others))
            chosen[row[winners]] = number[winners]
        return chosen, found

    def _expire(self, left: Antichain, right: Antichain) -> None:
        # Left records that wait are all at the right frontier or later.
        known = [front.only for front in (left, right) if front.only is not None]
        idle = left.is_empty and len(self.waiting) == 0
        self.latest.expire(min(known) if known and not idle else None)
        self._ids.sweep((run.ids for run in self.latest.runs), len(self.latest))

    def _expiry(self, ids: Integers, at: Integers) -> Integers:
        """Until when a row is the latest of its key, as far as its run shows."""
        until = np.full(len(ids), MOST)
        same = np.flatnonzero(ids[1:] == ids[:-1])
        until[same] = at[same + 1] - 1
        kept: Integers = np.minimum(until, moved(self._tolerance)(ids, at))
        return kept


def without_equals(run: JoinRun) -> JoinRun:
    """Of rows with equal key and time only the greatest."""
    equal = (run.ids[1:] == run.ids[:-1]) & (run.at[1:] == run.at[:-1])
    if not equal.any():
        return run
    groups = np.concatenate([[0], np.cumsum(~equal)])
    several = np.concatenate([[False], equal]) | np.concatenate([equal, [False]])
    rows = np.flatnonzero(several)
    keep = ~several
    keep[rows[greatest(groups[rows], run.batch.take(rows))]] = True
    return run.filter(keep)


def greatest(groups: Integers, batch: Batch) -> Integers:
    """The row of each group that is greatest by its values, column by column.

    >>> batch = Batch({"a": [1, 1, 9], "b": [5, 7, 0]}, times=[0, 0, 0])
    >>> greatest(np.array([0, 0, 1]), batch)
    array([1, 2])
    """
    order = np.lexsort([groups, *tie_breakers(batch, descending=True)][::-1])
    ordered = groups[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    firsts: Integers = order[first]
    return firsts
