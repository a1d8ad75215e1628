"""NEXMark queries in the library's own verbs, beside the same ones written by hand.

One worker in this process takes batches of events that were made beforehand, one after the other.
A query with a program that compares mechanisms is measured in both forms, in turn: the library's
operators, and the program's by tokens. The first round compiles, and the rows of both forms must be
the same. Of the others the thread's own time counts, and the best one: other load on the machine
only adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import nan
from time import thread_time
from typing import Annotated, Any

import jeton as jt
from jeton.errors import JetonError
from jeton_evaluation import nexmark
from jeton_evaluation.bench.harness import Line, OptionError, Say, Table, command
from jeton_evaluation.bench.nexmark import Share, config_of
from jeton_evaluation.nexmark import queries
from jeton_evaluation.programs.mechanisms import Mechanism

QUERIES = ("q4", "q5", "q6", "q7", "q9")
Made = Mapping[nexmark.Kind, Sequence[jt.Batch]]
"""The batches of each kind; those at one place come together."""

TABLE = Table(
    {
        "query": "query:<6",
        "M events/s": "library_per_s_m:>12.2f",
        "by hand": "by_hand_per_s_m:>10.2f",
        "× by hand": "ratio:>11.2f",
        "µs a batch": "us_per_batch:>12.0f",
        "rows": "rows:>9,",
    }
)


def run(
    say: Say,
    query: Annotated[list[str], "the queries"] = list(QUERIES),  # noqa: B006
    rate: Annotated[
        float, "events a second of the events' own time: more are open at a time"
    ] = 2e6,
    batch: Annotated[int, "events a batch"] = 32_768,
    events: Annotated[int, "events a round"] = 2_000_000,
    rounds: Annotated[int, "rounds, of which the best counts"] = 5,
) -> Iterator[Line]:
    """Measure queries, one row each."""
    unknown = [name for name in query if name not in queries.names()]
    if unknown:
        raise OptionError(
            f"there is no query {unknown[0]}: choose from {', '.join(queries.names())}"
        )
    if events < batch:
        raise OptionError(f"a round of {events:,} events has not one batch of {batch:,}")
    say(f"batches of {batch:,} events, one worker\n\n{TABLE.head}")
    for name in query:
        line = measure(name, rate, batch, events, rounds)
        # No number where there is no program by hand.
        say(TABLE.row({field: nan if value is None else value for field, value in line.items()}))
        yield line


main = command(run)


def measure(name: str, rate: float, batch: int, events: int, rounds: int) -> Line:
    """One query's figures; there are none by hand if it has no such program."""
    asked = queries.get(name)
    made = make(asked, rate, batch, events)
    forms: list[Mechanism | None] = [None]
    if asked.by_mechanism is not None:
        forms.append("tokens")
    answers = [run_once(asked, made, form)[1] for form in forms]
    rows = sum(map(len, answers[0]))
    if not same_rows(*answers):
        raise JetonError(f"the rows of {name} are not those of the program by hand")
    best = dict.fromkeys(forms, float("inf"))
    for _ in range(rounds):
        for form in forms:
            seconds, _ = run_once(asked, made, form)
            best[form] = min(best[form], seconds)
    batches = max(map(len, made.values()))
    by_hand = best.get("tokens")
    return {
        "query": name,
        "batch": batch,
        "library_per_s_m": round(batches * batch / best[None] / 1e6, 3),
        "by_hand_per_s_m": by_hand and round(batches * batch / by_hand / 1e6, 3),
        "ratio": by_hand and round(best[None] / by_hand, 3),
        "us_per_batch": round(best[None] / batches * 1e6, 1),
        "rows": rows,
    }


def make(asked: queries.Query, rate: float, batch: int, events: int) -> Made:
    """Whole batches of the events that a query reads."""
    config = config_of(rate, 0)
    share = Share(config, nexmark.Generator(config, part=0, parts=1))
    first = range(0, events - batch + 1, batch)
    return {
        kind: [share.make(kind, at, batch, schema) for at in first]
        for kind, schema in config.schemas(asked.columns).items()
    }


def run_once(
    asked: queries.Query, made: Made, mechanism: Mechanism | None = None
) -> tuple[float, list[jt.Batch]]:
    """Take all batches through; returns the thread's seconds, and the answers."""
    flow = jt.Flow(f"nexmark {asked.name}")
    streams = _offered(flow, made)
    answers: list[jt.Batch] = []
    asked.answer(nexmark.Inputs(streams), mechanism).unary(_kept(answers), name="sink")
    with flow.open(workers=1) as opened:
        began = thread_time()
        opened.run_to_rest()
        return thread_time() - began, answers


def same_rows(*answers: Sequence[jt.Batch]) -> bool:
    """Whether all have the same rows, in any order.

    >>> one, other = jt.Batch({"a": [1]}, [5]), jt.Batch({"a": [2]}, [5])
    >>> same_rows([one, other], [other, one]), same_rows([one], [other])
    (True, False)
    """

    def rows(batches: Sequence[jt.Batch]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for batch in batches:
            columns = (batch[name].tolist() for name in sorted(batch.names))
            found.extend(zip(batch.times.tolist(), *columns, strict=True))
        return sorted(found)

    first, *others = map(rows, answers)
    return all(first == other for other in others)


def _offered(flow: jt.Flow, made: Made) -> dict[nexmark.Kind, jt.Stream]:
    """A source of all kinds, which sends one batch of each at a time."""

    def build(
        tokens: list[jt.TimestampToken], info: jt.OperatorInfo
    ) -> Callable[[Sequence[jt.Input], Sequence[jt.Output]], None]:
        turns = zip(*made.values(), strict=True)

        def step(_: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
            together = next(turns, None)
            if together is None:
                for token in tokens:
                    token.drop()
                return
            last = max(int(batch.times[-1]) for batch in together if len(batch))
            for token, output, batch in zip(tokens, outputs, together, strict=True):
                if len(batch):
                    output.session(token).give(batch)
                token.downgrade(last)
            info.activator.activate()

        return step

    op = flow.operator("events", time="ts")
    for _ in made:
        op.output()
    return dict(zip(made, op.build(build), strict=True))


def _kept(
    answers: list[jt.Batch],
) -> Callable[[jt.TimestampToken, jt.OperatorInfo], Callable[[jt.Input, jt.Output], None]]:
    def build(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Output], None]:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            answers.extend(batch for _, batch in input)

        return step

    return build
