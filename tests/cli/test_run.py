"""`jeton run`: files in, files out, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from jeton.cli import main, targets
from jeton.cli.run import frame_of
from jeton.cli.tables import SUFFIXES, read_table, write_table

FLOWS = str(Path(__file__).with_name("flows_by_name.py"))
TABLE = pa.table({"ts": [3, 12, 7, 35], "sensor": list("aaab"), "value": [20.0, 40.5, 21.0, 35.0]})
MEANS = [
    {"ts": 10, "sensor": "a", "mean": 20.5},
    {"ts": 20, "sensor": "a", "mean": 40.5},
    {"ts": 40, "sensor": "b", "mean": 35.0},
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a file of readings, and nothing of Python's that outlives a test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("flows_by_name", "local_flows"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    pa.csv.write_csv(TABLE, "readings.csv")
    return tmp_path


def run(*arguments: str, flow: str = "averages") -> int:
    return main(["run", f"{FLOWS}:{flow}", *arguments])


def readings(*arguments: str) -> int:
    return run("--input", "readings=readings.csv", *arguments)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("form", SUFFIXES)
def test_formats_in_and_out(form: str) -> None:
    first, *_ = SUFFIXES[form]
    with open(f"rows{first}", "xb") as stream:
        write_table(TABLE, form, stream)
    assert run("--input", f"readings=rows{first}", "--output", f"means=means{first}") == 0
    assert read_table(f"means{first}").to_pylist() == MEANS


def test_json_is_an_array_or_lines() -> None:
    rows = TABLE.to_pylist()
    Path("array.json").write_text(json.dumps(rows))
    Path("lines.json").write_text("\n".join(map(json.dumps, rows)))
    assert read_table("array.json").equals(TABLE)
    assert read_table("lines.json").equals(TABLE)


def test_arrow_streams_and_compressed_files_are_read() -> None:
    with pa.ipc.new_stream("rows.arrow", TABLE.schema) as writer:
        writer.write_table(TABLE)
    with pa.output_stream("rows.csv.gz", compression="gzip") as stream:
        pa.csv.write_csv(TABLE, stream)
    with pa.output_stream("rows.ndjson.gz", compression="gzip") as stream:
        stream.write("\n".join(map(json.dumps, TABLE.to_pylist())).encode())
    for name in ("rows.arrow", "rows.csv.gz", "rows.ndjson.gz"):
        assert read_table(name).equals(TABLE), name


def test_a_folder_is_read_as_one_table(folder: Path) -> None:
    for day in (1, 2):
        (folder / f"in/day={day}").mkdir(parents=True)
        pq.write_table(TABLE.slice(day * 2 - 2, 2), f"in/day={day}/rows.parquet")
    Path("in/_SUCCESS").touch()
    Path("in/day=1/.rows.parquet.crc").touch()
    assert read_table("in").to_pylist() == [
        {**row, "day": day} for row, day in zip(TABLE.to_pylist(), [1, 1, 2, 2], strict=True)
    ]


def test_files_of_a_folder_may_lack_columns_and_mix_numbers(folder: Path) -> None:
    (folder / "in").mkdir()
    Path("in/1.csv").write_text("ts,n\n1,2\n")
    Path("in/2.csv").write_text("ts,n,word\n2,2.5,a\n")
    assert read_table("in").to_pylist() == [
        {"ts": 1, "n": 2.0, "word": None},
        {"ts": 2, "n": 2.5, "word": "a"},
    ]


def test_rows_are_printed_without_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert readings() == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "means: 3 rows",
        "ts sensor mean",
        "10 a      20.5",
        "20 a      40.5",
        "40 b        35",
        "high: 2 rows",
        "ts sensor",
        "12 a",
        "35 b",
    ]
    assert printed.err == ""


def test_a_format_for_stdout(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert readings("--output", "high=-", "--format", "high=csv") == 0
    assert capfdbinary.readouterr().out == b'"ts","sensor"\n12,"a"\n35,"b"\n'


def test_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert readings("--output", "means=means.parquet", "--workers", "2", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["flow"] == "averages"
    assert (summary["rows_in"], summary["rows_out"], summary["late"]) == (4, 5, 0)
    assert summary["outputs"] == {
        "means": {"path": "means.parquet", "rows": 3},
        "high": {"path": None, "rows": 2},
    }
    assert summary["workers"] == 2
    assert summary["seconds"] >= 0
    assert [each["name"] for each in summary["metrics"]["operators"]][:2] == ["readings", "mean"]
    assert pq.read_table("means.parquet").to_pylist() == MEANS


def test_a_format_for_names_that_say_nothing() -> None:
    os.rename("readings.csv", "readings")
    assert (
        run("--input", "readings=readings", "--format", "csv", "--output", "means=out.arrow") == 0
    )
    assert read_table("out.arrow").to_pylist() == MEANS


def test_a_folder_as_output(folder: Path) -> None:
    assert readings("--output", "means=out/") == 0
    assert read_table("out").to_pylist() == MEANS
    assert readings("--output", "means=out/") == 2
    assert readings("--output", "high=out/", "--overwrite") == 0
    assert files(folder) == ["out/part-00000.parquet", "readings.csv"]
    assert read_table("out").num_rows == 2


def test_modules_of_the_current_folder(folder: Path) -> None:
    Path("local_flows.py").write_text(Path(FLOWS).read_text())
    arguments = ["--input", "readings=readings.csv", "--output"]
    assert main(["run", "local_flows:averages", *arguments, "means=1.csv"]) == 0
    assert main(["run", "local_flows:make_averages", *arguments, "means=2.csv"]) == 0
    assert Path("1.csv").read_text() == Path("2.csv").read_text()


def test_files_are_replaced_only_if_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    Path("means.csv").write_text("mine")
    assert readings("--output", "means=means.csv") == 2
    assert "means.csv is there already: add --overwrite" in capsys.readouterr().err
    assert Path("means.csv").read_text() == "mine"
    assert readings("--output", "means=means.csv", "--overwrite") == 0
    assert read_table("means.csv").to_pylist() == MEANS


def test_a_failed_run_leaves_no_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("numbers.csv").write_text("time,n\n1,2\n")
    outputs = ["--output", "copy=copy.csv", "--output", "made=made.csv"]
    assert run("--input", "numbers=numbers.csv", *outputs, flow="make_failing") == 1
    error = capsys.readouterr().err
    assert "ValueError: no price [operator 'map'" in error
    assert "flows_by_name.py" in error, "the line of the user's own program"
    assert files(folder) == ["numbers.csv", "readings.csv"]


def test_if_one_output_cannot_be_written_there_is_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("blocked").touch()
    assert readings("--output", "means=means.csv", "--output", "high=blocked/high.csv") == 1
    assert "blocked" in capsys.readouterr().err
    assert files(folder) == ["blocked", "readings.csv"]


def test_a_file_that_appears_during_the_run_is_not_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(table: Any, form: str, to: Any) -> None:
        Path("means.csv").write_text("mine")
        write_table(table, form, to)

    monkeypatch.setattr(targets, "write_table", late)
    assert readings("--output", "high=high.csv", "--output", "means=means.csv") == 2
    assert Path("means.csv").read_text() == "mine"
    assert files(folder) == ["means.csv", "readings.csv"]


INPUT = ["--input", "readings=readings.csv"]
ON_SPARK = ["--master", "local", "--format", "means=arrow"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere:flow"], "there is no module 'nowhere'"),
        (["nowhere.py:flow"], "there is no file nowhere.py"),
        (["averages"], "'averages' does not name a flow: write module:flow"),
        ([f"{FLOWS}:averagse"], "did you mean 'averages'? (flows there: averages)"),
        ([f"{FLOWS}:not_a_flow"], "is 3 (an int), not a flow"),
        ([f"{FLOWS}:needs_size"], "needs size: name a function without arguments"),
        ([f"{FLOWS}:make_nothing"], "returns None, not a flow"),
        ([f"{FLOWS}:averages"], "needs --input readings=PATH (its inputs: readings)"),
        ([f"{FLOWS}:averages", "--input", "reading=x"], "did you mean 'readings'?"),
        ([f"{FLOWS}:averages", "--input", "readings"], "not of the form name=path"),
        ([f"{FLOWS}:averages", *INPUT, *INPUT], "--input names 'readings' twice"),
        ([f"{FLOWS}:averages", "--input", "readings=no.csv"], "there is no file no.csv"),
        ([f"{FLOWS}:averages", *INPUT, "--output", "mean=x.csv"], "(its outputs: means, high)"),
        ([f"{FLOWS}:averages", *INPUT, "--output", "means=x"], "does not say what to write"),
        ([f"{FLOWS}:averages", *INPUT, "--format", "xml"], "'xml' is not known"),
        ([f"{FLOWS}:averages", *INPUT, "--output", "means=-", "--json"], "write the outputs to"),
        ([f"{FLOWS}:averages", *INPUT, "--conf", "a=b"], "add --master"),
        (
            [f"{FLOWS}:averages", *INPUT, "--output", "means=x.csv", "--output", "high=./x.csv"],
            "the outputs means and high have one path",
        ),
        (
            [f"{FLOWS}:averages", *INPUT, *ON_SPARK, "--output", "means=x/"],
            "Spark cannot write a folder of arrow files",
        ),
    ],
)
def test_wrong_usage(
    arguments: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("jeton run: error: ")
    assert said in error
    assert files(folder) == ["readings.csv"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("time,value\n1,2\n", "there is no time column 'ts' (there are: 'time', 'value')"),
        ("ts,sensor,value\nsoon,a,1.0\n", "[operator 'readings']"),
        ("ts,sensor\n1,a\n", "value"),
    ],
)
def test_files_that_do_not_fit(content: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("readings.csv").write_text(content)
    assert readings() == 1
    assert said in capsys.readouterr().err


def test_a_damaged_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("torn.parquet").write_bytes(b"PAR1")
    assert run("--input", "readings=torn.parquet") == 1
    assert "torn.parquet cannot be read as parquet" in capsys.readouterr().err


def test_errors_of_the_module_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(flow="make_broken") == 1
    error = capsys.readouterr().err
    assert "make_broken raised: RuntimeError: no catalogue" in error
    assert "flows_by_name.py" in error
    Path("local_flows.py").write_text("import json\nimport no_such_package\n")
    assert main(["run", "local_flows:flow"]) == 1
    error = capsys.readouterr().err
    assert "ModuleNotFoundError: No module named 'no_such_package'" in error
    assert 'local_flows.py", line 2' in error


def test_interrupted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("numbers.csv").write_text("time,n\n1,2\n")
    arguments = ["--input", "numbers=numbers.csv", "--output", "made=made.csv"]
    assert run(*arguments, flow="make_interrupted") == 128 + signal.SIGINT
    assert capsys.readouterr().err == "jeton run: interrupted\n"
    assert files(folder) == ["numbers.csv", "readings.csv"]


class Terminal:
    """Standard error that says it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert readings("--output", "means=means.csv") == 0
    assert "averages" in terminal.text
    assert "means 0 rows, not begun" in terminal.text
    assert "4.00/4.00" in terminal.text


def test_from_the_outside() -> None:
    command = [sys.executable, "-m", "jeton", "run", f"{FLOWS}:averages", *INPUT, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["rows_in"] == 4
    assert done.stderr == ""


def test_on_spark(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(TABLE, "readings.parquet")
    outputs = ["--output", "means=means.csv", "--output", "high=high/"]
    here = ["--master", "local[4]", "--workers", "2", "--json"]
    assert run("--input", "readings=readings.parquet", *outputs, *here) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rows_in"], summary["rows_out"], summary["late"]) == (4, 5, 0)
    assert summary["metrics"]["runs"] == 1, "once for both outputs"
    assert read_table("means.csv").to_pylist() == MEANS
    assert sorted(row["ts"] for row in read_table("high").to_pylist()) == [12, 35]

    # The other formats are read here, with the types that they have without Spark.
    assert frame_of(spark, "readings.csv", None, None).toArrow().equals(TABLE)

    assert readings("--master", "local[3]") == 1
    assert "a session with master local[4] runs" in capsys.readouterr().err
    assert spark.range(3).count() == 3, "a session that ran before still runs"
