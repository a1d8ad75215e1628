"""The comparison with other systems: its runner, with small programs instead of peers."""

import ast
import json
import os
import select
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jeton.cli import main
from jeton.cli.versions import modules
from jeton_evaluation.bench import peer_jeton, peers
from jeton_evaluation.bench.peers import (
    PROGRAMS,
    Environment,
    System,
    run_one,
    what_is_wrong,
    write_records,
)

RECORDS = 120_000

HONEST = """
import json, os, sys, time
import numpy as np
variant, program, workers, records, data, out = sys.argv[1:]
names = ("keys", "times", "values")
keys, times, values = (np.load(f"{data}/{name}.npy")[: int(records)] for name in names)
first = time.perf_counter()
if program == "word count":
    counts, rows, total = np.bincount(keys).tolist(), len(keys), 0.0
else:
    means = {}
    for key, at, value in zip(keys.tolist(), times.tolist(), values.tolist()):
        means.setdefault((key, at // 10000), []).append(value)
    counts, rows = [], len(means)
    total = sum(sum(each) / len(each) for each in means.values())
"""

REPORT = """
half = rows // 2
counts = dict(enumerate(counts))
reported = {"first": first, "last": first + 2.0, "rows": half, "counts": counts, "sum": total}
with open(f"{out}/reported-0.json", "w") as file:
    json.dump(reported, file)
reported = {"first": first + 1, "last": first + 4.0, "rows": rows - half, "counts": {}, "sum": 0.0}
with open(f"{out}/reported-1.json", "w") as file:
    json.dump(reported, file)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_records(folder, RECORDS)
    return folder


def system(folder: Path, text: str, name: str = "fake") -> System:
    script = folder / f"{name}.py"
    script.write_text(text)
    return System(name, (str(script),), "1.0", note="by hand")


def run_here(what: System, program: str, data: Path, limit: float = 60) -> dict[str, Any]:
    return run_one(what, program, 2, RECORDS, data=data, environments=data / "envs", limit=limit)


@pytest.mark.parametrize("program", PROGRAMS)
def test_reports_of_the_processes_become_one_line(program: str, data: Path, tmp_path: Path) -> None:
    line = run_here(system(tmp_path, HONEST + REPORT), program, data)
    assert line == {
        "experiment": "peers",
        "system": "fake",
        "program": program,
        "workers": 2,
        "records": RECORDS,
        "seconds": 4.0,
        "records_per_s": RECORDS // 4,
        "correct": True,
        "version": "1.0",
        "note": "by hand",
    }


@pytest.mark.parametrize(
    ("program", "fault", "reported"),
    [
        ("word count", "counts[7] += 1", "1 of 10,000 counts are wrong; by hand"),
        ("word count", "rows -= 1", "119,999 rows, not 120,000; by hand"),
        ("window mean", "rows += 1", " windows, not "),
        ("window mean", "total += 0.5", "the means add up to "),
    ],
)
def test_a_wrong_answer_is_marked_as_wrong(
    program: str, fault: str, reported: str, data: Path, tmp_path: Path
) -> None:
    line = run_here(system(tmp_path, HONEST + fault + REPORT), program, data)
    assert line["correct"] is False
    assert reported in line["note"]
    assert "WRONG: " in peers.table([line])


def test_a_peer_that_emits_keys_now_and_then_need_not_emit_every_record(
    data: Path, tmp_path: Path
) -> None:
    seldom = replace(system(tmp_path, HONEST + "rows = 9" + REPORT), every_record=False)
    assert run_here(seldom, "word count", data)["correct"] is True


def test_a_hang_is_ended_with_all_that_it_started(data: Path, tmp_path: Path) -> None:
    # Both processes hold the pipe open for writing: it ends when neither lives any more.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    hang = f"""
