"""A driver is suspended at any step while a rival starts: all rows come once, all starts work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.paused_drivers import Case, campaign, prepared, steps_of


@pytest.mark.parametrize("reads", [False, True])
def test_suspended_before_each_step(tmp_path: Path, *, reads: bool) -> None:
    """The rival takes over and commits two versions, whose files a reader may take away."""
    start = prepared(tmp_path / "start")
    steps = steps_of(start, tmp_path / "counted")
    assert steps > 60
    for step in range(1, steps + 1):
        case = Case(step, versions=2, reads=reads)
        suspended, _ = case.run(start, tmp_path / str(step))
        assert suspended == 1


def test_rivals_that_are_suspended_or_die_as_well(tmp_path: Path) -> None:
    tally = campaign(tmp_path, seed=1, is_over=lambda cases: cases >= 120)
    assert tally["suspended"] >= 120
    assert tally["killed"] >= 20


@pytest.mark.long
@pytest.mark.parametrize("rival", ["dies", "waits"])
@pytest.mark.parametrize("damaged", [False, True])
def test_each_step_of_both(tmp_path: Path, rival: str, *, damaged: bool) -> None:
    start = prepared(tmp_path / "start")
    steps = steps_of(start, tmp_path / "counted")
    for first in range(1, steps + 1):
        for second in range(1, steps + 1):
            case = Case(first, rival, second, damaged=damaged)
            case.run(start, tmp_path / f"{first}-{second}")
