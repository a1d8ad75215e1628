"""Rebalancing: which bins move, and counting the records of each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jeton as jt
from jeton.runtime.balance import balancing_moves, counted, counting
from jeton.state.bins import Placement


@given(st.integers(1, 6), st.lists(st.integers(0, 1000), min_size=256, max_size=256))
def test_no_worker_has_much_more_than_its_share(workers: int, loads: list[int]) -> None:
    load = np.array(loads)
    placement = Placement.even(workers, 256)
    moves = balancing_moves(placement, load, within=0.1)
    after = placement.moved(moves)
    sums = np.bincount(after.owners, weights=load, minlength=workers)
    greatest = load.max()
    assert sums.max() <= max(load.sum() / workers * 1.1, load.sum() / workers + greatest)
    assert balancing_moves(after, load, within=0.1) == {}
    before = np.bincount(placement.owners, weights=load, minlength=workers)
    assert sums.max() <= before.max()


def test_a_bin_that_is_too_great_stays() -> None:
    load = np.zeros(256, dtype=np.int64)
    load[0] = 1000
    assert balancing_moves(Placement.even(2, 256), load, within=0.1) == {}


@pytest.mark.parametrize("moving", [False, True])
def test_records_are_counted_by_bin_while_wanted(moving: bool) -> None:
    flow = jt.Flow("counts", bins=256)
    flow.output("counts", flow.input("n").key_by("n").running().count())
    keys = np.array([1, 2, 2, 3, 3, 3])
    with flow.open(workers=2) as run:
        run._steer(counting())
        run.input("n").send({"time": [0] * 6, "n": keys})
        run.run_to_rest()
        expected = np.bincount(jt.state.bins_of([keys]) % 256, minlength=256)
        if moving:
            # A migration ends it: routers are others then.
            run.migrate({0: 1})
            run.run_to_rest()
            expected[:] = 0
        assert (run._steer(counted()) == expected).all()
        run.input("n").send({"time": [1] * 6, "n": keys})
        run.run_to_rest()
        assert not run._steer(counted()).any()
        assert run.finish()["counts"].num_rows == 12
