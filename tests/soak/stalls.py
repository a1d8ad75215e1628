"""Peers that stall, and machines that vanish, over TCP in network namespaces."""

from __future__ import annotations

import json
import sys
from random import Random

from tests.faults.peers_over_network import Outcome, can_have_machines, stall

STALLS = (10.0, 31.0, 60.0)
NOTICED = 60.0
"""Seconds within which the loss of a machine must be known."""


def main(folder: str, seed: str, number: str) -> None:
    """Run one case; print what was seen as JSON."""
    if not can_have_machines():
        raise SystemExit("network namespaces need root and the package iproute2")
    random = Random(int(seed))
    if int(number) % 4 == 3:
        outcome = stall("cable pulled", load=random.choice(("idle", "flowing", "full")))
    else:
        seconds = STALLS[int(number) % 4]
        outcome = stall(random.choice(("busy", "stopped")), seconds, load="full")
    name = f"{outcome.fault} {outcome.seconds:g} s" if outcome.seconds else outcome.fault
    seen = {"hits": {name: int(outcome.hit)}, "rows": outcome.rows or 0, "lost": 0, "doubled": 0}
    print(json.dumps({**seen, "wrong": [f"{outcome}"] if is_wrong(outcome) else []}))


def is_wrong(outcome: Outcome) -> bool:
    """Whether a busy peer was lost, or a lost one went unnoticed."""
    if outcome.fault != "cable pulled":
        return not outcome.complete
    # Where the load is full, the second worker does not read again, and notices nothing.
    noticing = 1 if outcome.load == "full" else 2
    return len(outcome.noticed) < noticing or max(outcome.noticed.values()) > NOTICED


if __name__ == "__main__":
    main(*sys.argv[1:])
