"""A chain of idle operators under an open-loop load of timestamps: the paper's second experiment.

No record passes, only times. The latency is the time until a timestamp is complete at the far end
of operators that do nothing with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import jeton as jt
from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.experiment import MechanismOption
from jeton_evaluation.bench.harness import Line, Say, command
from jeton_evaluation.bench.open_loop import Load, measure, offer
from jeton_evaluation.programs.chain import chain
from jeton_evaluation.programs.mechanisms import Mechanism


def run(
    say: Say,
    mechanism: MechanismOption = "tokens",
    length: Annotated[int, "operators"] = 256,
    **options: Any,
) -> Iterator[Line]:
    """Offer timestamps to a chain."""
    about = {"experiment": "chain", "mechanism": mechanism, "length": length}
    flow = partial(program, mechanism=mechanism, length=length)
    return experiment.run(say, flow, about, "timestamps", **options)


main = command(run, experiment.run, rate=250e3)


def program(load: Load, mechanism: Mechanism, length: int) -> jt.Flow:
    """The flow that is measured: the quantum is the distance between two timestamps."""
    flow = jt.Flow("chain")
    quantum = 1 << max(int(1e9 / load.rate).bit_length() - 1, 0)
    load = Load(**{**vars(load), "quantum": quantum})
    measure(flow, chain(offer(flow, load, None), length, mechanism=mechanism), load)
    return flow
