"""The sweep: every planned run is run once, and an interrupted sweep resumes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jeton.cli import main
from jeton_evaluation.bench import plan, sweep
from jeton_evaluation.bench.claims import CLAIMS
from jeton_evaluation.bench.experiment import Host
from jeton_evaluation.bench.figures import draw_all
from jeton_evaluation.bench.plan import FULL, PARTS, QUICK, Run
from jeton_evaluation.bench.runs import Runs, machine, read_lines, same_machine
from tests.bench.synthetic import everything

TINY = replace(
    QUICK,
    seconds=0.05,
    warm_up=0.02,
    workers=(1,),
    rates=(20_000.0,),
    memory_records=2_000,
    traffic_sizes=(2, 3),
    traffic_lengths=(2,),
)


def synthetic(name: str, workers: int = 1, log: list[str] | None = None) -> Run:
    def measure(host: Host) -> dict[str, Any]:
        if log is not None:
            log.append(name)
        return {"experiment": "synthetic", "workers": host.workers}

    return Run(name, workers, 1.0, measure)


def run(runs: list[Run], out: Path) -> int:
    return sweep.sweep(runs, out, read_lines(out), "in-process")


def test_the_plan_covers_the_paper() -> None:
    runs = plan.plan(FULL)
    names = [each.id for each in runs]
    assert len(names) == len(set(names))
    for mechanism in plan.PAPER:
        for quantum in range(8, 17):
            for rate in (4_000_000, 8_000_000):
                assert f"wordcount/{mechanism}/2^{quantum}ns/{rate}/w2/5s" in names
        for workers, strong in ((1, 16_000_000), (2, 8_000_000)):
            for quantum in (8, 16):
                assert f"wordcount/{mechanism}/2^{quantum}ns/2000000/w{workers}/5s" in names
                assert f"wordcount/{mechanism}/2^{quantum}ns/{strong}/w{workers}/5s" in names
        for quantum in (8, 12, 16):
            assert f"wordcount/{mechanism}/2^{quantum}ns/most/w2/5s" in names
        for query in ("q4", "q7"):
            assert f"nexmark/{query}/{mechanism}/2000000/w2/5s" in names
    for mechanism in (*plan.PAPER, "watermarks-p"):
        for rate in (15_258, 244_140):
            for length in (8, 16, 32, 64, 128, 256):
                assert f"chain/{mechanism}/{length}/{rate}/w2/5s" in names
            assert f"chain/{mechanism}/256/{rate}/w1/5s" in names


def test_each_part_alone_is_complete() -> None:
    """Strong scaling shares runs with the figure of quanta."""
    alone = {run.id for run in plan.plan(FULL, ["scaling"])}
    assert "wordcount/tokens/2^8ns/8000000/w2/5s" in alone
    assert alone & {run.id for run in plan.plan(FULL, ["wordcount"])}
    together = {run.id for part in PARTS for run in plan.plan(FULL, [part])}
    assert together == {run.id for run in plan.plan(FULL)}


def test_runs_of_the_plan_write_lines_that_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that runs without Spark, at a size that only shows the shape of a line."""
    for name in ("HIGH", "WEAK", "MODERATE_TIMES", "MANY_TIMES"):
        monkeypatch.setattr(plan, name, 20_000.0)
    monkeypatch.setattr(plan, "STRONG", 20_000.0)
    monkeypatch.setattr(plan, "LONGEST", 4)
    scale = replace(TINY, lengths=(2, 4), sustained=(), nexmark_totals=(2_000.0,), quanta=(8, 16))
    wanted = plan.plan(scale, ["wordcount", "chain", "scaling", "nexmark", "traffic"])
    kept = [run for run in wanted if "tokens" in run.id]
    out = tmp_path / "runs.jsonl"
    assert run(kept, out) == 0
    runs = Runs.read(out)
    assert {line["run"] for line in runs.lines if "run" in line} == {run.id for run in kept}
    known = {line["experiment"]: line for line in everything() if "sustained" not in line}
    for line in runs.lines:
        if line["experiment"] != "machine":
            assert known[line["experiment"]].keys() <= line.keys()
    assert {path.stem for path in draw_all(runs, tmp_path)} >= {"traffic"}
    assert all(claim.judge(runs)[0] for claim in CLAIMS)


