"""Groups of a keyed stream: when their results are emitted, and every aggregate as a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.durations import Length
from jeton.columns.schema import EVENT_TIME, schema_of
from jeton.core.checks import described
from jeton.core.errors import GraphError
from jeton.dataflow.hints import no_group_method
from jeton.dataflow.operators.group_join import Matching, add_group_join
from jeton.dataflow.operators.panes import add_paned_windows, has_panes
from jeton.dataflow.operators.partial_windows import add_combined_windows
from jeton.dataflow.operators.rolling import add_rolling, checked_size
from jeton.dataflow.operators.running import add_running
from jeton.dataflow.operators.session_window import add_session_window, checked_gap
from jeton.dataflow.operators.spread import add_spread_windows
from jeton.dataflow.operators.top_k import add_top_k
from jeton.dataflow.operators.windows import (
    BOUNDS,
    Assigner,
    BoundedAssigner,
    EachTime,
    add_windows,
)
from jeton.state import aggregates as agg
from jeton.state.aggregates import Aggregate
from jeton.state.groups import Groups
from jeton.state.python_values import StateCodec

if TYPE_CHECKING:
    from typing import NoReturn

    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


def require_own_time(keyed: KeyedStream, operator: str) -> None:
    """Refuse the time column as a key: in the result that column has the times of results."""
    time_name = keyed.stream.time_name
    if time_name in keyed.key:
        raise GraphError(
            f"the key {time_name!r} is the time column, which holds the times of results: copy it "
            f"first, with_columns(at=lambda batch: batch[{time_name!r}]), and use that as the key"
        ).located(operator=operator)


class Grouped(ABC):
    """Groups of records: by key, and by window, by time, or over all times.

    Each method adds one operator whose result has the key columns and a column for each
    aggregate; its name is the aggregate's unless ``name=`` gives another.
    """

    _unfinished = "these are groups without a result: choose an aggregate such as .count()"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            from jeton.dataflow.stream import Stream

            raise no_group_method(self, name, Stream)

    def __init__(self, keyed: KeyedStream) -> None:
        self.keyed = keyed

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name != "keyed"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.keyed!r}: choose an aggregate such as .count()>"

    @abstractmethod
    def _aggregate(self, aggregates: Mapping[str, Aggregate], name: str) -> Stream:
        """Add the operator of this kind of group."""

    def aggregate(self, **aggregates: Aggregate) -> Stream:
        """Several aggregates at once, each under its own name.

        >>> import jeton as jt
        >>> flow = jt.Flow("bids")
        >>> by_item = flow.input("bids").key_by("item").tumbling(10)
        >>> flow.output("out", by_item.aggregate(bids=jt.agg.count(), best=jt.agg.max("price")))
        >>> bids = {"time": [1, 2, 12], "item": [7, 7, 7], "price": [3, 5, 4]}
        >>> flow.run({"bids": bids})["out"].to_pylist()  # doctest: +NORMALIZE_WHITESPACE
        [{'time': 10, 'item': 7, 'bids': 2, 'best': 5},
         {'time': 20, 'item': 7, 'bids': 1, 'best': 4}]
        """
        if not aggregates:
            raise GraphError("aggregate() needs at least one, as in aggregate(n=jt.agg.count())")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise GraphError(
                    f"aggregate() needs aggregates such as {name}=jt.agg.count() or "
                    f"{name}=jt.agg.sum('column'), not {name}={described(aggregate)}"
                )
            if name == self.keyed.stream.time_name:
                raise GraphError(
                    f"{name!r} is the time column, which results have too: give the aggregate "
                    "another name"
                )
            if name in self.keyed.key:
                raise GraphError(f"{name!r} is a key column: give the aggregate another name")
        needed = [a.column for a in aggregates.values() if a.column is not None]
        label = "-".join(dict.fromkeys(a.name for a in aggregates.values()))
        self.keyed.stream.require_columns(*self.keyed.key, *needed, operator=label)
        return self._aggregate(aggregates, label)

    def _results(self, aggregates: Mapping[str, Aggregate], label: str) -> pa.Schema | None:
        """The columns of keys and aggregates, learnt from an empty batch."""
        key = self.keyed.key

        def try_out(batch: Batch) -> pa.Schema:
            groups = Groups(key, aggregates)
            slots, _ = groups.find(batch)
            groups.add(slots, batch)
            return schema_of(Batch.trusted(groups.columns(slots), batch.times))

        return self.keyed.stream.learn(try_out, operator=label)

    def count(self, column: str | None = None, *, name: str = "count") -> Stream:
        """The number of records of each group, or of those that are not null in a column.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.count())
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["count"].to_pylist()
        [2, 1]
        """
        return self.aggregate(**{name: agg.count(column)})

    def sum(self, column: str, *, widen: bool = False, name: str = "sum") -> Stream:
        """The sum of a column in each group; see `agg.sum` for those that do not fit 64 bits.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.sum("n"))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["sum"].to_pylist()
        [8, 4]
        """
        return self.aggregate(**{name: agg.sum(column, widen=widen)})

    def min(self, column: str, *, name: str = "min") -> Stream:
        """The least value of a column in each group.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.min("n"))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["min"].to_pylist()
        [3, 4]
        """
        return self.aggregate(**{name: agg.min(column)})

    def max(self, column: str, *, name: str = "max") -> Stream:
        """The greatest value of a column in each group.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.max("n"))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["max"].to_pylist()
        [5, 4]
        """
        return self.aggregate(**{name: agg.max(column)})

    def mean(self, column: str, *, name: str = "mean") -> Stream:
        """The mean of a column in each group.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.mean("n"))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["mean"].to_pylist()
        [4.0, 4.0]
        """
        return self.aggregate(**{name: agg.mean(column)})

    def count_distinct(self, column: str, *, name: str = "count_distinct") -> Stream:
        """The number of different values of a column in each group: see `agg.count_distinct`.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.count_distinct("n"))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["count_distinct"].to_pylist()
        [2, 1]
        """
        return self.aggregate(**{name: agg.count_distinct(column)})

    def approx_count_distinct(
        self, column: str, *, rsd: float = 0.05, name: str = "approx_count_distinct"
    ) -> Stream:
        """About how many different values a column has in each group.

        See `agg.approx_count_distinct`.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.approx_count_distinct("n"))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["approx_count_distinct"].to_pylist()
        [2, 1]
        """
        return self.aggregate(**{name: agg.approx_count_distinct(column, rsd=rsd)})

    def first(self, column: str, *, name: str = "first") -> Stream:
        """The earliest value of a column in each group: see `agg.first`.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.first("n"))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["first"].to_pylist()
        [3, 4]
        """
        return self.aggregate(**{name: agg.first(column)})

    def last(self, column: str, *, name: str = "last") -> Stream:
        """The latest value of a column in each group: see `agg.last`.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.last("n"))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["last"].to_pylist()
        [5, 4]
        """
        return self.aggregate(**{name: agg.last(column)})

    def collect(self, column: str, *, name: str = "collect") -> Stream:
        """The values of a column in each group, as a list: see `agg.collect`.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.collect("n"))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["collect"].to_pylist()
        [[3, 5], [4]]
        """
        return self.aggregate(**{name: agg.collect(column)})

    def var(self, column: str, *, ddof: int = 1, name: str = "var") -> Stream:
        """The variance of a column in each group: see `agg.var`.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.var("n"))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["var"].to_pylist()
        [2.0, None]
        """
        return self.aggregate(**{name: agg.var(column, ddof=ddof)})

    def std(self, column: str, *, ddof: int = 1, name: str = "std") -> Stream:
        """The standard deviation of a column in each group: see `agg.std`.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.std("n", ddof=0))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["std"].to_pylist()
        [1.0, 0.0]
        """
        return self.aggregate(**{name: agg.std(column, ddof=ddof)})

    def quantile(self, column: str, q: float, *, name: str = "quantile") -> Stream:
        """A quantile of a column in each group: see `agg.quantile`.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.quantile("n", 0.25))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["quantile"].to_pylist()
        [3.5, 4.0]
        """
        return self.aggregate(**{name: agg.quantile(column, q)})

    def approx_quantile(
        self, column: str, q: float, *, error: float = 0.01, name: str = "approx_quantile"
    ) -> Stream:
        """About where a quantile of a column is in each group: see `agg.approx_quantile`.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.approx_quantile("n", 0.9))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> found = flow.run({"rows": rows})["out"]["approx_quantile"].to_pylist()
        >>> [round(x, 1) for x in found]
        [3.0, 4.0]
        """
        return self.aggregate(**{name: agg.approx_quantile(column, q, error=error)})

    def median(self, column: str, *, name: str = "median") -> Stream:
        """The median of a column in each group: see `agg.median`.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.median("n"))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["median"].to_pylist()
        [4.0, 4.0]
        """
        return self.aggregate(**{name: agg.median(column)})

    def reduce(
        self, column: str, function: Callable[[Any, Any], Any], *, name: str = "reduce"
    ) -> Stream:
        """Two values to one until one is left, with a function of your own: see `agg.reduce`.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.reduce("n", lambda a, b: a * b))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["reduce"].to_pylist()
        [15, 4]
        """
        return self.aggregate(**{name: agg.reduce(column, function)})

    def fold(
        self,
        column: str,
        initial: Any,
        function: Callable[[Any, Any], Any],
        *,
        finish: Callable[[Any], Any] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
        state_codec: StateCodec = "plain",
        name: str = "fold",
    ) -> Stream:
        """A state and a value to the next state: see `agg.fold`.

        >>> import jeton as jt
        >>> flow = jt.Flow("groups")
        >>> groups = flow.input("rows").key_by("k").tumbling(10)
        >>> flow.output("out", groups.fold("n", 100, lambda state, n: state - n))
        >>> rows = {"time": [1, 2, 12], "k": [7, 7, 7], "n": [3, 5, 4]}
        >>> flow.run({"rows": rows})["out"]["fold"].to_pylist()
        [92, 96]
        """
        folding = agg.fold(
            column, initial, function, finish=finish, merge=merge, state_codec=state_codec
        )
        return self.aggregate(**{name: folding})


class Running(Grouped):
    """Groups that never end: each record comes out with the results so far.

    >>> import jeton as jt
    >>> flow = jt.Flow("totals")
    >>> flow.output("totals", flow.input("n").key_by().running().sum("n"))
    >>> flow.run({"n": {"time": [0, 1], "n": [2, 3]}})["totals"]["sum"].to_pylist()
    [2, 5]
    """

    def __init__(self, keyed: KeyedStream, *, ordered: bool) -> None:
        super().__init__(keyed)
        self._ordered = ordered

    def _aggregate(self, aggregates: Mapping[str, Aggregate], name: str) -> Stream:
        for label, aggregate in aggregates.items():
            if aggregate.by_time and not self.keyed.stream.kind.total:
                raise GraphError(
                    f"{label!r} needs times in order, which a loop does not have: use each_time()"
                )
        results = self._results(aggregates, name)
        return add_running(
            self.keyed, aggregates, ordered=self._ordered, name=name, results=results
        )


class Rolling(Grouped):
    """Moving windows: each record comes out with the results of the last records of its key.

    >>> import jeton as jt
    >>> flow = jt.Flow("moving")
    >>> flow.output("sums", flow.input("n").key_by().rolling(10).sum("n"))
    >>> flow.run({"n": {"time": [0, 9, 10], "n": [1, 2, 4]}})["sums"]["sum"].to_pylist()
    [1, 3, 6]
    """

    def __init__(self, keyed: KeyedStream, size: Length | None, rows: int | None) -> None:
        super().__init__(keyed)
        self._size, self._by_rows = checked_size(keyed, size, rows)

    def _aggregate(self, aggregates: Mapping[str, Aggregate], name: str) -> Stream:
        results = self._results(aggregates, name)
        return add_rolling(
            self.keyed,
            self._size,
            aggregates,
            by_rows=self._by_rows,
            name=name,
            results=results,
        )


class Sessions(Grouped):
    """Groups of records by key and session.

    >>> import jeton as jt
    >>> flow = jt.Flow("visits")
    >>> flow.output("visits", flow.input("clicks").key_by().session_window(10).count())
    >>> flow.run({"clicks": {"time": [0, 7, 30]}})["visits"].to_pylist()
    [{'time': 17, 'start': 0, 'count': 2}, {'time': 40, 'start': 30, 'count': 1}]
    """

    def __init__(self, keyed: KeyedStream, gap: Length | None, column: str | None = None) -> None:
        super().__init__(keyed)
        self._gap = checked_gap(keyed, gap, column)

    def _aggregate(self, aggregates: Mapping[str, Aggregate], name: str) -> Stream:
        require_own_time(self.keyed, name)
        results = self._results(aggregates, name)
        return add_session_window(self.keyed, self._gap, aggregates, name=name, results=results)


class GroupJoin(Grouped):
    """The records of another stream that fall into the windows which left records open.

    See `KeyedStream.group_join`. Aggregates are of the other stream's columns.

    >>> import jeton as jt
    >>> flow = jt.Flow("votes")
    >>> polls, votes = flow.input("polls").key_by("id"), flow.input("votes").key_by("poll")
    >>> flow.output("counts", polls.group_join(votes, until="ends").count())
    >>> polls = {"time": [0], "id": [7], "ends": [10]}
    >>> votes = {"time": [3, 9, 10], "poll": [7, 7, 7]}
    >>> flow.run({"polls": polls, "votes": votes})["counts"].to_pylist()
    [{'time': 10, 'id': 7, 'ends': 10, 'count': 2}]
    """

    def __init__(
        self,
        left: KeyedStream,
        right: KeyedStream,
        until: str,
        where: Callable[[Batch], Any] | None,
        suffix: str,
    ) -> None:
        super().__init__(right)
        self._left = left
        if not left.stream.kind.total:
            raise GraphError("group_join needs integer times: inside a loop, use join()")
        for side in (left, right):
            require_own_time(side, "group_join")
        left.stream.require_columns(*left.key, until, operator="group_join")
        right.stream.require_columns(*right.key, operator="group_join")
        if where is not None and not callable(where):
            raise GraphError(
                f"group_join(where=…) takes an expression such as jt.col('price') > 3, or a "
                f"function from a batch to booleans, not {where!r}"
            ).located(operator="group_join")
        self._matching = Matching(left, right, until, where, suffix)
        schemas = left.stream.schema, right.stream.schema
        if self._matching.reads is not None and schemas[0] is not None and schemas[1] is not None:
            names = self._matching.value_names(schemas[0].names, schemas[1].names).values()
            known = {*schemas[0].names, *names, right.stream.time_name}
            for name in sorted(self._matching.reads - known):
                raise GraphError(
                    f"group_join(where=…) reads a column {name!r}, which neither side has: there "
                    f"are {', '.join(sorted(known))}"
                ).located(operator="group_join")

    def top(self, by: str, *, ascending: bool = False) -> Stream:
        """The left record with the whole right one that has the greatest value of ``by``.

        With ``ascending``, the least. The right record's own time is in ``event_time``. Of equal
        values the earlier record is chosen, then the one with lesser values in its columns, from
        the first to the last; nulls come after everything else.

        >>> import jeton as jt
        >>> flow = jt.Flow("winners")
        >>> items, bids = flow.input("items").key_by("id"), flow.input("bids").key_by("item")
        >>> flow.output("winners", items.group_join(bids, until="ends").top("price"))
        >>> items = {"time": [0], "id": [7], "ends": [10]}
        >>> bids = {"time": [1, 2], "item": [7, 7], "who": ["Ann", "Bob"], "price": [5, 6]}
        >>> flow.run({"items": items, "bids": bids})["winners"].to_pylist()
        [{'time': 10, 'id': 7, 'ends': 10, 'who': 'Bob', 'price': 6, 'event_time': 2}]
        """
        stream = self.keyed.stream
        stream.require_columns(by, operator="top")
        if by in self._matching.right_key:
            raise GraphError(
                f"all records of a window have the same {by!r}, which is their key: choose by "
                "another column"
            ).located(operator="top")
        left, right = self._left.stream.schema, stream.schema
        schema = None
        if left is not None:
            self._require_free(left.names, [EVENT_TIME])
        if left is not None and right is not None:
            shown = self._matching.value_names(left.names, right.names)
            own = [pa.field(name, right.field(old).type) for old, name in shown.items()]
            when = pa.field(EVENT_TIME, stream.flow.domain.type)
            schema = pa.schema([*left, *own, when])
        return add_group_join(
            self._left,
            self.keyed,
            self._matching,
            {},
            best=(by, ascending),
            name="group_join",
            schema=schema,
        )

    def _aggregate(self, aggregates: Mapping[str, Aggregate], name: str) -> Stream:
        left, schema = self._left.stream.schema, None
        results = self._results(aggregates, name)
        if left is not None:
            self._require_free(left.names, aggregates)
            if results is not None:
                schema = pa.schema([*left, *(results.field(result) for result in aggregates)])
        return add_group_join(
            self._left, self.keyed, self._matching, aggregates, name="group_join", schema=schema
        )

    def _require_free(self, names: Iterable[str], added: Iterable[str]) -> None:
        """Refuse results that would take the place of a left column."""
        for name in added:
            if name in names or name == self._left.stream.time_name:
                raise GraphError(
                    f"group_join adds a column {name!r}, but the left side has one already: give "
                    "the aggregate another name, or rename() the column"
                ).located(operator="group_join")


class Windows(Grouped):
    """Groups of records by key and window, or by key and time.

    >>> import jeton as jt
    >>> flow = jt.Flow("counts")
    >>> flow.output("counts", flow.input("clicks").key_by().tumbling(10).count())
    >>> flow.run({"clicks": {"time": [0, 7, 30]}})["counts"].to_pylist()
    [{'time': 10, 'count': 2}, {'time': 40, 'count': 1}]
    """

    def __init__(
        self, keyed: KeyedStream, assigner: Assigner, *, bounds: BoundedAssigner | None = None
    ) -> None:
        super().__init__(keyed)
        self._bounds = bounds
        for name in BOUNDS if bounds is not None else ():
            if name in keyed.key or name == keyed.stream.time_name:
                raise GraphError(f"bounds=True adds a column {name!r}: rename the one of that name")
        if not isinstance(assigner, EachTime) and not keyed.stream.kind.total:
            raise GraphError("windows need integer times: inside a loop, use each_time()")
        self._assigner = assigner

    def top_k(
        self, k: int, by: str, *, ascending: bool = False, ties: bool = False, name: str = "rank"
    ) -> Stream:
        """The ``k`` whole records of each group with the greatest values of ``by``.

        With ``ascending``, the least. They come at the window's end, with a rank from 1 in the
        column ``name``; windows keep the records' own times in ``event_time``. Nulls come
        after everything else; NaN is the greatest number. Of equal values the earlier record
        comes first, then the one with lesser values in its columns, from the first to the last.

        With ``ties``, all records come whose values are equal to that of the last one, and equal
        values have equal ranks: as SQL's ``RANK`` counts them, and ``FETCH … WITH TIES``.

        Without key columns, each worker chooses from its own records first, so that few travel.

        >>> import jeton as jt
        >>> flow = jt.Flow("best bids")
        >>> flow.output("best", flow.input("bids").key_by("item").tumbling(10).top_k(2, by="price"))
        >>> bids = {"time": [1, 2, 3], "item": [7, 7, 7], "price": [5, 4, 9]}
        >>> flow.run({"bids": bids})["best"].to_pylist()  # doctest: +NORMALIZE_WHITESPACE
        [{'time': 10, 'item': 7, 'price': 9, 'event_time': 3, 'rank': 1},
         {'time': 10, 'item': 7, 'price': 5, 'event_time': 1, 'rank': 2}]

        >>> flow = jt.Flow("highest bids")
        >>> highest = flow.input("bids").key_by().tumbling(10).top_k(1, by="price", ties=True)
        >>> flow.output("highest", highest.select("item", "price", "rank"))
        >>> bids = {"time": [1, 2, 3], "item": [7, 8, 9], "price": [5, 5, 4]}
        >>> flow.run({"bids": bids}, workers=2)["highest"].to_pylist()
        [{'time': 10, 'item': 7, 'price': 5, 'rank': 1},
         {'time': 10, 'item': 8, 'price': 5, 'rank': 1}]
        """
        self.keyed.require_whole("top_k")
        if self._bounds is not None:
            raise GraphError("top_k() has no bounds of windows: leave bounds= out")
        return add_top_k(
            self.keyed, self._assigner, k, by, ascending=ascending, ties=ties, name=name
        )

    def distinct(self) -> Stream:
        """Each key that occurs in a window, once, at the window's end.

        >>> import jeton as jt
        >>> flow = jt.Flow("visitors")
        >>> flow.output("visitors", flow.input("visits").key_by("who").tumbling(10).distinct())
        >>> visits = {"time": [1, 2, 12], "who": ["ann", "ann", "ann"]}
        >>> flow.run({"visits": visits})["visitors"].to_pylist()
        [{'time': 10, 'who': 'ann'}, {'time': 20, 'who': 'ann'}]
        """
        if not self.keyed.key:
            raise GraphError("distinct needs key columns: key_by() names some")
        return self._aggregate({}, "distinct")

    def _aggregate(self, aggregates: Mapping[str, Aggregate], name: str) -> Stream:
        require_own_time(self.keyed, name)
        for taken in aggregates if self._bounds is not None else ():
            if taken in BOUNDS:
                raise GraphError(f"bounds=True adds a column {taken!r}: rename the aggregate")
        results = self._results(aggregates, name)
        if self.keyed.spread is not None:
            add: Callable[..., Stream] = add_spread_windows
        elif has_panes(self.keyed, self._assigner, aggregates):
            add = add_paned_windows
        elif self.keyed.combine:
            add = add_combined_windows
        else:
            add = add_windows
        return add(
            self.keyed,
            self._assigner,
            aggregates,
            name=name,
            schema=results,
            bounds=self._bounds,
        )
