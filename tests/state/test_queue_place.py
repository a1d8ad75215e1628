"""Records that wait are found again on the worker that owns their key, on any number of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import jeton as jt
from jeton.errors import SnapshotError
from jeton.idioms.priority import Agenda, HeapAgenda

Make = Callable[[jt.OperatorInfo], Any]


def alerting(make: Make, pact: jt.Pact | None) -> jt.Flow:
    """Every second record of a key, in order of time: what waits and what is counted must meet."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        waiting, counts = make(info), jt.state.KeyedValues[int]()
        info.keep(waiting, token, name="waiting")
        info.keep(counts, name="counts")
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                waiting.push(ref, batch)
            if isinstance(waiting, jt.state.RecordQueue):
                complete = [(waiting.right_for(t), b) for t, b in waiting.pop(input.frontier)]
            else:
                complete = waiting.pop_before(input.frontier)
            for right, batch in complete:
                for row in batch.rows():
                    counts[row["key"]] = counts.get(row["key"], 0) + 1
                    if counts[row["key"]] % 2 == 0:
                        output.session(right, row["time"]).give(key=row["key"])
            if isinstance(waiting, jt.state.RecordQueue):
                waiting.settle()

        return step

    flow = jt.Flow("alerts")
    flow.output("alerts", flow.input("rows").unary_frontier(build, pact=pact))
    return flow


def alerts(flow: jt.Flow, before: int, after: int) -> list[tuple[int, int]]:
    """The output if the run is stopped half way, and goes on with other workers."""
    rows = {"time": [time for time in range(2) for _ in range(20)], "key": [*range(20)] * 2}
    with flow.open(workers=before) as run:
        run.input("rows").send(rows)
        for worker in range(before):
            run.input("rows", worker).advance_to(1)
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(workers=after, restore=snapshot) as run:
        run.input("rows").send({"time": [2] * 20, "key": [*range(20)]})
        found = run.finish()["alerts"].to_pylist()
    return sorted((row["time"], row["key"]) for row in found)


WAITING: dict[str, Make] = {
    "queue": lambda info: jt.state.RecordQueue(info.kind),
    "agenda": lambda info: Agenda(info.kind),
    "heap": lambda info: HeapAgenda(info.kind),
}


@pytest.mark.parametrize("make", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 1), (2, 3)])
def test_the_key_is_that_of_the_pact(make: Make, before: int, after: int) -> None:
    flow = alerting(make, jt.Exchange("key"))
    assert alerts(flow, before, after) == [(1, key) for key in range(20)]


def test_functions_of_records_and_one_worker_for_all_are_keys_too() -> None:
    for pact in (jt.Exchange(lambda batch: batch["key"]), jt.Gather()):
        flow = alerting(WAITING["queue"], pact)
        assert alerts(flow, 2, 3) == [(1, key) for key in range(20)]


def test_what_has_no_known_place_is_refused() -> None:
    flow = alerting(WAITING["queue"], jt.Broadcast())
    with pytest.raises(SnapshotError, match=r"come by Broadcast\(\).*RecordQueue\(info.kind"):
        alerts(flow, 2, 3)

    class Wrapped(jt.state.RecordQueue):
        def placed_by(self, pacts: Any) -> None:
            """Nothing is passed on."""

    flow = alerting(lambda info: Wrapped(info.kind), jt.Exchange("key"))
    with pytest.raises(SnapshotError, match=r"not itself given to info\.keep"):
        alerts(flow, 2, 3)
    # With a key of its own it needs no pact.
    flow = alerting(lambda info: Wrapped(info.kind, ["key"]), jt.Exchange("key"))
    assert len(alerts(flow, 2, 3)) == 20


def test_columns_that_are_gone_are_named() -> None:
    class Renamed(jt.state.RecordQueue):
        def push(self, right: Any, batch: jt.Batch) -> None:
            super().push(right, jt.Batch({"other": batch["key"]}, batch.times))

    flow = alerting(lambda info: Renamed(info.kind), jt.Exchange("key"))
    with flow.open(workers=2) as run:
        run.input("rows").send({"time": [5], "key": [1]})
        run.run_to_rest()
        with pytest.raises(SnapshotError, match="no column 'key', by which"):
            run.snapshot()
