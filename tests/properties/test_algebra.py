"""Times, antichains, counts and summaries, each against the obvious model."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.generators import INTEGERS, PAIRS, TRIPLES, add, kinds, summaries, times
from tests.properties.oracle import minimal

import jeton as jt
from jeton.core.antichain import TotalCounts, frontier_changes
from jeton.core.changes import ChangeBatch
from jeton.core.summaries import Enter, Leave, Summary
from jeton.core.times import ProductTimes, TimeKind, sort_key
from jeton.errors import JetonError

some_times = kinds.flatmap(lambda kind: st.lists(times(kind), max_size=8))
"""Times that can be compared with each other."""

two_and_more = kinds.flatmap(lambda kind: st.lists(times(kind), min_size=3, max_size=8))

Histories = list[tuple[Any, int]]
deltas = st.sampled_from([1, -1, 1, -1, 2, -2, 5, -5])
some_histories = kinds.flatmap(
    lambda kind: st.lists(st.tuples(times(kind), deltas), min_size=1, max_size=30)
)


def counted(history: Iterable[tuple[Any, int]]) -> dict[Any, int]:
    counts: dict[Any, int] = {}
    add(counts, history)
    return counts


def present(counts: dict[Any, int]) -> set[Any]:
    """The least times of those whose count is above zero."""
    return minimal(time for time, count in counts.items() if count > 0)


# Times


@given(two_and_more)
def test_times_are_partially_ordered(sample: list[Any]) -> None:
    a, b, c = sample[:3]
    assert a <= a
    assert not (a <= b and b <= a) or a == b
    assert not (a <= b and b <= c) or a <= c


@given(two_and_more)
def test_sort_key_extends_the_order(sample: list[Any]) -> None:
    ordered = sorted(sample, key=sort_key)
    for index, time in enumerate(ordered):
        assert not any(later <= time and later != time for later in ordered[index:])


@given(
    st.integers(2, 4).flatmap(lambda n: st.lists(st.tuples(*[st.integers(0, 3)] * n), min_size=2))
)
def test_products_compare_by_coordinates(sample: list[tuple[int, ...]]) -> None:
    a, b = sample[:2]
    p, q = jt.Product.of(a), jt.Product.of(b)
    below = all(x <= y for x, y in zip(a, b, strict=True))
    above = all(x >= y for x, y in zip(a, b, strict=True))
    assert (p <= q, p >= q) == (below, above)
    assert (p < q, p > q) == (below and a != b, above and a != b)
    assert (p == q) == (a == b)
    assert jt.Product(p.outer, p.inner) == p
    assert pickle.loads(pickle.dumps(p)) == p
    assert type(pickle.loads(pickle.dumps(p))) is jt.Product


@given(kinds, st.data())
def test_kinds_know_their_times(kind: TimeKind, data: st.DataObject) -> None:
    time = data.draw(times(kind))
    assert kind.check(time) == time
    assert kind.minimum <= time
    assert kind.looped().check(jt.Product(time, 0)) == jt.Product(time, 0)


# Antichains


@given(some_times)
def test_antichain_holds_the_least(sample: list[Any]) -> None:
    antichain = jt.Antichain()
    for index, time in enumerate(sample):
        dominated = any(seen <= time for seen in sample[:index])
        assert antichain.insert(time) == (not dominated)
        assert set(antichain) == minimal(sample[: index + 1])
        assert len(antichain) == len(set(antichain))


@given(some_times)
def test_antichain_travels_by_its_times(sample: list[Any]) -> None:
    """So that compiled and Python modules read what the others wrote."""
    antichain = jt.Antichain(sample)
    assert pickle.loads(pickle.dumps(antichain)) == copy.copy(antichain) == antichain
    assert antichain.__reduce__() == (jt.Antichain, (list(antichain),))


@given(some_times, st.data())
def test_antichain_does_not_mind_order(sample: list[Any], data: st.DataObject) -> None:
    one, other = jt.Antichain(sample), jt.Antichain(data.draw(st.permutations(sample)))
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(JetonError):
        one.insert(0)


@given(two_and_more, st.integers(0, 8))
def test_antichain_comparisons(sample: list[Any], cut: int) -> None:
    mine, theirs = sample[:cut], sample[cut:]
    frontier, other = jt.Antichain(mine), jt.Antichain(theirs)
    for time in sample:
        assert frontier.less_equal(time) == any(t <= time for t in mine)
        assert frontier.less_than(time) == any(t <= time and t != time for t in mine)
        assert frontier.passed(time) != frontier.less_equal(time)
        assert (time in frontier) == (time in minimal(mine))
    assert frontier.dominates(other) == all(any(t <= u for t in mine) for u in theirs)
    assert (frontier == other) == (minimal(mine) == minimal(theirs))
    assert frontier.is_empty == (not mine)
    before = set(frontier)
    assert frontier.extend(theirs) == (minimal(sample) != before)
    assert set(frontier) == minimal(sample)


# Counts


@given(some_histories)
def test_mutable_antichain(history: Histories) -> None:
    held = jt.state.MutableAntichain()
    for index, (time, delta) in enumerate(history):
        before = set(held.frontier)
        changed = held.change(time, delta)
        counts = counted(history[: index + 1])
        assert dict(held.items()) == counts
        assert len(held) == len(counts)
        assert set(held.frontier) == present(counts)
        assert len(held.least()) == len(set(held.least()))
        assert changed == (set(held.frontier) != before)


@given(some_histories, st.integers(0, 30))
def test_mutable_antichain_tells_what_left_and_entered(history: Histories, cut: int) -> None:
    start = [time for time, _ in history[:cut]]
    held = jt.state.MutableAntichain(start)
    before = set(held.frontier)
    changes = held.update(history)
    after = set(held.frontier)
    assert after == present(counted([*((time, 1) for time in start), *history]))
    assert {t for t, delta in changes if delta == -1} == before - after
    assert {t for t, delta in changes if delta == +1} == after - before
    assert len(changes) == len(before ^ after)


@given(st.lists(st.tuples(times(INTEGERS), deltas), max_size=60))
def test_total_counts_agree_with_the_mutable_antichain(history: Histories) -> None:
    total, partial = TotalCounts(), jt.state.MutableAntichain()
    for time, delta in history:
        assert total.change(time, delta) == partial.change(time, delta)
        assert total.least() == partial.least()
        assert (total.minimum,) == (partial.least() or (None,))
        assert dict(total.items()) == dict(partial.items())


@given(st.integers(0, 3), st.lists(st.integers(4, 8), min_size=1, max_size=8))
def test_total_counts_stay_small(least: int, above: list[int]) -> None:
    """Times that come and go above the minimum leave nothing behind."""
    counts = TotalCounts()
    counts.change(least, +1)
    for _ in range(40):
        for time in above:
            counts.change(time, +1)
        for time in above:
            counts.change(time, -1)
    assert len(counts._heap) <= 2 * (1 + len(set(above))) + 33
    counts.change(above[0], +1)
    counts.change(least, -1)
    assert counts.minimum == above[0]
    counts.change(above[0], -1)
    assert counts.minimum is None


@given(some_times, some_times)
def test_frontier_changes(before: list[Any], after: list[Any]) -> None:
    one, two = tuple(set(before)), tuple(set(after))
    net = Counter(dict.fromkeys(one, 1))
    for time, delta in frontier_changes(one, two):
        net[time] += delta
    assert {time: n for time, n in net.items() if n} == dict.fromkeys(two, 1)


@given(some_histories, st.integers(0, 30))
def test_change_batch(history: Histories, cut: int) -> None:
    first, second = ChangeBatch(history[:cut]), ChangeBatch(history[cut:])
    assert dict(first) == counted(history[:cut])
    assert len(first) == len(counted(history[:cut]))
    first.absorb(second.drain())
    assert (dict(second), len(second)) == ({}, 0)
    assert first.drain() == counted(history)
    assert dict(first) == {}


# Summaries


def same(one: Summary | None, other: Summary | None, time: Any) -> bool:
    """Whether two summaries, or none, do the same to a time."""
    return (one and one.apply(time)) == (other and other.apply(time))


def in_turn(path: list[Summary], time: Any) -> Any:
    for step in path:
        if time is not None:
            time = step.apply(time)
    return time


@given(kinds, st.data())
def test_summaries_never_go_back_and_keep_order(kind: TimeKind, data: st.DataObject) -> None:
    summary = data.draw(summaries(kind))
    a, b = data.draw(times(kind)), data.draw(times(kind))
    to_a, to_b = summary.apply(a), summary.apply(b)
    assert to_a is None or a <= to_a
    assert to_a is None or not summary.advances or to_a != a
    if a <= b and to_b is not None:
        assert to_a is not None
        assert to_a <= to_b


@given(kinds, st.data())
def test_summaries_compose(kind: TimeKind, data: st.DataObject) -> None:
    first, second, third = (data.draw(summaries(kind)) for _ in range(3))
    time = data.draw(times(kind))
    both, after = first.then(second), second.then(third)
    assert both is not None
    assert after is not None
    assert both.apply(time) == in_turn([first, second], time)
    assert same(both.then(third), first.then(after), time)
    assert same(jt.IDENTITY.then(first), first, time)
    assert same(first.then(jt.IDENTITY), first, time)
    assert both.advances == (first.advances or second.advances)


@st.composite
def paths(draw: st.DrawFn) -> tuple[TimeKind, TimeKind, list[Summary]]:
    """Where a path starts, where it ends, and its steps into loops and out of them."""
    possible: list[Summary] = [Enter(), Leave(), jt.Advance(2), jt.IDENTITY]
    start = here = draw(st.sampled_from([INTEGERS, PAIRS, TRIPLES]))
    path: list[Summary] = []
    for step in draw(st.lists(st.sampled_from(possible), max_size=5)):
        if isinstance(step, Enter):
            here = here.looped()
        elif isinstance(step, Leave):
            if not isinstance(here, ProductTimes):
                continue
            here = here.outer
        path.append(step)
    return start, here, path


@given(paths(), st.data())
def test_paths_in_and_out_of_loops(
    drawn: tuple[TimeKind, TimeKind, list[Summary]], data: st.DataObject
) -> None:
    """However a path is composed, it does what its steps do one after the other."""
    start, _, path = drawn
    from_left: Summary | None = jt.IDENTITY
    for step in path:
        assert from_left is not None
        from_left = from_left.then(step)
    from_right: Summary | None = jt.IDENTITY
    for step in reversed(path):
        assert from_right is not None
        from_right = step.then(from_right)
    time = data.draw(times(start))
    assert from_left is not None
    assert from_right is not None
    assert from_left.apply(time) == from_right.apply(time) == in_turn(path, time)


@given(paths(), st.data())
def test_a_path_that_says_it_advances_does(
    drawn: tuple[TimeKind, TimeKind, list[Summary]], data: st.DataObject
) -> None:
    start, end, path = drawn
    whole: Summary | None = jt.IDENTITY
    for step in path:
        assert whole is not None
        whole = whole.then(step)
    assert whole is not None
    if start.depth == end.depth and whole.advances:
        time = data.draw(times(start))
        assert whole.apply(time) != time


def shifted(time: Any, *steps: int) -> Any:
    """A time with a step added to each coordinate; ``None`` past the end of time."""
    moved = tuple(map(sum, zip(time if isinstance(time, tuple) else (time,), steps, strict=True)))
    if any(
        step and coordinate > jt.END_OF_TIME for step, coordinate in zip(steps, moved, strict=True)
    ):
        return None
    return jt.Product.of(moved) if len(moved) > 1 else moved[0]


sizes = st.integers(0, 3) | st.integers(jt.END_OF_TIME - 12, jt.END_OF_TIME + 1)


@given(st.sampled_from([INTEGERS, PAIRS, TRIPLES]), st.data())
def test_advances_up_to_the_end_of_time(kind: TimeKind, data: st.DataObject) -> None:
    time = data.draw(times(kind))
    steps = data.draw(st.tuples(*[sizes] * (kind.depth + 1)))
    more = data.draw(sizes)
    inner = (0,) * kind.depth
    assert jt.Advance(*steps).apply(time) == shifted(time, *steps)
    assert jt.Advance(more).apply(time) == shifted(time, *inner, more)
    both = jt.Advance(*steps).then(jt.Advance(more))
    expected = in_turn([jt.Advance(*steps), jt.Advance(more)], time)
    assert (None if both is None else both.apply(time)) == expected
