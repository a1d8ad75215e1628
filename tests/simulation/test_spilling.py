"""Little memory under random schedules: rows are those of a run in which all state is in memory.

State goes to disk and comes back while it moves between workers, while its changes are cut and read
for checkpoints, and when runs crash and go on from what was stored.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.simulation.moving import INTEGERS, campaign
from tests.simulation.test_increments import StoredRun

pytestmark = pytest.mark.filterwarnings("ignore::jeton.errors.UnboundedState")

SPILLING = (
    *("tumbling", "sliding", "sessions", "sessions of own gaps", "until", "each time", "collected"),
    *("statistics", "reduced", "folded", "windows of distinct", "running", "running statistics"),
    *("unordered", "rolling", "rolling rows", "interval join", "later interval join", "asof join"),
    *("join", "cogroup", "top", "distinct", "deduplicate", "delayed", "two in a row", "text"),
    "stateful map",
)
"""Flows of operators whose state can be on disk."""


def stored_campaign(seeds: range, names: list[str]) -> Counter[str]:
    facts: Counter[str] = Counter()
    for seed in seeds:
        run = StoredRun(seed, [names[seed % len(names)]], spills=True)
        try:
            run.run()
        except BaseException as error:
            error.add_note(f"seed {seed}: {run.names}")
            raise
        facts += run.facts
    return facts


def test_little_memory_gives_the_rows_of_enough_memory() -> None:
    facts: Counter[str] = Counter()
    for seed, name in enumerate(SPILLING[::4]):
        facts += campaign(range(seed, seed + 1), [name], spills=True)
    assert facts["brought back"] > 0, facts
    assert facts["migrations"] > 10, facts


def test_checkpoints_of_state_on_disk() -> None:
    facts = stored_campaign(range(5), list(SPILLING[1::5]))
    assert facts["goes on"] > 0, facts
    assert facts["brought back"] > 0, facts


@pytest.mark.long
@pytest.mark.parametrize("name", INTEGERS)
def test_every_operator_with_little_memory(name: str) -> None:
    facts = campaign(range(20), [name], spills=True)
    assert facts["brought back"] > 0 or name not in SPILLING, facts


@pytest.mark.long
@pytest.mark.parametrize("start", range(0, 500, 100))
def test_five_hundred_seeds_of_checkpoints(start: int) -> None:
    facts = stored_campaign(range(start, start + 100), list(SPILLING))
    print(dict(facts))
    assert facts["brought back"] > 100, facts
