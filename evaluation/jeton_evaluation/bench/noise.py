"""The machine's own noise: how long an empty loop is kept from running.

A record that arrives in such a gap waits for its end, in any system. So the histogram of these
waits is a lower bound of latencies on this machine, and is reported with the measurements.
"""

from __future__ import annotations

from time import monotonic_ns

from jeton_evaluation.bench.histogram import Histogram


def noise(seconds: float) -> Histogram:
    """Spin, and record for every nanosecond the time until the next iteration.

    >>> noise(0.01).count > 1_000
    True
    """
    found = Histogram()
    found.record(0)  # compiles, or loads what was compiled
    last = monotonic_ns()
    end = last + int(seconds * 1e9)
    while last < end:
        now = monotonic_ns()
        # Weighted by length: the longer a gap, the likelier a record is to arrive in it.
        found.record_evenly(0, now - last, max(1, (now - last) // 1000))
        last = now
    return found
