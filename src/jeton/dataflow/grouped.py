"""Grouped: a keyed stream and *when* its groups are told; every aggregate as a method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.schema import schema_of
from jeton.core.errors import GraphError
from jeton.state import aggregates as agg
from jeton.state.aggregates import Aggregate
from jeton.state.groups import Groups

if TYPE_CHECKING:
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

    def __init__(self, keyed: KeyedStream) -> None:
        self.keyed = keyed

    @abstractmethod
    def _aggregate(self, aggregates: Mapping[str, Aggregate], name: str) -> Stream:
        """Add the operator."""

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
        for name in aggregates:
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

    def _told(self, aggregates: Mapping[str, Aggregate], label: str) -> pa.Schema | None:
        """The keys and results of a group, learnt from no records at all."""
        key = self.keyed.key

        def try_out(batch: Batch) -> pa.Schema:
            groups = Groups(key, aggregates)
            slots, _ = groups.find(batch)
            groups.add(slots, batch)
            return schema_of(Batch.trusted(groups.columns(slots), batch.times))

        return self.keyed.stream.learn(try_out, operator=label)

    def count(self, column: str | None = None, *, name: str = "count") -> Stream:
        """How many records each group has (with a column: not null in it)."""
        return self.aggregate(**{name: agg.count(column)})

    def sum(self, column: str, *, widen: bool = False, name: str = "sum") -> Stream:
        """The sum of a column in each group; see `agg.sum` for those that do not fit 64 bits."""
        return self.aggregate(**{name: agg.sum(column, widen=widen)})

    def min(self, column: str, *, name: str = "min") -> Stream:
        """The least value of a column in each group."""
        return self.aggregate(**{name: agg.min(column)})

    def max(self, column: str, *, name: str = "max") -> Stream:
        """The greatest value of a column in each group."""
        return self.aggregate(**{name: agg.max(column)})

    def mean(self, column: str, *, name: str = "mean") -> Stream:
        """The mean of a column in each group."""
        return self.aggregate(**{name: agg.mean(column)})

    def reduce(
        self, column: str, function: Callable[[Any, Any], Any], *, name: str = "reduce"
    ) -> Stream:
        """Two values to one until one is left, with a function of your own: see `agg.reduce`."""
        return self.aggregate(**{name: agg.reduce(column, function)})

    def fold(
        self,
        column: str,
        initial: Any,
        function: Callable[[Any, Any], Any],
        *,
        finish: Callable[[Any], Any] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
        name: str = "fold",
    ) -> Stream:
        """A state and a value to the next state: see `agg.fold`."""
        folding = agg.fold(column, initial, function, finish=finish, merge=merge)
        return self.aggregate(**{name: folding})
