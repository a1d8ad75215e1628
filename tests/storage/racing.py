"""Drivers that race for one checkpoint."""

from __future__ import annotations

import threading
from pathlib import Path

from jeton.storage.checkpoints import Checkpoints
from jeton.storage.leases import Superseded
from tests.cluster.test_checkpoint_committer import PART, committer


def race(folder: str, drivers: int) -> tuple[list[str], list[int]]:
    """Drivers that start at once on one checkpoint: how each ended, and the versions."""
    barrier, ends = threading.Barrier(drivers), [""] * drivers

    def drive(me: int) -> None:
        run = committer(Path(), store=Checkpoints(folder))
        barrier.wait()
        try:
            restore_point = run.recover()
            for version in range(3):
                run.commit(restore_point.next_version + version, {0: PART}, {}, {}, 0.0)
            ends[me] = "done"
        except Superseded:
            ends[me] = "superseded"

    threads = [threading.Thread(target=drive, args=(me,)) for me in range(drivers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends, Checkpoints(folder).versions()


def races(folder: str, times: int) -> int:
    """Two drivers race some times, each time in a folder of its own; returns how many lost."""
    superseded = 0
    for number in range(times):
        ends, versions = race(f"{folder}/{number}", 2)
        # The last to take the lease gets through; the other may have got through before that.
        assert ends.count("done") >= 1
        assert "" not in ends
        assert len(versions) == len(set(versions))
        superseded += ends.count("superseded")
    return superseded
