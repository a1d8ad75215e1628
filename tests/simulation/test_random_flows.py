"""Random flows end to end: the same records under any schedule, and nothing left behind.

With a seed, every frontier of every worker is checked against the truth at every step, and once
more for equality when the flow is at rest.

The default profile draws some hundred flows. For a soak of at least 5,000 cases of each kind, with
fresh random choices every time:

    HYPOTHESIS_PROFILE=long .venv/bin/pytest tests/properties tests/simulation -q -n 2
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.programs import Case, cases, records

seeds = st.lists(st.integers(0, 2**32), min_size=1, max_size=2)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@settings(max_examples=settings().max_examples // 5)  # each runs a flow two or three times
@given(case=cases(), seeds=seeds)
def test_any_schedule_gives_the_same_records(workers: int, case: Case, seeds: list[int]) -> None:
    flow = case.flow()
    expected = case.expected()
    plain = flow.run(case.inputs())
    assert records(plain) == expected
    assert not plain.leaks
    for seed in seeds:
        result = flow.run(case.inputs(), workers=workers, seed=seed)
        assert records(result) == expected, seed
        assert not result.leaks
        assert result.checks > 0
        assert not any(result.late.values())


@given(cases(), st.integers(1, 4), st.integers(0, 2**32), st.data())
def test_inputs_in_user_hands(case: Case, workers: int, seed: int, data: st.DataObject) -> None:
    """Records sent from any worker, inputs advanced at different paces, rests in between."""
    with case.flow().open(workers=workers, seed=seed) as run:
        for time in range(0, 13, 3):
            for index, table in enumerate(case.tables):
                due = [(t, n) for t, n in table if time <= t < time + 3]
                for t, n in due:
                    run.input(f"in{index}", data.draw(st.integers(0, workers - 1))).send(
                        {"time": [t], "n": [n]}
                    )
            rest = data.draw(st.sampled_from(["none", "steps", "rest"]))
            if rest == "rest":
                run.run_to_rest()
                assert not run.probe("end").done
            elif rest == "steps":
                for _ in range(20):
                    run.turn()
            for index in range(len(case.tables)):
                for worker in range(workers):
                    if data.draw(st.booleans()):
                        run.input(f"in{index}", worker).advance_to(time + 3)
        result = run.finish()
        assert all(run.probe("end", worker).done for worker in range(workers))
    assert records(result) == case.expected()
    assert not result.leaks
