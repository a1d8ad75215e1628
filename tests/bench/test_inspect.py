"""The cost of being looked at: all variants do the same work."""

import json

import pytest

from jeton.cli import main
from jeton_evaluation.bench.inspect import VARIANTS, looked_at


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
