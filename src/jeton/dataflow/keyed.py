"""Keyed streams: records with a key, and when the groups of equal keys are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jeton.columns.schema import SchemaLike
from jeton.columns.time_units import unit_of
from jeton.core.errors import GraphError
from jeton.dataflow.operators.asof_join import AsofJoin
from jeton.dataflow.operators.cogroup import Cogroup
from jeton.dataflow.operators.distinct import distinct
from jeton.dataflow.operators.interval_join import IntervalJoin
from jeton.dataflow.operators.join import Join
from jeton.dataflow.operators.running import Running
from jeton.dataflow.operators.session_window import Sessions
from jeton.dataflow.operators.stateful_map import Transition, stateful_map
from jeton.dataflow.operators.unary import UnaryBuild
from jeton.dataflow.operators.windows import EachTime, Sliding, Tumbling, Until, Windows
from jeton.dataflow.pacts import Exchange, Gather, Pact
from jeton.dataflow.plan import Notify

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class KeyedStream(Join, AsofJoin, IntervalJoin, Cogroup):
    """A stream whose records are grouped by one or more columns; without any, all together.

    Say *when* groups are told, then *what*: ``words.key_by("word").running().count()``.
    """

    def __init__(self, stream: Stream, key: tuple[str, ...]) -> None:
        self.stream = stream
        self.key = key

    def named(self, name: str) -> KeyedStream:
        """These records, such that the operator that comes next has a name of its own.

        See `Stream.named`, which does the same before the key is chosen.
        """
        return KeyedStream(self.stream.named(name), self.key)

    @property
    def pact(self) -> Pact:
        """How records reach the worker that keeps their key."""
        return Exchange(*self.key) if self.key else Gather()

    def running(self, *, ordered: bool = False) -> Running:
        """An updated result for each record, over all records of its key so far.

        Records are taken as they come, so that results depend on when they do; with ``ordered``,
        in the order of their times, which means waiting until each time is complete. Those of one
        key and time then come by the values of their columns, from the first to the last.

        >>> import jeton as jt
        >>> flow = jt.Flow("word count")
        >>> flow.output("counts", flow.input("words").key_by("word").running().count())
        >>> words = {"time": [0, 1, 2], "word": ["to", "be", "to"]}
        >>> flow.run({"words": words})["counts"]["count"].to_pylist()
        [1, 1, 2]
        """
        return Running(self, ordered)

    def each_time(self) -> Windows:
        """Groups of records at the same time, told once that time is complete.

        >>> import jeton as jt
        >>> flow = jt.Flow("count")
        >>> flow.output("counts", flow.input("words").key_by("word").each_time().count())
        >>> words = {"time": [0, 0, 1], "word": ["to", "to", "to"]}
        >>> flow.run({"words": words})["counts"].to_pylist()
        [{'time': 0, 'word': 'to', 'count': 2}, {'time': 1, 'word': 'to', 'count': 1}]
        """
        return Windows(self, EachTime())

    def tumbling(self, size: int, *, offset: int = 0) -> Windows:
        """Windows ``[start, start + size)`` one after the other, told at their ends.

        A record whose window would end after the last time there is, 2**63 - 1, is an error, since
        nothing could be told of it; so it is for `sliding` windows and sessions.

        >>> import jeton as jt
        >>> flow = jt.Flow("means")
        >>> flow.output("means", flow.input("n").key_by("key").tumbling(10).mean("value"))
        >>> rows = {"time": [3, 7, 12], "key": [1, 1, 1], "value": [1.0, 2.0, 4.0]}
        >>> flow.run({"n": rows})["means"].to_pylist()
        [{'time': 10, 'key': 1, 'mean': 1.5}, {'time': 20, 'key': 1, 'mean': 4.0}]
        """
        return Windows(self, Tumbling(size, offset))

    def sliding(self, size: int, *, every: int, offset: int = 0) -> Windows:
        """Windows of ``size`` that end at every multiple of ``every``.

        >>> import jeton as jt
        >>> flow = jt.Flow("counts")
        >>> flow.output("counts", flow.input("n").key_by().sliding(20, every=10).count())
        >>> flow.run({"n": {"time": [3, 12]}})[
        ...     "counts"
        ... ].to_pylist()  # doctest: +NORMALIZE_WHITESPACE
        [{'time': 10, 'count': 1}, {'time': 20, 'count': 2}, {'time': 30, 'count': 1}]
        """
        return Windows(self, Sliding(size, every, offset))

    def until(self, column: str) -> Windows:
        """Windows whose end each record gives itself, as an auction its expiry.

        >>> import jeton as jt
        >>> flow = jt.Flow("auctions")
        >>> flow.output("best", flow.input("bids").key_by("item").until("ends").max("price"))
        >>> bids = {"time": [1, 2, 3], "item": [7, 8, 7], "ends": [5, 9, 5], "price": [3, 2, 4]}
        >>> flow.run({"bids": bids})["best"].to_pylist()
        [{'time': 5, 'item': 7, 'max': 4}, {'time': 9, 'item': 8, 'max': 2}]

        The column is of the same kind as the times: integers, timestamps with a time zone, or
        timestamps without one and dates. Units are converted, and an end that is not a whole
        number of the times' unit is an error.
        """
        self.stream.require_columns(column, operator="until")
        schema = self.stream.schema
        kind = None if schema is None else schema.field(column).type
        if kind is not None and not pa.types.is_null(kind) and unit_of(kind) is None:
            raise GraphError(
                f"column {column!r} is of type {kind} and cannot end windows: until() needs "
                "integers, timestamps or dates"
            )
        return Windows(self, Until(column))

    def session_window(self, gap: int) -> Sessions:
        """Sessions: records of a key that follow each other by less than ``gap``.

        A session is told once nothing can prolong it any more: at its last record's time plus
        ``gap``, with the time of its first record in the column ``start`` (as an integer, in the
        unit of the times). Records out of order prolong and join sessions as they should.

        >>> import jeton as jt
        >>> flow = jt.Flow("visits")
        >>> flow.output("visits", flow.input("clicks").key_by("who").session_window(10).count())
        >>> clicks = {"time": [0, 7, 30], "who": ["ann", "ann", "ann"]}
        >>> flow.run({"clicks": clicks})["visits"].to_pylist()  # doctest: +NORMALIZE_WHITESPACE
        [{'time': 17, 'who': 'ann', 'start': 0, 'count': 2},
         {'time': 40, 'who': 'ann', 'start': 30, 'count': 1}]
        """
        return Sessions(self, gap)

    def distinct(self) -> Stream:
        """Each key once, at the least time at which it occurs.

        A key comes out once that time is complete, so the answer does not depend on which record
        came first. All keys are remembered for ever; ``each_time().distinct()`` and
        ``tumbling(…).distinct()`` forget them with their windows. Inside a loop a key may have
        several least times (in round 5 of one time, in round 2 of the next): it comes at each.

        >>> import jeton as jt
        >>> flow = jt.Flow("first visits")
        >>> flow.output("first", flow.input("visits").key_by("who").distinct())
        >>> visits = {"time": [3, 1, 2], "who": ["ann", "ann", "bob"]}
        >>> flow.run({"visits": visits})["first"].to_pylist()
        [{'time': 1, 'who': 'ann'}, {'time': 2, 'who': 'bob'}]
        """
        return distinct(self)

    def stateful_map(
        self, function: Transition, initial: Any, *, name: str = "stateful_map"
    ) -> Stream:
        """A state for each key, which ``function(state, row)`` moves on, record by record.

        It returns the next state (``None``: forget the key) and a list of rows to send, to which
        the key's columns are added. ``initial`` is the state of a new key, or a function that
        makes it. Rows come as dictionaries in the order of their times; those of the same time by
        the values of their columns, from the first column to the last (nulls last, NaN the
        greatest number, lists and structures as text), never by when they came: put a sequence
        number first to decide yourself. Answers bear the record's time, or a later one if they
        name it. Inside a loop, times that cannot be compared may come in either order.

        States must be values that can be pickled, to be stored. This is plain Python for each
        record: a few microseconds, against some ten nanoseconds for the aggregates of `rolling`.

        >>> import jeton as jt
        >>> def turnstile(locked, row):
        ...     if row["event"] == "coin":
        ...         return False, []
        ...     return True, [{"alarm": locked}]
        >>> flow = jt.Flow("turnstile")
        >>> events = flow.input("events").key_by("gate")
        >>> flow.output("pushes", events.stateful_map(turnstile, True))
        >>> rows = {"time": [1, 2, 3], "gate": [7, 7, 7], "event": ["coin", "push", "push"]}
        >>> flow.run({"events": rows})["pushes"].to_pylist()
        [{'time': 2, 'gate': 7, 'alarm': False}, {'time': 3, 'gate': 7, 'alarm': True}]
        """
        return stateful_map(self, function, initial, name=name)

    def unary(
        self,
        build: UnaryBuild,
        name: str,
        *,
        notify: Notify = "held",
        schema: SchemaLike | None = None,
    ) -> Stream:
        """An operator of your own on the records of each key, which all come to one worker."""
        return self.stream.unary_frontier(
            build, pact=self.pact, name=name, notify=notify, schema=schema
        )
