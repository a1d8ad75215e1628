"""NEXMark events as inputs of a flow, made by the workers themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jeton as jt
from jeton.connectors.sources import Reader, Source, number_of, numbered
from jeton.errors import GraphError
from jeton_evaluation.nexmark.config import KINDS, Columns, Config, Kind
from jeton_evaluation.nexmark.generator import Generator


@dataclass(frozen=True)
class Inputs:
    """The declared inputs of a flow: one for each kind of events that it reads."""

    streams: dict[Kind, jt.Stream] = field(default_factory=dict)

    @property
    def persons(self) -> jt.Stream:
        """The persons who register."""
        return self._of("persons")

    @property
    def auctions(self) -> jt.Stream:
        """The auctions."""
        return self._of("auctions")

    @property
    def bids(self) -> jt.Stream:
        """The bids."""
        return self._of("bids")

    def _of(self, kind: Kind) -> jt.Stream:
        if kind not in self.streams:
            raise GraphError(f"{kind} are not an input of this flow: name them in columns=")
        return self.streams[kind]


def add_inputs(
    flow: jt.Flow, config: Config | None = None, columns: Columns | None = None
) -> Inputs:
    """Declare the inputs of a flow, with some columns of some kinds, or all of all kinds.

    >>> flow = jt.Flow("highest bids")
    >>> inputs = add_inputs(flow, columns={"bids": ["auction", "price"]})
    >>> flow.output("highest", inputs.bids.key_by("auction").tumbling(1_000_000).max("price"))
    >>> flow.inputs
    ('bids',)
    """
    schemas = (config or Config()).schemas(columns)
    return Inputs(
        {
            kind: flow.input(kind, time="ts", schema=schemas[kind])
            for kind in KINDS
            if kind in schemas
        }
    )


def sources(
    config: Config,
    events: int | None = None,
    rate: float | None = None,
    *,
    columns: Columns | None = None,
    start: float | None = None,
    block: int | None = None,
    most: int = 16_384,
) -> dict[str, Source]:
    """Sources for ``flow.start``, one for each kind of ``columns``, or of all.

    Each worker makes blocks of events in turn with the others.

    Args:
        config: The settings of the generator.
        events: The number of events in all (default: without end).
        rate: Events that are due in a second, on all workers together, whether or not the flow
            keeps up (default: as many as the flow takes).
        columns: The columns that are wanted of each kind (default: all of all kinds).
        start: When the first event is due, as ``time.time()`` has it (default: when the source is
            opened).
        block: The consecutive events that one worker makes (default: one round).
        most: The most events that a worker makes before the flow goes on.

    >>> source = sources(Config(), events=100, columns={"bids": ["price"]})["bids"]
    >>> reader = source.open("1/2", None)
    >>> records = reader.read()
    >>> list(records), len(records["price"]), reader.ended
    (['ts', 'price'], 46, True)
    """
    if rate is not None and rate <= 0:
        raise ValueError(f"rate must be above zero, not {rate}")
    if events is not None and events < 0:
        raise ValueError(f"there cannot be {events} events")
    if most < 1:
        raise ValueError(f"most must be a whole number from 1 on, not {most}")
    return {
        kind: EventSource(config, kind, tuple(schema.names), events, rate, start, block, most)
        for kind, schema in config.schemas(columns).items()
    }


@dataclass(frozen=True)
class EventSource(Source):
    """The source of events of one kind: see `sources`."""

    config: Config
    kind: Kind
    columns: tuple[str, ...]
    events: int | None
    rate: float | None
    start: float | None
    block: int | None
    most: int

    def partitions(self, workers: int) -> Mapping[str, Any]:
        """One for each worker."""
        return numbered(workers)

    def open(self, partition: str, position: Any | None) -> Reader:
        """Start the clock."""
        part, parts = number_of(partition)
        generator = Generator(self.config, part=part, parts=parts, block=self.block)
        return _EventReader(self, generator, position or 0)


class _EventReader(Reader):
    def __init__(self, source: EventSource, generator: Generator, position: int) -> None:
        self._source = source
        self._generator = generator
        self._next = position
        self._limit = None if source.events is None else generator.count_before(source.events)
        self._start = time.monotonic()
        if source.start is not None:
            self._start += source.start - time.time()
        elif source.rate is not None and position:
            # After a restart, the next event is due at once.
            self._start -= generator.position(position) / source.rate
        self._update()

    def read(self) -> Any | None:
        last = min(self._next + self._source.most, self._due())
        first, self._next = self._next, max(last, self._next)
        self._update()
        if self._next == first:
            return None
        made = self._generator.make(self._source.kind, first, last, self._source.columns)
        return made if len(made["ts"]) else None

    @property
    def position(self) -> int:
        """The number of its events that this partition has made."""
        return self._next

    def _due(self) -> int:
        """The number of events that this partition should have made by now."""
        rate, limit = self._source.rate, self._limit
        if rate is None:
            return self._next + self._source.most if limit is None else limit
        elapsed = max(time.monotonic() - self._start, 0.0)
        due = self._generator.count_before(int(elapsed * rate))
        return due if limit is None else min(due, limit)

    def _update(self) -> None:
        """Publish what is known about the events that are still to come."""
        self.ended = self._limit is not None and self._next >= self._limit
        self.floor = self._generator.floor(self._next)
        rate = self._source.rate
        # An event is due as soon as one more than those before it should have been made.
        due = 0.0 if rate is None else (self._generator.position(self._next) + 1) / rate
        self.ready_at = self._start + due
