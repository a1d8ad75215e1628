"""`check_source` finds sources that break a promise."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from secrets import randbits
from typing import Any

import pytest

from jeton.connectors.sources import Reader, Source
from jeton.testing import NotConformant, check_source

SHARED = [0]


class Numbers(Source):
    """The numbers below ten, right unless ``wrong`` says otherwise."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.remembered: list[int] = []
        self.lock = threading.Lock() if wrong == "lock" else None

    def partitions(self, workers: int) -> Mapping[str, Any]:
        SHARED[0] = 0
        return {"a": {0, 1}} if self.wrong == "start" else {} if self.wrong == "none" else {"a": 0}

    def discover(self, known: Any) -> Mapping[str, Any]:
        return {"known": {"a": 0}, "new": {"b": 7}}.get(self.wrong, {})

    def open(self, partition: str, position: Any) -> Reader:
        wrong = "behind" if partition == "b" else self.wrong
        return NumbersReader(wrong, position or 0, self.remembered)


class NumbersReader(Reader):
    def __init__(self, wrong: str, position: int, remembered: list[int]) -> None:
        self._wrong = wrong
        self._next = position
        self._remembered = remembered
        self.ended = wrong == "again" and position > 0

    def read(self) -> Any:
        at = SHARED[0] if self._wrong == "shared" and self._next > 4 else self._next
        if self._next >= 10:
            self.ended = self._wrong != "endless"
            return {"time": [99]} if self._wrong == "after" else None
        self._next += 1
        while self._wrong == "memory" and at >= len(self._remembered):
            self._remembered.append(randbits(62))
        SHARED[0] += 1
        self.floor = at + 2 if self._wrong == "floor" else at + 1
        return {"time": [self._remembered[at] if self._wrong == "memory" else at]}

    @property
    def position(self) -> Any:
        if self._wrong == "behind":
            return max(self._next - 1, 0)
        return {"none": None, "json": {self._next}}.get(self._wrong, self._next)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("none", "not names with positions"),
        ("start", "the partitions cannot be kept as JSON"),
        ("known", "known already"),
        ("json", "the position of partition 'a' cannot be kept as JSON"),
        ("behind", "gives other records from position 0 than when it was read first, 10 instead"),
        ("shared", "gives other records from position"),
        ("memory", "gives other records from position"),
        ("lock", "cannot be sent to workers"),
        ("new", "partition 'b' gives other records from position 6"),
        ("again", "gives other records from position 1 than when it was read first, 1 instead of"),
        ("floor", "promised no more records before 2, and gave one at 1"),
        ("after", "has records after its end"),
        ("endless", "has not ended in time"),
    ],
)
def test_a_source_that_breaks_a_promise_is_found(wrong: str, text: str) -> None:
    assert check_source(Numbers()) == 10
    with pytest.raises(NotConformant, match=text):
        check_source(
            Numbers(wrong),
            rows=10 if wrong == "again" else None,
            timeout=0.2 if wrong == "endless" else 60.0,
        )


def test_a_source_without_positions_is_found() -> None:
    class Mute(NumbersReader):
        position = None

    class Silent(Numbers):
        def open(self, partition: str, position: Any) -> Reader:
            return Mute("", 0, [])

    with pytest.raises(NotConformant, match="has no position"):
        check_source(Silent())
