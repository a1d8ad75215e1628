"""Times, summaries and kinds of time: what is accepted and what is not."""

from __future__ import annotations

import pickle

import pytest

import jeton as jt
from jeton import Advance, IntegerTimes, Product
from jeton.errors import JetonError, TimeError


def test_products_flatten_and_come_apart() -> None:
    nested = Product(Product(1, 2), 3)
    assert nested == Product(1, 2, 3)
    assert (nested.outer, nested.inner) == (Product(1, 2), 3)
    assert Product(1, 2).outer == 1
    assert pickle.loads(pickle.dumps(nested)) == nested
    assert type(pickle.loads(pickle.dumps(nested))) is Product


def test_products_of_different_depth_are_incomparable() -> None:
    assert not Product(1, 2) <= Product(1, 2, 3)
    assert not Product(1, 2, 3) <= Product(1, 2)


def test_product_needs_a_round() -> None:
    with pytest.raises(TimeError):
        Product(1)


@pytest.mark.parametrize("steps", [(), (-1,), (1.5,), (True,), (0, -1)])
def test_advance_takes_steps_of_zero_or_more(steps: tuple[int, ...]) -> None:
    with pytest.raises(TimeError):
        Advance(*steps)


def test_advance_of_several_coordinates() -> None:
    assert Advance(1, 2).apply(Product(3, 4)) == Product(4, 6)
    assert Advance(1).apply(Product(3, 4)) == Product(3, 5)
    assert Advance(1, 0).then(Advance(2)) == Advance(1, 2)
    with pytest.raises(TimeError):
        Advance(1, 2).apply(3)
    assert Advance(1, 0).apply(Product(jt.END_OF_TIME, 0)) is None


def test_identity_changes_nothing() -> None:
    assert jt.IDENTITY.apply(7) == 7
    assert jt.IDENTITY.then(Advance(2)) == Advance(2)
    assert Advance(2).then(jt.IDENTITY) == Advance(2)
    assert pickle.loads(pickle.dumps(jt.IDENTITY)) is jt.IDENTITY


@pytest.mark.parametrize("wrong", [jt.START_OF_TIME - 1, jt.END_OF_TIME + 1, 1.5, "1", None])
def test_integer_times_refuse_what_is_none(wrong: object) -> None:
    with pytest.raises(TimeError):
        IntegerTimes().check(wrong)


def test_negative_times_with_a_minimum() -> None:
    flow = jt.Flow("negative", time=IntegerTimes(minimum=-100))
    flow.output("out", flow.input("in").probe("seen"))
    with flow.open() as run:
        assert run.probe("seen").frontier == jt.Antichain([-100])
        run.input("in").send({"time": [-50, 3], "n": [1, 2]})
        run.input("in").advance_to(-50)
        run.run_to_rest()
        assert run.probe("seen").frontier == jt.Antichain([-50])
        assert run.finish()["out"]["time"].to_pylist() == [-50, 3]


def test_flow_refuses_a_class_that_is_no_time() -> None:
    with pytest.raises(TimeError, match="minimum, sort_key"):
        jt.Flow("no time", time=str)


def test_frozen_antichains_do_not_change() -> None:
    frontier = jt.Antichain([3])
    hash(frontier)
    with pytest.raises(JetonError, match="frozen"):
        frontier.insert(1)
    assert frontier == jt.Antichain([3])


def test_only_element_of_a_frontier() -> None:
    assert jt.Antichain([4]).only == 4
    assert jt.Antichain().only is None
    with pytest.raises(JetonError):
        _ = jt.Antichain([Product(0, 1), Product(1, 0)]).only