def test_memory_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    [first, *_] = plan.plan(TINY, ["memory"])
    out = tmp_path / "runs.jsonl"
    assert run([first], out) == 0
    line = read_lines(out)[-1]
    assert (line["experiment"], line["flow_control"], line["records"]) == ("memory", "without", 20)


def test_a_search_gives_the_highest_rate(tmp_path: Path) -> None:
    scale = replace(TINY, quanta=(), sustained=(("tokens", 16, 1),))
    [search] = plan.plan(scale, ["wordcount"])
    seen = []

    def once(program: Any, load: Any, host: Host, about: Any, say: Any) -> dict[str, Any]:
        seen.append((load.rate, load.quantum))
        return {**about, "sustained": True}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "search", once)
        assert run([search], tmp_path / "runs.jsonl") == 0
    assert seen == [(4e6, 1 << 16)]
    assert read_lines(tmp_path / "runs.jsonl")[-1]["sustained"]


def test_the_machine_is_described_once_at_the_head(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "runs.jsonl"
    run([synthetic("a")], out)
    run([synthetic("b")], out)
    lines = read_lines(out)
    assert [line["experiment"] for line in lines] == ["machine", "synthetic", "synthetic"]
    assert {"cpu", "cores", "memory_gb", "os", "python", "java", "pyspark", "numpy", "numba"} <= (
        lines[0].keys()
    )


def test_another_machine_is_described_too(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    elsewhere = {**machine(), "cpu": "another"}
    out.write_text(json.dumps(elsewhere) + "\n")
    run([synthetic("a")], out)
    assert [line["experiment"] for line in read_lines(out)] == ["machine", "machine", "synthetic"]
    assert not same_machine(elsewhere, machine())


def test_an_interrupted_sweep_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "runs.jsonl"
    log: list[str] = []
    runs = [synthetic(name, log=log) for name in ("a", "b")]

    def killed(_: Host) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "plan", lambda *_: [runs[0], Run("b", 1, 1.0, killed)])
    options = ["bench", "sweep", "--out", str(out), "--host", "in-process"]
    assert main(options) == 130
    with out.open("a") as file:
        file.write('{"run": "b", "experi')  # killed in the middle of a line
    monkeypatch.setattr(sweep, "plan", lambda *_: runs)
    assert main(options) == 0
    assert [line.get("run") for line in read_lines(out)] == [None, "a", "b"]
    assert main(options) == 0
    assert log == ["a", "b"]
    assert main([*options, "--again"]) == 0
    assert log == ["a", "b", "a", "b"]
    assert len(Runs.read(out).where("synthetic")) == 2


def test_a_run_that_fails_is_reported_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs.jsonl"

    def bad(_: Host) -> dict[str, Any]:
        raise ValueError("bad input")

    assert run([Run("bad", 1, 1.0, bad), synthetic("good")], out) == 1
    assert [line.get("run") for line in read_lines(out)] == [None, "good"]
    assert "bad: ValueError: bad input" in capsys.readouterr().err


def test_runs_of_as_many_workers_share_a_host(tmp_path: Path) -> None:
    hosts = []

    def measure(host: Host) -> dict[str, Any]:
        hosts.append((host.workers, id(host)))
        return {}

    runs = [Run(f"{n}", n % 2 + 1, 1.0, measure) for n in range(6)]
    assert run(runs, tmp_path / "runs.jsonl") == 0
    assert [workers for workers, _ in hosts] == [1, 1, 1, 2, 2, 2]
    assert len(set(hosts)) == 2


def test_parts_can_be_chosen_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs.jsonl"
    options = ["bench", "sweep", "--quick", "--list", "--out", str(out)]
    assert main([*options, "--only", "idle,memory"]) == 0
    listed = capsys.readouterr().out
    assert "idle/w2/5s" in listed
    assert "memory/with/1000000" in listed
    assert "wordcount" not in listed
    assert main([*options, "--only", "idle", "--host", "in-process"]) == 0
    assert "0 runs" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*options, "--only", "everything"])
    assert "choose from wordcount" in capsys.readouterr().err
    assert not out.exists()
