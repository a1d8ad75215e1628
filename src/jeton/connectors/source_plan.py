"""The source plan: the partitions of a query's sources, as the driver deals them to workers."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from jeton.connectors.source_reader import Partitions
from jeton.connectors.sources import Source
from jeton.core.errors import GraphError
from jeton.dataflow.column_use import needs_of

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow

log = logging.getLogger(__name__)

Deal: TypeAlias = dict[str, dict[str, Mapping[str, Any]]]
"""The partitions of each input."""


class SourcePlan:
    """The partitions of all sources of a query, over all attempts at it.

    A partition that was once found stays, at the position where it began, until a checkpoint has a
    later one: so no attempt starts anywhere else than the first.

    >>> from jeton.connectors.sources import Batches
    >>> plan = SourcePlan("q", {"n": Batches(lambda partition, partitions: [], 3)})
    >>> plan.begin(2, {})
    {'n': {'0/3': {'position': None}, '1/3': {'position': None}, '2/3': {'position': None}}}
    >>> {worker: list(share(plan.partitions["n"], worker, 2)) for worker in range(2)}
    {0: ['0/3', '2/3'], 1: ['1/3']}
    >>> plan.begin(2, {"n": {"0/3": {"position": 7, "ended": False}}})["n"]["0/3"]["position"]
    7

    A driver that dies before the first checkpoint has a successor, which must not begin later than
    it did, such as at the latest records of then: it starts where its predecessor ``began``.
    """

    def __init__(
        self,
        query: str,
        sources: Mapping[str, Source],
        began: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """``began`` says where an earlier driver began, if it died before its first checkpoint."""
        self._query = query
        self._sources = sources
        self._began = dict(began or {})
        self._first: dict[str, dict[str, Any]] = {}
        """Where each partition began that was found by this driver."""
        self.partitions: Deal = {}
        """Those of the present attempt."""

    def begin(self, workers: int, known: Mapping[str, Partitions]) -> Deal:
        """The partitions for an attempt, ``known`` from the checkpoint that it starts from."""
        for name, source in self._sources.items():
            if known.get(name):
                if name not in self._first:
                    self._first[name] = {}
                    self._warn_of_new(name, known[name], self._grown(name, known[name]))
            elif not self._first.get(name):
                first = _checked(name, source.partitions(workers))
                began = dict(self._began.get(name, {}))
                if first.keys() & began.keys():
                    # Others have appeared since.
                    new = _checked(name, source.discover(tuple(began)))
                    began = new | began
                self._first[name] = {
                    each: _as_begun(at, began.get(each)) for each, at in first.items()
                }
        self.partitions = {
            name: _starting_at(first) | dict(known.get(name, {}))
            for name, first in self._first.items()
        }
        return {name: dict(partitions) for name, partitions in self.partitions.items()}

    @property
    def first(self) -> dict[str, dict[str, Any]]:
        """Where each partition begins that no checkpoint had."""
        return {name: dict(partitions) for name, partitions in self._first.items()}

    @property
    def growing(self) -> dict[str, float]:
        """The inputs whose sources may have new partitions, and the seconds between questions."""
        found = {name: source.discover_every for name, source in self._sources.items()}
        return {name: every for name, every in found.items() if every is not None}

    def discover(self, name: str) -> dict[str, Mapping[str, Any]]:
        """Ask the source of an input for partitions that have appeared; returns them."""
        partitions = self.partitions[name]
        new = _starting_at(self._grown(name, partitions))
        partitions |= new
        return new

    def _grown(self, name: str, known: Partitions) -> dict[str, Any]:
        found = _checked(name, self._sources[name].discover(tuple(known)))
        new = {each: at for each, at in found.items() if each not in known}
        self._first[name] |= new
        return new

    def _warn_of_new(self, name: str, known: Partitions, new: Mapping[str, Any]) -> None:
        """Warn of partitions that are not read, if the source itself does not say that it grew."""
        # Where each worker has some, they share all records, with any number of partitions.
        now = len(self._sources[name].partitions(1))
        if not new and len(known) < now:
            log.warning(
                "input %r of query %r goes on with the %d partitions that its checkpoint has, "
                "although its source has %d now: others are not read. Give them an input of their "
                "own, or start with a new checkpoint",
                name,
                self._query,
                len(known),
                now,
            )


def narrowed(flow: Flow, name: str, source: Source) -> tuple[Source, tuple[str, ...] | None]:
    """The source of an input as a flow needs it, and the declared columns that are left.

    ``None`` stands for all of them, also if none are declared.

    >>> import jeton as jt
    >>> from jeton.connectors.sources import Batches
    >>> flow = jt.Flow("counts")
    >>> bids = flow.input("bids", schema={"item": int, "price": float})
    >>> flow.output("counts", bids.key_by("item").tumbling(10).count())
    >>> class Narrow(Batches):
    ...     def narrowed(self, columns, condition, time):
    ...         return Narrow(self._make)
    >>> narrowed(flow, "bids", Narrow(lambda partition, partitions: []))[1]
    ('item',)
    """
    time, declared, types = flow.time_name(name), flow.input_schemas[name], flow.declared(name)
    typed = source if types is None else source.typed(types, time)
    needs = needs_of(flow.operators, flow.handle("input", name))
    columns: tuple[str, ...] | None = None
    if needs.columns is not None:
        names = sorted(needs.columns) if declared is None else declared.names
        columns = tuple(each for each in names if each in needs.columns)
    made = typed.narrowed(columns, needs.condition, time)
    return made, None if made is typed or declared is None else columns


def share(partitions: Partitions, worker: int, workers: int) -> dict[str, Mapping[str, Any]]:
    """The partitions that a worker reads: they are dealt in turn."""
    return dict(list(partitions.items())[worker::workers])


def owner(partitions: Partitions, name: str, workers: int) -> int:
    """The worker that reads a partition."""
    return list(partitions).index(name) % workers


def stored_partitions(meta: Mapping[str, Any]) -> dict[str, Partitions]:
    """The partitions of all sources that a checkpoint has.

    Those of an earlier release had numbers instead of names.

    >>> stored_partitions({"positions": {"n": {"0": {"position": 3}, "1": {"position": 4}}}})
    {'n': {'0/2': {'position': 3}, '1/2': {'position': 4}}}
    """
    if "partitions" in meta:
        return dict(meta["partitions"])
    return {
        name: {f"{number}/{len(partitions)}": at for number, at in partitions.items()}
        for name, partitions in meta["positions"].items()
    }


def _as_begun(now: Any, before: Any) -> Any:
    """Where an earlier driver began, unless its source was of another kind.

    >>> _as_begun({"offset": 9}, {"offset": 5}), _as_begun({"offset": 9}, {"version": 5})
    ({'offset': 5}, {'offset': 9})
    """
    alike = type(now) is type(before)
    if alike and isinstance(now, dict):
        alike = now.keys() == before.keys()
    return before if alike else now


def _starting_at(first: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {name: {"position": position} for name, position in first.items()}


def _checked(name: str, partitions: Mapping[str, Any]) -> dict[str, Any]:
    """The partitions that a source has named, as they are after a restart."""
    try:
        # A list of pairs would do for `dict`, and numbers for JSON.
        if not all(isinstance(each, str) for each, _ in partitions.items()):
            raise TypeError(f"{partitions!r} has names that are not texts")
        return dict(json.loads(json.dumps(dict(partitions))))
    except (AttributeError, TypeError, ValueError) as error:
        raise GraphError(
            f"the source of input {name!r} has partitions that JSON cannot hold: {error}. Names "
            "must be texts, and positions plain values"
        ) from error
