"""``jeton nexmark``: one query with its check, the table of all, and where it is written."""

import doctest
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jeton import cli
from jeton_evaluation.nexmark import Config, command, measure, parquet, queries
from jeton_evaluation.nexmark.measure import Figures, Latency
from jeton_evaluation.nexmark.table import (
    BEGIN,
    END,
    LATE,
    lay_out,
    lay_out_latencies,
    write_between,
)

FIGURES = Figures("q1", 1000, 2, 920, 4e6, 2e6, 1e6, 3e6, 1.5e5, True)


def run(spark: SparkSession, *argv: str) -> int:
    return command.run(spark, command.options_of(argv))


def test_one_query_is_reported_in_words(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(spark, "q4", "--events", "2e4", "--rate", "2000", "--check") == 0
    printed = capsys.readouterr().out
    assert "q4: the average closing price of a category" in printed
    assert "category" in printed.splitlines()[2]
    assert "events/s" in printed
    assert "rows are right" in printed


@pytest.mark.parametrize("mechanism", queries.get("q7").mechanisms)
def test_one_query_is_reported_in_json(
    mechanism: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--events", "2e4", "--rate", "1e3", "--json", "--mechanism", mechanism]
    assert run(spark, "q7", *options) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"] == 2
    assert [row["ts"] for row in printed["sample"]] == [10_000_000, 20_000_000]
    assert printed["mechanism"] == mechanism
    assert "equal" not in printed, "it was not requested"


def test_a_wrong_answer_is_a_failure(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = queries.get("q2")
    # A question that is almost the same.
    wrong = replace(right, sql=right.sql.replace("= 0", "= 1"))
    monkeypatch.setattr(queries, "get", lambda name: wrong)
    assert run(spark, "q2", "--events", "1e4", "--check") == 1
    assert "are wrong, such as" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "name one query, or say --all"),
        (["q4", "--all"], "name one query, or say --all"),
        (["q44"], "invalid choice"),
        (["q4", "--events", "0"], "--events: '0' is not a whole number above zero"),
        (["q4", "--events", "1.5"], "'1.5' is not a whole number"),
        (["q8", "--mechanism", "notifications"], "q8 can be had with tokens only"),
        (["q4", "--write", "page.md"], "--write and --markdown go with --all"),
        (["--all", "--mechanism", "notifications"], "--mechanism goes with a single query"),
        (["--all", "--offered", "1e5", "0"], "--offered: '0' is not a whole number above zero"),
        (["--all", "--seconds", "0"], "--seconds: '0' is not a number above zero"),
    ],
)
def test_what_makes_no_sense_is_refused(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["nexmark", *argv])
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.long
def test_the_tables_go_into_the_page(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(queries, "names", lambda: ("q2", "q4"))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nbehind\n")
    options = ["--all", "--events", "2e4", "--runs", "1", "--write", str(page)]
    options += ["--offered", "1e4", "2e4", "--seconds", "0.2"]
    assert run(spark, *options) == 0
    printed, progress = capsys.readouterr()
    assert [line.split()[0] for line in printed.splitlines()[3:5]] == ["q2", "q4"]
    assert "q4, 2 of 2: latency at 20,000 events/s ..." in progress
    written = page.read_text()
    assert written.startswith(f"before\n{BEGIN}\n20,000 events")
    assert written.endswith(f"{END}\nbehind\n")
    assert "old" not in written
    lines = [line for line in written.splitlines() if line.startswith(("| q2", "| q4"))]
    rows, late = lines[:2], [line.split("|")[1:4] for line in lines[2:]]
    assert [(query.strip(), float(offered)) for query, offered, _ in late] == [
        (query, offered) for query in ("q2", "q4") for offered in (0.01, 0.02)
    ]
    assert all(float(offered) == pytest.approx(float(got), rel=0.1) for _, offered, got in late)
    assert all(row.endswith("yes |") for row in rows)
    assert "cannot¹" in rows[1]
    assert "¹ q4: a window whose end" in written


def test_a_long_lived_flow_with_other_rows_is_not_equal(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_more(*args: Any) -> tuple[float, int]:
        seconds, rows = long_lived(*args)
        return seconds, rows + 1

    long_lived = measure.run_long_lived
    query = queries.get("q9")
    monkeypatch.setattr(measure, "run_long_lived", one_more)
    assert not measure.measure(spark, query, Config(), 20_000, runs=1).equal


def test_a_table_in_markdown() -> None:
    cannot = replace(FIGURES, query="q4", structured=None, equal=False)
    text = lay_out([FIGURES, cannot, replace(cannot, query="q9")], "Here.", markdown=True)
    lines = text.splitlines()
    assert lines[0] == "Here. Millions of events a second."
    head, rule, *rows = (line.split("|")[1:-1] for line in lines[2:7])
    assert len({len(row) for row in (head, rule, *rows)}) == 1
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells[0] == ["q1", "2", "1", "2×", "3", "0.15", "20×", "4", "920", "yes"]
    assert [row[5] for row in cells[1:]] == ["cannot¹", "cannot²"]
    assert cells[1][6] == ""
    assert cells[1][-1] == "NO"
    assert lines[-2].startswith("¹ q4: ")
    assert lines[-1].startswith("² q9: ")


def test_a_query_that_does_not_keep_up_has_no_latencies() -> None:
    seen = Latency("q4", 2, 1e6, 999_800, 1.25, 4.5, 123.4, 0.8, True)
    text = lay_out_latencies([seen, replace(seen, offered=4e6, kept_up=False)], "Here.")
    cells = [line.split() for line in text.splitlines()[3:5]]
    assert cells[0] == ["q4", "1", "1", "1.25", "4.5", "123", "0.8"]
    assert cells[1] == ["q4", "4", "1", "late", "late", "late", "0.8"]
    assert text.endswith(LATE)
    assert LATE not in lay_out_latencies([seen], "Here.")


def test_only_what_is_between_the_marks_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nbehind\n")
    for text in ("first", "second"):
        write_between(page, text)
        assert page.read_text() == f"before\n{BEGIN}\n{text}\n{END}\nbehind\n"


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="must have one line"):
        write_between(page, "text")
    assert page.read_text() == "nothing\n"


def test_the_documentation_has_the_marks() -> None:
    page = Path(__file__).parents[2] / "docs" / "nexmark.md"
    text = page.read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    assert text.index(BEGIN) < text.index(END)
    for name in queries.names():
        assert f"| {name} |" in text, f"{name} is not in the list of queries"


@pytest.mark.parametrize("module", [command, measure, parquet], ids=lambda m: m.__name__)
def test_examples(module: Any, spark: SparkSession) -> None:
    result = doctest.testmod(
        module,
        extraglobs={"spark": spark},
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert result.attempted > 0
    assert result.failed == 0, "see what was captured"
