"""What ``make demo`` shows: the paper's tumbling average, in this process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import jeton as jt

WINDOW = 10


def tumbling_average(
    token: jt.TimestampToken, info: jt.OperatorInfo
) -> Callable[[jt.Input, jt.Output], None]:
    """The paper's operator; ``examples/tumbling_average.py`` explains it."""
    token.drop()
    windows: jt.TimeMap[tuple[jt.TimestampToken, list[float]]] = jt.TimeMap()

    def step(input: jt.Input, output: jt.Output) -> None:
        for ref, batch in input:
            for end, part in batch.split_by(lambda times: (times // WINDOW + 1) * WINDOW):
                if end not in windows:
                    windows[end] = ref.retain(end), []
                windows[end][1].extend(np.asarray(part["value"]).tolist())
        for _, (held, values) in windows.pop_before(input.frontier):
            with held, output.session(held) as session:
                session.give(average=sum(values) / len(values), readings=len(values))

    return step


def run_in_process() -> None:
    """Average some readings over windows on two workers, and print the result."""
    flow = jt.Flow("demo")
    readings = flow.input("readings", time="ts")
    # All readings meet on one worker; a key column instead would spread them.
    together = jt.Exchange(lambda batch: np.zeros(len(batch), dtype=np.int64))
    flow.output("averages", readings.unary_frontier(tumbling_average, pact=together))
    data = {"ts": [3, 12, 7, 35, 38], "value": [1.0, 4.0, 2.0, 8.0, 9.0]}
    print("Jeton: tumbling averages over windows of 10, on two workers in this process")
    for row in flow.run({"readings": data}, workers=2)["averages"].to_pylist():
        print(f"  window ending at {row['ts']:>2}: {row['average']} of {row['readings']} readings")
