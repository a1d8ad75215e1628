"""The benchmark of start-up, as far as it needs no Spark."""

from __future__ import annotations

import pytest

from jeton_evaluation.bench import start_up


@pytest.mark.long
def test_each_case_runs_without_compiled_loops_and_with_them() -> None:
    compiled, loaded = start_up.run(lambda text: None, rounds=1, only="in process")
    assert (compiled["loops"], loaded["loops"]) == ("compiled", "loaded")
    assert all(each[lap] > 0 for each in (compiled, loaded) for lap in ("import", "first"))
    # Nothing has imported the library before the clock starts.
    assert min(compiled["import"], loaded["import"]) > 0.02


def test_a_case_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        start_up.main(["--only", "flink"])
    assert "no case begins with 'flink': there are in process" in capsys.readouterr().err
