"""Leases: who holds one after damage, and after errors of the file system."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jeton.storage.checkpoints import Checkpoints
from jeton.storage.files import Files
from jeton.storage.leases import Committed, Entry, Lease, Superseded, later_than, stays
from tests.cluster.test_checkpoint_committer import PART, committer


class Failing(Files):
    """Files of which a call fails once, after it did what it should."""

    fails = False

    def put(self, path: PurePosixPath, data: bytes) -> None:
        super().put(path, data)
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, "the disk does not answer")


class Replaced(Files):
    """Files where a rival goes on just after an entry of the log was created."""

    rival: Callable[[], object] | None = None

    def put(self, path: PurePosixPath, data: bytes) -> None:
        super().put(path, data)
        rival, self.rival = self.rival, None
        if rival is not None:
            rival()


@pytest.mark.parametrize("entries", range(1, 9))
def test_an_entry_that_is_gone_was_replaced(tmp_path: Path, entries: int) -> None:
    """Entries are deleted when there are newer ones: the maker of this one was superseded."""

    def go_on() -> None:
        rival = Checkpoints(tmp_path)
        for version in range(3, 3 + entries):
            rival.commit(version, [], flow="f")

    files = Replaced(tmp_path)
    store = Checkpoints(tmp_path, files=files)
    store.commit(1, [], flow="f")
    files.rival = go_on
    with pytest.raises(Superseded, match="another run has taken over"):
        store.commit(2, [], flow="f")
    assert not files.exists(files.root / "log" / "000000000003.json") or entries < 2


class Lagging(Files):
    """Files whose listings may be any earlier ones, or none at all."""

    data: st.DataObject
    before: ClassVar[dict[PurePosixPath, list[list[str]]]] = {}

    def names(self, folder: PurePosixPath) -> list[str]:
        known = self.before.setdefault(folder, [[]])
        known.append(super().names(folder))
        return self.data.draw(st.sampled_from(known), "listed")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_one_run_holds_the_lease_although_listings_lag(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Runs that sleep and wake up in any order: the accepted entries are one history."""
    path = tmp_path_factory.mktemp("lagging")
    Lagging.before.clear()
    runs: list[Lease] = []
    accepted: list[tuple[int, str]] = []
    version = 0
    for _ in range(data.draw(st.integers(1, 40), "acts")):
        fresh = not runs or data.draw(st.integers(0, 4), "which") == 0
        if fresh:
            files = Lagging(path)
            files.data = data
            runs.append(Lease(files))
            runs[-1].take(lambda newest: newest or Entry())
            accepted.append((runs[-1].own.number, runs[-1].own.token))
            assert runs[-1].own.versions == tuple(
                Committed(v, 0, f"{v}.json") for v in range(1, version + 1)
            ), "it has seen every version that was committed"
            continue
        run = data.draw(st.sampled_from(runs), "run")
        try:
            run.append(run.own.with_version(Committed(version + 1, 0, f"{version + 1}.json")))
        except Superseded:
            assert run is not runs[-1]
        else:
            assert run is runs[-1], "it was superseded"
            version += 1
            accepted.append((run.own.number, run.own.token))
    assert [number for number, _ in accepted] == list(range(1, len(accepted) + 1))


@pytest.mark.parametrize("newest", [*range(1, 70), 1023, 1024, 1025])
def test_a_later_number_is_found_from_any_earlier_one(newest: int) -> None:
    there = {number for number in range(1, newest + 1) if stays(number, newest)}
    for number in range(newest):
        found = number
        while later := [each for each in later_than(found) if each in there]:
            found = later[-1]
        assert found == newest
    assert len(there) <= 2 * newest.bit_length()


