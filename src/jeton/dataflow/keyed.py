"""Keyed streams: records with a key, and every operator on groups of equal keys as a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from jeton.columns.calendars import MONDAY
from jeton.columns.durations import Length, calendar
from jeton.columns.schema import SchemaLike
from jeton.columns.time_arithmetic import MOST
from jeton.columns.time_units import unit_of
from jeton.core.errors import GraphError
from jeton.dataflow.grouped import GroupJoin, Rolling, Running, Sessions, Windows
from jeton.dataflow.hints import no_keyed_method
from jeton.dataflow.operators.asof_join import add_asof_join
from jeton.dataflow.operators.cogroup import GroupFunction, add_cogroup
from jeton.dataflow.operators.deduplicate import add_deduplicate
from jeton.dataflow.operators.distinct import add_distinct
from jeton.dataflow.operators.interval_join import add_interval_join
from jeton.dataflow.operators.join import add_join
from jeton.dataflow.operators.join_static import StaticHow, add_join_static
from jeton.dataflow.operators.joined import AsofHow, How, pacts
from jeton.dataflow.operators.partial_windows import checked_combine
from jeton.dataflow.operators.spread import checked_spread
from jeton.dataflow.operators.stateful_map import Transition, add_stateful_map
from jeton.dataflow.operators.stateful_timers import (
    TimedTransition,
    add_stateful_timers,
    check_functions,
)
from jeton.dataflow.operators.unary import UnaryBuild, add_unary
from jeton.dataflow.operators.windows import (
    BoundedAssigner,
    CalendarWindows,
    EachTime,
    Sliding,
    SlidingCalendar,
    Tumbling,
    Until,
)
from jeton.dataflow.pacts import Gather, KeyExchange, Pact, SpreadExchange
from jeton.dataflow.plan import Notify
from jeton.state.python_values import StateCodec, require_codec

if TYPE_CHECKING:
    from typing import NoReturn

    from jeton.columns.batch import Batch
    from jeton.dataflow.stream import Stream


class KeyedStream:
    """A stream whose records are grouped by one or more columns; without any, all together.

    Say *when* results are emitted, then *which*: ``words.key_by("word").running().count()``.

    >>> import jeton as jt
    >>> jt.Flow("words").input("words").key_by("word")
    <KeyedStream by 'word'>
    """

    _unfinished = (
        "this one is only keyed: say when results are emitted, and choose an aggregate, as in "
        ".tumbling(10).count() or .running().count()"
    )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            from jeton.dataflow.stream import Stream

            raise no_keyed_method(self, name, Stream, Windows)

    def __init__(
        self,
        stream: Stream,
        key: tuple[str, ...],
        *,
        spread: int | None = None,
        combine: bool = False,
    ) -> None:
        self.stream = stream
        self.key = key
        self.spread = None if spread is None else checked_spread(spread)
        """The most workers among which the records of a hot key are divided."""
        self.combine = checked_combine(combine, spread)
        """Whether each worker aggregates its own records before they travel."""

    def __dir__(self) -> list[str]:
        return [
            name for name in super().__dir__() if name not in ("pact", "require_whole", "stream")
        ]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} by {', '.join(map(repr, self.key)) or 'no column'}>"

    def require_whole(self, operator: str) -> None:
        """Refuse an operator that needs all records of a key on one worker, if it has parts."""
        if self.spread is not None:
            how, option = f"the key is spread over {self.spread}", "spread="
        elif self.combine:
            how, option = "each worker combines its own first", "combine="
        else:
            return
        raise GraphError(
            f"{operator}() needs all records of a key on one worker, but {how}: {option} is for "
            "aggregates of each_time(), tumbling(), sliding() and until()"
        ).located(operator=operator)

    def named(self, name: str) -> KeyedStream:
        """These records, with a name of its own for the operator that comes next.

        See `Stream.named`, which does the same before the key is chosen.

        >>> import jeton as jt
        >>> orders = jt.Flow("purchases").input("orders").key_by("item")
        >>> orders.named("bought").running().count()
        <Stream of bought[0]>
        """
        stream = self.stream.named(name)
        return KeyedStream(stream, self.key, spread=self.spread, combine=self.combine)

    @property
    def pact(self) -> Pact:
        """How records reach the worker that owns their key, or one of several if it is spread."""
        if self.spread is not None:
            return SpreadExchange(*self.key, spread=self.spread)
        return KeyExchange(*self.key) if self.key else Gather()

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
        self.require_whole("running")
        return Running(self, ordered=ordered)

    def rolling(self, size: Length | None = None, *, rows: int | None = None) -> Rolling:
        """A moving window for each record: the last records of its key, itself included.

        With a ``size``, these are the records in ``(time - size, time]``, also all others at the
        record's own time, as in Polars' ``rolling``. With ``rows``, they are the last ``rows``
        records in the order of their times; those of one key and time come by the values of their
        columns, from the first to the last. ``first``, ``last`` and ``collect`` follow that order
        of records, as SQL's ``ROWS`` windows do, so that the last one of a window is the record
        itself. In windows by time, records of one time are ordered by the value that is asked for.
        Neither depends on the order of arrival. Each record comes out at its time, once that is
        complete, with a column for each aggregate.

        The operator keeps the records of the last ``size`` of time, or the last ``rows`` records
        of each key. The work for a record grows with the number of records in its window.

        >>> import jeton as jt
        >>> flow = jt.Flow("moving averages")
        >>> prices = flow.input("prices").key_by("stock")
        >>> flow.output("by time", prices.rolling(10).mean("price"))
        >>> flow.output("by rows", prices.rolling(rows=2).mean("price"))
        >>> rows = {"time": [0, 5, 12], "stock": ["A", "A", "A"], "price": [1.0, 2.0, 6.0]}
        >>> result = flow.run({"prices": rows})
        >>> result["by time"].to_pylist()  # doctest: +NORMALIZE_WHITESPACE
        [{'time': 0, 'stock': 'A', 'price': 1.0, 'mean': 1.0},
         {'time': 5, 'stock': 'A', 'price': 2.0, 'mean': 1.5},
         {'time': 12, 'stock': 'A', 'price': 6.0, 'mean': 4.0}]
        >>> result["by rows"]["mean"].to_pylist()
        [1.0, 1.5, 4.0]
        """
        self.require_whole("rolling")
        return Rolling(self, size, rows)

    def each_time(self) -> Windows:
        """Groups of records at the same time, emitted once that time is complete.

        >>> import jeton as jt
        >>> flow = jt.Flow("count")
        >>> flow.output("counts", flow.input("words").key_by("word").each_time().count())
        >>> words = {"time": [0, 0, 1], "word": ["to", "to", "to"]}
        >>> flow.run({"words": words})["counts"].to_pylist()
        [{'time': 0, 'word': 'to', 'count': 2}, {'time': 1, 'word': 'to', 'count': 1}]
        """
        return Windows(self, EachTime())

    def tumbling(
        self, size: Length, *, offset: Length = 0, zone: str | None = None, bounds: bool = False
    ) -> Windows:
        """Windows ``[start, start + size)`` one after the other, emitted at their ends.

        Where times are timestamps, lengths are durations: ``"10s"``, ``"1h 30m"``, ``timedelta``,
        ``pd.Timedelta``, ``np.timedelta64``. Where times are integers, so are lengths. With
        ``bounds``, results have the columns ``window_start`` and ``window_end``, as those of
        Spark's ``window`` do.

        A record whose window would end after the last time there is, 2**63 - 1, is an error, as
        for `sliding` windows and sessions.

        >>> import jeton as jt
        >>> flow = jt.Flow("means")
        >>> flow.output("means", flow.input("n").key_by("key").tumbling(10).mean("value"))
        >>> rows = {"time": [3, 7, 12], "key": [1, 1, 1], "value": [1.0, 2.0, 4.0]}
        >>> flow.run({"n": rows})["means"].to_pylist()
        [{'time': 10, 'key': 1, 'mean': 1.5}, {'time': 20, 'key': 1, 'mean': 4.0}]

        Windows start at multiples of their size, counted from 1970-01-01T00:00 where times are
        timestamps, as Spark's ``window`` and Polars' ``group_by_dynamic`` do. ``offset`` moves
        them. Weeks are different: ``"1 week"`` starts on Mondays, as in Polars and ISO 8601, while
        ``"7 days"`` counts from 1970-01-01, a Thursday.

        Weeks, months, quarters and years are those of the calendar, in UTC or in a ``zone``, and
        so are days in a zone: those on which clocks change have 23 or 25 hours.

        >>> from datetime import datetime, timezone
        >>> flow = jt.Flow("months")
        >>> sales = flow.input("sales").key_by()
        >>> flow.output("sums", sales.tumbling("1 month", zone="Europe/Berlin").sum("n"))
        >>> times = [datetime(2024, 2, day, 23, 30, tzinfo=timezone.utc) for day in (28, 29)]
        >>> flow.run({"sales": {"time": times, "n": [1, 2]}})["sums"]["sum"].to_pylist()
        [1, 2]
        """
        domain = self.stream.flow.domain
        parts = calendar(size)
        if parts is not None and (zone is not None or parts.part != "day"):
            if offset:
                raise GraphError(
                    f"windows of {parts} start with the calendar: offset= is for others"
                )
            domain.require_stamps(f"tumbling({size!r}) has a duration as its size")
            domain.require_zone(zone, f"tumbling({size!r}, zone={zone!r})")
            return self._windows(CalendarWindows(parts, domain.unit, zone), bounds)
        if zone is not None:
            raise GraphError(
                f"tumbling({size!r}, zone={zone!r}) has a size that is the same in all zones: "
                "zone= is for days, weeks and months, such as '1 day'"
            )
        length = domain.length(size, "tumbling({})", "size")
        if not 1 <= length <= MOST:
            raise GraphError(f"the size of a window is greater than zero, not {size!r}")
        start = domain.length(offset, "tumbling(…, offset={})", "offset")
        return self._windows(Tumbling(length, start), bounds)

    def _windows(self, assigner: BoundedAssigner, bounds: bool) -> Windows:
        return Windows(self, assigner, bounds=assigner if bounds else None)

    def sliding(
        self,
        size: Length,
        *,
        every: Length,
        offset: Length = 0,
        zone: str | None = None,
        bounds: bool = False,
    ) -> Windows:
        """Windows of ``size`` that end at every multiple of ``every``.

        Lengths, ``offset``, ``zone`` and ``bounds`` are as for `tumbling`: multiples are counted
        from 1970-01-01T00:00, and those of weeks from a Monday.

        >>> import jeton as jt
        >>> flow = jt.Flow("counts")
        >>> flow.output("counts", flow.input("n").key_by().sliding(20, every=10).count())
        >>> flow.run({"n": {"time": [3, 12]}})[
        ...     "counts"
        ... ].to_pylist()  # doctest: +NORMALIZE_WHITESPACE
        [{'time': 10, 'count': 1}, {'time': 20, 'count': 2}, {'time': 30, 'count': 1}]

        Months, and days or weeks in a ``zone``, are those of the calendar. A window is then a
        whole number of steps: three months, every month.

        >>> from datetime import datetime
        >>> flow = jt.Flow("quarters")
        >>> sales = flow.input("sales").key_by()
        >>> flow.output("sums", sales.sliding("3 months", every="1 month").sum("n"))
        >>> rows = {"time": [datetime(2024, 1, 31), datetime(2024, 2, 29)], "n": [1, 2]}
        >>> flow.run({"sales": rows})["sums"]["sum"].to_pylist()
        [1, 3, 3, 2]
        """
        domain = self.stream.flow.domain
        whole, part = calendar(size), calendar(every)
        in_months = any(found and found.part == "month" for found in (whole, part))
        if zone is not None or in_months:
            call = f"sliding({size!r}, every={every!r})"
            if offset:
                raise GraphError(f"{call} has windows of the calendar: offset= is for others")
            count = None if whole is None or part is None else whole.steps(part)
            if part is None or count is None:
                raise GraphError(
                    f"{call} needs a size that is a whole number of steps, both in days, in "
                    "weeks or in months: sliding('3 months', every='1 month')"
                )
            domain.require_stamps(f"{call} has durations")
            domain.require_zone(zone, call)
            return self._windows(SlidingCalendar(part, count, domain.unit, zone), bounds)
        length = domain.length(size, "sliding({}, …)", "size")
        step = domain.length(every, "sliding(…, every={})", "step")
        start = domain.length(offset, "sliding(…, offset={})", "offset")
        if not 1 <= step <= length <= MOST:
            raise GraphError(f"windows of {size!r} cannot slide by {every!r}")
        if part is not None and part.part == "week":
            start -= MONDAY * (step // (7 * part.count))
        return self._windows(Sliding(length, step, start), bounds)

    def until(self, column: str) -> Windows:
        """Windows whose end is in a column of each record, such as the expiry of an auction.

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

    def session_window(
        self, gap: Length | None = None, *, gap_column: str | None = None
    ) -> Sessions:
        """Sessions: records of a key that follow each other by less than ``gap``.

        A session is emitted once nothing can prolong it any more: at its last record's time plus
        ``gap``, with the time of its first record in the column ``start``. The gap is a
        duration, such as ``"30s"``, or an integer if times are integers. Records out of order
        prolong and merge sessions as needed.

        With ``gap_column``, each record has a gap of its own, as in Spark's ``session_window``:
        it keeps its session open until its time plus the value of that column (an integer, or a
        duration), and a session ends at the latest of these times.

        >>> import jeton as jt
        >>> flow = jt.Flow("visits")
        >>> flow.output("visits", flow.input("clicks").key_by("who").session_window(10).count())
        >>> clicks = {"time": [0, 7, 30], "who": ["ann", "ann", "ann"]}
        >>> flow.run({"clicks": clicks})["visits"].to_pylist()  # doctest: +NORMALIZE_WHITESPACE
        [{'time': 17, 'who': 'ann', 'start': 0, 'count': 2},
         {'time': 40, 'who': 'ann', 'start': 30, 'count': 1}]
        >>> flow = jt.Flow("patience")
        >>> clicks = flow.input("clicks").key_by("who")
        >>> flow.output("visits", clicks.session_window(gap_column="patience").count())
        >>> clicks = {"time": [0, 7, 30], "who": ["ann"] * 3, "patience": [5, 25, 1]}
        >>> flow.run({"clicks": clicks})["visits"].to_pylist()  # doctest: +NORMALIZE_WHITESPACE
        [{'time': 5, 'who': 'ann', 'start': 0, 'count': 1},
         {'time': 32, 'who': 'ann', 'start': 7, 'count': 2}]
        """
        self.require_whole("session_window")
        return Sessions(self, gap, gap_column)

    def distinct(self) -> Stream:
        """Each key once, at the least time at which it occurs.

        A key comes out once that time is complete, so the answer does not depend on which record
        came first. All keys are kept indefinitely; ``each_time().distinct()`` and
        ``tumbling(…).distinct()`` forget them with their windows. Inside a loop a key may have
        several least times (in round 5 of one time, in round 2 of the next): it comes at each.

        >>> import jeton as jt
        >>> flow = jt.Flow("first visits")
        >>> flow.output("first", flow.input("visits").key_by("who").distinct())
        >>> visits = {"time": [3, 1, 2], "who": ["ann", "ann", "bob"]}
        >>> flow.run({"visits": visits})["first"].to_pylist()
        [{'time': 1, 'who': 'ann'}, {'time': 2, 'who': 'bob'}]
        """
        self.require_whole("distinct")
        return add_distinct(self)

    def deduplicate(self, *, within: Length | None = None) -> Stream:
        """The first record of each key, whole, at its time; those that follow are left out.

        A record that comes later than ``within`` after the one that was kept counts as new, and
        is kept in turn. Without ``within``, there is one record for each key, and all keys are
        kept indefinitely; with it, keys are forgotten as time passes.

        A record comes out once its time is complete, so that the answer does not depend on the
        order of arrival. Of several records at the first time of a key, the one with the least
        values is kept, comparing its columns from the first to the last, with nulls last. Put a
        sequence number first to decide yourself. A null is a key of its own.

        >>> import jeton as jt
        >>> flow = jt.Flow("alerts")
        >>> flow.output("alerts", flow.input("alarms").key_by("room").deduplicate(within=60))
        >>> alarms = {"time": [5, 0, 60, 61], "room": ["attic"] * 4, "value": [3, 2, 4, 1]}
        >>> flow.run({"alarms": alarms})["alerts"].to_pylist()
        [{'time': 0, 'room': 'attic', 'value': 2}, {'time': 61, 'room': 'attic', 'value': 1}]
        """
        self.require_whole("deduplicate")
        return add_deduplicate(self, within)

    @overload
    def stateful_map(
        self,
        function: Transition,
        initial: Any,
        *,
        ttl: Length | None = None,
        schema: SchemaLike | None = None,
        state_codec: StateCodec = "plain",
        name: str = "stateful_map",
    ) -> Stream: ...

    @overload
    def stateful_map(
        self,
        function: TimedTransition,
        initial: Any,
        *,
        on_timer: TimedTransition,
        ttl: Length | None = None,
        schema: SchemaLike | None = None,
        state_codec: StateCodec = "plain",
        name: str = "stateful_map",
    ) -> Stream: ...

    def stateful_map(
        self,
        function: Transition | TimedTransition,
        initial: Any,
        *,
        on_timer: TimedTransition | None = None,
        ttl: Length | None = None,
        schema: SchemaLike | None = None,
        state_codec: StateCodec = "plain",
        name: str = "stateful_map",
    ) -> Stream:
        """A state for each key, which ``function(state, row)`` moves on, record by record.

        It returns the next state (``None``: forget the key) and a list of rows to send, to which
        the key's columns are added. ``initial`` is the state of a new key, or a function that
        makes it. Rows come as dictionaries in the order of their times; those of the same time by
        the values of their columns, from the first column to the last (nulls last, NaN the
        greatest number, lists and structures as text), never by when they came: put a sequence
        number first to decide yourself. Rows that are sent have the record's time, or a later one
        that they name. Inside a loop, times that cannot be compared may come in either order.

        ``schema`` declares the columns other than the key's, and rows may then leave out those
        that are null. Spark needs it, unless ``on_spark(…, schemas=…)`` says the same.

        States are stored as plain Python values: numbers, text, bytes, lists, tuples,
        dictionaries, sets, times. For other objects, ``state_codec=`` is an object with
        ``encode(state)`` and ``decode(bytes)``, or ``"pickle"``, which docs/security.md explains.
        This is plain Python for each record: a few microseconds, against about ten nanoseconds
        for the aggregates of `running`.

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

        With ``on_timer``, the function is called with a third argument, ``timers``, which sets
        and cancels timers of the key: ``timers.at(time)``, ``timers.after("30s")`` (an integer
        where times are integers), ``timers.after_processing("10s")``, ``timers.cancel()``.
        ``on_timer(state, key, timers)`` is called for each timer that fires, with the key as a
        dictionary, and returns a state and rows, too, with the same columns. A key that is
        forgotten has no timers. See `KeyTimers`.

        A timer in event time fires once all records up to its time have come, after the records
        and before anything later; its rows are sent at its time. Those that are left when the
        input ends fire then, in order: let one that always sets the next one stop somewhere, or
        the flow does not end. A processing-time timer fires by the worker's clock, and its rows
        are sent at the time that the input has reached by then. It does not hold up what comes
        behind. When the input ends, those that wait fire at once, at the time of the last record
        of all keys. In a snapshot they have the time that was left; while a flow does not run,
        and between micro-batches, none fires.

        With ``ttl``, a key is forgotten, with its timers, once it has had no record for longer
        than that in event time: a record or timer at exactly the last one's time plus ``ttl``
        still finds the state. Nothing is sent.

        >>> def reading(state, row, timers):
        ...     timers.cancel()
        ...     timers.after(60)
        ...     return {"last_value": row["value"]}, []
        >>> def silent(state, key, timers):
        ...     return state, [{"silent_since": timers.time - 60, **state}]
        >>> flow = jt.Flow("silence")
        >>> sensors = flow.input("readings").key_by("sensor")
        >>> alerts = sensors.stateful_map(reading, {}, on_timer=silent, ttl=3600)
        >>> flow.output("alerts", alerts)
        >>> rows = {"time": [0, 50, 200], "sensor": [7, 7, 7], "value": [1.5, 2.5, 3.5]}
        >>> flow.run({"readings": rows})["alerts"].to_pylist()
        [{'time': 110, 'sensor': 7, 'silent_since': 50, 'last_value': 2.5},
         {'time': 260, 'sensor': 7, 'silent_since': 200, 'last_value': 3.5}]
        """
        self.require_whole("stateful_map")
        check_functions(function, on_timer)
        codec = require_codec(state_codec)
        if on_timer is None and ttl is None:
            return add_stateful_map(self, function, initial, schema=schema, codec=codec, name=name)
        return add_stateful_timers(
            self,
            function,
            initial,
            on_timer=on_timer,
            ttl=ttl,
            schema=schema,
            codec=codec,
            name=name,
        )

    def join(self, other: KeyedStream, *, how: How = "inner", suffix: str = "_right") -> Stream:
        """Pairs of records with equal keys and equal times, also inside loops.

        A pair is sent as soon as both records are there. ``how`` is ``"inner"``, ``"left"``,
        ``"right"`` or ``"full"``: records of the left, of the right or of both sides that have no
        partner come with nulls, once the other side is complete at their time; the other side's
        columns must then be known. For records at different times see `asof_join` and
        `interval_join`.

        The result has the left columns and the right ones that are not keys; a right column that
        the left side has too gets the ``suffix``. Key columns may have different names on both
        sides: the left names stay, and the left types. A ``"right"`` or ``"full"`` join has keys
        of both sides, in a type that holds both: ``float64`` for ``float32`` and ``float64``. A
        null in a key equals nothing, NaN equals NaN.

        >>> import jeton as jt
        >>> flow = jt.Flow("sales")
        >>> items = flow.input("items", schema={"seller": int, "item": str})
        >>> people = flow.input("people", schema={"id": int, "name": str})
        >>> flow.output("sales", items.key_by("seller").join(people.key_by("id"), how="left"))
        >>> items = {"time": [0, 1], "seller": [7, 7], "item": ["cup", "pen"]}
        >>> people = {"time": [0], "id": [7], "name": ["Ann"]}
        >>> flow.run({"items": items, "people": people})["sales"].to_pylist()
        [{'time': 0, 'seller': 7, 'item': 'cup', 'name': 'Ann'},
         {'time': 1, 'seller': 7, 'item': 'pen', 'name': None}]
        """
        self.require_whole("join")
        _require_whole(other, "join")
        return add_join(self, other, how=how, suffix=suffix)

    def join_static(
        self,
        table: Any,
        *,
        on: str | Sequence[str] | None = None,
        how: StaticHow = "inner",
        suffix: str = "_right",
    ) -> Stream:
        """Each record with the rows of a table that have its key, at the record's time.

        The ``table`` has no times and does not change: an Arrow table, a pandas or Polars data
        frame, a dictionary of columns, rows, or a Spark DataFrame, which is collected at the
        driver when the flow is built. ``on`` names its key columns, by default those of the
        stream. Records stay on their workers, each of which has the whole table: it travels with
        the flow's code, so it may have at most 128 MiB, and a Spark DataFrame 2,000,000 rows. For
        a table that changes, make it an input and use `asof_join`.

        A record without a row is left out, or comes with nulls with ``how="left"``. The result
        has the columns of the stream and those of the table that are not keys; a column that the
        stream has too gets the ``suffix``. A null in a key equals nothing, NaN equals NaN.

        >>> import jeton as jt
        >>> flow = jt.Flow("names")
        >>> people = {"id": [7, 8], "name": ["Ann", "Bob"]}
        >>> bids = flow.input("bids").key_by("bidder")
        >>> flow.output("named", bids.join_static(people, on="id", how="left"))
        >>> bids = {"time": [0, 1], "bidder": [7, 9], "price": [3, 4]}
        >>> flow.run({"bids": bids})["named"].to_pylist()
        [{'time': 0, 'bidder': 7, 'price': 3, 'name': 'Ann'},
         {'time': 1, 'bidder': 9, 'price': 4, 'name': None}]
        """
        self.require_whole("join_static")
        return add_join_static(self, table, on=on, how=how, suffix=suffix)

    def asof_join(
        self,
        other: KeyedStream,
        *,
        tolerance: Length | None = None,
        how: AsofHow = "left",
        suffix: str = "_right",
    ) -> Stream:
        """Each record with the latest one of ``other`` that has its key and is not after it.

        Like pandas' ``merge_asof`` with ``by`` and Polars' ``join_asof``, backwards. The result
        bears the left record's time and is sent once the right side is complete up to it: at
        once, if the right side has ended. A right record that is earlier by more than
        the ``tolerance`` does not count. A left record without a partner comes with nulls (the
        right side's columns must then be known), or not at all with ``how="inner"``.

        Of several right records with the same key and time, the one with the greatest values
        counts, comparing its columns from the first to the last, with nulls least and NaN the
        greatest number, so that the answer does not depend on the order of arrival. Put a
        sequence number first to decide yourself. Lists and structures are compared as text.

        The result has the left columns and the right ones that are not keys; a right column that
        the left side has too gets the ``suffix``. Key columns may have different names on both
        sides: the left ones stay. A null in a key equals nothing, NaN equals NaN.

        The operator keeps the latest right record of each key and those that a left record may
        still need.

        >>> import jeton as jt
        >>> flow = jt.Flow("trades")
        >>> trades = flow.input("trades")
        >>> quotes = flow.input("quotes", schema={"stock": str, "price": float})
        >>> flow.output("priced", trades.key_by("stock").asof_join(quotes.key_by("stock")))
        >>> trades = {"time": [3, 9], "stock": ["A", "A"], "n": [100, 200]}
        >>> quotes = {"time": [5, 8, 11], "stock": ["A", "A", "A"], "price": [1.0, 1.5, 2.0]}
        >>> flow.run({"trades": trades, "quotes": quotes})["priced"].to_pylist()
        [{'time': 3, 'stock': 'A', 'n': 100, 'price': None},
         {'time': 9, 'stock': 'A', 'n': 200, 'price': 1.5}]
        """
        self.require_whole("asof_join")
        _require_whole(other, "asof_join")
        return add_asof_join(self, other, tolerance=tolerance, how=how, suffix=suffix)

    def interval_join(
        self,
        other: KeyedStream,
        lower: Length,
        upper: Length,
        *,
        how: How = "inner",
        suffix: str = "_right",
    ) -> Stream:
        """Pairs with equal keys and ``left.time + lower <= right.time <= left.time + upper``.

        Both bounds may have either sign: ``lower="-10s", upper=0`` pairs each left record with the
        right ones of the last 10 seconds. Where times are integers, the bounds are too. A pair
        bears the later of its two times and is sent as soon as both records are there. With
        ``how="left"``, a left record that has found no partner comes with nulls once its interval
        is complete, at the time ``left.time + upper`` (or at its own, if ``upper`` is negative).
        With ``how="right"``, a right record does so at ``right.time - lower`` (or at its own, if
        ``lower`` is positive); with ``"full"``, both do. The columns that are filled with nulls
        must then be known.

        The result has the left columns and the right ones that are not keys; a right column that
        the left side has too gets the ``suffix``. Key columns may have different names on both
        sides: the left names and types stay, also for right records without a partner. A null in
        a key equals nothing, NaN equals NaN. To keep the time of one side, give it a column of
        its own before:
        ``bids.with_columns(bid_time=lambda batch: batch["time"])``.

        Records are kept for as long as a partner may still come.

        >>> import jeton as jt
        >>> flow = jt.Flow("clicks")
        >>> shown, clicked = flow.input("shown"), flow.input("clicked")
        >>> near = shown.key_by("ad").interval_join(clicked.key_by("ad"), 0, 10)
        >>> flow.output("near", near)
        >>> shown = {"time": [0, 20], "ad": [7, 7], "page": ["home", "news"]}
        >>> clicked = {"time": [8, 15], "ad": [7, 7], "user": ["Ann", "Bob"]}
        >>> flow.run({"shown": shown, "clicked": clicked})["near"].to_pylist()
        [{'time': 8, 'ad': 7, 'page': 'home', 'user': 'Ann'}]
        """
        self.require_whole("interval_join")
        _require_whole(other, "interval_join")
        return add_interval_join(self, other, lower, upper, how=how, suffix=suffix)

    def group_join(
        self,
        other: KeyedStream,
        *,
        until: str,
        where: Callable[[Batch], Any] | None = None,
        suffix: str = "_right",
    ) -> GroupJoin:
        """For each record, the records of ``other`` with its key, from its time until an end.

        A left record opens a window ``[time, end)``, where ``end`` is the value of its column
        ``until``: an auction, an order with its deadline. Right records with its key and a time in
        it are aggregated, or the `top` one of them is chosen. The result is emitted when the window
        is complete, at its end: the left columns, and one for each aggregate. Left records whose
        window gets no record are left out. Windows of one key may overlap: a record counts in all
        that it falls into.

        ``where`` is a condition on a left and a right record together, of the columns that
        `interval_join` would give such a pair; those for which it is not true do not go together.

        A left record is kept until its end, and a right one only while a window may still be opened
        before its time. No pairs are made. So this is several times as fast as an
        `interval_join` with groups behind it, and keeps far less.

        The column ``until`` is of the same kind as the times: see `until`. A null in a key equals
        nothing, NaN equals NaN. To have the left record's own time in the result, give it a column
        before.

        >>> import jeton as jt
        >>> flow = jt.Flow("auctions")
        >>> items, bids = flow.input("items"), flow.input("bids")
        >>> valid = jt.col("price") >= jt.col("reserve")
        >>> on = items.key_by("id").group_join(bids.key_by("item"), until="ends", where=valid)
        >>> flow.output("sold", on.aggregate(price=jt.agg.max("price"), bids=jt.agg.count()))
        >>> items = {"time": [0, 1], "id": [7, 8], "reserve": [4, 9], "ends": [10, 20]}
        >>> bids = {"time": [2, 3, 4, 12], "item": [7, 7, 8, 7], "price": [3, 5, 6, 9]}
        >>> flow.run({"items": items, "bids": bids})["sold"].to_pylist()
        [{'time': 10, 'id': 7, 'reserve': 4, 'ends': 10, 'price': 5, 'bids': 1}]
        """
        self.require_whole("group_join")
        _require_whole(other, "group_join")
        pacts(self, other, "group_join")
        return GroupJoin(self, other, until, where, suffix)

    def cogroup(
        self, other: KeyedStream, function: GroupFunction, *, schema: SchemaLike | None = None
    ) -> Stream:
        """The results of a function of both streams' records at each key and time.

        ``function(key, left, right)`` is called once for each key and time, when that time is
        complete on both sides. It is plain Python, which costs some microseconds for each group:
        use `join` where that is too slow. ``key`` has the key's values under the left names. The
        batches have the records of each side by the values of their columns, from the first to
        the last, not in order of arrival; a side without records is an empty batch, which has
        columns if that stream's schema is known.

        It returns a row (a dictionary of plain values), several (a list of them), columns (a
        dictionary of arrays, or a batch), or nothing. They are sent at the group's time, with
        the key's columns before them; values under a key's name or the time's are left out.
        ``schema`` declares the columns other than the key's.

        As in other groups, nulls are a key of their own, and equal to each other.

        >>> import jeton as jt
        >>> flow = jt.Flow("stock")
        >>> bought, sold = flow.input("bought"), flow.input("sold")
        >>> def balance(key, bought, sold):
        ...     return {"left": sum(bought["n"]) - (sum(sold["n"]) if len(sold) else 0)}
        >>> flow.output("stock", bought.key_by("item").cogroup(sold.key_by("item"), balance))
        >>> bought = {"time": [0, 0, 0], "item": ["cup", "pen", "cup"], "n": [5, 3, 1]}
        >>> sold = {"time": [0], "item": ["cup"], "n": [2]}
        >>> flow.run({"bought": bought, "sold": sold})["stock"].to_pylist()
        [{'time': 0, 'item': 'cup', 'left': 4}, {'time': 0, 'item': 'pen', 'left': 3}]
        """
        self.require_whole("cogroup")
        _require_whole(other, "cogroup")
        return add_cogroup(self, other, function, schema=schema)

    def unary_frontier(
        self,
        build: UnaryBuild,
        *,
        name: str = "unary_frontier",
        notify: Notify = "held",
        schema: SchemaLike | None = None,
    ) -> Stream:
        """An operator of your own; all records of a key come to one worker.

        The same as `Stream.unary_frontier` with `pact`.

        >>> import jeton as jt
        >>> def largest_so_far(token, info):
        ...     token.drop()
        ...     largest = {}
        ...
        ...     def step(input, output):
        ...         for ref, batch in input:
        ...             for key, n in zip(batch["key"].tolist(), batch["n"].tolist()):
        ...                 largest[key] = max(n, largest.get(key, n))
        ...                 output.session(ref).give(key=key, n=largest[key])
        ...
        ...     return step
        >>> flow = jt.Flow("largest")
        >>> numbers = flow.input("numbers").key_by("key")
        >>> flow.output("largest", numbers.unary_frontier(largest_so_far))
        >>> rows = {"time": [0, 1, 2], "key": [1, 1, 1], "n": [4, 9, 2]}
        >>> flow.run({"numbers": rows})["largest"]["n"].to_pylist()
        [4, 9, 9]
        """
        self.require_whole("unary_frontier")
        return add_unary(
            self.stream, build, name=name, notify=notify, pact=self.pact, schema=schema
        )


def _require_whole(other: object, operator: str) -> None:
    """Refuse the other side of a join if its key is spread; that it is keyed is checked later."""
    if isinstance(other, KeyedStream):
        other.require_whole(operator)
