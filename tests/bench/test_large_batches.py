"""Batches larger than memory: right under a hard limit, with peaks below it."""

from __future__ import annotations

import pytest

from jeton_evaluation.bench.large_batches import MAKERS, in_a_child


@pytest.mark.long
@pytest.mark.parametrize("shape", MAKERS)
def test_twice_the_memory_of_all_workers(shape: str) -> None:
    line = in_a_child(shape, limit_mb=512, times=2, workers=2, order="ordered")
    assert line["input_mb"] > 2_000
    assert len(line["peak_mb"]) == 2
    assert max(line["peak_mb"]) < 512
