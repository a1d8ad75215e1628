"""The micro-batch coordinator: the driver's side of micro-batches.

It has a `Coordinator` for each attempt at a micro-batch. Tasks report which workers they keep, how
far their inputs are, and which files they wrote; each time all have reported, all get the next
command. Only the driver commits versions, so that an abandoned attempt, whose tasks may still run,
cannot.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jeton.cluster.control import Control
from jeton.cluster.coordinator import Coordinator
from jeton.cluster.steering import Steering
from jeton.columns.time_units import INTEGER
from jeton.core.errors import GraphError, JetonError, ProtocolError, SnapshotError
from jeton.runtime.commands import Advance, Command, Fail, Stop
from jeton.runtime.commands import Checkpoint as CheckpointCommand
from jeton.spark.internals import RunningQuery, skips_repeated_batches
from jeton.spark.query_location import folder_of
from jeton.spark.stream_breakpoint import StreamBreakpoint
from jeton.spark.streaming_tasks import Orders, damaged
from jeton.storage.checkpoints import Checkpoint, Checkpoints, Part
from jeton.storage.chunk_format import CorruptCheckpoint

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow

log = logging.getLogger(__name__)

CLEAN_EVERY: Final = 8
"""Micro-batches from one clean-up to the next."""
EPOCHS: Final = 1 << 20
"""How far apart the epochs of one start and the next are, even if a version is lost in between."""


@dataclass(frozen=True)
class Rules:
    """How a flow's state is kept from one micro-batch to the next."""

    allow_removed: Collection[str]
    keep: int
    """How many versions are there at least, besides the one that is being made."""
    follow_furthest: bool
    """Whether all inputs advance to what the furthest of them allows."""
    left_out: bool = False
    """Whether Spark may leave the flow out of micro-batches for which no source has rows."""
    aggregated: bool = False
    """Whether the flow's input comes from an aggregation of Spark's."""


@dataclass(slots=True, eq=False)
class _Attempt(Coordinator):
    """The tasks of one attempt at one micro-batch."""

    attempt: int = 0
    batch: int = -1
    stage: int = -1
    epoch: int = 0
    place: _Place | None = None
    committed: bool = False
    failed: bool = False
    paused: bool = False
    """Whether its workers began with a breakpoint."""
    latest: int | None = None
    """The greatest time of its records."""


@dataclass(slots=True, eq=False)
class _Place:
    """The state of a query that runs: its location, its newest versions and attempts."""

    run: str
    query: RunningQuery
    path: str
    store: Checkpoints
    epoch: int
    """The greatest epoch so far."""
    known: dict[int, Checkpoint | None] = field(default_factory=dict)
    """The state after those micro-batches that may be needed next."""
    batch: int = -1
    attempts: dict[int, int] = field(default_factory=dict)
    """The newest attempt at each stage of the newest micro-batch."""
    numbers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """Which worker each task is, by the number of the micro-batch and of its tasks."""

    def begin(self, attempt: _Attempt) -> None:
        """From now on this is the attempt that counts."""
        if attempt.batch != self.batch:
            self.batch, self.attempts = attempt.batch, {}
        self.attempts[attempt.stage] = attempt.attempt
        self.epoch += 1

    def arrange(
        self, batch: int, before: Checkpoint | None, said: Sequence[Mapping[str, Any]]
    ) -> tuple[list[int], bool]:
        """Which worker each task is, and whether the tasks' processes keep these workers.

        The first attempt at a micro-batch decides, and all others follow: Spark may keep a part
        of what one attempt made and take the rest from another, so the task that reads a partition
        must be the same worker in both.
        """
        live = before is not None and _all_alive(before, said)
        held = [task["held"][3] for task in said] if live else list(range(len(said)))
        self.numbers = {at: known for at, known in self.numbers.items() if at[0] >= batch - 1}
        numbers = self.numbers.setdefault((batch, len(said)), held)
        return numbers, live and numbers == held

    def counts(self, attempt: _Attempt) -> bool:
        """Whether no other attempt has begun since."""
        return self.batch == attempt.batch and self.attempts.get(attempt.stage) == attempt.attempt


