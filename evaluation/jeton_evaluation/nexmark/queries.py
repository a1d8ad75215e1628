"""The queries: their inputs and titles, and flows that answer them.

A query is a module ``qN`` of this package. To add one, add a module: modules are found by
their names. Each has a doc string whose first line is its title, ``COLUMNS`` that it reads, a
function ``query(events)`` that makes the stream of its answers, and the same in Spark's ``SQL``. If
``query`` takes a ``mechanism``, it can be had with each of them.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import jeton as jt
from jeton.errors import GraphError
from jeton_evaluation.nexmark.config import Columns, Config
from jeton_evaluation.nexmark.sources import Inputs, add_inputs
from jeton_evaluation.programs.mechanisms import MECHANISMS, Mechanism

RESULT: Final = "result"
"""The output of every query's flow."""

_NAME: Final = re.compile(r"q\d+")


@dataclass(frozen=True)
class Query:
    """One of the queries.

    >>> q4 = get("q4")
    >>> q4.title
    'the average closing price of a category'
    >>> sorted(q4.columns), q4.mechanisms
    (['auctions', 'bids'], ('tokens', 'notifications', 'watermarks-x', 'watermarks-p'))
    """

    name: str
    title: str
    columns: Columns
    """The columns that it reads; times are always there."""
    sql: str
    """The same question to Spark, over the views persons, auctions and bids."""
    mechanisms: tuple[Mechanism, ...]
    """The mechanisms by which its operators can learn that a time is complete."""
    make: Callable[..., jt.Stream]
    """The module's function."""

    def build(
        self, flow: jt.Flow, mechanism: Mechanism = "tokens", config: Config | None = None
    ) -> jt.Stream:
        """Add the inputs and the query to a flow; returns the stream of its answers."""
        return self.answer(add_inputs(flow, config, self.columns), mechanism)

    def answer(self, events: Inputs, mechanism: Mechanism = "tokens") -> jt.Stream:
        """The stream of its answers, from streams of events wherever they come from."""
        if mechanism not in self.mechanisms:
            raise GraphError(
                f"{self.name} cannot be had with {mechanism!r}: "
                f"choose one of {', '.join(self.mechanisms)}"
            )
        if self.mechanisms == ("tokens",):
            return self.make(events)
        return self.make(events, mechanism)

    def flow(self, config: Config | None = None, mechanism: Mechanism = "tokens") -> jt.Flow:
        """A flow that answers the query, in its output ``"result"``.

        >>> from jeton_evaluation import nexmark
        >>> config = nexmark.Config()
        >>> bids = nexmark.tables(config, 1000, columns=get("q7").columns)
        >>> get("q7").flow(config, "notifications").run(bids, workers=2)["result"].num_rows
        1
        """
        flow = jt.Flow(f"nexmark {self.name}, {mechanism}")
        flow.output(RESULT, self.build(flow, mechanism, config))
        return flow


@cache
def names() -> tuple[str, ...]:
    """The queries that there are, by number.

    >>> names()[:3]
    ('q0', 'q1', 'q2')
    """
    found = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return tuple(sorted(filter(_NAME.fullmatch, found), key=lambda name: int(name[1:])))


@cache
def get(name: str) -> Query:
    """The query of a name.

    >>> get("q44")
    Traceback (most recent call last):
        ...
    jeton.core.errors.GraphError: there is no query 'q44': did you mean 'q4'? (there are: ...)
    """
    if name not in names():
        close = get_close_matches(name, names(), n=1)
        hint = f": did you mean {close[0]!r}?" if close else ""
        raise GraphError(f"there is no query {name!r}{hint} (there are: {', '.join(names())})")
    module = import_module(f"jeton_evaluation.nexmark.{name}")
    # "Query 4: the average … of a category."
    first = (module.__doc__ or "").partition("\n")[0]
    title = first.partition(": ")[2].removesuffix(".")
    chosen = "mechanism" in inspect.signature(module.query).parameters
    mechanisms: tuple[Mechanism, ...] = MECHANISMS if chosen else ("tokens",)
    return Query(name, title, module.COLUMNS, module.SQL, mechanisms, module.query)
