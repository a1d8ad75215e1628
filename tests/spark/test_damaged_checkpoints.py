"""The store of checkpoints notices all damage, and goes back to what is whole."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jeton.core.errors import SnapshotError
from jeton.spark.checkpoints import Checkpoints
from jeton.spark.state_files import CorruptCheckpoint
from tests.spark.stored_rows import SOME, newest, read, write


def damaged(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 0x10
    elif how == "truncated":
        del data[len(data) * 2 // 3 :]
    elif how == "emptied":
        data.clear()
    path.write_bytes(data)
    if how == "deleted":
        path.unlink()


@pytest.mark.parametrize("folder", ["parts", "manifests"])
@pytest.mark.parametrize("how", ["flipped", "truncated", "emptied", "deleted"])
def test_a_damaged_version_is_passed_over_and_mentioned(
    tmp_path: Path, folder: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Checkpoints(tmp_path)
    write(store, 1, {1: "old"})
    write(store, 2, {1: "new"})
    assert read(newest(store)) == {1: "new"}
    [path] = (tmp_path / folder).glob(f"{2:012d}-*")
    damaged(path, how)
    with caplog.at_level(logging.WARNING, "jeton.spark.checkpoints"):
        assert read(newest(store)) == {1: "old"}
    if (folder, how) != ("manifests", "deleted"):
        assert "checkpoint 2" in caplog.text
        with pytest.raises(CorruptCheckpoint):
            store.load(2).share(0, 1)


@settings(max_examples=4 * SOME)
@given(data=st.data())
def test_any_flipped_bit_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("store")
    store = Checkpoints(path)
    write(store, 1, {key: f"value {key}" for key in range(40)}, workers=2)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    file = data.draw(st.sampled_from(files), label="file")
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1), label="at")
    content[at] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    file.write_bytes(content)
    with pytest.raises(SnapshotError):
        store.latest()


def test_if_nothing_is_whole_that_is_an_error_and_no_fresh_start(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    assert store.latest() is None
    write(store, 1, {1: 1})
    [path] = (tmp_path / "parts").iterdir()
    path.unlink()
    with pytest.raises(CorruptCheckpoint, match=r"no checkpoint .* is whole"):
        store.latest()
