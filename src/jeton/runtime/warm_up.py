"""warm_up: the compiled loops of the usual operators, made and loaded before records wait for them.

Numba compiles a loop when it is called for the first time with arguments of certain types, and
keeps the code on disk. The next process only loads it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from jeton.dataflow.flow import Flow


def warm_up() -> None:
    """Run small flows, after which this process has the loops of the usual operators loaded.

    >>> warm_up()
    """
    flow = Flow("warm-up")
    rows, others = (flow.input(name).key_by("key") for name in ("rows", "others"))
    names = flow.input("named rows").key_by("name")
    flow.output("counts", rows.running().count())
    flow.output("means", rows.tumbling(10).mean("value"))
    flow.output("sums", rows.tumbling(10).sum("number"))
    flow.output("pairs", rows.interval_join(others, -5, 5))
    flow.output("names", names.running().count())
    flow.output("totals", names.tumbling(10).sum("number"))
    with flow.open(workers=2) as run:
        # Three of each: types are learnt from the first, and what follows takes the quick ways.
        for first in (0, 10, 20):
            for name in flow.inputs:
                run.input(name).send(_rows(first))
            run.run_to_rest()
        run.finish()


def _rows(first: int) -> pa.Table:
    """Records at ten times, of four keys."""
    times = np.arange(first, first + 10)
    return pa.table(
        {
            "time": times,
            "key": times % 4,
            "name": [f"name {number % 4}" for number in times],
            "value": times / 2,
            "number": times,
        }
    )
