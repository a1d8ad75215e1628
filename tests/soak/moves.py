"""State that moves at random in simulated runs that crash, over every keyed operator."""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
from collections import Counter

from tests.simulation.moving import MovingRun


def main(folder: str, first: str, seconds: str, most: str = "1000000000") -> None:
    """Run seeds from ``first`` on for a while, ``most`` at the most; print the facts as JSON."""
    deadline = time.monotonic() + float(seconds)
    hits: Counter[str] = Counter()
    wrong, rows = [], 0
    # Tokens are searched through the garbage collector: not among what is there before.
    gc.freeze()
    for seed in range(int(first), int(first) + int(most)):
        if time.monotonic() > deadline:
            break
        moving = MovingRun(seed)
        try:
            moving.run()
        except Exception:
            text = f"seed {seed}, {moving.names}: {traceback.format_exc()[-1500:]}"
            print(text, file=sys.stderr, flush=True)
            wrong.append(text)
        hits += moving.facts
        hits["seeds"] += 1
        if hits["seeds"] % 50 == 0:
            print(f"{hits['seeds']} seeds", file=sys.stderr, flush=True)
        rows += sum(each.total() for each in moving.rows.values())
    print(json.dumps({"hits": hits, "rows": rows, "lost": 0, "doubled": 0, "wrong": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
