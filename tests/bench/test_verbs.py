"""Queries in the library's verbs, beside those by hand: a short run of each form."""

from __future__ import annotations

import pytest

from jeton_evaluation.bench import verbs


def test_both_forms_are_measured() -> None:
    lines = list(
        verbs.run(lambda text: None, query=["q4", "q9"], batch=2_000, events=20_000, rounds=1)
    )
    q4, q9 = lines
    assert q4["rows"] > 0
    assert q4["by_hand_per_s_m"] > 0
    assert q9["by_hand_per_s_m"] is None


def test_options_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--query", "q99"], ["--batch", "0"]):
        with pytest.raises(SystemExit):
            verbs.main(argv)
    assert "there is no query q99" in capsys.readouterr().err
