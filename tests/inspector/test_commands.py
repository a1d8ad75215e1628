"""Queries are found and asked from another terminal; event logs are read there."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

import jeton as jt
from jeton.cli import main
from jeton.errors import JetonError
from jeton.inspector import offer
from jeton.inspector.running import Published, find, pages, publish, runtime_folder
from tests.inspector.driven import stuck


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "jeton"


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def test_another_process_asks_why(capsys: pytest.CaptureFixture[str]) -> None:
    with stuck().open() as run:
        url = run.inspect()
        run.input("readings").send({"time": [3], "k": [1], "v": [1.0]})
        run.input("readings").close()
        run.run_to_rest()
        command = [sys.executable, "-m", "jeton", "why", run.flow.name, "high"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert "'keeper' holds 1 token at 3 on worker 0" in text
        assert "kept.append(ref.retain())" in text
        assert said(capsys, "inspect", run.flow.name) == (0, f"{url}\n", "")
        _, out, _ = said(capsys, "why", str(os.getpid()), "high", "--at", "3", "--json")
        assert json.loads(out)["places"][0]["holders"][0]["operator"] == "keeper"


def test_queries_are_listed_while_they_run(
    capsys: pytest.CaptureFixture[str], own_folder: Path
) -> None:
    assert said(capsys, "inspect")[2] == (
        "no query with a page runs on this machine: "
        "queries have one where jeton[inspect] is installed, runs once they call run.inspect()\n"
    )
    with stuck().open() as run:
        url = run.inspect()
        code, out, _ = said(capsys, "inspect")
        assert (code, f"@{os.getpid()}" in out, url in out) == (0, True, True)
        [listed] = json.loads(said(capsys, "inspect", "--json")[1])["queries"]
        assert (listed["name"], listed["url"]) == ("sensors <&>", url)
        [file] = own_folder.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(own_folder.stat().st_mode) == 0o700
    assert list(own_folder.iterdir()) == []


def test_errors_are_one_line_and_a_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = said(capsys, "why", "nothing")
    assert (code, out) == (2, "")
    assert err == (
        "jeton why: error: no query 'nothing' with a page runs on this machine (there are: none): "
        "queries have one where jeton[inspect] is installed, runs once they call run.inspect()\n"
    )
    with stuck().open() as run:
        run.inspect()
        code, _, err = said(capsys, "why", run.flow.name, "nothing")
        assert (code, "has no output, probe or operator 'nothing'" in err) == (2, True)
        code, _, err = said(capsys, "why", run.flow.name, "hihg")
        assert (code, "did you mean 'high'?" in err) == (2, True)
        code, _, err = said(capsys, "why", run.flow.name, "--at", "noon")
        assert (code, "neither an integer nor a timestamp" in err) == (2, True)
        run.input("readings").send({"time": [3], "k": [1], "v": [1.0]})
        run.run_to_rest()
        run.monitor.look()
        code, _, err = said(capsys, "why", run.flow.name, "--at", "2024-01-01")
        assert (code, "the times of this query are integers" in err) == (2, True)
    code, _, err = said(capsys, "log", str(tmp_path))
    assert (code, "there is no event log" in err) == (2, True)
    assert said(capsys, "inspect", "--open")[0] == 2


def test_a_page_that_no_longer_answers_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    publish("gone", "http://127.0.0.1:1/secret/")
    code, _, err = said(capsys, "why", "gone")
    assert (code, f"gone@{os.getpid()} does not answer" in err) == (1, True)


def test_files_of_processes_that_are_gone_are_removed(own_folder: Path) -> None:
    file = publish("counts", "http://127.0.0.1:1/secret/")
    page = json.loads(file.read_text())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (own_folder / "1.json").write_text(json.dumps({**page, "pid": ended.pid}))
    # The same number, but another process.
    (own_folder / "2.json").write_text(json.dumps({**page, "began": "1"}))
    (own_folder / "3.json").write_text("{")
    assert [each.url for each in pages()] == [page["url"]]
    assert list(own_folder.iterdir()) == [file]


def test_a_folder_that_others_can_read_is_refused(own_folder: Path) -> None:
    own_folder.mkdir(mode=0o755)
    own_folder.chmod(0o755)
    with pytest.raises(JetonError, match="only this user can read"):
        runtime_folder()


def test_queries_of_one_name_are_told_apart_by_their_process() -> None:
    known = [Published(name="q", url=str(n), pid=n, began="", since=0.0) for n in (7, 8)]
    assert find("8", known).url == find("q@8", known).url == "8"
    with pytest.raises(JetonError, match="several queries are called 'q': q@7, q@8"):
        find("q", known)


def test_queries_of_one_name_in_one_process_have_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with stuck().open() as one, stuck().open() as other:
        urls = [one.inspect(), other.inspect()]
        code, _, err = said(capsys, "inspect", one.flow.name)
        names = err.strip().partition(f"several queries are called {one.flow.name!r}: ")[2]
        assert code == 2
        for name, url in zip(names.split(", "), urls, strict=True):
            assert said(capsys, "inspect", name) == (0, f"{url}\n", "")
        listed = said(capsys, "inspect")[1].splitlines()
        assert [line.split("  ")[0] for line in listed] == names.split(", ")


def test_a_log_shows_timestamps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flow = jt.Flow("stamps")
    flow.output("out", flow.input("in", lateness="0s"))
    with flow.open() as run:
        run.log_events(tmp_path / "log", full=True)
        for second in (1, 2):
            run.input("in").send({"time": [datetime(2024, 5, 6, 7, 8, second)], "n": [1]})
            run.run_to_rest()
    assert "2024-05-06 07:08:01" in said(capsys, "log", str(tmp_path / "log"))[1]
    assert "2024-05-06 07:08:01" in said(capsys, "log", str(tmp_path / "log"), "--replay")[1]


def test_a_log_is_summarised_and_replayed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flow = jt.Flow("counting")
    flow.output("counts", flow.input("n", lateness=0).key_by("k").tumbling(10).count())
    folder = tmp_path / "log"
    with flow.open() as run:
        run.log_events(folder, full=True)
        for time in (3, 12, 25):
            run.input("n").send({"time": [time], "k": ["a"]})
            run.run_to_rest()
        run.finish()
    code, out, _ = said(capsys, "log", str(folder))
    assert code == 0
    row = next(line for line in out.splitlines() if line.startswith("count "))
    assert row.split()[4:6] == ["3", "3"]
    summary = json.loads(said(capsys, "log", str(folder), "--json")[1])["operators"]
    assert {each["operator"]: each["records_in"] for each in summary} == {"count": 3, "counts": 3}
    moves = said(capsys, "log", str(folder), "--replay")[1].splitlines()
    assert [line.split()[2] for line in moves if line.split()[1] == "counts"] == ["10", "20", "30"]
    replayed = json.loads(said(capsys, "log", str(folder), "--replay", "--json")[1])["moves"]
    assert [m["frontier"] for m in replayed if m["operator"] == "counts"] == [[10], [20], [30]]


def test_without_the_extra_one_line_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer, "find_spec", lambda name: None)
    monkeypatch.setattr(offer, "_printed", set())
    offer.offer("one", lambda: "http://…")
    offer.offer("other", lambda: "http://…")
    line = "jeton: pip install 'jeton[inspect]' for a live page of each query\n"
    assert capsys.readouterr().err == line


def test_a_page_that_cannot_be_served_does_not_stop_the_query(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def no_port() -> str:
        raise OSError("no port is free")

    offer.offer("counts", no_port)
    assert capsys.readouterr().err == ""
    assert "query 'counts' has no live page: no port is free" in caplog.text


@pytest.mark.parametrize(("setting", "wanted"), [("", True), ("1", True), ("Off", False)])
def test_pages_are_turned_off_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, setting: str, wanted: bool
) -> None:
    monkeypatch.setenv("JETON_INSPECT", setting)
    assert offer.is_wanted() is wanted
