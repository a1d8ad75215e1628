"""CONFORMANCE.md, "Structures": antichains, change batches, summaries, products."""

from __future__ import annotations

import pytest

import jeton as jt
from jeton import Advance, Antichain, Product
from jeton.core.changes import ChangeBatch
from jeton.state import MutableAntichain


def test_1_antichain_refuses_what_is_above() -> None:
    """Insert 2 → accepted; then 3 → refused (2 ≤ 3)."""
    antichain = Antichain()
    assert antichain.insert(2)
    assert not antichain.insert(3)
    assert list(antichain) == [2]


def test_2_antichain_extend_tells_whether_it_changed() -> None:
    """Extend with [3] changes it; with [2, 5] changes it (now {2}); with [3, 4] does not."""
    antichain = Antichain()
    assert antichain.extend([3])
    assert antichain.extend([2, 5])
    assert antichain == Antichain([2])
    assert not antichain.extend([3, 4])
    assert antichain == Antichain([2])


def test_3_antichain_strictly_below() -> None:
    """{2} is strictly below 3, not below 2; the empty antichain is below nothing."""
    assert Antichain([2]).less_than(3)
    assert not Antichain([2]).less_than(2)
    assert Antichain([2]).less_equal(2)
    for time in (0, 3, jt.END_OF_TIME):
        assert not Antichain().less_than(time)
        assert not Antichain().less_equal(time)


def test_4_antichains_are_equal_in_any_order() -> None:
    """Two antichains with the same elements in another order are equal and hash alike."""
    elements = [Product(1, 5), Product(2, 3), Product(4, 0)]
    one, other = Antichain(elements), Antichain(reversed(elements))
    assert list(one) != list(other)
    assert one == other
    assert hash(one) == hash(other)
    assert one != Antichain(elements[:2])


def test_5_mutable_antichain_reports_changes_of_its_frontier() -> None:
    """Holding 1 once; apply (1,−1),(2,+7): frontier {2}; reported: 1 left, 2 entered."""
    held = MutableAntichain([1])
    assert sorted(held.update([(1, -1), (2, +7)])) == [(1, -1), (2, +1)]
    assert held.frontier == Antichain([2])


def test_6_change_batch_stays_small() -> None:
    """+6 at 7, +5 at 8, then a thousand times +1/−1 at 9: stays small (≤ 32 entries held)."""
    changes = ChangeBatch([(7, +6), (8, +5)])
    for _ in range(1000):
        changes.update(9, +1)
        assert len(changes) <= 32
        changes.update(9, -1)
        assert len(changes) <= 32
    assert sorted(changes) == [(7, +6), (8, +5)]


def test_7_change_batch_cancels() -> None:
    """+1 and −1 at 17 → empty; plus −1 at 14 → length 1."""
    changes = ChangeBatch([(17, +1), (17, -1)])
    assert len(changes) == 0
    changes.update(14, -1)
    assert len(changes) == 1


def test_8_draining_into_another_leaves_the_first_empty() -> None:
    """Draining one batch into another leaves the first empty."""
    one, other = ChangeBatch([(1, +2), (2, -1)]), ChangeBatch([(1, +1)])
    other.absorb(one.drain())
    assert len(one) == 0
    assert sorted(other) == [(1, +3), (2, -1)]


def test_9_summaries_compose_up_to_the_end_of_time() -> None:
    """Summary +5 after +3 is +8; a summary that runs past the end of time gives None."""
    assert Advance(3).then(Advance(5)) == Advance(8)
    assert Advance(1).apply(jt.END_OF_TIME) is None
    assert Advance(1).apply(jt.END_OF_TIME - 1) == jt.END_OF_TIME
    longest = Advance(jt.END_OF_TIME).then(Advance(1))
    assert longest is not None
    assert longest.apply(0) is None
    assert longest.apply(-5) == jt.END_OF_TIME - 4
    assert Advance(2**64 - 1).apply(jt.START_OF_TIME) == jt.END_OF_TIME
    assert Advance(2**64 - 1).then(Advance(1)) is None
    assert Advance(1).apply(Product(3, jt.END_OF_TIME)) is None


def test_10_applying_5_then_15_to_10_gives_30() -> None:
    """Applying +5 then +15 to 10 gives 30."""
    assert Advance(15).apply(Advance(5).apply(10)) == 30
    both = Advance(5).then(Advance(15))
    assert both is not None
    assert both.apply(10) == 30


def test_11_products_are_partially_ordered() -> None:
    """Product (1,5) and (2,3) are incomparable; as a lexicographic pair they would be ordered."""
    one, other = Product(1, 5), Product(2, 3)
    assert not one <= other
    assert not other <= one
    assert not one < other
    assert not one > other
    assert len(Antichain([one, other])) == 2
    assert tuple(one) < tuple(other)
    assert one <= Product(2, 5)


@pytest.mark.parametrize("times", [[1, 2], [Product(0, 1), Product(1, 0), Product(1, 1)]])
def test_5_negative_counts_do_not_show(times: list[object]) -> None:
    """Counts may be negative for a while; frontiers ignore them."""
    held = MutableAntichain()
    assert held.update((time, -1) for time in times) == []
    assert held.frontier.is_empty
    held.update((time, +2) for time in times)
    assert held.frontier == Antichain(times)
