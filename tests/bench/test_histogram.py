"""The histogram: quantiles within a percent of the exact ones, for any way of recording."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jeton_evaluation.bench.histogram import Histogram

VALUES = st.integers(0, 10**12)


@given(st.lists(VALUES, min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_is_within_a_percent(values: list[int], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    rank = max(int(np.ceil(share * len(values))), 1)
    exact = sorted(values)[rank - 1]
    assert abs(histogram.quantile(share) - exact) <= max(exact / 100, 1)
    assert histogram.max == max(values)
    assert histogram.count == len(values)


@given(VALUES, VALUES, st.integers(1, 3000))
def test_values_at_equal_distances_equal_single_records(a: int, b: int, n: int) -> None:
    low, high = min(a, b), max(a, b)
    together, singly = Histogram(), Histogram()
    together.record_evenly(low, high, n)
    width = (high - low) / n
    for i in range(n):
        singly.record(int(low + (i + 0.5) * width))
    assert together.count == n
    for share in (0.01, 0.5, 0.9, 1.0):
        one, other = together.quantile(share), singly.quantile(share)
        # They may fall on both sides of a border between buckets.
        assert abs(one - other) <= max(0.02 * other, width + 1)


@given(st.lists(VALUES), st.lists(VALUES))
def test_merged_and_reported_equal_all_in_one(left: list[int], right: list[int]) -> None:
    parts, whole = [Histogram(), Histogram()], Histogram()
    for histogram, values in zip(parts, (left, right), strict=True):
        for value in values:
            histogram.record(value)
            whole.record(value)
    reported = Histogram.from_json(*(part.to_json() for part in parts))
    parts[0].merge(parts[1])
    for each in (reported, parts[0]):
        assert each.to_json() == whole.to_json()


def test_an_empty_histogram_has_no_quantile() -> None:
    assert Histogram().quantile(0.5) == Histogram().max == 0
