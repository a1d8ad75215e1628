"""The effect of calls on another operator: the benchmark measures all of its cases."""

from __future__ import annotations

import pytest

from jeton_evaluation.bench.async_calls import CASES, MS, Beside, run
from jeton_evaluation.bench.slow_service import serving


@pytest.mark.parametrize("beside", CASES)
def test_each_record_is_counted_and_each_call_is_answered(beside: Beside) -> None:
    with serving() as port:
        taken = run(beside, rate=300, calls=200, seconds=0.1, port=port, delay=5, seed=0)
    assert len(taken.neighbour) == 30
    assert min(taken.neighbour) > 0
    called = beside.endswith("calls")
    assert len(taken.answers) == (20 if called else 0)
    assert all(taken > 5 * MS for taken in taken.answers)
