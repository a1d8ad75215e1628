"""Long-lived queries whose checkpoints an earlier release has written, which had no log."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pytest

from jeton.connectors.sinks import Parquet, SinkContext
from jeton.errors import SnapshotError
from tests.cluster.test_checkpoint_committer import PART, committer, show
from tests.spark.gated import written


class Earlier:
    """The steps of an earlier release's driver: manifests count, attempts are claimed."""

    def __init__(self, path: Path) -> None:
        self.path, self.sink = path / "c", Parquet(path / "out")
        self.claims, self.shown, self.manifests = (
            self.path / name for name in ("claims", "shown", "manifests")
        )
        for folder in (self.claims, self.shown, self.manifests):
            folder.mkdir(parents=True, exist_ok=True)
        before = [int(claim.name.split("-")[0]) for claim in self.claims.iterdir()]
        self.attempt = max(before, default=0) + 1
        for claim in self.claims.iterdir():
            claim.unlink()
        (self.claims / f"{self.attempt}-0a1b2c3d").touch()

    def commit(self, version: int) -> None:
        """A version with one row: its number."""
        context = SinkContext("3f9a", self.attempt, worker=0)
        writer = self.sink.open(context)
        writer.write(pa.table({"n": [version]}))
        staged = writer.stage(version)
        body = json.dumps(
            {
                "version": version,
                "epoch": self.attempt,
                "flow": "f",
                "bins": 256,
                "meta": {"query": "3f9a", "positions": {}, "sinks": {"rows": staged}},
                "parts": [{"worker": 0, "states": []}],
            }
        )
        digest = blake2b(f"2 {body}".encode(), digest_size=16).hexdigest()
        manifest = self.manifests / f"{version:012d}-{self.attempt}.json"
        manifest.write_text(json.dumps({"format": 2, "digest": digest, "body": body}))
        self.sink.commit(context, version, staged)
        for old in (*self.shown.iterdir(), *sorted(self.manifests.iterdir())[:-2]):
            old.unlink()
        (self.shown / f"{version:012d}-{self.attempt}").touch()


def with_five_versions(path: Path) -> Earlier:
    """Of three attempts."""
    for versions in ((1, 2), (3, 4), (5,)):
        driver = Earlier(path)
        for version in versions:
            driver.commit(version)
    assert driver.attempt == 3
    return driver


def test_attempts_go_on_from_those_of_an_earlier_release(tmp_path: Path) -> None:
    """Visible files of a version that is torn are of an attempt before: they are taken back."""
    driver = with_five_versions(tmp_path)
    max(driver.manifests.iterdir()).write_bytes(b"")
    run = committer(tmp_path / "c", {"rows": driver.sink})
    restore_point = run.recover()
    assert (restore_point.query, restore_point.version, restore_point.attempt) == ("3f9a", 4, 4)
    assert written(tmp_path / "out") == [(1,), (2,), (3,), (4,)]
    show(run, restore_point, driver.sink, restore_point.next_version)
    assert len(written(tmp_path / "out")) == 5


def test_marks_of_an_earlier_release_do_not_speak_of_new_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest manifest is gone, and the driver dies before its next version is shown."""
    driver = with_five_versions(tmp_path)
    max(driver.manifests.iterdir()).unlink()
    run = committer(tmp_path / "c", {"rows": driver.sink})
    restore_point = run.recover()

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(run, "_show", die)
    with pytest.raises(Killed):
        show(run, restore_point, driver.sink, restore_point.next_version)
    assert restore_point.next_version == 6, "there was a fifth"
    assert committer(tmp_path / "c", {"rows": driver.sink}).recover().version == 6
    assert written(tmp_path / "out") == [(1,), (2,), (3,), (4,), (6,)]


@pytest.mark.parametrize("versions", [1, 4])
def test_an_upgrade_that_is_tried_and_taken_back(tmp_path: Path, versions: int) -> None:
    """This release took the lease and no more: the earlier one goes on, and then this one again."""
    driver = with_five_versions(tmp_path)
    assert committer(tmp_path / "c", {"rows": driver.sink}).recover().version == 5
    driver = Earlier(tmp_path)
    for version in range(6, 6 + versions):
        driver.commit(version)
    run = committer(tmp_path / "c", {"rows": driver.sink})
    restore_point = run.recover()
    assert restore_point.version == 5 + versions
    show(run, restore_point, driver.sink, restore_point.next_version)
    assert written(tmp_path / "out") == [(n,) for n in range(1, 7 + versions)]
    again = committer(tmp_path / "c", {"rows": driver.sink}).recover()
    assert again.version == 6 + versions


def test_a_damaged_lease_does_not_hide_what_an_earlier_release_has_committed(
    tmp_path: Path,
) -> None:
    driver = with_five_versions(tmp_path)
    assert committer(tmp_path / "c", {"rows": driver.sink}).recover().version == 5
    [lease] = (tmp_path / "c" / "log").iterdir()
    lease.write_bytes(b"")
    assert committer(tmp_path / "c", {"rows": driver.sink}).recover().version == 5
    assert len(written(tmp_path / "out")) == 5


def test_an_earlier_release_after_a_version_of_this_one_is_told(tmp_path: Path) -> None:
    """It refuses to start; should it have got around that, nobody knows what counts."""
    driver = with_five_versions(tmp_path)
    run = committer(tmp_path / "c", {"rows": driver.sink})
    show(run, run.recover(), driver.sink, 6)
    Earlier(tmp_path).commit(7)
    with pytest.raises(SnapshotError, match=r"an earlier release .* has committed version 7"):
        committer(tmp_path / "c", {"rows": driver.sink}).recover()


def test_names_of_manifests_are_what_earlier_releases_read(tmp_path: Path) -> None:
    """They take what follows the version for a number, and make the name from it."""
    run = committer(tmp_path)
    run.recover()
    for version in range(1, 40):
        run.commit(version, {0: PART}, {}, {}, 0.0)
        name = max(path.name for path in (tmp_path / "manifests").iterdir())
        number = int(name.removesuffix(".json").split("-")[1])
        assert name == f"{version:012d}-{number}.json"