def test_a_number_that_is_free_again_does_not_count(tmp_path: Path) -> None:
    """Old entries are deleted: a run that slept for long finds the number after its own free."""
    asleep, awake = Lease(Files(tmp_path)), Lease(Files(tmp_path))
    for _ in range(4):
        asleep.take(lambda newest: newest or Entry())
    awake.take(lambda newest: newest or Entry())
    for version in range(1, 6):
        awake.append(awake.own.with_version(Committed(version, 0, f"{version}.json")))
    number = asleep.own.number + 1
    assert not (tmp_path / "log" / f"{number:012d}.json").exists()
    with pytest.raises(Superseded, match="another run has taken over"):
        asleep.append(asleep.own.with_version(Committed(9, 0, "9.json")))
    newest = Lease(Files(tmp_path)).newest()
    assert newest == awake.own


def test_a_file_that_is_deleted_during_a_listing_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a log whose entries are replaced could look empty, however many files there are."""
    expected = {f"{number:012d}.json" for number in range(3000)}
    for name in expected:
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    scan = os.scandir
    last = tmp_path / "000000002999.json"

    @contextmanager
    def scandir(folder: PurePosixPath) -> Iterator[list[os.DirEntry[str]]]:
        with scan(folder) as found:
            entries = list(found)
        last.unlink()
        yield entries

    monkeypatch.setattr(os, "scandir", scandir)
    files = Files(tmp_path)
    assert set(files.names(files.root)) == expected
    assert not last.exists()


def test_a_rival_whose_entry_is_damaged_is_a_rival(tmp_path: Path) -> None:
    """Nobody can tell whose it was, and whoever held the lease before must not go on."""
    first = Checkpoints(tmp_path)
    first.commit(1, [], flow="f")
    Checkpoints(tmp_path).take_lease()
    max((tmp_path / "log").iterdir()).write_bytes(b"")
    for act in (first.require_lease, first.take_lease, lambda: first.commit(2, [], flow="f")):
        with pytest.raises(Superseded, match="whether another run has taken over"):
            act()
    # Whoever starts is not held up.
    last = Checkpoints(tmp_path)
    last.commit(2, [], flow="f")
    assert last.versions() == [1, 2]


def test_a_commit_after_one_whose_outcome_is_unknown(tmp_path: Path) -> None:
    """As for an attempt at a micro-batch: nobody has taken the lease anew in between."""
    files = Failing(tmp_path)
    store = Checkpoints(tmp_path, files=files)
    store.commit(0, [], flow="f", epoch=1)
    files.fails = True
    with pytest.raises(OSError, match="does not answer"):
        store.commit(1, [], flow="f", epoch=2)
    store.commit(1, [], flow="f", epoch=3)
    assert store.committed() == [(0, 1), (1, 3)]
    # The next micro-batch needs what was committed then.
    files.fails = True
    with pytest.raises(OSError, match="does not answer"):
        store.commit(2, [], flow="f", epoch=4)
    store.commit(3, [], flow="f", epoch=5)
    assert store.committed() == [(0, 1), (1, 3), (2, 4), (3, 5)]


def test_a_lease_that_was_taken_although_there_was_an_error(tmp_path: Path) -> None:
    """A run that starts again is not superseded by itself."""
    files = Failing(tmp_path)
    run = committer(tmp_path, store=Checkpoints(tmp_path, files=files))
    run.recover()
    run.commit(1, {0: PART}, {}, {}, 0.0)
    files.fails = True
    with pytest.raises(OSError, match="does not answer"):
        run.recover()
    restore_point = run.recover()
    assert (restore_point.version, restore_point.attempt) == (1, 3)
    run.commit(2, {0: PART}, {}, {}, 0.0)
    assert Checkpoints(tmp_path).versions() == [1, 2]


@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("text", ["", "{"])
def test_a_damaged_lease_before_the_first_version_is_no_damage(
    tmp_path: Path, starts: int, text: str
) -> None:
    """Nothing was committed yet, so that there is nothing to lose."""
    for _ in range(starts):
        committer(tmp_path).recover()
    max((tmp_path / "log").iterdir()).write_text(text)
    run = committer(tmp_path)
    assert run.recover().version is None
    run.commit(1, {0: PART}, {}, {}, 0.0)
    assert committer(tmp_path).recover().version == 1
