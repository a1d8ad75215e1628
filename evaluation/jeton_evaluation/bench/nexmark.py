"""NEXMark queries under an open-loop load: latency and sustained rate.

Each worker generates its share of the events itself, when they are due. Times are
microseconds of the machine's clock, so an event is late by as much as the output's frontier is
behind its time. Only the columns that a query reads are made. Auctions are open for half a second
on average, at any rate: with more events, more auctions are open at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import pyarrow as pa

import jeton as jt
from jeton_evaluation import nexmark
from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.harness import Line, OptionError, Say, command
from jeton_evaluation.bench.open_loop import Load, Schedule, measure, offer_all
from jeton_evaluation.nexmark import queries
from jeton_evaluation.programs.mechanisms import Mechanism

FIRST = 2_000
"""Events that go through the query in each worker before the load begins."""
OPEN_FOR = 0.5
"""Seconds that an auction is open on average."""


def run(
    say: Say,
    mechanism: Annotated[
        Mechanism | None, "a program that compares mechanisms (default: the query in verbs)"
    ] = None,
    query: Annotated[str, "the query"] = "q4",
    **options: Any,
) -> Iterator[Line]:
    """Offer events to a query."""
    known = queries.get(query).mechanisms if query in queries.names() else ()
    if not known or (mechanism is not None and mechanism not in known):
        choice = f"{query} can be had with {', '.join(known)} only"
        raise OptionError(choice if known else f"choose from {', '.join(queries.names())}")
    about = {"experiment": "nexmark", "query": query, "mechanism": mechanism or queries.LIBRARY}
    flow = partial(program, query=query, mechanism=mechanism)
    return experiment.run(say, flow, about, "events", **options)


main = command(run, experiment.run, rate=1e6)


def program(load: Load, query: str, mechanism: Mechanism | None = None) -> jt.Flow:
    """The flow that is measured."""
    load = replace(load, unit=1000, quantum=1)
    asked = queries.get(query)
    schemas = nexmark.Config().schemas(asked.columns)

    def plan(began: int, worker: int, workers: int) -> Schedule:
        config = config_of(load.rate * workers, began)
        return Share(config, nexmark.Generator(config, part=worker, parts=workers))

    def make(share: Share, first: int, count: int, _: int) -> list[jt.Batch]:
        return [share.make(kind, first, count, schema) for kind, schema in schemas.items()]

    def prepare() -> None:
        # Loading compiled loops takes a good part of a second, in which events would pile up.
        config = config_of(load.rate, 0)
        tables = nexmark.tables(config, FIRST, columns=asked.columns)
        asked.flow(config, mechanism).run(tables, workers=2)

    flow = jt.Flow(f"nexmark {query}")
    streams = offer_all(
        flow, load, make, list(schemas.values()), plan=plan, prepare=prepare, time="ts"
    )
    events = nexmark.Inputs(dict(zip(schemas, streams, strict=True)))
    measure(flow, asked.answer(events, mechanism), load)
    return flow


def config_of(rate: float, began: int) -> nexmark.Config:
    """The generator's settings for `rate` events a second in all workers together.

    >>> config_of(2e6, 0).in_flight_auctions
    60000
    """
    config = nexmark.Config(rate=max(round(rate), 1), base_time=began)
    auctions = rate * config.auction_proportion / config.round
    return replace(config, in_flight_auctions=max(round(auctions * OPEN_FOR), 1))


@dataclass(frozen=True)
class Share:
    """When the events are due that a worker makes: rounds, in turn with the others.

    >>> config = config_of(1e6, 5_000)
    >>> second = Share(config, nexmark.Generator(config, part=1, parts=2))
    >>> second.time(0), second.time(50)
    (5050, 5150)
    >>> second.count_before(5_050), second.count_before(5_051), second.count_before(5_150)
    (0, 1, 50)
    """

    config: nexmark.Config
    generator: nexmark.Generator

    def time(self, position: int) -> int:
        """The time of an event, by its position among this worker's."""
        return self.config.time(self.generator.position(position))

    def count_before(self, time: int) -> int:
        """The number of this worker's events with times before this one."""
        above, below = self.config.time_step
        # Event n is before it if n * above // below is, so if n * above < elapsed * below.
        elapsed = max(time - self.config.base_time, 0)
        return self.generator.count_before(-(-elapsed * below // above))

    def make(self, kind: nexmark.Kind, first: int, count: int, schema: pa.Schema) -> jt.Batch:
        """The events of a kind among some of this worker's."""
        made: dict[str, Any] = dict(
            self.generator.make(kind, first, first + count, tuple(schema.names))
        )
        return jt.Batch.trusted(made, made.pop("ts"), "ts")
