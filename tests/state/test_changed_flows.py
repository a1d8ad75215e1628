"""Snapshots and flows that have changed: state goes to the operator that it is of, or nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import jeton as jt
from jeton.errors import GraphError, SnapshotError
from jeton.storage.checkpoints import Checkpoints

Program: TypeAlias = Callable[[jt.Stream], dict[str, jt.Stream]]

BEFORE = {"time": [0, 0, 1, 2], "k": [1, 1, 2, 1], "v": [5, 6, 7, 8]}
AFTER = {"time": [9, 9], "k": [1, 2], "v": [5, 7]}


def flow_of(program: Program) -> jt.Flow:
    flow = jt.Flow("changing")
    for name, stream in program(flow.input("in")).items():
        flow.output(name, stream)
    return flow


def taken(program: Program) -> jt.state.Snapshot:
    with flow_of(program).open(workers=2) as run:
        run.input("in").send(BEFORE)
        run.run_to_rest()
        return run.snapshot()


def gone_on(program: Program, snapshot: jt.state.Snapshot) -> dict[str, list[Any]]:
    with flow_of(program).open(workers=3, restore=snapshot) as run:
        run.input("in").send(AFTER)
        result = run.finish()
    return {name: sorted(tuple(r.values()) for r in result[name].to_pylist()) for name in result}


def through_files(snapshot: jt.state.Snapshot, path: Path) -> jt.state.Snapshot:
    store = Checkpoints(path)
    part = store.write_part(0, 0, snapshot.operators)
    return store.commit(0, [part], flow=snapshot.flow).share(0, 1)


def odd(stream: jt.Stream) -> jt.Stream:
    return stream.filter(lambda batch: batch["v"] % 2 == 1)


def one(rows: jt.Stream) -> dict[str, jt.Stream]:
    return {"odd": odd(rows).key_by("k").running().count()}


def one_more_before(rows: jt.Stream) -> dict[str, jt.Stream]:
    return {"all": rows.key_by("k").running().count(), **one(rows)}


def one_more_behind(rows: jt.Stream) -> dict[str, jt.Stream]:
    return {**one(rows), "all": rows.key_by("k").running().count()}


ODD_GOES_ON = [(9, 1, 5, 2), (9, 2, 7, 2)]
ALL_ANEW = [(9, 1, 5, 1), (9, 2, 7, 1)]


@pytest.mark.parametrize("files", [False, True])
def test_an_operator_before_another_of_its_name_does_not_take_its_state(
    files: bool, tmp_path: Path
) -> None:
    snapshot = taken(one)
    if files:
        snapshot = through_files(snapshot, tmp_path)
    with pytest.raises(SnapshotError, match=r"cannot be matched.*1 called like.*named\('count'\)"):
        gone_on(one_more_before, snapshot)


def test_an_operator_behind_another_of_its_name_starts_empty() -> None:
    found = gone_on(one_more_behind, taken(one))
    assert found == {"odd": ODD_GOES_ON, "all": ALL_ANEW}


def test_the_first_of_two_cannot_be_removed_unseen() -> None:
    snapshot = taken(one_more_before)
    with pytest.raises(SnapshotError, match=r"no operators \['count-2'\].*without\('count-2'\)"):
        gone_on(one, snapshot)
    with pytest.raises(SnapshotError, match="cannot be matched by their names"):
        gone_on(one, snapshot.without("count-2"))


def test_named_operators_may_come_in_any_order() -> None:
    def first(rows: jt.Stream) -> dict[str, jt.Stream]:
        return {
            "odd": odd(rows).named("odd").key_by("k").running().count(),
            "all": rows.key_by("k").named("all").running().count(),
        }

    def second(rows: jt.Stream) -> dict[str, jt.Stream]:
        more = rows.key_by("v").running().count()
        return {"more": more, **dict(reversed(first(rows).items()))}

    found = gone_on(second, taken(first))
    assert found["odd"] == ODD_GOES_ON
    assert found["all"] == [(9, 1, 5, 4), (9, 2, 7, 2)]


def test_an_old_name_can_be_given_to_the_operator_that_it_was() -> None:
    def program(rows: jt.Stream) -> dict[str, jt.Stream]:
        return {
            "all": rows.named("all").key_by("k").running().count(),
            "odd": odd(rows).named("count").key_by("k").running().count(),
        }

    assert gone_on(program, taken(one)) == {"odd": ODD_GOES_ON, "all": ALL_ANEW}


def test_something_may_come_in_between() -> None:
    def program(rows: jt.Stream) -> dict[str, jt.Stream]:
        return {"odd": odd(rows).map(lambda batch: batch).key_by("k").running().count()}

    assert gone_on(program, taken(one)) == {"odd": ODD_GOES_ON}


def test_a_name_is_for_one_operator() -> None:
    rows = jt.Flow("twice").input("in").named("mine")
    rows.map(lambda batch: batch)
    with pytest.raises(GraphError, match="there is an operator 'mine' already"):
        rows.filter(lambda batch: batch["n"] > 0)


def keyed(**aggregates: jt.agg.Aggregate) -> Program:
    return lambda rows: {"x": rows.key_by("k").running().aggregate(**aggregates)}


def windowed(window: Callable[[jt.KeyedStream], Any]) -> Program:
    return lambda rows: {"x": window(rows.key_by("k")).count()}


def stepping(key: str) -> Program:
    def step(state: int, row: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
        return state + 1, [{"n": state}]

    return lambda rows: {"x": rows.key_by(key).stateful_map(step, 0)}


CHANGES: dict[str, tuple[Program, Program, str]] = {
    "another key": (
        lambda rows: {"x": rows.key_by("k").distinct()},
        lambda rows: {"x": rows.key_by("v").distinct()},
        "'distinct by k'.*'distinct by v'",
    ),
    "another column": (keyed(s=jt.agg.sum("v")), keyed(s=jt.agg.sum("k")), r"sum\(v\).*sum\(k\)"),
    "one aggregate more": (
        keyed(n=jt.agg.count()),
        keyed(n=jt.agg.count(), m=jt.agg.count("v")),
        r"n=count\(\)'.*m=count\(v\)",
    ),
    "longer windows": (
        windowed(lambda rows: rows.tumbling(10)),
        windowed(lambda rows: rows.tumbling(25)),
        "'tumbling 10.*'tumbling 25",
    ),
    "no windows": (
        windowed(lambda rows: rows.tumbling(10)),
        windowed(lambda rows: rows.each_time()),
        "'tumbling 10.*'each time by k",
    ),
    "other sessions": (
        windowed(lambda rows: rows.session_window(20)),
        windowed(lambda rows: rows.session_window(5)),
        "'session 20.*'session 5",
    ),
    "another key of waiting records": (stepping("k"), stepping("v"), "by k'.*by v'"),
    "another k": (
        lambda rows: {"x": rows.key_by("k").tumbling(10).top_k(1, by="v")},
        lambda rows: {"x": rows.key_by("k").tumbling(10).top_k(2, by="v")},
        "'1 with the greatest v.*'2 with the greatest v",
    ),
    "another interval": (
        lambda rows: {"x": rows.key_by("k").interval_join(rows.key_by("k"), 0, 10)},
        lambda rows: {"x": rows.key_by("k").interval_join(rows.key_by("k"), 0, 99)},
        "from 0 to 10.*from 0 to 99",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_state_of_something_else_is_refused(change: str) -> None:
    before, after, text = CHANGES[change]
    snapshot = taken(before)
    assert gone_on(before, snapshot)
    with pytest.raises(SnapshotError, match=text):
        gone_on(after, snapshot)


def test_records_that_wait_are_not_lost_unseen() -> None:
    snapshot = taken(lambda rows: {"x": rows.key_by("k").running(ordered=True).count()})

    def at_once(rows: jt.Stream) -> dict[str, jt.Stream]:
        return {"x": rows.key_by("k").running().count()}

    with pytest.raises(SnapshotError, match=r"rows of 'waiting'.*without\('count/waiting'\)"):
        gone_on(at_once, snapshot)
    assert gone_on(at_once, snapshot.without("count/waiting")) == {"x": ALL_ANEW}


def test_an_operator_without_rows_may_go() -> None:
    def program(rows: jt.Stream) -> dict[str, jt.Stream]:
        nothing = rows.filter(lambda batch: batch["v"] > 99)
        return {**one(rows), "none": nothing.key_by("k").distinct()}

    assert gone_on(one, taken(program)) == {"odd": ODD_GOES_ON}
