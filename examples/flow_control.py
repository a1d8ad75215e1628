"""Flow control: one small record produces very many, and memory stays bounded.

A range ``[start, stop)`` becomes all its numbers, whose divisors are then counted. The producing
operator holds its token, and stops while 50,000 numbers are in flight. It continues when the
frontier at the end of the region shows that some of them have been retired. This also works when
the numbers move between workers.
"""

import numpy as np

import jeton as jt
from jeton.idioms.flow_control import flat_map_bounded


def numbers_of(ranges):
    """All numbers of each range, piece by piece; the generator advances only when there is room."""
    for start, stop in zip(ranges["start"].tolist(), ranges["stop"].tolist(), strict=True):
        for at in range(start, stop, 10_000):
            yield {"n": np.arange(at, min(at + 10_000, stop))}


def count_divisors(numbers):
    """The expensive part, whose backlog must stay bounded."""

    def small_divisors(batch):
        return sum((batch["n"] % d == 0).astype(np.int64) for d in range(1, 21))

    counted = numbers.exchange("n").with_columns(divisors=small_divisors)
    return counted.filter(lambda batch: batch["divisors"] >= 15)


def divisors() -> jt.Flow:
    """A flow from ranges to the numbers in them with many small divisors."""
    flow = jt.Flow("divisors")
    ranges = flow.input("ranges", schema={"start": int, "stop": int})
    found = flat_map_bounded(ranges, numbers_of, count_divisors, limit=50_000, schema={"n": int})
    flow.output("found", found)
    return flow


RANGES = {"time": [1, 2], "start": [1, 1_000_000], "stop": [500_000, 1_400_000]}

if __name__ == "__main__":
    found = divisors().run({"ranges": RANGES}, workers=2)["found"]
    for row in sorted(found.to_pylist(), key=lambda row: row["n"])[:5]:
        print(f"{row['n']} has {row['divisors']} divisors up to 20")
    print(f"{found.num_rows} such numbers")
