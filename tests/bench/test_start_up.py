"""The benchmark of start-up, as far as it needs no Spark."""

from __future__ import annotations

import pytest

from jeton_evaluation.bench import start_up


def test_a_process_that_finds_compiled_loops_needs_less_time_to_its_first_rows() -> None:
    compiled, loaded = start_up.run(lambda text: None, rounds=1, only="in process")
    assert (compiled["loops"], loaded["loops"]) == ("compiled", "loaded")
    assert all(each[lap] > 0 for each in (compiled, loaded) for lap in ("import", "first"))
    assert compiled["first"] > loaded["first"]


def test_a_case_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        start_up.main(["--only", "flink"])
    assert "no case begins with 'flink': there are in process" in capsys.readouterr().err
