"""The cost of being looked at: all variants do the same work."""

import json

import pytest

from jeton.cli import main
from jeton_evaluation.bench.harness import Line
from jeton_evaluation.bench.inspect import PACED, VARIANTS, looked_at, medians


def test_every_variant_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "inspect", "--rounds", "1", "--batches", "2", "--batch", "100", "--json"]
    assert main(argv) == 0
    lines = json.loads(capsys.readouterr().out)
    assert [line["variant"] for line in lines] == list(VARIANTS)
    assert all(line["rate"] > 0 and line["ratio"] > 0 for line in lines)


@pytest.mark.parametrize(
    ("variant", "measured"), [("no page", False), ("page open", True), ("event log", True)]
)
def test_only_what_is_looked_at_is_measured(variant: str, measured: bool) -> None:
    with looked_at(variant, workers=1) as run:
        operators = run.agents[0].metrics().operators
        assert all((each.seconds is not None) is measured for each in operators)


def test_at_a_rate_each_variant_has_its_median_of_all_rounds() -> None:
    lines: list[Line] = [
        {
            "variant": variant,
            "round": number,
            "rate": 20.0 - number,
            "achieved_per_worker": 1,
            "p50_ms": number,
            "p99_ms": 10 * number,
            "cpu_per_worker": 0.2,
        }
        for number in (1, 7, 3)
        for variant in VARIANTS
    ]
    found = medians(lines)
    assert [line["variant"] for line in found] == list(VARIANTS)
    for line in found:
        assert (line["rate"], line["p50_ms"], line["p99_ms"]) == (17.0, 3, 30)
        assert PACED.row(line).split()[-5:] == ["median", "17.0", "3.000", "30.000", "20%"]
