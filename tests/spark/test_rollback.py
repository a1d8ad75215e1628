"""Going back when the newest state is damaged: what can be mended, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from jeton.core.errors import SnapshotError
from jeton.spark.query_location import QueryLocation
from jeton.spark.streaming import roll_back
from jeton.storage.checkpoints import Checkpoints


class Left:
    """The files of an earlier query: Spark's log, and versions of flows' state."""

    def __init__(self, path: Path, *, done: int, planned: int, state: Path | None = None) -> None:
        self.path = path
        self.location = QueryLocation(str(path), None if state is None else str(state), "the-query")
        for folder, count in (("offsets", planned), ("commits", done)):
            (path / folder).mkdir(parents=True)
            for batch in range(count + 1):
                (path / folder / str(batch)).write_text(f"v1\n{{}}\n{batch}")
                (path / folder / f".{batch}.crc").touch()
        (path / "metadata").write_text('{"id":"the-query"}')

    def flow(self, name: str, newest: int, sink: str = "ForeachBatchSink") -> Checkpoints:
        store = Checkpoints(self.location.path(name))
        base = None
        for version in range(newest + 1):
            table = pa.table({"bin": pa.array([version], pa.uint16()), "n": [version]})
            base = store.write_part(version, 0, {"operator": {"n": table}}, base=base)
            store.commit(version, [base], flow=name, meta={"sink": sink})
        return store

    def names(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.path / folder).iterdir())


def spoil(store: Checkpoints, version: int, what: str = "parts") -> None:
    [path] = (Path(store.root) / what).glob(f"{version:012d}-*")
    path.write_bytes(path.read_bytes()[:-20])


def test_the_last_micro_batch_is_done_again(tmp_path: Path) -> None:
    left = Left(tmp_path, done=2, planned=3)
    store = left.flow("counts", 2)
    assert roll_back(tmp_path) is None
    spoil(store, 2)
    # The next one has been planned, but the flow could not run it.
    assert roll_back(tmp_path) == 2
    assert left.names("commits") == [".0.crc", ".1.crc", "0", "1"]
    assert left.names("offsets") == [".0.crc", ".1.crc", ".2.crc", "0", "1", "2"]


@pytest.mark.parametrize("what", ["parts", "manifests"])
def test_the_first_micro_batch_needs_no_state(tmp_path: Path, what: str) -> None:
    left = Left(tmp_path, done=0, planned=0)
    spoil(left.flow("counts", 0), 0, what)
    assert roll_back(tmp_path) == 0
    assert left.names("commits") == []


def test_what_the_sink_may_have_is_not_planned_anew(tmp_path: Path) -> None:
    left = Left(tmp_path, done=1, planned=2)
    spoil(left.flow("counts", 2), 1)
    with pytest.raises(SnapshotError, match="micro-batch 2 has been run"):
        roll_back(tmp_path)
    assert "2" in left.names("offsets")
    assert "1" in left.names("commits")


def test_a_sink_that_leaves_out_what_it_has(tmp_path: Path) -> None:
    left = Left(tmp_path, done=1, planned=1)
    spoil(left.flow("counts", 1, sink="FileSink[/out]"), 1)
    with pytest.raises(SnapshotError, match="leaves it out"):
        roll_back(tmp_path)
    assert "1" in left.names("commits")


def test_flows_that_the_query_had_once_do_not_matter(tmp_path: Path) -> None:
    left = Left(tmp_path, done=3, planned=3)
    store = left.flow("counts", 3)
    left.flow("old", 1)
    assert roll_back(tmp_path) is None
    assert roll_back(tmp_path, flow="counts") is None
    assert roll_back(tmp_path, flow="new") is None
    spoil(store, 3)
    assert roll_back(tmp_path, flow="counts") == 3


def test_state_that_is_somewhere_else(tmp_path: Path) -> None:
    left = Left(tmp_path / "checkpoint", done=1, planned=1, state=tmp_path / "state")
    spoil(left.flow("counts", 1), 1)
    assert roll_back(tmp_path / "checkpoint") is None
    assert roll_back(tmp_path / "checkpoint", state=tmp_path / "state") == 1


def test_no_version_is_whole(tmp_path: Path) -> None:
    left = Left(tmp_path, done=1, planned=1)
    store = left.flow("counts", 1)
    for version in (0, 1):
        spoil(store, version, "manifests")
    with pytest.raises(SnapshotError, match="none is whole"):
        roll_back(tmp_path)
