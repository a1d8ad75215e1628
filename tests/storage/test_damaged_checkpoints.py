"""The store of checkpoints notices all damage, and goes back to what is whole."""

from __future__ import annotations

import json
import logging
import os
import shutil
from hashlib import blake2b
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jeton.core.errors import SnapshotError
from jeton.storage.checkpoints import Checkpoints, Part
from jeton.storage.chunk_format import CorruptCheckpoint
from tests.storage.stored_rows import SOME, Rows, newest, read, table_of, write


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
    with caplog.at_level(logging.WARNING, "jeton.storage.checkpoints"):
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
    # The older entry of the log is a spare, which is not read.
    spare = min((path / "log").iterdir())
    files = sorted(file for file in path.rglob("*") if file.is_file() and file != spare)
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


# One file and another


@pytest.mark.parametrize("seed", range(4))
def test_whichever_file_is_damaged_at_most_one_version_is_lost(tmp_path: Path, seed: int) -> None:
    """Little changes, so that versions share files; some versions come to nothing."""
    random = Random(seed)
    store = Checkpoints(tmp_path)
    rows: Rows = dict.fromkeys(range(400), 0)
    base: Part | None = None
    history: list[Rows] = []
    for version in range(1, 30):
        rows = rows | {random.randrange(400): version for _ in range(random.choice([0, 1, 9]))}
        if history and random.random() < 0.2:
            base = store.write_part(version, 0, {"op": {"state": table_of(rows)}}, base=base)
            continue
        if history and random.random() < 0.2:
            base = newest(store).part(0, 1)
        [base] = write(store, version, rows, bases=[base])
        history.append(rows)
        store.clean(2)
        if len(history) < 2:
            continue
        assert len(store.versions()) == 2
        for path in (tmp_path / "parts").iterdir():
            content = path.read_bytes()
            damaged(path, random.choice(["flipped", "truncated", "deleted"]))
            own = path.name.startswith(f"{version:012d}")
            assert read(newest(store), random.choice([1, 3])) in history[-2 if own else -1 :]
            path.write_bytes(content)


def test_what_was_in_a_damaged_file_is_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Checkpoints(tmp_path)
    rows: Rows = {key: key for key in range(400)}
    parts = write(store, 2, rows, bases=[*write(store, 1, rows)])
    write(store, 3, rows, bases=[*parts])
    first, second = sorted((tmp_path / "parts").iterdir())
    damaged(second, "flipped")
    # Whoever goes on from here finds it, and has two whole files again.
    [part] = write(store, 4, rows, bases=[newest(store).part(0, 1)])
    assert part.written
    assert second.name in caplog.text
    damaged(first, "flipped")
    assert newest(store).version == 4
    assert read(newest(store)) == rows


