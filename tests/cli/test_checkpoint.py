"""`jeton checkpoint`: versions of a long-lived and of a streaming query, read and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

import jeton as jt
from jeton.cli import main
from jeton.storage.checkpoints import Checkpoints, Part


def make_flow() -> jt.Flow:
    flow = jt.Flow("live")
    words = flow.input("words", lateness=0)
    flow.output("counts", words.key_by("word").running().count())
    return flow


ROUNDS: Final[tuple[list[str], ...]] = (["a", "b"], ["b", "c"], [])
"""The words that arrive before each version."""


def commit(path: Path, *, streaming: bool = False, workers: int = 2) -> Checkpoints:
    """Three versions of the state of a query."""
    store = Checkpoints(path)
    bases: dict[int, Part] = {}
    if not streaming:
        store.take_lease(query="3f9a")
    with make_flow().open(workers=workers) as run:
        for version, words in enumerate(ROUNDS):
            if words:
                run.input("words").send({"time": [version] * len(words), "word": words})
            run.run_to_rest()
            bases = {
                worker.index: store.write_part(
                    version, worker.index, worker.snapshot(), base=bases.get(worker.index)
                )
                for worker in run.workers
            }
            positions = {"words": {"0": version * 10, "1": 7}}
            meta = {"sink": "memory"} if streaming else {"query": "3f9a", "partitions": positions}
            store.commit(version, list(bases.values()), flow="live", meta=meta)
    return store


def commit_streaming(location: Path) -> Checkpoints:
    """The same under the checkpoint location of a streaming query."""
    store = commit(location / "jeton" / "live", streaming=True)
    (location / "metadata").write_text('{"id": "7e1c"}')
    (location / "offsets").mkdir()
    for batch in range(3):
        (location / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"offset": {batch * 5}}}\n')
    return store


def record(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["checkpoint", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def snapshot_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_versions_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(tmp_path)
    before = snapshot_of(tmp_path)
    found = record(capsys, "ls", str(tmp_path))
    [store] = found["stores"]
    assert store["flow"] == "live"
    assert store["lease"]["query"] == "3f9a"
    assert store["lease"]["attempt"] == 1
    assert len(store["lease"]["holder"]) == 16
    assert [each["version"] for each in store["versions"]] == [0, 1, 2]
    assert [each["rows"]["count"] for each in store["versions"]] == [2, 3, 3]
    newest = store["versions"][-1]
    assert newest["workers"] == 2
    assert newest["positions"] == {"words": {"0": 20, "1": 7}}
    assert newest["damaged"] is None
    assert newest["bytes"] >= newest["bytes_written"] > 0
    assert newest["age_seconds"] >= 0
    assert "rows" not in record(capsys, "ls", str(tmp_path), "--quick")["stores"][0]["versions"][0]
    assert snapshot_of(tmp_path) == before, "nothing was written"


def test_the_list_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(tmp_path)
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(tmp_path)
    assert lines[1].startswith("  flow 'live' of query 3f9a; the lease was taken 1 time, run ")
    assert lines[2].split() == ["version", "age", "size", "written", "workers", "rows", "sources"]
    assert [line.split()[0] for line in lines[3:6]] == ["0", "1", "2"]
    assert lines[5].endswith("words (2 partitions)")
    assert "  count: 3 rows" in lines


def test_one_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(tmp_path)
    newest = record(capsys, "show", str(tmp_path))
    assert newest["version"] == 2
    first = record(capsys, "show", str(tmp_path), "0")
    assert (first["version"], first["flow"], first["bins"]) == (0, "live", 4096)
    assert sum(each["rows"] for each in first["operators"]["count"].values()) == 2
    assert first["positions"] == {"words": {"0": 0, "1": 7}}
    assert first["files"]
    assert main(["checkpoint", "show", str(tmp_path), "1"]) == 0
    text = capsys.readouterr().out
    assert f"version 1 of flow 'live' in {tmp_path}" in text
    assert "source words\n    0: 10\n    1: 7\n" in text


def test_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(tmp_path)
    found = record(capsys, "diff", str(tmp_path), "0", "1")
    assert (found["before"], found["after"], found["workers"]) == (0, 1, [2, 2])
    assert found["operators_added"] == found["operators_removed"] == []
    [change] = [each for each in found["containers"] if each["operator"] == "count"]
    assert (change["rows_before"], change["rows_after"]) == (2, 3)
    numbers = [change[f"keys_{how}"] for how in ("added", "removed", "changed")]
    assert numbers == [1, 0, 1], "c is new, b was counted again"
    assert found["positions"] == {"words/0": {"before": 0, "after": 10}}

    back = record(capsys, "diff", str(tmp_path), "1", "0")
    [change] = [each for each in back["containers"] if each["operator"] == "count"]
    assert [change[f"keys_{how}"] for how in ("added", "removed", "changed")] == [0, 1, 1]

    assert main(["checkpoint", "diff", str(tmp_path), "1", "2"]) == 0
    text = capsys.readouterr().out
    assert "no change (3 rows)" in text
    assert "source words/0: 10 to 20" in text


def test_other_operators_and_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Checkpoints(tmp_path)
    for version, (name, workers) in enumerate((("before", 1), ("after", 3))):
        flow = jt.Flow("renamed")
        flow.output("counts", flow.input("words").named(name).key_by("word").running().count())
        with flow.open(workers=workers) as run:
            run.input("words").send({"time": [0, 0], "word": ["a", "b"]})
            run.run_to_rest()
            parts = [store.write_part(version, w.index, w.snapshot()) for w in run.workers]
        store.commit(version, parts, flow="renamed")
    found = record(capsys, "diff", str(tmp_path), "0", "1")
    assert found["operators_added"] == ["after"]
    assert found["operators_removed"] == ["before"]
    assert found["workers"] == [1, 3]
    assert main(["checkpoint", "diff", str(tmp_path), "0", "1"]) == 0
    text = capsys.readouterr().out
    assert "workers: 1 to 3" in text
    assert "operator after: added" in text


def test_state_of_a_streaming_query(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit_streaming(tmp_path)
    [store] = record(capsys, "ls", str(tmp_path))["stores"]
    assert store["path"] == str(tmp_path / "jeton" / "live")
    assert store["lease"]["query"] == "7e1c"
    assert store["kind"] == "streaming"
    assert store["versions"][1]["positions"] == {"0": {"offset": 5}}
    assert record(capsys, "diff", str(tmp_path), "0", "2")["positions"] == {
        "0/offset": {"before": 0, "after": 10}
    }


def test_several_flows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        commit(tmp_path / name)
    assert len(record(capsys, "ls", str(tmp_path))["stores"]) == 2
    assert main(["checkpoint", "show", str(tmp_path)]) == 2
    assert "several flows: add --flow (one, two)" in capsys.readouterr().err
    found = record(capsys, "show", str(tmp_path), "--flow", "two")
    assert found["path"] == str(tmp_path / "two")


def test_damage_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = commit(tmp_path)
    newest = max((tmp_path / "manifests").iterdir(), key=lambda path: path.name)
    newest.write_bytes(newest.read_bytes()[:-20])
    versions = record(capsys, "ls", str(tmp_path))["stores"][0]["versions"]
    assert [each["damaged"] is None for each in versions] == [True, True, False]
    assert newest.name in versions[-1]["damaged"]
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    assert "damaged" in capsys.readouterr().out
    assert main(["checkpoint", "show", str(tmp_path)]) == 1
    assert newest.name in capsys.readouterr().err
    assert store.latest() is not None, "the version before is whole"


def test_a_file_of_which_there_is_a_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What did not change is in two files, so that one of them may be lost."""
    store = commit(tmp_path)
    first = [name for name in store.load(2).files if name.startswith("000000000001-")]
    assert first, "the newest version needs files of the one before"
    for name in first:
        (tmp_path / "parts" / name).write_bytes(b"")
    newest = record(capsys, "ls", str(tmp_path))["stores"][0]["versions"][-1]
    assert newest["damaged"] is None
    assert newest["rows"]["count"] == 3


