"""How tests of arrangements arrange, what should be found, and an operator that asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.operators.twins import Row

import jeton as jt
from jeton.idioms.arrangement import Arrangement, Reader

MODES: dict[str, dict[str, Any]] = {
    "all": {},
    "diff": {"diff": "diff"},
    "upsert": {"upsert": True},
    "upsert with removals": {"upsert": True, "diff": "diff"},
}
modes = pytest.mark.parametrize("mode", MODES)


def as_of(updates: Sequence[Row], mode: str, key: Any, time: Any) -> list[Any]:
    """The obvious twin: the values of a key at a time, from all updates there ever were."""
    there = [row for row in updates if row["key"] == key and row["time"] <= time]
    if key is None:
        return []
    if mode == "all":
        return [row["value"] for row in there]
    if mode == "diff":
        counts: Counter[Any] = Counter()
        for row in there:
            counts[row["value"]] += row["diff"]
        return [value for value, count in counts.items() for _ in range(count)]
    if not there:
        return []
    signs = mode == "upsert with removals"

    def rank(row: Row) -> Any:
        value = -1 if row["value"] is None else row["value"]
        return row["time"], signs and row["diff"] > 0, value, row["diff"]

    last = max(there, key=rank)
    return [] if signs and last["diff"] <= 0 else [last["value"]]


class Asker:
    """An operator that reads an arrangement and asks when the test wants it to."""

    def __init__(self, flow: jt.Flow, arranged: Arrangement) -> None:
        self.readers: list[Reader] = []
        builder = flow.operator("asker")
        builder.input(flow.input("asker"))
        self._acts: list[Callable[[], None]] = []

        def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Callable[..., None]:
            self.readers.append(arranged.reader(info))

            def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
                for _ in inputs[0]:
                    while self._acts:
                        self._acts.pop()()

            return step

        builder.build(build)

    def ask(self, run: jt.Run, act: Callable[[], None]) -> None:
        self._acts.append(act)
        handle = run.input("asker")
        handle.send({"time": [handle.time], "n": [0]})
        run.run_to_rest()
        assert not self._acts

    def advance(self, run: jt.Run, *since: int) -> None:
        self.ask(run, lambda: self.readers[0].advance(since))

    def lookup(self, run: jt.Run, keys: Sequence[Any], at: int) -> list[tuple[int, Any]]:
        found: list[tuple[int, Any]] = []

        def act() -> None:
            asking, rows = self.readers[0].lookup(jt.Batch({"key": keys}, [0] * len(keys)), at=at)
            if rows is not None:
                found.extend(zip(asking.tolist(), rows["value"].tolist(), strict=True))

        self.ask(run, act)
        return found
