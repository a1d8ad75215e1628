"""Checkpoints of flows whose code has changed: operators added, removed, or other ones now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jeton as jt
from jeton.core.errors import SnapshotError
from jeton.storage.checkpoints import Checkpoint, Checkpoints


def counter(token: Any, info: Any) -> Any:
    """Counts the records of each word."""
    token.drop()
    counts: jt.state.KeyedValues[int] = jt.state.KeyedValues()
    info.keep(counts)

    def step(input: Any, output: Any) -> None:
        for ref, batch in input:
            for row in batch.rows():
                counts[row["word"]] = counts.get(row["word"], 0) + 1
                output.session(ref).give(count=counts[row["word"]])

    return step


def counting(*names: str) -> jt.Flow:
    flow = jt.Flow("counting")
    words = flow.input("words")
    for name in names:
        counts = words.unary(counter, pact=jt.Exchange("word"), name=name)
        flow.output(f"{name} out", counts)
    return flow


def stored(flow: jt.Flow, path: Path, workers: int = 2) -> Checkpoint:
    store = Checkpoints(path)
    with flow.open(workers=workers) as run:
        run.input("words").send({"time": [0, 0, 0], "word": ["a", "b", "a"], "n": [1, 2, 3]})
        run.run_to_rest()
        parts = [store.write_part(0, w.index, w.snapshot()) for w in run.workers]
    return store.commit(0, parts, flow=flow.name)


def test_an_added_operator_starts_empty(tmp_path: Path) -> None:
    checkpoint = stored(counting("old"), tmp_path)
    flow = counting("old", "new")
    checkpoint.check(flow)
    with flow.open(restore=checkpoint.share(0, 1)) as run:
        run.input("words").send({"time": [1], "word": ["a"], "n": [1]})
        result = run.finish()
    assert result["old out"]["count"].to_pylist() == [3]
    assert result["new out"]["count"].to_pylist() == [1]


def test_a_removed_operator_must_be_allowed(tmp_path: Path) -> None:
    checkpoint = stored(counting("old", "gone"), tmp_path)
    flow = counting("old", "renamed")
    with pytest.raises(SnapshotError, match=r"\['gone'\].*renamed.*allow_removed=\['gone'\]"):
        checkpoint.check(flow)
    checkpoint.check(flow, allow_removed=["gone"])
    with flow.open(restore=checkpoint.share(0, 1, allow_removed=["gone"])) as run:
        run.input("words").send({"time": [1], "word": ["a"], "n": [1]})
        assert run.finish()["old out"]["count"].to_pylist() == [3]


def windows(key: str, **aggregates: Any) -> jt.Flow:
    flow = jt.Flow("counting")
    flow.output("out", flow.input("words").key_by(key).running().aggregate(**aggregates))
    # All under one name: what differs is what is in it.
    flow.operators[-2].name = "totals"
    return flow


@pytest.mark.parametrize(
    "other",
    [
        windows("n", total=jt.agg.sum("n")),
        windows("word", most=jt.agg.max("n")),
        counting("totals"),
    ],
    ids=["key", "aggregate", "container"],
)
def test_an_operator_with_other_state_is_refused(tmp_path: Path, other: jt.Flow) -> None:
    checkpoint = stored(windows("word", total=jt.agg.sum("n")), tmp_path)
    checkpoint.check(other)
    with pytest.raises(SnapshotError, match=r"(?s)snapshot.*operator 'totals'"):
        other.open(restore=checkpoint.share(0, 1))
