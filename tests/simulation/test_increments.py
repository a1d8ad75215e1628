"""Checkpoints of changes, under random schedules: a run that goes on from one is as if undisturbed.

Flows are made of every operator that keeps state by key. At random moments their changes are cut,
and read later, while the flow goes on and state moves between workers. The process crashes, also in
the middle of an operation on the store, files are lost, and another number of workers goes on from
the newest version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from random import Random

import pyarrow as pa
import pytest
from tests.simulation.moving import SPAN, MovingRun, Rows, chunks, counted
from tests.simulation.test_checkpoints import Crashed, Disk, SimulatedFiles

from jeton.errors import SnapshotError
from jeton.runtime.in_process import Run
from jeton.state.bins import Placement
from jeton.state.changes import Cut
from jeton.state.snapshot import Snapshot
from jeton.storage import chains
from jeton.storage.checkpoints import Checkpoint, Checkpoints, Part

Cuts = Mapping[str, Mapping[str, Cut | pa.Table]]


@dataclass(frozen=True)
class Shares(Snapshot):
    """What each worker reads of a checkpoint, each for itself, as on a cluster."""

    shares: tuple[Snapshot, ...] = ()

    def share(self, operator: str, name: str, worker: int, placement: Placement) -> pa.Table | None:
        return self.shares[worker].operators.get(operator, {}).get(name)

    @staticmethod
    def of(checkpoint: Checkpoint, workers: int) -> Shares:
        shares = tuple(checkpoint.share(worker, workers) for worker in range(workers))
        operators: dict[str, dict[str, pa.Table]] = {}
        for share in shares:
            for operator, kept in share.operators.items():
                operators.setdefault(operator, {}).update(kept)
        return Shares(
            checkpoint.flow,
            operators,
            bins=checkpoint.bins,
            placement=checkpoint.placement,
            shares=shares,
        )


@dataclass
class Pending:
    """A version whose changes were cut, but not written yet."""

    version: int
    chunk: int
    cuts: Sequence[Cuts]
    rows: dict[str, Rows]


@dataclass
class StoredRun(MovingRun):
    """A flow of which versions are stored, and that goes on from them after crashes."""

    disk: Disk = field(default_factory=Disk)
    version: int = 0
    parts: list[Part | None] = field(default_factory=list)
    lost: int = 0
    """The newest version when the last file was lost."""
    pending: Pending | None = None
    history: dict[int, tuple[int, dict[str, Rows]]] = field(default_factory=dict)
    """The next chunk, and all rows so far, of each version that was committed."""

    def run(self) -> None:
        random = self.random
        self.store = Checkpoints("/store", files=SimulatedFiles(self.disk))
        made = chunks(self.seed)
        run, at = self.begin()
        crashes = random.choice([0, 2, 5])
        while at < len(made):
            try:
                for name, table in made[at].items():
                    self.send(run, name, table)
                self.migrate(run, at * SPAN)
                to = self.time(random.choice([at, at + 1]) * SPAN)
                for name in made[at]:
                    for worker in range(len(run.workers)):
                        run.input(name, worker).advance_to(to)
                for _ in range(random.choice([0, 3, 30, 300])):
                    run.turn()
                at += 1
                self.disk.left = random.randrange(12) if crashes and random.random() < 0.3 else -1
                if random.random() < 0.7:
                    self.write()
                if random.random() < 0.6:
                    self.cut(run, at)
                    if random.random() < 0.5:
                        self.write()
                self.disk.left = -1
                crashed = crashes > 0 and random.random() < 0.15
            except Crashed:
                self.facts["crashes in the store"] += 1
                crashed = True
            if crashed:
                crashes -= 1
                self.disk.left = -1
                run.close()
                run, at = self.begin()
        self.end(run, run.finish())
        assert self.rows == self.unmoved()

    def begin(self) -> tuple[Run, int]:
        """Go on from the newest version, on any number of workers."""
        self.pending = None
        self.store = Checkpoints("/store", files=SimulatedFiles(self.disk))
        newest = self.store.latest()
        if newest is None:
            self.rows = {name: Counter() for name in self.flow.outputs}
            run = self.open(None)
            self.parts = [None] * len(run.workers)
            return run, 0
        self.lose_a_file(newest)
        workers = self.random.choice([1, 2, 3, newest.workers, newest.workers])
        run = self.flow.open(
            workers=workers,
            seed=self.random.randrange(1 << 30),
            restore=Shares.of(newest, workers),
            memory_budget=self.budget(),
        )
        self.parts = [newest.part(worker, workers) for worker in range(workers)]
        self.facts["goes on"] += 1
        self.facts["goes on with its chains"] += workers == newest.workers
        at, rows = self.history[newest.version]
        self.rows = {name: +found for name, found in rows.items()}
        return run, at

    def lose_a_file(self, newest: Checkpoint) -> None:
        """Any one file is lost that was not written for the newest version.

        Another one only once there is a later version, which does not need it.
        """
        own = f"{newest.version:012d}-"
        others = sorted(name for name in newest.files if not name.startswith(own))
        if others and newest.version > self.lost and self.random.random() < 0.5:
            self.lost = newest.version
            lost = PurePosixPath("/store/parts") / self.random.choice(others)
            del self.disk.files[str(lost)]
            self.facts["lost files"] += 1

    def cut(self, run: Run, at: int) -> None:
        """Cut the changes of all workers, which are written later."""
        self.write()
        run.run_to_rest()
        if run.migration is not None:
            return
        tokens = [{} if part is None else part.tokens for part in self.parts]
        try:
            cuts = [w.cut(t) for w, t in zip(run.workers, tokens, strict=True)]
        except SnapshotError as error:
            if "needs loops at rest" not in str(error):
                raise
            # What the other workers have cut is lost: they are asked for all rows.
            self.parts = [None] * len(self.parts)
            self.facts["abandoned"] += 1
            return
        for kept in (kept for each in cuts for kept in each.values()):
            for cut in kept.values():
                if isinstance(cut, Cut):
                    self.facts["all rows" if cut.after is None else "changes"] += 1
        rows = {
            name: self.rows[name] + counted(name, table) for name, table in run.results().items()
        }
        owners = run.workers[0].placement
        self.owners = () if owners.is_even else owners.owners.tolist()
        self.version += 1
        self.pending = Pending(self.version, at, cuts, rows)

    def write(self) -> None:
        pending, self.pending = self.pending, None
        if pending is None:
            return
        self.parts = [
            self.store.write_part(
                pending.version,
                worker,
                cuts,
                base=base,
                bins=256,
                owners=self.owners if worker == 0 else (),
            )
            for worker, (cuts, base) in enumerate(zip(pending.cuts, self.parts, strict=True))
        ]
        # Before the commit, of which it is not known whether it has happened if that crashes.
        self.history[pending.version] = pending.chunk, pending.rows
        made: list[Part] = [part for part in self.parts if part is not None]
        self.store.commit(pending.version, made, flow=self.flow.name)
        self.facts["versions"] += 1
        links = [len(chain.links) for part in made for chain in part.chains.values()]
        self.facts["longest chain"] = max([self.facts["longest chain"], *links])
        self.store.clean(2)


def campaign(seeds: range, names: list[str] | None = None) -> Counter[str]:
    facts: Counter[str] = Counter()
    for seed in seeds:
        stored = StoredRun(seed, names)
        try:
            stored.run()
        except BaseException as error:
            error.add_note(f"seed {seed}: {stored.names}")
            raise
        facts += stored.facts
    return facts


@pytest.mark.parametrize("most", [1, 3], ids=["merged at once", "merged from time to time"])
def test_whatever_happens_rows_are_those_of_an_undisturbed_run(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "MOST_LINKS", most)
    facts = campaign(range(6, 10))
    assert facts["changes"] > 2 * facts["goes on"], facts
    for fact in ("crashes in the store", "lost files", "goes on with its chains", "migrations"):
        assert facts[fact] > 0, facts


@pytest.mark.long
@pytest.mark.parametrize("start", range(100, 1100, 100))
def test_a_thousand_seeds(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "MOST_LINKS", Random(start).choice([1, 2, 4]))
    facts = campaign(range(start, start + 100))
    print(dict(facts))
    assert facts["changes"] > 100
