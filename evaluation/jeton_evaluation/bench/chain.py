"""A chain of idle operators under an open-loop load of timestamps: the paper's second experiment.

No record passes, only times. The latency is the time until a timestamp is complete at the far end
of operators that do nothing with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jeton as jt
from jeton_evaluation.bench import experiment
from jeton_evaluation.bench.open_loop import Load, measure, offer
from jeton_evaluation.programs.chain import chain
from jeton_evaluation.programs.mechanisms import Mechanism


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = experiment.options("chain", (__doc__ or "").split("\n\n")[0], rate=250e3)
    parser.add_argument("--length", type=int, default=256, help="operators (default: 256)")
    parsed = parser.parse_args(argv)
    about = {"experiment": "chain", "mechanism": parsed.mechanism, "length": parsed.length}
    return experiment.run(
        parsed,
        about,
        experiment.load_of(parsed),
        lambda load: program(load, parsed.mechanism, parsed.length),
        "timestamps",
    )


def program(load: Load, mechanism: Mechanism, length: int) -> jt.Flow:
    """The flow that is measured: the quantum is the distance between two timestamps."""
    flow = jt.Flow("chain")
    quantum = 1 << max(int(1e9 / load.rate).bit_length() - 1, 0)
    load = Load(**{**vars(load), "quantum": quantum})
    measure(flow, chain(offer(flow, load, None), length, mechanism=mechanism), load)
    return flow


if __name__ == "__main__":
    raise SystemExit(main())
