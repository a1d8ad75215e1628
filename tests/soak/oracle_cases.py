"""Random pipelines beside SQL, in this process and on Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.oracle.campaign import campaign
from tests.oracle.verdicts import WRONG
from tests.soak.sessions import local


def main(folder: str, seed: str, seconds: str, on_spark: str) -> None:
    """Run cases for a while; print what was seen as JSON."""
    spark = local(Path(folder), 4) if on_spark == "spark" else None
    counts = campaign(1_000_000, int(seed), float(seconds), spark=spark)
    if spark is not None:
        spark.stop()
    hits: dict[str, int] = {}
    for (_, host, outcome), cases in counts.by.items():
        if outcome != WRONG:
            hits[host] = hits.get(host, 0) + cases
    wrong = [str(failure)[:600] for failure in counts.failures]
    print(json.dumps({"hits": hits, "rows": 0, "lost": 0, "doubled": 0, "wrong": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
