"""A histogram of latencies with buckets of constant relative width, as in HdrHistogram.

Values below ``2**BITS`` have a bucket each; above, every power of two is cut into ``2**(BITS - 1)``
buckets, so that a quantile is known to within 1 %, from a nanosecond to half an hour. Records that
are due at equal distances and complete together are counted in one call.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic_ns

import numba as nb
import numpy as np
import numpy.typing as npt

BITS = 8
HALF = 1 << (BITS - 1)
LARGEST = 1 << 41
"""Values from here on are counted as this."""
BUCKETS = (42 - BITS) * HALF + (1 << BITS)


class Histogram:
    """Counts of values, in nanoseconds.

    >>> latencies = Histogram()
    >>> latencies.record(1_000, 99)
    >>> latencies.record(2_000_000)
    >>> latencies.count, latencies.quantile(0.5), latencies.quantile(0.999), latencies.max
    (100, 1002, 2000000, 2000000)
    >>> latencies.record_evenly(0, 1_000, 100)  # 5, 15, … 995
    >>> latencies.count
    200
    """

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(BUCKETS, np.int64)
        self._most = np.zeros(1, np.int64)

    @property
    def count(self) -> int:
        """The number of recorded values."""
        return int(self.counts.sum())

    @property
    def max(self) -> int:
        """The greatest value, exactly."""
        return int(self._most[0])

    def record(self, value: int, count: int = 1) -> None:
        """Count a value `count` times."""
        self.record_evenly(value, value, count)

    def record_evenly(self, low: int, high: int, count: int) -> None:
        """Count values at equal distances between two bounds."""
        if count > 0:
            _record_evenly(self.counts, self._most, max(low, 0), max(high, 0), count)

    def quantile(self, share: float) -> int:
        """The value that this share of all values does not exceed; 0 if there are none."""
        total = self.count
        if not total:
            return 0
        rank = min(max(int(np.ceil(share * total)), 1), total)
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        low, high = int(_floor(bucket)), int(_floor(bucket + 1))
        return min((low + high) // 2, self.max)

    def merge(self, other: Histogram) -> None:
        """Add all values of another one."""
        self.counts += other.counts
        self._most[0] = max(self.max, other.max)

    def to_json(self) -> dict[str, list[int]]:
        """The buckets that are not empty, and the greatest value."""
        used = np.flatnonzero(self.counts)
        return {"at": used.tolist(), "counts": self.counts[used].tolist(), "max": [self.max]}

    @staticmethod
    def from_json(*reported: dict[str, list[int]]) -> Histogram:
        """One histogram from several reports.

        >>> one = Histogram()
        >>> one.record(70)
        >>> Histogram.from_json(one.to_json(), one.to_json()).count
        2
        """
        whole = Histogram()
        for each in reported:
            whole.counts[each["at"]] += np.asarray(each["counts"], np.int64)
            whole._most[0] = max(whole.max, *each["max"])
        return whole

    def quantiles_ms(self, shares: Iterable[float]) -> list[float]:
        """Some quantiles, in milliseconds."""
        return [round(self.quantile(share) / 1e6, 4) for share in shares]


def noise(seconds: float) -> Histogram:
    """The machine's own noise: how long a loop that does nothing is kept from running.

    A record that arrives in such a gap waits for its end, in any system. So this is a lower bound
    of latencies on this machine. It records for every nanosecond the time until the next iteration.

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


@nb.njit(cache=True)
def _bucket(value: int) -> int:
    if value < 2 * HALF:
        return value
    power = 0
    while value >= 2 * HALF:
        value >>= 1
        power += 1
    return power * HALF + value


@nb.njit(cache=True)
def _floor(bucket: int) -> int:
    """The least value of a bucket."""
    if bucket < 2 * HALF:
        return bucket
    power = bucket // HALF - 1
    return (bucket - power * HALF) << power


@nb.njit(cache=True)
def _record_evenly(
    counts: npt.NDArray[np.int64], most: npt.NDArray[np.int64], low: int, high: int, count: int
) -> None:
    low, high = min(low, LARGEST), min(high, LARGEST)
    width = (high - low) / count
    most[0] = max(most[0], int(high - width / 2))
    bucket = _bucket(low)
    done = 0
    while done < count:
        # The values are low + (i + ½) · width: how many lie below the next bucket?
        above = _floor(bucket + 1)
        below = count if above > high else int((above - low) / width + 0.5)
        below = min(max(below, done), count)
        counts[bucket] += below - done
        done = below
        bucket += 1
