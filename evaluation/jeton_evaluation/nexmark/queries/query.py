"""A query: its inputs, the stream of its answers, and the same question in Spark's SQL.

A query is a function of a module in this package, under the decorator `add`. The first line of
its doc string is its title. It is written in the library's own operators. Two of them have another
program beside it, which can be run by tokens, notifications or watermarks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import jeton as jt
from jeton.errors import GraphError
from jeton_evaluation.nexmark.config import Columns, Config
from jeton_evaluation.nexmark.sources import Inputs, add_inputs
from jeton_evaluation.programs.mechanisms import MECHANISMS, Mechanism

RESULT: Final = "result"
"""The output of every query's flow."""
LIBRARY: Final = "library"
"""The name of programs in the library's own operators, beside those of mechanisms."""
AT: Final = "at"
"""An event's time as a timestamp, which Spark's windows and watermarks need."""
END_SQL: Final = "unix_micros(window.end) AS ts"
"""The end of a row's window, on a stream."""

_QUERIES: Final[dict[str, Query]] = {}


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
    stream_sql: str | None
    """The same question to Structured Streaming, which refuses some of SQL."""
    no_stream: str
    """The reason if there is no such question, without operator state written by hand."""
    mechanisms: tuple[Mechanism, ...]
    """The mechanisms by which operators can learn that a time is complete."""
    make: Callable[[Inputs], jt.Stream]
    """Makes the stream of answers, with the library's own operators."""
    by_mechanism: Callable[[Inputs, Mechanism], jt.Stream] | None
    """Makes it with operators that can be run by any mechanism, so that these can be compared."""

    def build(
        self, flow: jt.Flow, mechanism: Mechanism | None = None, config: Config | None = None
    ) -> jt.Stream:
        """Add the inputs and the query to a flow; returns the stream of its answers."""
        return self.answer(add_inputs(flow, config, self.columns), mechanism)

    def answer(self, events: Inputs, mechanism: Mechanism | None = None) -> jt.Stream:
        """The stream of its answers, from any streams of events.

        With a ``mechanism``, it is made to compare mechanisms, where there are several.
        """
        if mechanism is None:
            return self.make(events)
        if mechanism not in self.mechanisms:
            raise GraphError(
                f"{self.name} cannot be had with {mechanism!r}: "
                f"choose one of {', '.join(self.mechanisms)}"
            )
        if self.by_mechanism is None:
            return self.make(events)
        return self.by_mechanism(events, mechanism)

    def flow(self, config: Config | None = None, mechanism: Mechanism | None = None) -> jt.Flow:
        """A flow that answers the query, in its output ``"result"``.

        >>> from jeton_evaluation import nexmark
        >>> config = nexmark.Config()
        >>> bids = nexmark.tables(config, 1000, columns=get("q7").columns)
        >>> get("q7").flow(config, "notifications").run(bids, workers=2)["result"].num_rows
        1
        """
        flow = jt.Flow(f"nexmark {self.name}, {mechanism or LIBRARY}")
        flow.output(RESULT, self.build(flow, mechanism, config))
        return flow


def add(
    columns: Columns,
    sql: str,
    *,
    stream_sql: str | None = None,
    no_stream: str = "",
    by_mechanism: Callable[[Inputs, Mechanism], jt.Stream] | None = None,
) -> Callable[[Callable[[Inputs], jt.Stream]], Callable[[Inputs], jt.Stream]]:
    """Add a function to the queries; without ``stream_sql`` or a reason, its SQL does for both."""

    def register(make: Callable[[Inputs], jt.Stream]) -> Callable[[Inputs], jt.Stream]:
        title = (make.__doc__ or "").partition("\n")[0].removesuffix(".")
        _QUERIES[make.__name__] = Query(
            name=make.__name__,
            title=title[:1].lower() + title[1:],
            columns=columns,
            sql=sql,
            stream_sql=None if no_stream else stream_sql or sql,
            no_stream=no_stream,
            mechanisms=("tokens",) if by_mechanism is None else MECHANISMS,
            make=make,
            by_mechanism=by_mechanism,
        )
        return make

    return register


def names() -> tuple[str, ...]:
    """The names of all queries, by number.

    >>> names()[:3]
    ('q0', 'q1', 'q2')
    """
    return tuple(sorted(_QUERIES, key=lambda name: int(name[1:])))


def get(name: str) -> Query:
    """The query of a name.

    >>> get("q44")
    Traceback (most recent call last):
        ...
    jeton.core.errors.GraphError: there is no query 'q44': did you mean 'q4'? (there are: ...)
    """
    if name not in _QUERIES:
        close = get_close_matches(name, names(), n=1)
        hint = f": did you mean {close[0]!r}?" if close else ""
        raise GraphError(f"there is no query {name!r}{hint} (there are: {', '.join(names())})")
    return _QUERIES[name]


def rows_of(name: str, workers: int = 1, **inputs: Any) -> Any:
    """The rows of a query's answer to small tables, which may lack columns: for examples."""
    flow = jt.Flow(name)
    columns: Any = {kind: [c for c in table if c != "ts"] for kind, table in inputs.items()}
    flow.output(RESULT, get(name).answer(add_inputs(flow, columns=columns)))
    return flow.run(inputs, workers=workers)[RESULT].to_pylist()


def window_sql(size: int, slide: int | None = None) -> str:
    """A window of a stream, in microseconds.

    >>> window_sql(10, 2)
    "window(at, '10 microseconds', '2 microseconds')"
    """
    lengths = [f"'{length} microseconds'" for length in (size, slide) if length is not None]
    return f"window({AT}, {', '.join(lengths)})"