class MicroBatchCoordinator:
    """Coordinates the workers of one plan in the micro-batches of each query that runs it.

    >>> import tempfile, jeton as jt
    >>> from jeton.spark.query_location import QueryLocation
    >>> flow = jt.Flow("counts")
    >>> location = QueryLocation(tempfile.mkdtemp())
    >>> rules = Rules(allow_removed=(), keep=2, follow_furthest=False)
    >>> look_up = lambda query: RunningQuery(location)
    >>> coordinator = MicroBatchCoordinator(
    ...     flow, "plan", rules, look_up, lambda plan, stage: None, {}
    ... )
    >>> here, there = socket.socketpair()
    >>> coordinator.take_over(0, 1, there)
    >>> task = Control(here)
    >>> task.send("begin", workers=1, stage=7, query="q", run="r", batch=0, held=None)
    >>> orders, _ = task.receive()
    >>> orders["version"], orders["restore"], orders["live"]
    (0, None, False)
    >>> task.send("fed", floors={})
    >>> [task.receive()[0]["kind"] for _ in range(2)]
    ['advance', 'checkpoint']
    >>> task.send("part", number=3, part={"worker": 0, "states": []})
    >>> task.receive()[0]["kind"], Checkpoints(location.path("counts")).versions()
    ('stop', [0])
    >>> task.close()
    """

    def __init__(
        self,
        flow: Flow,
        plan: str,
        rules: Rules,
        look_up: Callable[[str], RunningQuery],
        forget_stages: Callable[[str, int], None],
        state_owners: dict[tuple[str, str], str],
        breakpoint: StreamBreakpoint | None = None,
    ) -> None:
        """``state_owners`` has the plan that keeps its state in a folder, for each run."""
        self._flow = flow
        self._plan = plan
        self._rules = rules
        self._look_up = look_up
        self._forget_stages = forget_stages
        self._state_owners = state_owners
        self._lock = threading.RLock()
        self._attempts: dict[int, _Attempt] = {}
        self._places: dict[str, _Place] = {}
        self.breakpoint = breakpoint or StreamBreakpoint(flow, INTEGER)

    @property
    def under_way(self) -> list[Coordinator]:
        """The attempts at micro-batches that have begun, and are not committed."""
        with self._lock:
            found = [each for each in self._attempts.values() if each.place is not None]
            return [each for each in found if not each.committed and not each.failed]

    def take_over(self, rank: int, epoch: int, sock: socket.socket) -> None:
        """Listen to a task that has met the others (a listener of the rendezvous)."""
        control = Control(sock)
        with self._lock:
            made = _Attempt(name="jeton-task", attempt=epoch)
            attempt = self._attempts.setdefault(epoch, made)
            attempt.join(rank, control)
            attempt.listen(rank, control, self)

    # Called by the `Coordinator`, for each task in a thread of its own

    def hear(
        self, coordinator: Coordinator, worker: int, header: dict[str, Any], payload: bytes
    ) -> None:
        """A task has sent a frame; once all have sent the same kind, they get the answer."""
        attempt = coordinator
        assert isinstance(attempt, _Attempt)
        answers = {"begin": self._begin, "fed": self._fed, "part": self._commit}
        with self._lock:
            if attempt.failed:
                return
            kind = header["kind"]
            if kind in ("facts", "busy"):
                attempt.inquiry.hear(worker, header)
                return
            if kind == "steered" and attempt.steering is not None:
                attempt.steering.hear(worker, header, payload)
                return
            if kind not in answers:
                raise ProtocolError(
                    f"task {worker} of flow {self._flow.name!r} sent a frame of kind {kind!r}, but "
                    f"the driver knows {list(answers)} only: is its version of Jeton another one?"
                )
            if kind == "begin":
                attempt.workers = int(header["workers"])
            said = attempt.gather(worker, header)
            if said is not None:
                for command in answers[kind](attempt, said):
                    attempt.send(command)

    def misheard(self, coordinator: Coordinator, worker: int, error: Exception) -> None:
        """Let all tasks of an attempt fail with the same cause; they hang up then."""
        text = str(error)
        if isinstance(error, ProtocolError) or not isinstance(error, JetonError):
            name = self._flow.name
            log.error("the driver gives an attempt at flow %r up", name, exc_info=error)
            text = f"{type(error).__name__} at the driver, of what task {worker} said: {error}"
        assert isinstance(coordinator, _Attempt)
        with self._lock:
            if not coordinator.failed:
                coordinator.failed = True
                coordinator.send(Fail(text=text))

    def left(self, coordinator: Coordinator, worker: int) -> None:
        """A task has hung up: if there is no commit, the others cannot go on either."""
        attempt = coordinator
        assert isinstance(attempt, _Attempt)
        if attempt.steering is not None:
            attempt.steering.end("the workers of the micro-batch have left")
        self.breakpoint.forget(attempt)
        with self._lock:
            if not attempt.committed:
                attempt.hang_up()
            attempt.controls.pop(worker).close()
            if not attempt.controls:
                self._attempts.pop(attempt.attempt, None)
        if worker == 0 and attempt.committed and attempt.batch % CLEAN_EVERY == 0:
            self._clean(attempt)

    def _begin(self, attempt: _Attempt, said: Sequence[Mapping[str, Any]]) -> list[Command]:
        first = said[0]
        attempt.batch, attempt.stage = int(first["batch"]), int(first["stage"])
        place = attempt.place = self._place(str(first["query"]), str(first["run"]))
        place.begin(attempt)
        attempt.epoch = place.epoch
        paused_at = self.breakpoint.at
        attempt.steering = Steering(attempt, paused_at)
        attempt.paused = paused_at is not None
        before = self._before(place, attempt.batch)
        numbers, live = place.arrange(attempt.batch, before, said)
        orders = Orders(
            numbers=numbers,
            version=attempt.batch,
            epoch=attempt.epoch,
            path=place.path,
            restore=None if before is None else before.version,
            live=live,
            remedy=self._remedy(place),
            paused_at=None if paused_at is None else paused_at.time,
        )
        return [orders]

    def _fed(self, attempt: _Attempt, said: Sequence[Mapping[str, Any]]) -> list[Command]:
        """How far each input advances: as the greatest time allows that any worker has seen."""
        floors: dict[str, int] = {}
        for task in said:
            for name, floor in task["floors"].items():
                floors[name] = max(floor, floors.get(name, floor))
        if self._rules.follow_furthest and floors:
            floors = dict.fromkeys(self._flow.inputs, max(floors.values()))
        # They stay at rest until the version is committed, so that it has all they have done.
        checkpoint = CheckpointCommand(version=attempt.batch, settle=True, hold=True)
        seen = [task["latest"] for task in said if task.get("latest") is not None]
        attempt.latest = max(seen, default=None)
        if attempt.paused:
            self.breakpoint.hold(attempt, checkpoint)
            return [Advance(inputs=floors)]
        return [Advance(inputs=floors), checkpoint]

    def _commit(self, attempt: _Attempt, said: Sequence[Mapping[str, Any]]) -> list[Command]:
        place, batch = attempt.place, attempt.batch
        assert place is not None, "it has begun"
        if not place.counts(attempt):
            raise JetonError(f"another attempt at micro-batch {batch} has begun since this one")
        made = place.store.commit(
            batch,
            [Part.from_json(task["part"]) for task in said],
            flow=self._flow.name,
            epoch=attempt.epoch,
            meta={"sink": place.query.sink},
        )
        place.known = {b: state for b, state in place.known.items() if b == batch - 1}
        place.known[batch] = made
        attempt.committed = True
        self.breakpoint.advance(attempt.latest)
        return [Stop()]

    def _before(self, place: _Place, batch: int) -> Checkpoint | None:
        """The state that a micro-batch starts from: always that after the one before it."""
        if batch == 0:
            return None
        if batch - 1 not in place.known:
            version = self._version_before(place, batch)
            found = None
            if version is not None:
                try:
                    found = place.store.load(version)
                except CorruptCheckpoint as error:
                    raise damaged(version, error, self._remedy(place)) from error
                self._check(found)
            place.known[batch - 1] = found
        return place.known[batch - 1]

    def _version_before(self, place: _Place, batch: int) -> int | None:
        """The version that a micro-batch starts from; none if no row has come before it."""
        versions = place.store.versions()
        newest = max((version for version in versions if version < batch), default=-1)
        missing = range(newest + 1, batch)
        if missing and not (self._rules.left_out and _brought_nothing(place.query, missing)):
            location, name = place.query.location, self._flow.name
            others = [folder for folder in location.stores() if folder != folder_of(name)]
            raise SnapshotError(
                f"micro-batch {batch} needs the state after the one before, but there is no "
                f"version {batch - 1} of flow {name!r} in {place.path} (there are: "
                f"{versions or 'none'}). A flow that is renamed keeps its state only under its "
                f"old name (others with state there: {others or 'none'}), one that comes to a "
                "query later needs a new checkpoint location, and every micro-batch must run the "
                "flow: if Spark left it out since it had no rows, use repartition=True, call "
                f"{location.remedy(name)} and start it again"
            )
        return None if newest < 0 else newest

    def _check(self, found: Checkpoint) -> None:
        removed = self._rules.allow_removed
        found.check(self._flow, allow_removed=removed)
        # An operator, or one of the containers that it keeps.
        known = tuple(f"{name}/" for name in found.operators)
        unknown = [name for name in removed if not f"{name}/".startswith(known)]
        if unknown:
            log.warning(
                "allow_removed= names %s, of which version %d of flow %r has no state",
                unknown,
                found.version,
                self._flow.name,
            )

    def _remedy(self, place: _Place) -> str:
        """The advice in an error about damaged state."""
        if skips_repeated_batches(place.query.sink):
            return (
                "The query's sink leaves out micro-batches that it has, so that none can be done "
                "again: start anew with another checkpoint location and folder"
            )
        return (
            f"Stop the query, call {place.query.location.remedy(self._flow.name)}, so that it does "
            "that micro-batch again from the state before it, and start it again"
        )

    def _place(self, query: str, run: str) -> _Place:
        """Where a query's state is; looked up once for each time that it is started."""
        place = self._places.get(query)
        if place is None or place.run != run:
            found = self._look_up(query)
            path = found.location.path(self._flow.name)
            self._require_mode(found.mode)
            if self._state_owners.setdefault((run, path), self._plan) != self._plan:
                raise GraphError(
                    f"two flows of one query are called {self._flow.name!r}: give them names of "
                    "their own, so that each has its own state"
                )
            store = Checkpoints(path)
            # From now on no other driver that runs the query can commit.
            start = (store.take_lease().attempt - 1) * EPOCHS
            epoch = max((start, *(epoch for _, epoch in store.committed())))
            place = self._places[query] = _Place(run, found, path, store, epoch)
        return place

    def _require_mode(self, mode: str) -> None:
        """In some modes, aggregations before the flow emit rows more than once."""
        if not self._rules.aggregated or mode == "Append":
            return
        if mode == "Complete":
            raise GraphError(
                f"in output mode 'complete' the aggregation before flow {self._flow.name!r} gives "
                "it the whole table again in each micro-batch: use 'append', or aggregate behind "
                "the flow"
            )
        log.warning(
            "in output mode %r the aggregation before flow %r gives it rows that are not final, "
            "and again whenever they change",
            mode.lower(),
            self._flow.name,
        )

    def _clean(self, attempt: _Attempt) -> None:
        """Remove old versions, in step with Spark, except those that a replay needs."""
        assert attempt.place is not None, "it has begun"
        try:
            # The newest version counts only once Spark has gone on from it.
            attempt.place.store.clean(self._rules.keep, newest=attempt.batch - 1)
        except Exception as error:
            log.warning("old versions of flow %r stay for now: %s", self._flow.name, error)
        self._forget_stages(self._plan, attempt.stage)


def _all_alive(before: Checkpoint, said: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the tasks' processes keep all the workers that made a version."""
    wanted = [[before.version, before.epoch, len(said), index] for index in range(len(said))]
    held = [task["held"] for task in said]
    return all(claim is not None for claim in held) and sorted(held) == wanted


def _brought_nothing(query: RunningQuery, batches: Collection[int]) -> bool:
    """Whether it is certain that there were no rows for any of these micro-batches."""
    first = query.first_offsets() if 0 in batches else ()
    return all(query.location.log.brought_nothing(batch, first) for batch in batches)