import subprocess, sys, time
held = open({str(pipe)!r}, "w")
wait = [sys.executable, "-c", "import time; time.sleep(60)"]
subprocess.Popen(wait, pass_fds=[held.fileno()])
time.sleep(60)
"""
    try:
        line = run_here(system(tmp_path, hang), "word count", data, limit=3)
        select.select([reader], [], [], 30)
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
    assert line["note"] == "no answer within 3 s"
    assert line["records_per_s"] is None


def test_a_failure_is_reported_with_its_last_output(data: Path, tmp_path: Path) -> None:
    line = run_here(system(tmp_path, "raise SystemExit('no such luck')"), "word count", data)
    assert line["note"] == "failed with code 1: no such luck"
    assert line["correct"] is None
    silent = run_here(system(tmp_path, ""), "word count", data)
    assert silent["note"] == "failed with code 0: it said nothing"
    reported = HONEST + REPORT.replace("+ 2.0", "- 1").replace("+ 4.0", "- 1")
    assert "reported no time" in run_here(system(tmp_path, reported), "word count", data)["note"]


def test_a_peer_that_cannot_be_installed_is_not_available(data: Path, tmp_path: Path) -> None:
    nowhere = Environment("nothing", "0", (str(tmp_path / "nothing-0-py3-none-any.whl"),))
    fake = system(tmp_path, HONEST + REPORT)
    line = run_here(replace(fake, environment=nowhere), "word count", data)
    assert line["note"].startswith("not available: ERROR")
    assert not (data / "envs" / "nothing-0" / "complete").exists()
    row = peers.table([line | {"system": "jeton", "records_per_s": 1e6}, line])
    assert "not available: ERROR" in row


@pytest.mark.long
def test_an_environment_is_made_once_and_again_if_it_was_cut_short(tmp_path: Path) -> None:
    # With a package that pip has nothing to do for: its own.
    env = Environment("pip", "1", ("pip",))
    half = tmp_path / "pip-1" / "leftover"
    half.parent.mkdir()
    half.touch()
    python = env.python(tmp_path)
    assert not half.exists()
    assert subprocess.check_output([python, "-c", "print(6 * 7)"], text=True) == "42\n"
    half.touch()
    assert env.python(tmp_path) == python
    assert half.exists()


def test_all_systems_are_compared_on_all_programs(tmp_path: Path) -> None:
    slow = replace(system(tmp_path, HONEST + REPORT, "slow"), programs=("word count",), share=0.5)
    jeton = system(tmp_path, HONEST + REPORT, "jeton")
    lines = list(peers.compare([jeton, slow], RECORDS, 2, tmp_path, 60))
    assert len(lines) == 2 * (4 + 2)
    assert all(line["correct"] for line in lines)
    text = peers.table(lines)
    assert text.count("jeton 1.0") == 4
    rows = [row.split() for row in text.splitlines() if row.startswith("slow")]
    # Half the records in the same four seconds.
    assert [row[3] for row in rows] == ["2.00", "2.00"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_jetons_own_program_is_right(program: str, data: Path, tmp_path: Path) -> None:
    assert peer_jeton.main(["", program, "1", str(RECORDS), str(data), str(tmp_path)]) == 0
    [reported] = [json.loads(path.read_text()) for path in tmp_path.glob("reported*.json")]
    assert what_is_wrong(peers.SYSTEMS[0], program, RECORDS, data, reported) == ""
    assert reported["last"] >= reported["first"]


def test_records_are_out_of_order_within_a_second(data: Path) -> None:
    times = np.load(data / "times.npy")
    behind = np.maximum.accumulate(times) - times
    assert 900 < behind.max() < 1000
    assert times.min() >= 0


def test_the_command_knows_its_systems(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "peers", "--only", "bytewacks"])
    assert "no system is called bytewacks" in capsys.readouterr().err


@pytest.mark.long
def test_bytewax_for_real(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "lines.json"
    options = ["--only", "bytewax", "--records", "20000", "--json", "--out", str(out)]
    assert main(["bench", "peers", *options]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines == [{**line, "modules": modules()} for line in written]
    assert len(lines) == 3 * 4
    for line in lines:
        assert line["records_per_s"] > 0, line
        # Windows of several Bytewax processes are wrong where one of them runs ahead.
        if line["system"] == "jeton" or line["workers"] == 1 or line["program"] == "word count":
            assert line["correct"], line


def test_programs_of_peers_know_nothing_of_jeton() -> None:
    scripts = list((Path(peers.__file__).parent / "peer_programs").glob("*.py"))
    assert len(scripts) == 4
    for script in scripts:
        tree = ast.parse(script.read_text())
        imported = {alias.name for node in ast.walk(tree) for alias in getattr(node, "names", ())}
        sources = {getattr(node, "module", None) or "" for node in ast.walk(tree)}
        assert not [name for name in imported | sources if name.split(".")[0] == "jeton"]
