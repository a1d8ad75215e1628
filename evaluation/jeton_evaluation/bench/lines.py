"""Lines: what runs of the evaluation have said, one JSON object each, and how to look them up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jeton_evaluation.bench.experiment import Line


class NotMeasuredError(LookupError):
    """The lines that a rule or a figure rests on are not there."""


class Lines:
    """The lines of a sweep, each run's last one.

    >>> lines = Lines(
    ...     [
    ...         {"run": "a", "experiment": "chain", "length": 8, "p50_ms": 2.0},
    ...         {"run": "a", "experiment": "chain", "length": 8, "p50_ms": 0.1},
    ...         {"run": "b", "experiment": "chain", "length": 256, "p50_ms": 0.2},
    ...     ]
    ... )
    >>> lines.one(experiment="chain", length=8)["p50_ms"]
    0.1
    >>> lines.values("length", experiment="chain")
    [8, 256]
    >>> lines.one(experiment="idle")
    Traceback (most recent call last):
        ...
    jeton_evaluation.bench.lines.NotMeasuredError: no line with experiment=idle
    """

    def __init__(self, lines: Iterable[Line]) -> None:
        kept: dict[Any, Line] = {}
        for number, line in enumerate(lines):
            # Lines of other tools may have no run: they all count.
            kept[line.get("run", number)] = line
        self._lines = list(kept.values())

    @staticmethod
    def read(path: Path) -> Lines:
        """The lines of a file; a last line that was cut off in the middle is left out."""
        return Lines(read_lines(path))

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def where(self, **wanted: Any) -> Lines:
        """Those lines whose fields have these values; ``None`` for a field that is not there."""
        return Lines(
            line
            for line in self._lines
            if all(line.get(name) == value for name, value in wanted.items())
        )

    def one(self, **wanted: Any) -> Line:
        """The last such line; raises if there is none."""
        found = self.where(**wanted)._lines
        if not found:
            asked = ", ".join(
                f"{name}={value}" for name, value in wanted.items() if value is not None
            )
            raise NotMeasuredError(f"no line with {asked}")
        return found[-1]

    def some(self, **wanted: Any) -> Lines:
        """All such lines; raises if there are none."""
        self.one(**wanted)
        return self.where(**wanted)

    def values(self, field: str, **wanted: Any) -> list[Any]:
        """The different values of a field among such lines, in order."""
        return sorted({line[field] for line in self.where(**wanted) if field in line})


def read_lines(path: Path) -> list[Line]:
    """What a file has, but for a last line without an end: a sweep was stopped while it wrote."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line]
