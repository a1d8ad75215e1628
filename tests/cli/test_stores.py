"""`jeton run` and `jeton checkpoint` on stores: a bucket, and one that only Java can reach."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from jeton.cli import main
from jeton.cli.tables import files_at, read_table
from jeton.storage import store_settings
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.files import Files
from jeton.storage.store_settings import StoreSettings
from tests.storage.s3_server import BUCKET, s3_server

FLOWS = str(Path(__file__).with_name("flows_by_name.py"))
TABLE = pa.table({"ts": [3, 12, 7, 35], "sensor": list("aaab"), "value": [20.0, 40.5, 21.0, 35.0]})
MEANS = [
    {"ts": 10, "sensor": "a", "mean": 20.5},
    {"ts": 20, "sensor": "a", "mean": 40.5},
    {"ts": 40, "sensor": "b", "mean": 35.0},
]


@pytest.fixture(autouse=True)
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket that the environment leads to."""
    before = store_settings.current()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "flows_by_name", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with s3_server() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        store_settings.use(StoreSettings())
        yield f"s3://{BUCKET}"
    store_settings.use(before)


def put_readings(path: str) -> None:
    stream = pa.BufferOutputStream()
    pa.csv.write_csv(TABLE, stream)
    files = Files(path)
    files.write(files.root, [stream.getvalue()])


def run(*arguments: str) -> int:
    return main(["run", f"{FLOWS}:averages", *arguments])


def test_files_in_and_out(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    put_readings(f"{bucket}/in/readings.csv")
    means = f"{bucket}/out/means.parquet"
    arguments = ("--input", f"readings={bucket}/in/", "--output", f"means={means}")
    assert run(*arguments) == 0
    assert read_table(means).to_pylist() == MEANS
    assert run(*arguments) != 0
    assert "add --overwrite" in capsys.readouterr().err
    assert run(*arguments, "--overwrite") == 0
    out = Files(f"{bucket}/out")
    assert out.names(out.root) == ["means.parquet"]


def test_folders_in_and_out(bucket: str) -> None:
    for day in (1, 2):
        put_readings(f"{bucket}/in/day={day}/readings.csv")
    assert read_table(f"{bucket}/in")["day"].to_pylist() == [1] * 4 + [2] * 4
    put_readings(f"{bucket}/out/means/old.csv")
    target = ("--output", f"means={bucket}/out/means/", "--overwrite")
    assert run("--input", f"readings={bucket}/in/day=1", *target) == 0
    assert read_table(f"{bucket}/out/means").to_pylist() == MEANS


def test_what_is_wrong_is_said(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    for path, text in (
        (f"{bucket}/no.csv", f"there is no file {bucket}/no.csv"),
        ("s3://nowhere/a.csv", "there is no such bucket"),
        ("s3:///a.csv", "names no bucket: write s3://bucket/path"),
    ):
        assert run("--input", f"readings={path}") != 0
        assert text in capsys.readouterr().err


def test_checkpoints_are_listed(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = Checkpoints(f"{bucket}/checkpoints/live")
    store.take_lease(query="3f9a")
    meta = {"query": "3f9a", "positions": {}, "sinks": {}}
    store.commit(1, [], flow="live", meta=meta)
    assert main(["checkpoint", "ls", f"{bucket}/checkpoints", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert f"{bucket}/checkpoints/live" in json.dumps(listed)
    assert main(["checkpoint", "ls", f"{bucket}/nothing"]) != 0
    assert "there is no folder" in capsys.readouterr().err


def test_stores_that_only_java_can_reach(tmp_path: Path) -> None:
    """Without a session, this process starts a JVM of its own."""
    link = {"fs.viewfs.mounttable.cli.link./data": tmp_path.as_uri()}
    store_settings.use(StoreSettings(link))
    files = files_at("viewfs://cli/data/readings.csv")
    stream = pa.BufferOutputStream()
    pa.csv.write_csv(TABLE, stream)
    files.write(files.root, [stream.getvalue()])
    assert read_table("viewfs://cli/data/readings.csv").equals(TABLE)
    assert (tmp_path / "readings.csv").exists()
