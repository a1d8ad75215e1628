"""The store of checkpoints: incremental, tidy, for any number of workers."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs as arrow_fs

from jeton.core.errors import SnapshotError
from jeton.state.snapshot import bins_of
from jeton.storage.checkpoints import Checkpoints, Part
from jeton.storage.chunk_format import GROUPS
from jeton.storage.leases import Superseded
from jeton.storage.store import NoAtomicCreate, StoreRefused
from tests.storage.stored_rows import SOME, Rows, newest, read, table_of, write

CATEGORY = pa.dictionary(pa.int32(), pa.string())
VALUES = {
    "numbers": (pa.int64(), st.integers(-5, 5)),
    "text": (pa.string(), st.text(max_size=3)),
    "nulls": (pa.string(), st.one_of(st.none(), st.text(max_size=3))),
    "numbers and nulls": (pa.float64(), st.one_of(st.none(), st.sampled_from([0.5, -1.0]))),
    "lists": (pa.list_(pa.int64()), st.lists(st.integers(0, 3), max_size=3)),
    "truths": (pa.bool_(), st.booleans()),
    "records": (pa.struct([("a", pa.int64())]), st.builds(lambda a: {"a": a}, st.integers(0, 3))),
    "dates": (pa.timestamp("us"), st.datetimes()),
    "bytes": (pa.large_binary(), st.binary(max_size=3)),
    "categories": (CATEGORY, st.one_of(st.none(), st.sampled_from("abc"))),
    "lists of categories": (pa.list_(CATEGORY), st.lists(st.sampled_from("abc"), max_size=2)),
}


@pytest.mark.parametrize("values", VALUES)
@settings(max_examples=SOME)
@given(data=st.data())
def test_whatever_changes_the_newest_version_has_it(
    tmp_path_factory: pytest.TempPathFactory, values: str, data: st.DataObject
) -> None:
    """Random changes over many versions, read by any number of workers: equal to a dictionary."""
    kind, strategy = VALUES[values]
    store = Checkpoints(tmp_path_factory.mktemp("store"))
    rows: Rows = {}
    workers = data.draw(st.integers(1, 3), label="workers")
    bases: list[Part | None] = [None] * workers
    for version in range(data.draw(st.integers(1, 12), label="versions")):
        changes = st.dictionaries(st.integers(0, 600), strategy, max_size=12)
        rows = rows | data.draw(changes, label="changes")
        for key in data.draw(st.lists(st.sampled_from(sorted(rows)), max_size=3)) if rows else []:
            rows.pop(key, None)
        again = data.draw(st.sampled_from(["memory", "files", "nothing"]), label="base")
        if again == "files" and version:
            read_from = newest(store)
            bases = [read_from.part(worker, workers) for worker in range(workers)]
        elif again == "nothing":
            bases = [None] * workers
        bases = [*write(store, version, rows, workers=workers, bases=bases, kind=kind)]
        if data.draw(st.booleans(), label="clean"):
            store.clean(1)
    assert read(newest(store), data.draw(st.integers(1, 4), label="readers")) == rows
    assert newest(store).meta == {"rows": len(rows)}


def test_only_bins_that_changed_are_written(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    rows: Rows = {key: key for key in range(20_000)}
    first = write(store, 1, rows)
    second = write(store, 2, rows, bases=[*first])
    assert second[0].written == first[0].written, "once more, so that there are two of each"
    rows[17] = -1
    third = write(store, 3, rows, bases=[*second])
    fourth = write(store, 4, rows, bases=[*third])
    assert 0 < fourth[0].written == third[0].written < first[0].written / 100
    fifth = write(store, 5, rows, bases=[*fourth])
    assert fifth[0].written == 0
    assert read(newest(store)) == rows


def test_the_order_of_other_bins_rows_does_not_matter(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    rows: Rows = {key: str(key) for key in range(5_000)}
    base = write(store, 2, rows, bases=[*write(store, 1, rows)])
    moved = {key: rows[key] for key in sorted(rows, key=lambda key: key // 1000 * -1)}
    own = bins_of([np.array(list(moved), dtype=np.int64)]) % GROUPS
    in_bins = [key for _, key in sorted(zip(own.tolist(), moved, strict=True))]
    [part] = write(store, 3, {key: moved[key] for key in in_bins}, bases=[*base])
    assert part.written == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["ab", "c"], ["a", "bc"]),
        ([None, "c"], ["", "c"]),
        ([0, None], [0, 0]),
        ([0.0, 1.0], [-0.0, 1.0]),
        ([[1], [2, 3]], [[1, 2], [3]]),
        ([True, False], [True, True]),
        ([1, 2], [1.0, 2.0]),
        pytest.param(
            pa.array(["a", "a"], CATEGORY), pa.array(["b", "b"], CATEGORY), id="categories"
        ),
        pytest.param(
            pa.array([["a"], ["a"]], pa.list_(CATEGORY)),
            pa.array([["b"], ["b"]], pa.list_(CATEGORY)),
            id="lists of categories",
        ),
    ],
    ids=str,
)
def test_nearly_the_same_is_not_the_same(tmp_path: Path, before: Any, after: Any) -> None:
    store = Checkpoints(tmp_path)
    base: Part | None = None
    # The first one twice: from then on it would not be written again.
    for version, values in enumerate((before, before, after)):
        values = values if isinstance(values, pa.Array) else pa.array(values)
        table = pa.table({"bin": pa.array([5, 5], pa.uint16()), "value": values})
        base = store.write_part(version, 0, {"op": {"state": table}}, base=base)
        store.commit(version, [base], flow="f")
    found = newest(store).share(0, 1).operators["op"]["state"]["value"]
    assert repr(found.to_pylist()) == repr(values.to_pylist())
    assert found.type == values.type


def test_a_type_that_cannot_be_divided_is_named(tmp_path: Path) -> None:
    value = pa.array(["a"], pa.string_view())
    table = pa.table({"bin": pa.array([5], pa.uint16()), "value": value})
    with pytest.raises(
        SnapshotError, match=r"column 'value' of state 'own' is of type string_view.*op"
    ):
        Checkpoints(tmp_path).write_part(1, 0, {"op": {"own": table}})


def test_what_fewer_or_more_workers_wrote_is_no_base(tmp_path: Path) -> None:
    """Bins change hands then, and some are in the parts of several workers."""
    store = Checkpoints(tmp_path)
    write(store, 1, {key: key for key in range(100)}, workers=2)
    assert newest(store).part(0, 2) is not None
    assert newest(store).part(0, 1) is None
    assert newest(store).part(0, 3) is None


def test_files_do_not_pile_up(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    random = Random(1)
    rows: Rows = dict.fromkeys(range(3_000), 0)
    bases: list[Part | None] = [None]
    most = 0
    for version in range(1, 60):
        for _ in range(4):
            rows[random.randrange(3_000)] = version
        bases = [*write(store, version, rows, bases=bases)]
        store.clean(2)
        most = max(most, len(list((tmp_path / "parts").iterdir())))
    assert read(newest(store)) == rows
    assert store.versions() == [58, 59]
    assert most <= 12


def test_a_version_whose_files_are_needed_is_kept(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    rows: Rows = {key: key for key in range(500)}
    bases: list[Part | None] = [None]
    for version in range(5):
        bases = [*write(store, version, rows, bases=bases)]
        store.clean(1)
    # All of it is in the files of the first two versions, though these are long gone.
    assert store.versions() == [4]
    files = sorted(path.name[:12] for path in (tmp_path / "parts").iterdir())
    assert files == [f"{0:012d}", f"{1:012d}"]
    assert read(newest(store)) == rows


def test_what_an_attempt_left_behind_goes_with_its_version(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    write(store, 1, {1: 1})
    store.write_part(2, 0, {"op": {"state": table_of({1: 2})}}, epoch=1)
    store.clean(1)
    assert len(list((tmp_path / "parts").iterdir())) == 2, "it may still be committed"
    write(store, 2, {1: 3}, epoch=2)
    write(store, 3, {1: 4}, epoch=2)
    store.clean(1)
    assert len(list((tmp_path / "parts").iterdir())) == 1
    assert read(newest(store)) == {1: 4}


def test_an_earlier_attempt_does_not_spoil_a_later_one(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    slow = Checkpoints(tmp_path)
    slow.take_lease()
    write(store, 5, {1: "of the second"}, epoch=2)
    with pytest.raises(Superseded):
        write(slow, 5, {1: "of the first, which was too slow"}, epoch=1)
    assert read(store.load(5)) == {1: "of the second"}
    assert read(newest(store)) == {1: "of the second"}


def test_a_version_needs_all_parts_and_a_missing_one_is_named(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    with pytest.raises(SnapshotError, match="one part of each worker"):
        store.commit(1, [Part(1, {})], flow="f")
    write(store, 1, {})
    with pytest.raises(SnapshotError, match=r"no version 2 .*\[1\]"):
        store.load(2)
    with pytest.raises(SnapshotError, match="at least one"):
        store.clean(0)


def test_a_part_travels_as_json(tmp_path: Path) -> None:
    import json

    store = Checkpoints(tmp_path)
    part = store.write_part(1, 0, {"op": {"state": table_of({n: n for n in range(999)})}})
    read_back = Part.from_json(json.loads(json.dumps(part.to_json())))
    assert read_back == part
    store.commit(1, [read_back], flow="f")
    assert len(read(newest(store))) == 999


def test_other_file_systems_than_the_local_one(tmp_path: Path) -> None:
    elsewhere = arrow_fs.SubTreeFileSystem(str(tmp_path), arrow_fs.LocalFileSystem())
    write(Checkpoints("some/where", elsewhere), 1, {1: 1})
    for path in (tmp_path / "some/where", f"file:{tmp_path}/some/where"):
        assert read(newest(Checkpoints(path))) == {1: 1}


def test_stores_without_an_atomic_create_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On such a store, a driver that was superseded could commit too."""
    with pytest.raises(NoAtomicCreate, match="_MockFileSystem cannot create a file only if there"):
        Checkpoints("there", arrow_fs._MockFileSystem()).take_lease()

    def no_links(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(NoAtomicCreate, match=r"its file system \(Operation not supported\)"):
        Checkpoints(tmp_path).take_lease()
    assert not list((tmp_path / "log").iterdir())


@pytest.mark.parametrize("below", [".", "below"])
def test_a_file_in_place_of_the_folder_is_named_at_once(tmp_path: Path, below: str) -> None:
    (tmp_path / "notes.txt").write_text("not a folder")
    store = Checkpoints(tmp_path / "notes.txt" / below, wait=lambda seconds: pytest.fail("waits"))
    with pytest.raises(StoreRefused, match=r"notes\.txt is a file, not a folder: give the path"):
        store.versions()
    with pytest.raises(StoreRefused, match=r"notes\.txt is a file, not a folder: give the path"):
        write(store, 1, {1: 1})


def test_a_link_that_was_made_though_the_call_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over NFS, if the answer to the first call was lost."""
    link = os.link

    def twice(*paths: Any) -> None:
        link(*paths)
        link(*paths)

    monkeypatch.setattr(os, "link", twice)
    write(Checkpoints(tmp_path), 1, {1: 1})
    assert read(newest(Checkpoints(tmp_path))) == {1: 1}