def test_versions_that_a_running_query_deletes_meanwhile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = commit(tmp_path)
    load = Checkpoints.load

    def deleting(self: Checkpoints, version: int) -> Any:
        if version == 0:
            store.clean(keep=2)
        return load(self, version)

    monkeypatch.setattr(Checkpoints, "load", deleting)
    [found] = record(capsys, "ls", str(tmp_path))["stores"]
    assert [each["version"] for each in found["versions"]] == [1, 2]


@pytest.mark.parametrize("command", ["ls", "show"])
def test_the_newest_version_is_found_while_a_query_makes_others(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All versions that were listed are gone when they are read, twice."""
    store = commit(tmp_path)
    load = Checkpoints.load

    def hurrying(self: Checkpoints, version: int) -> Any:
        newest = max(store.versions())
        if newest < 4:
            parts = load(store, newest).parts
            store.commit(newest + 1, parts, flow="live", meta={"query": "3f9a", "partitions": {}})
            store.clean(keep=1)
        return load(self, version)

    monkeypatch.setattr(Checkpoints, "load", hurrying)
    found = record(capsys, command, str(tmp_path))
    if command == "ls":
        [found] = found["stores"][0]["versions"]
    assert found["version"] == 4


def test_a_lease_without_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Checkpoints(tmp_path).take_lease(query="new")
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "a flow of query new" in text
    assert "no versions yet" in text
    assert main(["checkpoint", "show", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ls", "nowhere"], "there is no folder nowhere"),
        (["ls", "."], "there are no checkpoints in ."),
        (["show", "store", "9"], "there is no version 9 in"),
        (["show", "store", "--flow", "other"], "no checkpoints of flow 'other'"),
        (["diff", "store", "0", "9"], "(there are: 0, 1, 2)"),
    ],
)
def test_wrong_usage(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "store" in arguments:
        commit(tmp_path / "store")
    assert main(["checkpoint", *arguments]) == 2
    assert said in capsys.readouterr().err
