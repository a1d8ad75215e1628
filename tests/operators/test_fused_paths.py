"""Fused loops and chains against the usual ways: keys of integers against the same keys as text.

Small integers take the quick ways through windows, running counts and joins; text takes the others.
So a flow must say the same of both, over batches of any order and size, records that are late,
values with nulls, restarts from snapshots and migrations in between.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from tests.operators.twins import ALL_TIMES

KEY_TYPES = [pa.int64(), pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(),
             pa.uint64()]  # fmt: skip
Attach = Callable[[jt.Flow, Sequence[jt.Stream]], jt.Stream]


def _windows(**aggregates: Any) -> Attach:
    return lambda flow, s: s[0].key_by("key").tumbling(10, offset=3).aggregate(**aggregates)


def _running(**aggregates: Any) -> Attach:
    return lambda flow, s: s[0].key_by("key").running().aggregate(**aggregates)


FLOWS: dict[str, Attach] = {
    "window mean": _windows(out=jt.agg.mean("value")),
    "window sum": _windows(out=jt.agg.sum("value")),
    "window min": _windows(out=jt.agg.min("value")),
    "window max": _windows(out=jt.agg.max("value")),
    "window count": _windows(out=jt.agg.count()),
    "window known": _windows(out=jt.agg.count("value")),
    "window several": _windows(n=jt.agg.count(), out=jt.agg.max("value")),
    "running count": _running(n=jt.agg.count()),
    "running known": _running(n=jt.agg.count("value")),
    "running sum": _running(out=jt.agg.sum("value")),
    "running mean": _running(out=jt.agg.mean("value")),
    "running min": _running(out=jt.agg.min("value")),
    "running decimals": _running(out=jt.agg.sum("value", widen=True)),
    "running several": _running(
        n=jt.agg.count(),
        out=jt.agg.max("value"),
        all=jt.agg.sum("value"),
        mean=jt.agg.mean("value"),
    ),
    "interval join": lambda flow, s: s[0].key_by("key").interval_join(s[1].key_by("key"), -7, 4),
    "join ahead": lambda flow, s: s[0].key_by("key").interval_join(s[1].key_by("key"), 2, 9),
    "join": lambda flow, s: s[0].key_by("key").join(s[1].key_by("key")),
}


@dataclass(frozen=True)
class Act:
    """Something that happens to a run."""

    what: str
    number: int
    rows: tuple[tuple[int, int | None, float | None], ...] = ()
    """Times, keys and values."""


VALUES = st.one_of(
    st.integers(-8, 8).map(lambda n: n / 4), st.sampled_from([-0.0, math.nan, math.inf])
)


def acts(
    least: int, most: int, *, nulls: bool, null_keys: bool = False
) -> st.SearchStrategy[list[Act]]:
    """Batches of keys from ``least`` to ``most`` among progress, restarts and migrations."""
    small = st.integers(0, min(most, 40))
    last = st.one_of(small, st.none()) if null_keys else small
    keys = st.one_of(small, small, last, st.integers(least, most))
    value = st.one_of(VALUES, st.none()) if nulls else VALUES
    row = st.tuples(st.integers(-40, 60), keys, value)
    rows = st.lists(row, min_size=1, max_size=40).map(tuple)
    send = st.builds(Act, st.just("send"), st.integers(0, 5), rows)
    ordered = st.builds(Act, st.just("send in order"), st.integers(0, 5), rows)
    act = st.builds(
        Act,
        st.sampled_from(["advance", "advance", "turn", "restart", "migrate"]),
        st.integers(0, 20),
    )
    return st.lists(st.one_of(send, ordered, ordered, act), min_size=1, max_size=25)


@pytest.mark.parametrize("name", FLOWS)
@settings(max_examples=20)
@given(data=st.data())
def test_integers_and_text_have_the_same_answers(name: str, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KEY_TYPES))
    bits = kind.bit_width
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if pa.types.is_unsigned_integer(kind):
        least, most = 0, 2**bits - 1
    script = data.draw(acts(least, most, nulls=data.draw(st.booleans())))
    value = data.draw(st.sampled_from([pa.float64(), pa.int64(), pa.uint64(), pa.int16()]))
    seed = data.draw(st.integers(0, 1000))
    quick = run_script(FLOWS[name], script, ([kind], value), seed)
    slow = run_script(FLOWS[name], script, ([pa.string()], value), seed)
    assert quick == slow


@pytest.mark.parametrize("name", FLOWS)
@settings(max_examples=10)
@given(data=st.data())
def test_so_have_integers_of_several_types_with_nulls(name: str, data: st.DataObject) -> None:
    script = data.draw(acts(-(2**31), 2**31 - 1, nulls=True, null_keys=data.draw(st.booleans())))
    kinds = [pa.int64(), pa.int64(), data.draw(st.sampled_from([pa.int32(), pa.int64()]))]
    seed = data.draw(st.integers(0, 1000))
    quick = run_script(FLOWS[name], script, (kinds, pa.float64()), seed)
    slow = run_script(FLOWS[name], script, ([pa.string()], pa.float64()), seed)
    assert quick == slow


def run_script(
    attach: Attach,
    script: Sequence[Act],
    types: tuple[Sequence[pa.DataType], pa.DataType],
    seed: int,
) -> Counter[Any]:
    """All rows that come out, with the keys as text; keys go in as of some types, values of one."""
    kinds, value = types
    flow = jt.Flow("twins", time=ALL_TIMES)
    flow.output("out", attach(flow, [flow.input("left"), flow.input("right")]))
    inputs = ("left", "right")
    random = Random(seed)
    workers = random.randint(1, 3)
    run = flow.open(workers=workers)
    found: Counter[Any] = Counter()
    now = -40
    for act in script:
        if act.what == "advance":
            now += act.number
            for name in inputs:
                for worker in range(workers):
                    run.input(name, worker).advance_to(now)
        elif act.what == "turn":
            for _ in range(act.number):
                run.turn()
        elif act.what == "restart":
            run.run_to_rest()
            snapshot = run.snapshot()
            found += _rows(run.results()["out"])
            run.close()
            workers = 1 + act.number % 3
            run = flow.open(workers=workers, restore=snapshot)
            for name in inputs:
                for worker in range(workers):
                    run.input(name, worker).advance_to(now)
        elif act.what == "migrate":
            run.run_to_rest()
            run.migrate(dict.fromkeys(range(0, 256, 3), act.number % workers))
            run.run_to_rest()
        else:
            rows = act.rows
            if act.what == "send in order":
                rows = tuple(sorted(rows, key=lambda row: row[0]))
            # From one worker, so that the records of a key keep their order.
            kind = kinds[act.number % len(kinds)]
            _send(run.input(inputs[act.number % 2]), rows, kind, value)
    result = run.finish()
    found += _rows(result["out"])
    run.close()
    return found


def _send(
    handle: Any,
    rows: Sequence[tuple[int, int | None, float | None]],
    kind: pa.DataType,
    value: pa.DataType,
) -> None:
    times, keys, values = zip(*rows, strict=True)
    if pa.types.is_string(kind):
        keys = tuple(None if key is None else str(key) for key in keys)
    given = values if pa.types.is_floating(value) else [_whole(each, value) for each in values]
    columns = {
        "time": pa.array(times, pa.int64()),
        "key": pa.array(keys, kind),
        "value": pa.array(given, value),
    }
    handle.send(pa.table(columns))


def _whole(value: float | None, kind: pa.DataType) -> int | None:
    """An integer for a value, of which great ones have no exact floating-point number."""
    if value is None:
        return None
    if not math.isfinite(value):
        return (1 << int(kind.bit_width) * 7 // 8) + 1
    return abs(int(4 * value)) if pa.types.is_unsigned_integer(kind) else int(4 * value)


def _rows(table: pa.Table) -> Counter[Any]:
    return Counter(_frozen(row) for row in table.to_pylist())


def _frozen(row: Mapping[str, Any]) -> Any:
    """A row by its bits: zeros of both signs differ."""
    return tuple((name, _bits(name, value)) for name, value in row.items())


def _bits(name: str, value: Any) -> Any:
    if name == "key":
        return str(value)
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("d", value)
    return value


@pytest.mark.parametrize("how", ["sum", "min", "max"])
def test_running_results_of_great_integers_are_exact(how: str) -> None:
    great = 2**53
    values = [[0], [great + 1, 2], [great + 3, -great - 5, great + 7]]
    flow = jt.Flow("great")
    aggregate = getattr(jt.agg, how)("value")
    flow.output("out", flow.input("in").key_by("key").running().aggregate(out=aggregate))
    with flow.open() as run:
        for part in values:
            run.input("in").send({"time": [0] * len(part), "key": [3] * len(part), "value": part})
            run.run_to_rest()
        found = run.finish()["out"]["out"].to_pylist()
    every = [value for part in values for value in part]
    functions: dict[str, Callable[[list[int]], int]] = {"sum": sum, "min": min, "max": max}
    assert found == [functions[how](every[: number + 1]) for number in range(len(every))]


ORDERS: dict[str, Callable[[int, Random], int]] = {
    "in order": lambda number, random: number,
    "backwards": lambda number, random: -number,
    "at random": lambda number, random: random.randrange(10**6),
}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_many_records_of_one_key_in_any_order(order: str, together: bool) -> None:
    """Where chains of rows would be slow, there are sorted runs."""
    random = Random(order)
    rows, piece = 3000, 500
    sides = {}
    for name in ("left", "right"):
        numbers = sorted(range(rows), key=lambda number: ORDERS[order](number, random))
        sides[name] = [number * 3 for number in numbers]
    flow = jt.Flow("one key")
    left, right = (flow.input(name).key_by("key") for name in sides)
    flow.output("out", left.interval_join(right, -4, 8))
    with flow.open() as run:
        pieces = [(name, at) for name in sides for at in range(0, rows, piece)]
        if together:
            pieces.sort(key=lambda each: each[1])
        for name, at in pieces:
            times = sides[name][at : at + piece]
            floats = [float(time) for time in times]
            run.input(name).send({"time": times, "key": [7] * piece, "at": floats})
            run.run_to_rest()
        found = run.finish()["out"]
    columns = (found[name].to_pylist() for name in ("at", "at_right", "time"))
    pairs = Counter(zip(*columns, strict=True))
    assert pairs == Counter(
        (float(time), float(other), max(time, other))
        for time in sides["left"]
        for other in range(time - 3, time + 9, 3)
        if 0 <= other < 3 * rows
    )