def test_both_copies_damaged_is_damage(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    rows: Rows = {key: key for key in range(400)}
    write(store, 2, rows, bases=[*write(store, 1, rows)])
    for path in (tmp_path / "parts").iterdir():
        damaged(path, "flipped")
    with pytest.raises(CorruptCheckpoint):
        store.load(2).share(0, 1)
    with pytest.raises(CorruptCheckpoint, match=r"no checkpoint .* is whole"):
        store.latest()


# Formats


def test_another_format_is_believed_if_its_digest_fits(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    write(store, 1, {1: "old"})
    write(store, 2, {1: "new"})
    path = max((tmp_path / "manifests").iterdir())
    manifest = json.loads(path.read_text())
    for format in (1, 2, 3, 5):
        path.write_text(json.dumps(manifest | {"format": format}))
        assert read(newest(store)) == {1: "old"}
    digest = blake2b(f"5 {manifest['body']}".encode(), digest_size=16).hexdigest()
    path.write_text(json.dumps({"format": 5, "digest": digest, "body": manifest["body"]}))
    with pytest.raises(SnapshotError, match="is of format 5, but this Jeton reads formats up to 4"):
        store.latest()


def as_before(path: Path, format: int) -> None:
    """Make a store one of an earlier format: every manifest counts, and there is no log."""
    shutil.rmtree(path / "log")
    for manifest in (path / "manifests").iterdir():
        body = json.loads(manifest.read_text())["body"]
        hashed = body if format == 1 else f"{format} {body}"
        digest = blake2b(hashed.encode(), digest_size=16).hexdigest()
        epoch = json.loads(body)["epoch"]
        old = manifest.with_name(f"{manifest.name[:12]}-{epoch}.json")
        old.write_text(json.dumps({"format": format, "digest": digest, "body": body}))
        manifest.unlink()


@pytest.mark.parametrize("format", [1, 2])
def test_earlier_formats_are_read(tmp_path: Path, format: int) -> None:
    store = Checkpoints(tmp_path)
    write(store, 1, dict.fromkeys(range(40), "long ago"), workers=2, epoch=3)
    write(store, 2, dict.fromkeys(range(40), "in vain"), workers=2, epoch=3)
    [in_vain] = (tmp_path / "manifests").glob(f"{2:012d}-*")
    whole = in_vain.read_bytes()
    write(store, 2, {key: str(key) for key in range(40)}, workers=2, epoch=12)
    in_vain.write_bytes(whole)
    as_before(tmp_path, format)
    store = Checkpoints(tmp_path)
    assert store.committed() == [(1, 3), (2, 12)]
    assert len(read(newest(store), 3)) == 40
    # What is written next goes on from it, and is of today's format.
    bases = [newest(store).part(worker, 2) for worker in range(2)]
    write(store, 3, {key: str(key) for key in range(41)}, workers=2, bases=bases)
    assert store.versions() == [1, 2, 3]
    store.clean(1)
    assert Checkpoints(tmp_path).versions() == [3]
    assert len(read(newest(Checkpoints(tmp_path)), 3)) == 41
    assert len(list((tmp_path / "manifests").iterdir())) == 1


@pytest.mark.parametrize("how", ["flipped", "truncated", "emptied", "deleted"])
def test_a_damaged_entry_of_the_log_costs_one_version_at_most(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Checkpoints(tmp_path)
    for version in (1, 2):
        write(store, version, {1: version})
    damaged(max((tmp_path / "log").iterdir()), how)
    assert read(newest(Checkpoints(tmp_path))) == {1: 1}
    assert ("is passed over" in caplog.text) == (how != "deleted")
    # Whoever goes on from there is not disturbed by it.
    store = Checkpoints(tmp_path)
    write(store, 2, {1: 20})
    assert read(newest(Checkpoints(tmp_path))) == {1: 20}


def test_if_the_log_is_damaged_and_no_version_is_left_that_is_no_fresh_start(
    tmp_path: Path,
) -> None:
    write(Checkpoints(tmp_path), 1, {1: 1})
    damaged(max((tmp_path / "log").iterdir()), "flipped")
    with pytest.raises(CorruptCheckpoint, match="no entry of the log"):
        Checkpoints(tmp_path).latest()
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(CorruptCheckpoint, match="the log is gone"):
        Checkpoints(tmp_path).latest()


# What else may be in the folders, and what must be


def test_strange_files_are_left_alone(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    for version in range(4):
        write(store, version, {1: version})
    strange = [
        tmp_path / name
        for name in (
            "manifests/notes.json",
            "manifests/.000000000007-0.json",
            "manifests/000000000007-0.json.crc",
            "manifests/of mine.unready",
            "parts/README",
            "parts/.nfs0001",
        )
    ]
    for path in strange:
        path.write_text("x")
    assert store.versions() == [0, 1, 2, 3]
    store.clean(2)
    assert read(newest(store)) == {1: 3}
    assert store.versions() == [2, 3]
    assert all(path.exists() for path in strange)


def test_names_are_on_the_disk_before_a_manifest_speaks_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def fsync(number: int) -> None:
        synced.append(os.fstat(number).st_ino)
        real(number)

    real = os.fsync
    monkeypatch.setattr(os, "fsync", fsync)
    root = tmp_path / "new" / "store"
    write(Checkpoints(root), 1, {1: 1})
    [part], [manifest] = (list((root / name).iterdir()) for name in ("parts", "manifests"))
    order = [tmp_path, root.parent, root, part, root / "parts", manifest, root / "manifests"]
    at = [synced.index(path.stat().st_ino) for path in order]
    assert at[3:] == sorted(at[3:])
    assert max(at[:3]) < at[3], "folders that are new"
