"""The conductor: the driver's side of micro-batches, which keeps the workers in step.

Tasks say what they keep, how far their inputs are, and what they wrote; each time all have spoken,
all get the answer. The conductor alone commits versions, so that an attempt
which was given up, and whose tasks may linger, cannot.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jeton.core.errors import GraphError, JetonError, SnapshotError
from jeton.spark.checkpoints import Checkpoint, Checkpoints, Part
from jeton.spark.control import Control
from jeton.spark.state_files import CorruptCheckpoint
from jeton.spark.streaming_tasks import damaged

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow

log = logging.getLogger(__name__)

CLEAN_EVERY: Final = 8
"""Micro-batches from one clean-up to the next."""

_claims: dict[tuple[str, str], str] = {}
"""Which plan keeps its state in which place, for each run of a query."""


@dataclass(frozen=True)
class Rules:
    """How a flow's state is kept from one micro-batch to the next."""

    allow_removed: Collection[str]
    keep: int
    """How many versions are there at least, besides the one that is being made."""
    together: bool
    """Whether all inputs advance to what the furthest of them allows."""


@dataclass(slots=True, eq=False)
class _Attempt:
    """The tasks of one attempt at one micro-batch, and what they have said so far."""

    number: int
    controls: dict[int, Control] = field(default_factory=dict)
    said: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    workers: int = 0
    batch: int = -1
    stage: int = -1
    epoch: int = 0
    place: _Place | None = None
    committed: bool = False

    def answer(self, kind: str, **what: Any) -> None:
        """Tell all tasks the same."""
        for control in self.controls.values():
            # One that has left is noticed where its words are awaited.
            with suppress(OSError):
                control.send(kind, **what)

    def give_up(self) -> None:
        """Hang up on all of them."""
        for control in self.controls.values():
            control.close()


@dataclass(slots=True, eq=False)
class _Place:
    """What the conductor knows of a query that runs: where its state is, and what is newest."""

    run: str
    path: str
    store: Checkpoints
    epoch: int
    """The greatest epoch so far."""
    known: dict[int, Checkpoint] = field(default_factory=dict)
    """The versions that may be needed next."""
    batch: int = -1
    attempts: dict[int, int] = field(default_factory=dict)
    """The newest attempt at each stage of the newest micro-batch."""

    def begin(self, attempt: _Attempt) -> None:
        """From now on this is the attempt that counts."""
        if attempt.batch != self.batch:
            self.batch, self.attempts = attempt.batch, {}
        self.attempts[attempt.stage] = attempt.number
        self.epoch += 1

    def counts(self, attempt: _Attempt) -> bool:
        """Whether no other attempt has begun since."""
        return self.batch == attempt.batch and self.attempts.get(attempt.stage) == attempt.number


