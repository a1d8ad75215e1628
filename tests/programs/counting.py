"""Expected word counts and window means, from plain rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from tests.operators.twins import Row


def counted(given: list[Row], key: str = "key") -> list[Row]:
    counts: Counter[Any] = Counter()
    found = []
    for row in sorted(given, key=lambda row: row["time"]):
        counts[row[key]] += 1
        # Of records at the same time, any may be counted first.
        found.append({"time": row["time"], key: row[key], "count": counts[row[key]]})
    return found


def means(given: list[Row], size: int, key: str = "key") -> list[Row]:
    windows: dict[tuple[int, Any], list[float]] = defaultdict(list)
    for row in given:
        windows[(row["time"] // size + 1) * size, row[key]].append(row["value"])
    return [
        {"time": end, key: word, "mean": sum(values) / len(values)}
        for (end, word), values in windows.items()
    ]
