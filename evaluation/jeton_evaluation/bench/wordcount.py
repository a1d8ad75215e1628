"""Word count under an open-loop load: the paper's first experiment.

Words are exchanged between the workers, and each is emitted with its count so far, in order of
time. The quantum is the distance of timestamps: with 2**8 ns and four million records a second,
every record has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import numba as nb
import numpy as np
import numpy.typing as npt

import jeton as jt
from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.experiment import MechanismOption
from jeton_evaluation.bench.harness import OR_ZERO, Line, OptionError, Say, command
from jeton_evaluation.bench.open_loop import Due, Load, measure, offer
from jeton_evaluation.programs.mechanisms import Mechanism
from jeton_evaluation.programs.word_count import word_count

KEYS = 65_536
COARSEST = 30
"""The greatest logarithm of a quantum: times have to pass while a run lasts."""


def run(
    say: Say,
    mechanism: MechanismOption = "tokens",
    quantum: Annotated[int, "log2 of the nanoseconds between timestamps", OR_ZERO] = 8,
    keys: Annotated[int, "words"] = KEYS,
    **options: Any,
) -> Iterator[Line]:
    """Offer words to a count."""
    if quantum > COARSEST:
        raise OptionError(f"a quantum of 2**{quantum} ns is coarser than 2**{COARSEST}: a second")
    about = {"experiment": "wordcount", "mechanism": mechanism, "quantum_log2": quantum}
    flow = partial(program, mechanism=mechanism, keys=keys)
    return experiment.run(say, flow, about, "records", quantum=1 << quantum, **options)


main = command(run, experiment.run, rate=4e6)


def program(load: Load, mechanism: Mechanism, keys: int = KEYS) -> jt.Flow:
    """The flow that is measured."""
    flow = jt.Flow("word count")

    def make(due: Due, first: int, count: int, worker: int) -> jt.Batch:
        words, times = np.empty(count, np.int64), np.empty(count, np.int64)
        _fill(words, times, due.began, due.interval, due.mask, first, worker, keys)
        return jt.Batch.trusted({"word": words}, times, "time", int(times[0]))

    words = offer(flow, load, make)
    measure(flow, word_count(words, mechanism=mechanism), load)
    return flow


@nb.njit(cache=True)
def _fill(
    words: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64],
    began: int,
    interval: float,
    mask: int,
    first: int,
    worker: int,
    keys: int,
) -> None:
    for at in range(len(words)):
        position = first + at
        # A multiplicative hash spreads positions over the words as evenly as chance would.
        mixed = np.uint64(position * 2 + worker + 1) * np.uint64(0x9E3779B97F4A7C15)
        words[at] = (mixed >> np.uint64(32)) % np.uint64(keys)
        times[at] = (began + int(position * interval)) & mask