class Conductor:
    """Keeps the workers of one plan in step, for each query that runs it.

    >>> import tempfile, jeton as jt
    >>> flow = jt.Flow("counts")
    >>> folder = tempfile.mkdtemp()
    >>> rules = Rules(allow_removed=(), keep=2, together=False)
    >>> conductor = Conductor(flow, "plan", rules, lambda query: folder, lambda plan, stage: None)
    >>> here, there = socket.socketpair()
    >>> conductor.take_over(0, 1, there)
    >>> task = Control(here)
    >>> task.send("begin", workers=1, stage=7, query="q", run="r", batch=0, held=None)
    >>> orders, _ = task.receive()
    >>> orders["version"], orders["restore"], orders["live"]
    (0, None, False)
    >>> task.send("part", part={"worker": 0, "states": []})
    >>> task.receive()[0]["kind"], Checkpoints(f"{folder}/counts").versions()
    ('part', [0])
    >>> task.close()
    """

    def __init__(
        self,
        flow: Flow,
        plan: str,
        rules: Rules,
        root_of: Callable[[str], str],
        forget_stages: Callable[[str, int], None],
    ) -> None:
        self._flow = flow
        self._plan = plan
        self._rules = rules
        self._root_of = root_of
        self._forget_stages = forget_stages
        self._lock = threading.RLock()
        self._attempts: dict[int, _Attempt] = {}
        self._places: dict[str, _Place] = {}

    def take_over(self, rank: int, epoch: int, sock: socket.socket) -> None:
        """Listen to a task that has met the others (a listener of the rendezvous)."""
        name = f"jeton-task-{rank}"
        threading.Thread(
            target=self._serve, args=(epoch, rank, Control(sock)), name=name, daemon=True
        ).start()

    def _serve(self, number: int, rank: int, control: Control) -> None:
        with self._lock:
            attempt = self._attempts.setdefault(number, _Attempt(number))
            attempt.controls[rank] = control
        while (frame := control.receive()) is not None:
            with self._lock:
                try:
                    self._hear(attempt, rank, frame[0])
                except JetonError as error:
                    attempt.answer("failed", text=str(error))
                except Exception as error:
                    log.exception("the conductor of flow %r failed", self._flow.name)
                    attempt.answer("failed", text=f"{type(error).__name__} at the driver: {error}")
        with self._lock:
            if not attempt.committed:
                attempt.give_up()
            del attempt.controls[rank]
            if not attempt.controls:
                self._attempts.pop(number, None)
        control.close()
        if rank == 0 and attempt.committed and attempt.batch % CLEAN_EVERY == 0:
            self._clean(attempt)

    def _hear(self, attempt: _Attempt, rank: int, header: Mapping[str, Any]) -> None:
        kind = str(header["kind"])
        if kind == "begin":
            attempt.workers = int(header["workers"])
        said = attempt.said.setdefault(kind, {})
        said[rank] = dict(header)
        if len(said) == attempt.workers:
            in_order = [said[task] for task in range(attempt.workers)]
            answers = {"begin": self._begin, "fed": self._fed, "part": self._commit}
            attempt.answer(kind, **answers[kind](attempt, in_order))

    def _begin(self, attempt: _Attempt, said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        first = said[0]
        attempt.batch, attempt.stage = int(first["batch"]), int(first["stage"])
        place = attempt.place = self._place(str(first["query"]), str(first["run"]))
        place.begin(attempt)
        attempt.epoch = place.epoch
        before = self._before(place, attempt.batch)
        live = before is not None and _all_alive(before, said)
        return {
            "numbers": [task["held"][3] for task in said] if live else list(range(len(said))),
            "version": attempt.batch,
            "epoch": attempt.epoch,
            "path": place.path,
            "restore": None if before is None else before.version,
            "live": live,
        }

    def _fed(self, attempt: _Attempt, said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """How far each input advances: as the greatest time allows that any worker has seen."""
        floors: dict[str, int] = {}
        for task in said:
            for name, floor in task["floors"].items():
                floors[name] = max(floor, floors.get(name, floor))
        if self._rules.together and floors:
            floors = dict.fromkeys(self._flow.inputs, max(floors.values()))
        return {"floors": floors}

    def _commit(self, attempt: _Attempt, said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        place, batch = attempt.place, attempt.batch
        assert place is not None, "it has begun"
        if not place.counts(attempt):
            raise JetonError(f"another attempt at micro-batch {batch} has begun since this one")
        made = place.store.commit(
            batch,
            [Part.from_json(task["part"]) for task in said],
            flow=self._flow.name,
            epoch=attempt.epoch,
        )
        place.known = {batch: made} | {v: k for v, k in place.known.items() if v == batch - 1}
        attempt.committed = True
        return {}

    def _before(self, place: _Place, batch: int) -> Checkpoint | None:
        """The state that a micro-batch starts from: always that after the one before it."""
        if batch == 0:
            return None
        found = place.known.get(batch - 1)
        if found is None:
            try:
                found = place.store.load(batch - 1)
            except CorruptCheckpoint as error:
                raise damaged(batch - 1, error) from error
            except SnapshotError as error:
                raise SnapshotError(
                    f"micro-batch {batch} needs the state after the one before: {error.message}. "
                    "Every micro-batch must run the flow, also in a foreachBatch; a flow that "
                    "comes to a query later needs a new checkpoint location"
                ) from error
            found.check(self._flow, allow_removed=self._rules.allow_removed)
            place.known[batch - 1] = found
        return found

    def _place(self, query: str, run: str) -> _Place:
        """Where a query's state is; looked up once for each time that it is started."""
        place = self._places.get(query)
        if place is None or place.run != run:
            folder = re.sub(r"[^\w.-]", "_", self._flow.name)
            path = f"{self._root_of(query)}/{folder}"
            if _claims.setdefault((run, path), self._plan) != self._plan:
                raise GraphError(
                    f"two flows of one query are called {self._flow.name!r}: give them names of "
                    "their own, so that each has its own state"
                )
            store = Checkpoints(path)
            epoch = max((epoch for _, epoch in store.committed()), default=0)
            place = self._places[query] = _Place(run, path, store, epoch)
        return place

    def _clean(self, attempt: _Attempt) -> None:
        """What a replay of the newest micro-batch needs stays; files go in step with Spark's."""
        assert attempt.place is not None, "it has begun"
        try:
            # The newest version counts only once Spark has gone on from it.
            attempt.place.store.clean(self._rules.keep, newest=attempt.batch - 1)
        except (OSError, JetonError) as error:
            log.warning("old versions of flow %r stay for now: %s", self._flow.name, error)
        self._forget_stages(self._plan, attempt.stage)


def _all_alive(before: Checkpoint, said: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the tasks' processes keep all the workers that made a version."""
    wanted = [[before.version, before.epoch, len(said), index] for index in range(len(said))]
    held = [task["held"] for task in said]
    return all(claim is not None for claim in held) and sorted(held) == wanted
