"""A word count by watermarks, fed record by record."""

from __future__ import annotations

import jeton as jt
from jeton.idioms.watermark_sources import marks_from_times
from jeton.idioms.watermarks import unmarked
from jeton_evaluation.programs.word_count import marked_word_count


def counting(
    workers: int, *, disorder: int = 0, idle_after: float | None = None, seed: int | None = None
) -> jt.Run:
    """A word count by marks over an exchange, with its late records beside it."""
    flow = jt.Flow("counting")
    marked = marks_from_times(flow.input("words"), disorder, idle_after=idle_after)
    counts = marked_word_count(marked, key="n", pact=jt.Exchange("n"))
    assert counts.late is not None
    flow.output("counts", unmarked(counts).probe("after"))
    flow.output("late", counts.late)
    return flow.open(workers=workers, seed=seed)


def send(run: jt.Run, worker: int, *times: int) -> None:
    run.input("words", worker).send({"time": list(times), "n": [1] * len(times)})
    settle(run)


def settle(run: jt.Run) -> None:
    """Do all there is to do, but let no time pass: `run_to_rest` would, until all are idle."""
    while run.turn():
        pass


def times(run: jt.Run, output: str) -> list[int]:
    found: list[int] = run.results()[output]["time"].to_pylist()
    return found
