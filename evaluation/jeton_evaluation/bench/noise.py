"""The machine's own noise: how long a loop that does nothing is kept from running.

A record that falls into such a gap waits for its end, whatever system it is offered to. So the
histogram of these waits is the least that a latency can be here, and is shown beside what was
measured.
"""

from __future__ import annotations

from time import monotonic_ns

from jeton_evaluation.bench.histogram import Histogram


def noise(seconds: float) -> Histogram:
    """Spin, and count for every nanosecond how long it was until the loop came round again.

    >>> noise(0.01).count > 1_000
    True
    """
    found = Histogram()
    found.record(0)  # compiles, or loads what was compiled
    last = monotonic_ns()
    end = last + int(seconds * 1e9)
    while last < end:
        now = monotonic_ns()
        # Weighted by length: the longer a gap, the likelier a record is to fall into it.
        found.record_evenly(0, now - last, max(1, (now - last) // 1000))
        last = now
    return found
