"""A memory budget: answers stay the same, state goes to disk, and what cannot be is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jeton as jt
from jeton.errors import BudgetExceeded, GraphError, SnapshotError, UnboundedState
from jeton.runtime.in_process import Run

RECORDS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(-40, 40), st.integers(0, 9)), max_size=120
)
OPERATORS = {
    "tumbling": lambda k: k.tumbling(10).sum("n"),
    "sliding": lambda k: k.sliding(20, every=5).max("n"),
    "sessions": lambda k: k.session_window(3).count(),
    "running": lambda k: k.running(ordered=True).sum("n"),
    "distinct": lambda k: k.distinct(),
    "deduplicate": lambda k: k.deduplicate(within=7),
    "stateful map": lambda k: k.stateful_map(
        lambda total, row: (total + row["n"], [{"total": total + row["n"]}]), 0
    ),
    "rolling": lambda k: k.rolling(rows=2).sum("n"),
    "top": lambda k: k.tumbling(15).top_k(1, "n"),
}


def flow_of(operator: str) -> jt.Flow:
    flow = jt.Flow("bounded", bins=256)
    records = flow.input("records", schema={"k": "int64", "n": "int64"})
    flow.output("out", OPERATORS[operator](records.key_by("k")))
    return flow


def rows(result: Any) -> list[Any]:
    return sorted(tuple(row.values()) for row in result["out"].to_pylist())


def many(keys: int, times: int = 3) -> pa.Table:
    numbers = list(range(keys)) * times
    at = [time for time in range(times) for _ in range(keys)]
    return pa.table({"time": at, "k": numbers, "n": numbers})


def send(run: Run, table: Any, to: int) -> None:
    """Send records to the first worker, and let them be answered up to a time."""
    run.input("records").send(table)
    for worker in range(len(run.workers)):
        run.input("records", worker).advance_to(to)
    run.run_to_rest()


def spilled(run: Run) -> dict[str, int]:
    """The sums of the metrics of all operators and workers that are about state on disk."""
    found = [each for agent in run.agents for each in agent.metrics().operators]
    return {
        "memory_bytes": sum(each.memory_bytes or 0 for each in found),
        "spilled_bytes": sum(each.spilled_bytes or 0 for each in found),
        "spilled_bins": sum(each.spilled_bins or 0 for each in found),
        "spilled_held": sum(each.spilled_held or 0 for each in found),
        "brought_back": sum(each.brought_back or 0 for each in found),
    }


@pytest.mark.parametrize("operator", OPERATORS)
@settings(max_examples=12, deadline=None)
@given(records=RECORDS, budget=st.sampled_from([20_000, 40_000, 100_000]), seed=st.integers(0, 99))
def test_answers_do_not_depend_on_the_budget(
    operator: str, records: list[tuple[int, int, int]], budget: int, seed: int
) -> None:
    table = {name: [row[at] for row in records] for at, name in enumerate(("time", "k", "n"))}
    whole = rows(flow_of(operator).run({"records": table}))
    assert rows(flow_of(operator).run({"records": table}, memory_budget=budget)) == whole
    some = flow_of(operator).run({"records": table}, workers=2, seed=seed, memory_budget=budget)
    assert rows(some) == whole


def test_state_beyond_the_budget_is_on_disk_and_comes_back() -> None:
    table = many(5000)
    with flow_of("running").open(memory_budget="100kB") as run:
        send(run, table, 3)
        found = spilled(run)
        assert 0 < found["memory_bytes"] <= 100 << 10
        assert found["spilled_bytes"] > 50_000
        assert 100 < found["spilled_bins"] < 256
        assert found["brought_back"] > 0
        assert found["spilled_held"] == 0
        run.pause_at(3)
        run.run_to_rest()
        assert (run.state("sum")["container"] == "state").sum() == 5000
        run.resume()
        result = run.finish()
    assert rows(result) == rows(flow_of("running").run({"records": table}))


def test_a_snapshot_has_what_is_on_disk_and_a_restore_is_bounded_too() -> None:
    table = many(5000)
    with flow_of("running").open(workers=2, memory_budget="60kB") as run:
        send(run, table, 3)
        snapshot = run.snapshot()
    assert snapshot.operators["sum"]["state"].num_rows == 5000
    with flow_of("running").open(workers=3, restore=snapshot, memory_budget="60kB") as run:
        found = spilled(run)
        assert found["memory_bytes"] == 0
        assert found["spilled_bins"] == 256
        run.input("records").send({"time": [5, 5], "k": [7, 4999], "n": [1, 1]})
        result = run.finish()["out"].to_pylist()
    assert sorted((row["k"], row["sum"]) for row in result) == [(7, 22), (4999, 14_998)]
    with flow_of("running").open(restore=snapshot) as run:
        run.run_to_rest()
        assert run.snapshot().operators["sum"]["state"].num_rows == 5000


def test_no_snapshot_while_records_wait_for_state_on_disk() -> None:
    with flow_of("running").open(memory_budget="60kB") as run:
        send(run, many(5000, 1), 5)
        run.input("records").send({"time": [5] * 5000, "k": list(range(5000)), "n": [1] * 5000})
        while run.agents[0].step():
            pass
        assert spilled(run)["spilled_held"] > 0
        assert "for state that is on disk" in str(run.why("out"))
        with pytest.raises(SnapshotError, match="at rest"):
            run.snapshot()


def test_a_bin_that_is_larger_than_the_budget_is_an_error() -> None:
    records = {"time": [0] * 4000, "k": [1] * 4000, "n": list(range(4000))}
    flow = jt.Flow("hot", bins=256)
    flow.output("out", flow.input("records").key_by("k").tumbling(10).collect("n"))
    with pytest.raises(BudgetExceeded, match=r"the state of one bin takes about .* more bins"):
        flow.run({"records": records}, memory_budget="8kB")


def test_a_disk_that_takes_nothing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{gone},{tmp_path}")
    with pytest.raises(BudgetExceeded, match=f"cannot be written to {gone}"):
        flow_of("running").run({"records": many(5000)}, memory_budget="60kB")


def test_files_have_no_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    with flow_of("running").open(memory_budget="60kB") as run:
        send(run, many(5000), 3)
        assert spilled(run)["spilled_bytes"] > 0
        assert list(tmp_path.iterdir()) == []


def test_state_that_stays_in_memory_is_said() -> None:
    flow = jt.Flow("python")
    keyed = flow.input("records").key_by("k")
    states = keyed.stateful_map(lambda total, row: (total + 1, []), 0, ttl=5)
    flow.output("out", states)
    with pytest.warns(UnboundedState, match="'stateful_map' stays in memory"):
        flow.run({"records": many(10)}, memory_budget="1GB")


@pytest.mark.filterwarnings("ignore::jeton.errors.UnboundedState")
def test_state_that_cannot_be_on_disk_is_restored_as_a_whole() -> None:
    flow = jt.Flow("python", bins=256)
    keyed = flow.input("records").key_by("k")
    flow.output("out", keyed.stateful_map(lambda n, row: (n + 1, [{"count": n + 1}]), 0, ttl=50))
    with flow.open(workers=2) as run:
        send(run, many(2000, 1), 1)
        run.input("records").send({"time": [3] * 2000, "k": list(range(2000)), "n": [1] * 2000})
        run.run_to_rest()
        snapshot = run.snapshot()
    with flow.open(restore=snapshot, memory_budget="10kB") as run:
        counts = run.finish()["out"]["count"].to_pylist()
    assert counts == [2] * 2000


@pytest.mark.parametrize("budget", ["much", 0, -5, 1.5, True, "2 apples"])
def test_budgets_that_make_no_sense(budget: Any) -> None:
    with pytest.raises(GraphError, match="memory_budget= is a number of bytes"):
        flow_of("running").run({"records": many(1)}, memory_budget=budget)
