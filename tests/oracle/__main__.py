"""The command line of the campaign: see `campaign`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jeton.spark.session import local_session
from tests.oracle.campaign import any_seed, campaign, smallest
from tests.oracle.duck import Oracle
from tests.oracle.pipelines import SHAPES, seeded
from tests.oracle.verdicts import WRONG, judge


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, help="of the first case; any, if not given")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--spark", action="store_true", help="spend a fifth of the time on Spark")
    parser.add_argument("--replay", type=int, help="run the case of one seed, and show it")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES, metavar="SHAPE")
    options = parser.parse_args()
    if options.replay is not None:
        return replay(options.replay, options.shapes)
    seed = any_seed() if options.seed is None else options.seed
    seconds = None if options.minutes is None else 60 * options.minutes
    spark = local_session(workers=4) if options.spark else None
    counts = campaign(
        options.cases, seed, seconds, progress=True, spark=spark, shapes=options.shapes
    )
    print(f"{counts.cases:,} cases from seed {seed}")
    print(counts)
    return 1 if counts.failures else 0


def replay(seed: int, shapes: Sequence[str] = SHAPES) -> int:
    """Run one case again; if it fails, show a small one that fails too."""
    case, oracle = seeded(seed, shapes=shapes), Oracle()
    verdict = judge(case, oracle)
    if verdict.outcome == WRONG:
        case = smallest(case, oracle)
        verdict = judge(case, oracle)
    print(case)
    print(verdict.outcome, verdict.why)
    return int(verdict.outcome == WRONG)


if __name__ == "__main__":
    sys.exit(main())
