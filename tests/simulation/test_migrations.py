"""Random migrations under random schedules: rows are those of a run in which nothing moves."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.simulation.moving import INTEGERS, TIMESTAMPED, campaign, random_flow

import jeton
from jeton.dataflow.plan import OperatorInfo


def test_state_that_moves_gives_the_rows_of_a_run_in_which_it_stays() -> None:
    # In 112, records become complete while they are on their way to another worker.
    facts = campaign([*range(25), 112])
    assert facts["migrations"] > 40, facts
    for fact in ("restarts", "crashes", "restored with moved bins", "fluid", "passed"):
        assert facts[fact] > 0, facts


@pytest.mark.parametrize("name", ["delayed", "later pipeline", "distinct in a loop"])
def test_records_that_are_sent_early_and_loops(name: str) -> None:
    assert campaign(range(8), [name])["migrations"] > 10


ELSEWHERE = {
    "jeton.dataflow.operators.spread": "migrate refuses it: see tests/runtime/test_migration.py",
    "jeton.idioms.flow_control": "it keeps how far it is on each worker, not by key",
    "jeton.idioms.migration": "it moves its state itself: see tests/idioms/test_migration.py",
}
"""Modules that keep state which does not move, and why."""


def test_no_operator_that_keeps_state_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calling: set[str] = set()
    keep = OperatorInfo.keep

    def noting(info: OperatorInfo, *args: Any, **named: Any) -> None:
        calling.add(sys._getframe(1).f_globals["__name__"])
        keep(info, *args, **named)

    monkeypatch.setattr(OperatorInfo, "keep", noting)
    for name in (*INTEGERS, *TIMESTAMPED):
        flow, _ = random_flow(Random(0), [name])
        flow.open(workers=1).close()
    root = Path(jeton.__file__).parent
    keeping = {
        f"jeton.{folder.replace('/', '.')}.{path.stem}"
        for folder in ("dataflow/operators", "idioms")
        for path in (root / folder).glob("*.py")
        if any(_keeps(node) for node in ast.walk(ast.parse(path.read_text())))
    }
    assert keeping - calling == set(ELSEWHERE)


def _keeps(node: ast.AST) -> bool:
    """Whether this is a call ``info.keep(…)``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "keep"
        and ast.unparse(node.func.value) in ("info", "self._info")
    )
