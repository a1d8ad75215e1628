"""The examples, run by their paths and compared with independent computations."""

from __future__ import annotations

import random
import re
import runpy
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import EXAMPLES, load


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_runs_and_prints_something(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_word_count(workers: int) -> None:
    example = load("word_count")
    result = example.word_count(10).run({"lines": example.LINES}, workers=workers, seed=workers)
    words: Counter[str] = Counter()
    windows: dict[int, Counter[str]] = defaultdict(Counter)
    for time, line in zip(*example.LINES.values(), strict=True):
        found = re.findall("[a-z]+", line.lower())
        words.update(found)
        windows[(time // 10 + 1) * 10].update(found)
    last = {row["word"]: 0 for row in result["counts"].to_pylist()}
    for row in result["counts"].to_pylist():
        last[row["word"]] = max(last[row["word"]], row["count"])
    assert last == words
    for end, counts in windows.items():
        top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:3]
        rows = [row for row in result["top"].to_pylist() if row["time"] == end]
        assert [(row["word"], row["count"], row["rank"]) for row in rows] == [
            (word, count, rank) for rank, (word, count) in enumerate(top, start=1)
        ]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_session_timeout(workers: int) -> None:
    example = load("session_timeout")
    data = example.clicks(300)
    result = example.shop().run({"clicks": data}, workers=workers, seed=workers)["left"]
    by_visitor: dict[str, list[Any]] = defaultdict(list)
    # Of clicks at the same time, the payment comes last: by its page.
    for at, who, page in sorted(zip(*data.values(), strict=True)):
        by_visitor[who].append((at, page))
    expected = []
    for who, visits in by_visitor.items():
        for (at, page), after in zip(visits, [*visits[1:], None], strict=True):
            if page != "paid" and (after is None or after[0] > at + example.TIMEOUT):
                expected.append((at + example.TIMEOUT, who, page, at))
    assert len(expected) > 20
    found = [
        tuple(row[name] for name in ("at", "who", "page", "since")) for row in result.to_pylist()
    ]
    assert sorted(found) == sorted(expected)


def by(rows: list[dict[str, Any]], *key: str, value: str) -> dict[Any, Any]:
    found = {tuple(row[name] for name in key): row[value] for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_windows(workers: int) -> None:
    example = load("windows")
    reports = example.reports(300)
    assert reports["ended"] != sorted(reports["ended"])
    result = example.taxis().run({"rides": reports}, workers=workers, seed=workers)
    assert result.late == {"rides": 0}
    assert result["late"].num_rows == 0
    rides = [dict(zip(reports, row, strict=True)) for row in zip(*reports.values(), strict=True)]

    def grouped(
        ends: Callable[[dict[str, Any]], list[int]], how: Callable[[list[float]], float]
    ) -> dict[Any, float]:
        groups: dict[Any, list[float]] = defaultdict(list)
        for ride in rides:
            for end in ends(ride):
                groups[end, ride["taxi"]].append(ride["fare"])
        return {key: how(fares) for key, fares in groups.items()}

    rows = {name: result[name].to_pylist() for name in result}
    hourly = grouped(lambda ride: [(ride["ended"] // 60 + 1) * 60], sum)
    assert by(rows["hourly"], "ended", "taxi", value="earned") == hourly
    assert sum(row["rides"] for row in rows["hourly"]) == len(rides)
    last = max(ride["ended"] for ride in rides)
    best = grouped(
        lambda ride: [e for e in range(0, last + 180, 60) if e - 120 <= ride["ended"] < e], max
    )
    assert by(rows["best"], "ended", "taxi", value="fare") == best
    income: dict[Any, float] = defaultdict(float)
    for ride in rides:
        income[(ride["paid"],)] += ride["fare"]
    assert by(rows["income"], "ended", value="income") == income
    shifts = {}
    for taxi in "ABC":
        start, earned, before = 0, 0.0, -1000
        for ride in sorted((r for r in rides if r["taxi"] == taxi), key=lambda r: r["ended"]):
            if ride["ended"] - before >= 45:
                start, earned = ride["ended"], 0.0
            earned, before = earned + ride["fare"], ride["ended"]
            shifts[taxi, start] = (before + 45, earned)
    found = {(r["taxi"], r["start"]): (r["ended"], r["earned"]) for r in rows["shifts"]}
    assert found == shifts


def steps_of(n: int) -> int:
    steps = 0
    while n != 1:
        n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
    return steps


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_loops(workers: int, seed: int | None) -> None:
    rng = random.Random(workers)
    pairs = {(rng.randrange(25), rng.randrange(25)) for _ in range(30)}
    edges = sorted((a, b) for a, b in pairs if a != b)
    # Every node has a link, so that no rank is lost.
    edges += [(b, a) for a, b in edges if b not in {start for start, _ in edges}]
    edges = sorted(set(edges))
    numbers = list(range(1, 30))
    inputs = {
        "numbers": {"time": [0] * 29, "n": numbers},
        "edges": {
            "time": [0] * len(edges),
            "node": [a for a, _ in edges],
            "to": [b for _, b in edges],
        },
    }
    result = load("loops").loops().run(inputs, workers=workers, seed=seed)
    rows = {name: result[name].to_pylist() for name in result}

    steps = {(n,): steps_of(n) for n in numbers}
    assert by(rows["steps"], "start", value="step") == steps
    remaining = {
        (step,): sum(taken >= step for taken in steps.values())
        for step in range(max(steps.values()) + 1)
    }
    assert by(rows["remaining"], "step", value="numbers") == remaining

    nodes = sorted({node for edge in edges for node in edge})
    label = {node: node for node in nodes}
    for _ in nodes:
        for a, b in edges:
            label[a] = label[b] = min(label[a], label[b])
    assert by(rows["components"], "node", value="label") == {(n,): label[n] for n in nodes}

    place = {node: at for at, node in enumerate(nodes)}
    matrix = np.zeros((len(nodes), len(nodes)))
    for a, b in edges:
        matrix[place[b], place[a]] = 1 / sum(start == a for start, _ in edges)
    rank = np.ones(len(nodes))
    for _ in range(20):
        rank = 0.15 + 0.85 * matrix @ rank
    found = by(rows["ranks"], "node", value="rank")
    assert np.allclose([found[(node,)] for node in nodes], rank)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_flow_control(workers: int) -> None:
    ranges = {"time": [1, 2], "start": [1, 700], "stop": [60_000, 30_000]}
    found = load("flow_control").divisors().run({"ranges": ranges}, workers=workers)["found"]
    expected = []
    for time, start, stop in zip(*ranges.values(), strict=True):
        for n in range(start, stop):
            divisors = sum(n % d == 0 for d in range(1, 21))
            if divisors >= 15:
                expected.append({"time": time, "n": n, "divisors": divisors})
    assert sorted(found.to_pylist(), key=lambda row: (row["time"], row["n"])) == expected


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_shared_index(workers: int, seed: int | None) -> None:
    example = load("shared_index")
    result = example.company().run(example.INPUTS, workers=workers, seed=seed)
    shipped = {(row["day"], row["version"], row["who"]) for row in result["shipped"].to_pylist()}
    assert shipped == {(5, "1.0", "Ann"), (5, "1.0", "Bob"), (12, "1.1", "Ann")}
    paged = {(row["day"], row["part"], row["who"]) for row in result["paged"].to_pylist()}
    assert paged == {(9, "login", "Cleo"), (11, "login", "Cleo"), (11, "login", "Bob")}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_priority(workers: int, seed: int | None) -> None:
    example = load("priority")
    rng = random.Random(workers)
    made = [(rng.randrange(60), rng.choice("ABC"), rng.randrange(25)) for _ in range(30)]
    payments: dict[str, list[Any]] = {
        "time": [time for time, _, _ in made],
        "plate": [plate for _, plate, _ in made],
        "until": [time + wait for time, _, wait in made],
    }
    result = example.parking().run({"payments": payments}, workers=workers, seed=seed)
    expected = []
    for time in range(90):
        for plate in "ABC":
            until = [at + wait for at, who, wait in made if who == plate and at <= time]
            if until and max(until) == time:
                expected.append((time, plate))
    found = [(row["time"], row["plate"]) for row in result["tickets"].to_pylist()]
    assert sorted(found) == expected
    assert result["ends"]["time"].to_pylist() == sorted(payments["until"])


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_migration(workers: int, seed: int | None) -> None:
    example = load("migration")
    rng = random.Random(workers)
    made = sorted((rng.randrange(40), rng.choice("ABC"), rng.randrange(25)) for _ in range(30))
    purchases = dict(zip(("time", "customer", "price"), zip(*made, strict=True), strict=True))
    inputs = {"purchases": purchases, "moves": example.MOVE}
    result = example.shop().run(inputs, workers=workers, seed=seed)["baskets"]
    expected = sorted(
        (time + 8, who, sum(price for at, by, price in made if by == who and at <= time + 8))
        for time, who, _ in made
    )
    assert sorted(zip(*result.to_pydict().values(), strict=True)) == expected


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_async_lookup(workers: int) -> None:
    example = load("async_lookup")
    result = example.lookup().run({"orders": example.ORDERS}, workers=workers, seed=workers)
    totals: dict[Any, float] = defaultdict(float)
    unknown = []
    for time, user, price in zip(*example.ORDERS.values(), strict=True):
        if user in example.COUNTRIES:
            totals[(time // 60 + 1) * 60, example.COUNTRIES[user]] += price
        else:
            unknown.append((time, user, "KeyError: 9", 3))
    assert by(result["totals"].to_pylist(), "time", "country", value="total") == totals
    rejected = result["rejected"].to_pylist()
    assert [(r["time"], r["user"], r["error"], r["attempts"]) for r in rejected] == unknown
    assert by(result["orders"].to_pylist(), "time", value="count") == {
        (60,): 4,
        (120,): 3,
        (180,): 1,
    }


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("mode", ["strict", "relaxed"])
def test_notifications(workers: int, mode: str) -> None:
    example = load("notifications")
    result = example.longest_words(mode).run({"words": example.WORDS}, workers=workers, seed=1)
    by_time = defaultdict(list)
    for time, word in zip(*example.WORDS.values(), strict=True):
        by_time[time].append(word)
    expected = [
        {"time": time, "longest": sorted(words, key=lambda word: (-len(word), word))[0]}
        for time, words in sorted(by_time.items())
    ]
    assert result["longest"].to_pylist() == expected


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_watermarks(workers: int) -> None:
    example = load("watermarks")
    result = example.averages().run({"readings": example.READINGS}, workers=workers, seed=workers)
    rooms = defaultdict(list)
    for ts, room, degrees in zip(*example.READINGS.values(), strict=True):
        rooms[(ts // 10 + 1) * 10, room].append(degrees)
    expected = {key: sum(values) / len(values) for key, values in rooms.items()}
    found = {(row["ts"], row["room"]): row["mean"] for row in result["means"].to_pylist()}
    late = {((row["ts"] // 10 + 1) * 10, row["room"]) for row in result["late"].to_pylist()}
    # Which of its readings a window misses is up to the schedule; that none is lost is not.
    assert {key: mean for key, mean in found.items() if key not in late} == {
        key: mean for key, mean in expected.items() if key not in late
    }
    assert found.keys() | late == expected.keys()
