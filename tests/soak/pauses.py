"""Drivers that are suspended at each step of a commit while a rival starts."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

from tests.faults.paused_drivers import campaign


def main(folder: str, seed: str, seconds: str) -> None:
    """Run random cases for a while; print what was seen as JSON."""
    logging.disable(logging.CRITICAL)
    deadline = time.monotonic() + float(seconds)
    seen = {"hits": {}, "rows": 0, "lost": 0, "doubled": 0}
    try:
        tally = campaign(Path(folder), int(seed), lambda cases: time.monotonic() > deadline)
    except AssertionError as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        print(json.dumps({**seen, "wrong": [f"seed {seed}: {error} {notes}"[:2000]]}))
        return
    hits = {"suspended": tally["suspended"], "rival killed": tally["killed"]}
    print(json.dumps({**seen, "hits": hits}))


if __name__ == "__main__":
    main(*sys.argv[1:])
