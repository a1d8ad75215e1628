"""Streams: records with times, and every operator as a method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jeton.columns.batch import Batch
from jeton.columns.durations import Length
from jeton.columns.kernel import Kernel
from jeton.columns.schema import SchemaLike
from jeton.core.checks import described
from jeton.core.errors import GraphError
from jeton.core.summaries import SummaryLike
from jeton.dataflow.grouped import Windows
from jeton.dataflow.hints import no_stream_method
from jeton.dataflow.keyed import KeyedStream
from jeton.dataflow.operators.binary import BinaryBuild, add_binary
from jeton.dataflow.operators.branch import add_branch
from jeton.dataflow.operators.broadcast import add_broadcast
from jeton.dataflow.operators.capture import add_capture
from jeton.dataflow.operators.concat import add_concat
from jeton.dataflow.operators.delay import add_delay
from jeton.dataflow.operators.exchange import add_exchange
from jeton.dataflow.operators.filter import add_filter
from jeton.dataflow.operators.flat_map import Expansion, add_explode, add_flat_map
from jeton.dataflow.operators.inspect import add_inspect
from jeton.dataflow.operators.iterate import add_iterate
from jeton.dataflow.operators.map import add_map
from jeton.dataflow.operators.map_rows import Row, add_map_rows
from jeton.dataflow.operators.partition import add_partition
from jeton.dataflow.operators.probe import add_probe
from jeton.dataflow.operators.select import add_drop, add_rename, add_select
from jeton.dataflow.operators.stateless import Condition
from jeton.dataflow.operators.unary import UnaryBuild, add_unary
from jeton.dataflow.operators.with_columns import Expression, add_with_columns
from jeton.dataflow.pacts import Pact
from jeton.dataflow.plan import Notify
from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from typing import NoReturn, Self


class Stream(StreamBase):
    """Records with times, produced by operators of a flow.

    A stream is a description: nothing runs before the flow does. Each operator is a method that
    returns a new stream. The method documents it; a function under ``dataflow/operators`` adds it.

    >>> import jeton as jt
    >>> flow = jt.Flow("evens")
    >>> flow.input("numbers").filter(lambda batch: batch["n"] % 2 == 0)
    <Stream of filter[0]>
    """

    if not TYPE_CHECKING:
        # Only for messages: type checkers must go on to refuse what is not there.
        def __getattr__(self, name: str) -> NoReturn:
            raise no_stream_method(self, name, KeyedStream, Windows)

        def __getitem__(self, name: object) -> NoReturn:
            raise GraphError(
                f"a stream has no rows or columns before the flow runs: to use column {name!r}, "
                f"write jt.col({name!r}), as in filter(jt.col({name!r}) > 0)"
            )

    def map(
        self, function: Callable[[Batch], Mapping[str, Any] | Batch] | Kernel, *, name: str = "map"
    ) -> Stream:
        """New columns from each batch; records keep their times.

        ``function`` takes a batch and returns its new columns, each as long as the batch. A
        kernel makes one column, which has the kernel's name.

        >>> import jeton as jt
        >>> flow = jt.Flow("lengths")
        >>> words = flow.input("words")
        >>> flow.output("doubled", words.map(lambda batch: {"twice": batch["n"] * 2}))
        >>> flow.run({"words": {"time": [4], "n": [21]}})["doubled"].to_pylist()
        [{'time': 4, 'twice': 42}]
        """
        return add_map(self, function, name=name)

    def with_columns(
        self, columns: Mapping[str, Expression] | None = None, /, **more: Expression
    ) -> Stream:
        """The same records with columns added or replaced.

        Each is a function of the batch, a kernel, or a constant. All see the columns as they
        were before. Names that Python does not take as keywords go into a dictionary.

        >>> import jeton as jt
        >>> flow = jt.Flow("prices")
        >>> sales = flow.input("sales")
        >>> priced = sales.with_columns(total=lambda batch: batch["n"] * 2.5, currency="EUR")
        >>> flow.output("priced", priced)
        >>> flow.run({"sales": {"time": [0], "n": [4]}})["priced"].to_pylist()
        [{'time': 0, 'n': 4, 'total': 10.0, 'currency': 'EUR'}]
        """
        if columns is not None and not isinstance(columns, Mapping):
            raise GraphError(
                "with_columns needs a name for each column, as in with_columns(total=…), not "
                f"{described(columns)}"
            ).located(operator="with_columns")
        return add_with_columns(self, {**(columns or {}), **more})

    def select(self, *names: str, name: str = "select") -> Stream:
        """Only these columns, in this order; the time column always stays.

        >>> import jeton as jt
        >>> flow = jt.Flow("narrow")
        >>> flow.output("narrow", flow.input("wide").select("b"))
        >>> flow.run({"wide": {"time": [3], "a": [1], "b": [2]}})["narrow"].to_pylist()
        [{'time': 3, 'b': 2}]
        """
        return add_select(self, *names, name=name)

    def drop(self, *names: str, name: str = "drop") -> Stream:
        """All columns but these.

        >>> import jeton as jt
        >>> flow = jt.Flow("narrow")
        >>> flow.output("narrow", flow.input("wide").drop("b"))
        >>> flow.run({"wide": {"time": [3], "a": [1], "b": [2]}})["narrow"].to_pylist()
        [{'time': 3, 'a': 1}]
        """
        return add_drop(self, *names, name=name)

    def rename(self, names: Mapping[str, str], *, name: str = "rename") -> Stream:
        """Columns under new names, given as ``{old: new}``; the others stay as they are.

        >>> import jeton as jt
        >>> flow = jt.Flow("renamed")
        >>> flow.output("out", flow.input("in").rename({"n": "number"}))
        >>> flow.run({"in": {"time": [0], "n": [1], "m": [2]}})["out"].to_pylist()
        [{'time': 0, 'number': 1, 'm': 2}]
        """
        return add_rename(self, names, name=name)

    def filter(self, condition: Condition, *, name: str = "filter") -> Stream:
        """Keep the records for which a condition is true; null counts as false.

        ``condition`` is a function from a batch to booleans, a kernel, or the name of a boolean
        column.

        >>> import jeton as jt
        >>> flow = jt.Flow("large")
        >>> flow.output("large", flow.input("n").filter(lambda batch: batch["n"] > 2))
        >>> flow.run({"n": {"time": [0, 0, 1], "n": [1, 3, 5]}})["large"]["n"].to_pylist()
        [3, 5]
        """
        return add_filter(self, condition, name=name)

    def flat_map(
        self,
        function: Callable[[Batch], Expansion],
        *,
        name: str = "flat_map",
    ) -> Stream:
        """Any number of new records from each record.

        ``function(batch)`` returns the new columns, and for each new record the index of the
        record in the batch that it came from: it has that record's time. As a third value it may
        return times of its own, none earlier than that.

        >>> import jeton as jt
        >>> import numpy as np
        >>> def twice_if_even(batch):
        ...     origins = np.repeat(np.arange(len(batch)), 2 - batch["n"] % 2)
        ...     return {"n": batch["n"][origins]}, origins
        >>> flow = jt.Flow("twice")
        >>> flow.output("twice", flow.input("n").flat_map(twice_if_even))
        >>> flow.run({"n": {"time": [5, 6], "n": [1, 2]}})["twice"].to_pylist()
        [{'time': 5, 'n': 1}, {'time': 6, 'n': 2}, {'time': 6, 'n': 2}]
        """
        return add_flat_map(self, function, name=name)

    def explode(self, column: str, *, into: str | None = None, name: str = "explode") -> Stream:
        """A record for each element of a column of lists; the other columns are repeated.

        The elements take the lists' place, under the name ``into`` if given. Lists that are
        empty or null leave nothing.

        >>> import jeton as jt
        >>> import pyarrow.compute as pc
        >>> flow = jt.Flow("words")
        >>> split = flow.input("lines").with_columns(
        ...     word=lambda batch: pc.split_pattern(batch["line"], " ")
        ... )
        >>> flow.output("words", split.select("word").explode("word"))
        >>> lines = {"time": [3, 4], "line": ["to be", "or"]}
        >>> flow.run({"lines": lines})["words"].to_pylist()
        [{'time': 3, 'word': 'to'}, {'time': 3, 'word': 'be'}, {'time': 4, 'word': 'or'}]
        """
        return add_explode(self, column, into=into, name=name)

    def map_rows(
        self,
        function: Callable[[Row], Row | Iterable[Row] | None],
        *,
        schema: SchemaLike | None = None,
        name: str = "map_rows",
    ) -> Stream:
        """Plain Python for each record: returns a new one, several, or ``None`` for none.

        ``function`` gets the record as a dictionary with its time. The records that it returns
        have that time, or a later one that they name. All of them have the same columns; with
        a ``schema``, they may leave out columns that are null.

        This costs about 2 µs for each record on top of the function, where `map` costs a few
        nanoseconds: use it where speed does not matter or the function itself takes longer.

        >>> import jeton as jt
        >>> def parse(row):
        ...     key, _, value = row["line"].partition("=")
        ...     return {"key": key, "value": int(value)} if value else None
        >>> flow = jt.Flow("parse")
        >>> flow.output("pairs", flow.input("lines").map_rows(parse))
        >>> lines = {"time": [0, 1], "line": ["a=1", "# a comment"]}
        >>> flow.run({"lines": lines})["pairs"].to_pylist()
        [{'time': 0, 'key': 'a', 'value': 1}]
        """
        return add_map_rows(self, function, schema=schema, name=name)

    def concat(self, *others: StreamBase) -> Stream:
        """This stream and others as one: all records of all of them.

        This costs nothing where the types of columns agree. The time column has this stream's
        name for it. Streams that are known to have different columns are refused; where only
        their types or their order differ, values are cast to a type that holds both, in this
        stream's order. Without schemas, ``select`` the same order of columns in all of them where
        it decides between records, as in `KeyedStream.stateful_map` and ``top_k``.

        >>> import jeton as jt
        >>> flow = jt.Flow("both")
        >>> flow.output("both", flow.input("left").concat(flow.input("right")))
        >>> inputs = {"left": {"time": [0], "n": [1]}, "right": {"time": [1], "n": [2]}}
        >>> flow.run(inputs)["both"]["n"].to_pylist()
        [1, 2]
        """
        return add_concat(self, *others)

    def union(self, *others: StreamBase) -> Stream:
        """The same as `concat`, under PySpark's name. Like there, duplicates stay.

        >>> import jeton as jt
        >>> flow = jt.Flow("both")
        >>> flow.output("both", flow.input("left").union(flow.input("right")))
        >>> rows = {"time": [0], "n": [1]}
        >>> flow.run({"left": rows, "right": rows})["both"]["n"].to_pylist()
        [1, 1]
        """
        return add_concat(self, *others)

    def branch(self, condition: Condition, *, name: str = "branch") -> tuple[Stream, Stream]:
        """The records for which a condition is false, and those for which it is true.

        ``condition`` is a function from a batch to booleans, a kernel, or the name of a boolean
        column; null counts as false.

        >>> import jeton as jt
        >>> flow = jt.Flow("halves")
        >>> before, after = flow.input("n").branch(lambda batch: batch.times >= 5)
        >>> flow.output("after", after)
        >>> flow.run({"n": {"time": [4, 5, 6], "n": [1, 2, 3]}})["after"]["n"].to_pylist()
        [2, 3]
        """
        return add_branch(self, condition, name=name)

    def partition(
        self, parts: int, to: Callable[[Batch], Any] | str, *, name: str = "partition"
    ) -> tuple[Stream, ...]:
        """Split into ``parts`` streams; ``to`` gives the number of each record's stream.

        ``to`` is a function from a batch to integers from 0 up to ``parts``, a kernel, or the
        name of a column of such integers.

        >>> import jeton as jt
        >>> flow = jt.Flow("kinds")
        >>> people, auctions, bids = flow.input("events").partition(3, "kind")
        >>> flow.output("bids", bids)
        >>> events = {"time": [0, 1, 2], "kind": [2, 0, 2]}
        >>> flow.run({"events": events})["bids"].to_pylist()
        [{'time': 0, 'kind': 2}, {'time': 2, 'kind': 2}]
        """
        return add_partition(self, parts, to, name=name)

    def delay(self, to: Callable[[Batch], Any] | Length, *, name: str = "delay") -> Stream:
        """Records at later times: moved on by a duration, or at the times ``to(batch)``.

        Where times are integers, the length is one too. A function returns timestamps, or integers
        in the flow's unit as in ``batch.times``. No record may become earlier than it was.

        Records are sent at once, with their new times: downstream operators follow the frontier,
        not the order of arrival.

        >>> import jeton as jt
        >>> flow = jt.Flow("later")
        >>> flow.output("later", flow.input("n").delay(lambda batch: batch.times + batch["n"]))
        >>> flow.run({"n": {"time": [0, 0], "n": [5, 2]}})["later"].to_pylist()
        [{'time': 2, 'n': 2}, {'time': 5, 'n': 5}]

        >>> from datetime import datetime
        >>> flow = jt.Flow("an hour later")
        >>> flow.output("later", flow.input("n").delay("1 hour"))
        >>> rows = {"time": [datetime(2024, 5, 1, 9)], "n": [5]}
        >>> flow.run({"n": rows})["later"]["time"].to_pylist()
        [datetime.datetime(2024, 5, 1, 10, 0)]
        """
        return add_delay(self, to, name=name)

    def inspect(self, look: Callable[[Batch], Any] = print, *, name: str = "inspect") -> Stream:
        """Call ``look`` with each batch that passes; the stream is unchanged.

        >>> import jeton as jt
        >>> flow = jt.Flow("look")
        >>> _ = flow.input("n").inspect(print)
        >>> _ = flow.run({"n": {"time": [3, 12], "n": [7, 8], "word": ["to", None]}})
        time n word
           3 7 to
          12 8
        """
        return add_inspect(self, look, name=name)

    def exchange(self, *key: str | Callable[[Batch], Any], name: str = "exchange") -> Stream:
        """The same records, each on the worker that owns its key.

        The key is one or more columns, or a function from a batch to integers. Keyed operators
        do this by themselves; use it before several operators of your own in a row.

        >>> import jeton as jt
        >>> flow = jt.Flow("moved")
        >>> flow.output("moved", flow.input("words").exchange("word"))
        >>> words = {"time": [0, 1, 2], "word": list("aba")}
        >>> flow.run({"words": words}, workers=3)["moved"]["word"].to_pylist()
        ['a', 'b', 'a']
        """
        return add_exchange(self, *key, name=name)

    def broadcast(self, *, name: str = "broadcast") -> Stream:
        """Every record on every worker: the stream has each of them once for each worker.

        >>> import jeton as jt
        >>> flow = jt.Flow("rules")
        >>> flow.output("rules", flow.input("rules").broadcast())
        >>> flow.run({"rules": {"time": [0], "limit": [5]}}, workers=3)["rules"].num_rows
        3
        """
        return add_broadcast(self, name=name)

    def key_by(
        self, *columns: str, spread: int | None = None, combine: bool = False
    ) -> KeyedStream:
        """Group records by the values of ``columns``: integers, text, several of them.

        Nulls are a key of their own, and so is NaN. Without columns, all records are one group,
        which one worker keeps. See `KeyedStream` for the operators on groups.

        With ``spread``, the records of *hot* keys, those with a large part of all records, are
        divided among up to that many workers. Each has partial results, which are combined at the
        end of a window. It is for aggregates of ``each_time``, ``tumbling``, ``sliding`` and
        ``until``, whose results are the same as without, and come at the same time; sums of
        floating-point numbers may differ in their last digits. `fold` needs a ``merge`` function.

        With ``combine``, each worker aggregates its own records of all keys first, and sends one
        partial result for each key and window to the owner of the key. That is faster where a
        worker has many records of a key in a window, and slower where it has few. It is for the
        same aggregates, with the same results.

        >>> import jeton as jt
        >>> flow = jt.Flow("bids")
        >>> by_item = flow.input("bids").key_by("item")
        >>> flow.output("best", by_item.each_time().max("price"))
        >>> bids = {"time": [0, 0, 0], "item": [7, 8, 7], "price": [3, 2, 4]}
        >>> flow.run({"bids": bids})["best"].to_pylist()
        [{'time': 0, 'item': 7, 'max': 4}, {'time': 0, 'item': 8, 'max': 2}]
        >>> flow = jt.Flow("popular items")
        >>> by_item = flow.input("bids").key_by("item", spread=8)
        >>> flow.output("best", by_item.each_time().max("price"))
        >>> flow.run({"bids": bids}, workers=2)["best"].to_pylist()
        [{'time': 0, 'item': 7, 'max': 4}, {'time': 0, 'item': 8, 'max': 2}]
        """
        self.require_columns(*columns, operator="key_by")
        return KeyedStream(self, columns, spread=spread, combine=combine)

    def distinct(self, *columns: str) -> Stream:
        """Each distinct combination of values in ``columns``, once: see `KeyedStream.distinct`.

        Without columns, all of them, which must then be known from a schema.

        >>> import jeton as jt
        >>> flow = jt.Flow("words")
        >>> flow.output("words", flow.input("words").distinct("word"))
        >>> words = {"time": [2, 0, 1], "word": ["to", "to", "be"]}
        >>> flow.run({"words": words})["words"].to_pylist()
        [{'time': 0, 'word': 'to'}, {'time': 1, 'word': 'be'}]
        """
        if not columns:
            if self.schema is None:
                raise GraphError(f"the columns of {self!r} are not known: name them in distinct()")
            columns = tuple(self.schema.names)
        return KeyedStream(self, columns).distinct()

    def iterate(
        self, body: Callable[[Stream], tuple[Stream, Stream]], *, name: str = "iterate"
    ) -> Stream:
        """Run ``body`` on this stream and, round after round, on the records it sends back.

        ``body(stream)`` returns two streams of the loop: the records that go around again, and
        those that leave. Inside, times are ``Product(outer, round)``.

        >>> import jeton as jt
        >>> def collatz(numbers):
        ...     going, done = numbers.branch(lambda batch: batch["n"] == 1)
        ...
        ...     def following(batch):
        ...         n = batch["n"]
        ...         odd = n % 2 == 1
        ...         return {"n": odd * (3 * n + 1) + ~odd * (n // 2), "start": batch["start"]}
        ...
        ...     return going.map(following), done
        >>> flow = jt.Flow("collatz")
        >>> flow.output("done", flow.input("start").iterate(collatz))
        >>> rows = {"time": [0, 0], "n": [6, 7], "start": [6, 7]}
        >>> flow.run({"start": rows})["done"]["start"].to_pylist()
        [6, 7]
        """
        return add_iterate(self, body, name=name)

    def probe(self, name: str = "probe") -> Self:
        """Name this place, so that ``run.probe(name)`` has its frontier; returns the stream.

        A probe is never invoked and receives no data: reading it costs a comparison or two.

        >>> import jeton as jt
        >>> flow = jt.Flow("watched")
        >>> _ = flow.input("n").probe("seen")
        >>> with flow.open() as run:
        ...     numbers = run.input("n")
        ...     numbers.advance_to(3)
        ...     run.run_to_rest()
        ...     run.probe("seen").frontier
        Antichain([3])
        """
        add_probe(self, name)
        return self

    def capture(self, name: str = "capture") -> Self:
        """Record all data and progress here, for ``run.captured(name)``; returns the stream.

        >>> import jeton as jt
        >>> flow = jt.Flow("first")
        >>> _ = flow.input("n").capture("events")
        >>> with flow.open(workers=2) as run:
        ...     run.input("n").send({"time": [1, 2], "n": [10, 20]})
        ...     _ = run.finish()
        ...     events = run.captured("events")
        >>> again = jt.Flow("second")
        >>> again.output("n", again.replay(events))
        >>> again.run(workers=3)["n"].to_pylist()
        [{'time': 1, 'n': 10}, {'time': 2, 'n': 20}]
        """
        add_capture(self, name)
        return self

    def unary(
        self,
        build: UnaryBuild,
        *,
        pact: Pact | None = None,
        name: str = "unary",
        step: SummaryLike = 0,
        schema: SchemaLike | None = None,
    ) -> Stream:
        """An operator of your own that answers messages as they come and ignores the frontier.

        ``build(token, info)`` is called once for each worker, with the initial token, and
        returns ``step(input, output)``. ``step`` declares by how much times advance inside,
        and ``schema`` the columns that come out, so that operators downstream can be checked.

        >>> import jeton as jt
        >>> def double(token, info):
        ...     token.drop()
        ...
        ...     def step(input, output):
        ...         for ref, batch in input:
        ...             with output.session(ref) as session:
        ...                 session.give(batch.with_columns({"n": batch["n"] * 2}))
        ...
        ...     return step
        >>> flow = jt.Flow("double")
        >>> flow.output("doubled", flow.input("numbers").unary(double))
        >>> flow.run({"numbers": {"time": [0, 1], "n": [3, 4]}})["doubled"].to_pylist()
        [{'time': 0, 'n': 6}, {'time': 1, 'n': 8}]
        """
        return add_unary(
            self, build, name=name, notify="never", pact=pact, step=step, schema=schema
        )

    def unary_frontier(
        self,
        build: UnaryBuild,
        *,
        pact: Pact | None = None,
        name: str = "unary_frontier",
        step: SummaryLike = 0,
        notify: Notify = "held",
        schema: SchemaLike | None = None,
    ) -> Stream:
        """An operator of your own that is also invoked when its input's frontier has moved.

        That happens while it holds a token, since without one it could not send anything;
        with ``notify="always"`` it happens in any case. The rest is as for `unary`.

        >>> import jeton as jt
        >>> def count_per_time(token, info):
        ...     token.drop()
        ...     counts = jt.state.TimeMap()
        ...
        ...     def step(input, output):
        ...         for ref, batch in input.by_time():
        ...             entry = counts.get_or(ref.time, lambda: [ref.retain(), 0])
        ...             entry[1] += len(batch)
        ...         for time, (token, count) in counts.pop_before(input.frontier):
        ...             with token, output.session(token) as session:
        ...                 session.give(count=count)
        ...
        ...     return step
        >>> flow = jt.Flow("count")
        >>> flow.output("counts", flow.input("words").unary_frontier(count_per_time))
        >>> flow.run({"words": {"time": [0, 0, 1], "word": list("aba")}})["counts"].to_pylist()
        [{'time': 0, 'count': 2}, {'time': 1, 'count': 1}]
        """
        return add_unary(self, build, name=name, notify=notify, pact=pact, step=step, schema=schema)

    def binary(
        self,
        other: StreamBase,
        build: BinaryBuild,
        *,
        pact: Pact | None = None,
        other_pact: Pact | None = None,
        name: str = "binary",
        schema: SchemaLike | None = None,
    ) -> Stream:
        """An operator of your own on two streams that answers messages and ignores frontiers.

        ``build(token, info)`` returns ``step(left, right, output)``. ``other_pact`` is
        ``pact`` unless given. ``schema`` declares the columns that come out.

        >>> import jeton as jt
        >>> def tag(token, info):
        ...     token.drop()
        ...
        ...     def step(left, right, output):
        ...         for side, input in (("left", left), ("right", right)):
        ...             for ref, batch in input:
        ...                 output.session(ref).give(batch, side=side)
        ...
        ...     return step
        >>> flow = jt.Flow("tagged")
        >>> flow.output("both", flow.input("a").binary(flow.input("b"), tag))
        >>> result = flow.run({"a": {"time": [0], "n": [1]}, "b": {"time": [1], "n": [2]}})
        >>> result["both"].to_pylist()
        [{'time': 0, 'n': 1, 'side': 'left'}, {'time': 1, 'n': 2, 'side': 'right'}]
        """
        return add_binary(
            self,
            other,
            build,
            name=name,
            notify="never",
            pact=pact,
            other_pact=other_pact,
            schema=schema,
        )

    def binary_frontier(
        self,
        other: StreamBase,
        build: BinaryBuild,
        *,
        pact: Pact | None = None,
        other_pact: Pact | None = None,
        name: str = "binary_frontier",
        notify: Notify = "held",
        schema: SchemaLike | None = None,
    ) -> Stream:
        """An operator of your own on two streams that is also invoked when a frontier has moved.

        ``notify`` is as for `unary_frontier`, the rest as for `binary`.

        >>> import jeton as jt
        >>> def pair_up(token, info):  # sums of both sides, time by time
        ...     token.drop()
        ...     sums = jt.state.TimeMap()
        ...
        ...     def step(left, right, output):
        ...         for side in (left, right):
        ...             for ref, batch in side.by_time():
        ...                 entry = sums.get_or(ref.time, lambda: [ref.retain(), 0])
        ...                 entry[1] += int(batch["n"].sum())
        ...         for time, (token, total) in sums.pop_before(left.frontier, right.frontier):
        ...             with token, output.session(token) as session:
        ...                 session.give(total=total)
        ...
        ...     return step
        >>> flow = jt.Flow("pairs")
        >>> left, right = flow.input("left"), flow.input("right")
        >>> flow.output("totals", left.binary_frontier(right, pair_up))
        >>> rows = {"time": [0, 1], "n": [1, 2]}
        >>> flow.run({"left": rows, "right": rows})["totals"]["total"].to_pylist()
        [2, 4]
        """
        return add_binary(
            self,
            other,
            build,
            name=name,
            notify=notify,
            pact=pact,
            other_pact=other_pact,
            schema=schema,
        )
