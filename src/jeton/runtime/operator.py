"""One operator on one worker: its ports, its logic, and whether a frontier's move concerns it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from jeton.columns.batch import Batch
from jeton.columns.time_units import INTEGER, in_words
from jeton.core.bookkeeping import Bookkeeping
from jeton.core.errors import JetonError, OperatorFailed, SnapshotError
from jeton.core.source_lines import user_line
from jeton.core.times import Time
from jeton.dataflow.plan import OperatorPlan, Step
from jeton.dataflow.ports import Input, Moment, Output
from jeton.state.changes import Cut, Guard
from jeton.state.tagged_state import Origin, TaggedState

if TYPE_CHECKING:
    from jeton.runtime.spilling import Spill

Tokens = Mapping[tuple[str, str], str]
"""For containers, by operator and name, the tokens of their states that were stored last."""


@dataclass(eq=False)
class Operator:
    """An operator of a worker's copy of the graph."""

    plan: OperatorPlan
    inputs: list[Input]
    outputs: list[Output]
    books: list[Bookkeeping]
    moment: Moment
    step: Step | None = None
    kept: dict[str, TaggedState] = field(default_factory=dict)
    """The containers that are part of snapshots."""
    guard: Guard = field(default_factory=Guard)
    """Held by whoever uses its containers, while a thread reads them for a checkpoint."""
    origin: Origin = field(default_factory=lambda: Origin(""))
    """Where it stands in the flow."""
    ends: list[Callable[[], None]] = field(default_factory=list)
    """Acts for the end of the run."""
    shared: set[Hashable] = field(default_factory=set)
    """The values that it shares with other operators of its worker."""
    spill: Spill | None = None
    """Its state that may be on disk, where the worker has a memory budget."""
    watching: bool = False
    """Whether it is notified of its inputs' frontiers now."""
    invocations: int = 0
    state_rows: int | None = None
    """Rows of what it keeps, in the latest snapshot; ``None`` before the first one."""
    state_bytes: int | None = None
    # Kept by a worker that is measured:
    seconds: float = 0.0
    batches_in: int = 0
    records_in: int = 0
    batches_out: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    latency: list[int] | None = None
    """How often its frontier got to where inputs were, by seconds: see `jeton.runtime.latency`."""
    latency_seconds: float = 0.0
    """The sum of these seconds."""
    sample: Batch | None = None
    """The latest batch that it sent; that came in, if it sends none."""

    @property
    def index(self) -> int:
        """Its number in the flow."""
        return self.plan.index

    @property
    def wants_frontiers(self) -> bool:
        """Whether a moved frontier should wake it."""
        notify = self.plan.notify
        if notify == "held":
            for book in self.books:
                if book.held > 0:
                    return True
        return notify == "always"

    def snapshot(self, worker: int) -> dict[str, pa.Table]:
        """Its containers; an error if it holds tokens without any."""
        self._require_kept(worker)
        try:
            with self.guard:
                found = {name: kept.snapshot() for name, kept in self.kept.items()}
        except JetonError as error:
            error.located(operator=self.plan.name, worker=worker)
            raise
        self.state_rows = sum(table.num_rows for table in found.values())
        self.state_bytes = sum(table.nbytes for table in found.values())
        return found

    def cut(self, worker: int, tokens: Tokens) -> dict[str, Cut | pa.Table]:
        """The changes of its containers since the states with these tokens."""
        self._require_kept(worker)
        found: dict[str, Cut | pa.Table] = {}
        try:
            for name, kept in self.kept.items():
                found[name] = kept.cut(tokens.get((self.plan.name, name)), self.guard)
        except BaseException as error:
            abandon(found)
            if isinstance(error, JetonError):
                error.located(operator=self.plan.name, worker=worker)
            raise
        each = found.values()
        self.state_rows = sum(c.rows if isinstance(c, Cut) else c.num_rows for c in each)
        self.state_bytes = sum(c.nbytes for c in each)
        return found

    def _require_kept(self, worker: int) -> None:
        if self.inputs and not self.kept and any(book.held > 0 for book in self.books):
            raise SnapshotError(
                "it holds tokens but keeps no state, so that its pending work would be "
                "lost: info.keep(…) a container such as jt.state.KeyedTimes, or say "
                "info.keep_nothing() if it can begin anew"
            ).located(operator=self.plan.name, worker=worker)

    def reset_counts(self) -> None:
        """Begin to count anew."""
        self.invocations = self.batches_in = self.records_in = 0
        self.batches_out = self.records_out = 0
        self.bytes_in = self.bytes_out = 0
        self.seconds = self.latency_seconds = 0.0
        if self.spill is not None:
            self.spill.brought_back = 0
        if self.latency is not None:
            self.latency = [0] * len(self.latency)

    def has_input(self) -> bool:
        """Whether messages wait."""
        return any(self.inputs)

    def fail(self, error: BaseException, doing: str, worker: int) -> NoReturn:
        """Raise an error that says operator, worker, time and line; user code's are wrapped.

        Every exception of user code is wrapped, `SystemExit` too: it must not pass for the end of
        a worker.
        """
        if isinstance(error, JetonError):
            failed, origin = error, error.__cause__ or error
        else:
            failed, origin = OperatorFailed.because(error, doing), error
        failed.located(
            operator=self.plan.name,
            worker=worker,
            time=self.moment.time,
            line=user_line(origin) or user_line(error) or self.plan.defined,
        )
        if failed.moment is None and failed.time is not None:
            failed.moment = self._shown(failed.time)
        raise failed

    def _shown(self, time: Time) -> str | None:
        """A time for people, if times are timestamps."""
        units = [port.units for port in self.inputs] or [port.units for port in self.outputs]
        unit = units[0].unit if units else None
        return None if unit in (None, INTEGER) else in_words(time, unit)


@dataclass(eq=False)
class Watch:
    """An input whose frontier an operator watches."""

    operator: int
    location: int
    seen: tuple[Time, ...]
    """The least times of its frontier, as `Watches.moved` has found them last."""


@dataclass
class Watches:
    """The inputs that want to know, by segment and position."""

    places: Sequence[tuple[int, int]]
    by_segment: dict[int, dict[int, Watch]] = field(default_factory=dict)
    """For each segment its watched positions, in ascending order."""
    by_location: dict[int, Watch] = field(default_factory=dict)

    def add(self, watch: Watch) -> None:
        """Watch an input."""
        self.by_location[watch.location] = watch
        segment, position = self.places[watch.location]
        watches = {**self.by_segment.get(segment, {}), position: watch}
        self.by_segment[segment] = dict(sorted(watches.items()))

    def remove(self, location: int) -> None:
        """No longer watch an input."""
        del self.by_location[location]
        segment, position = self.places[location]
        watches = self.by_segment[segment]
        del watches[position]
        if not watches:
            del self.by_segment[segment]

    def moved(self, tracker: Any, segments: set[int]) -> list[int]:
        """The operators with an input whose frontier is not what they have seen."""
        woken: list[int] = []
        for segment in segments:
            watches = self.by_segment.get(segment)
            if watches is None:
                continue
            if tracker.is_wide:
                frontiers = [tracker.least(watch.location) for watch in watches.values()]
            else:
                frontiers = tracker.frontiers(segment, watches)
            for watch, now in zip(watches.values(), frontiers, strict=True):
                if watch.seen != now:
                    watch.seen = now
                    woken.append(watch.operator)
        return woken


def abandon(cuts: Mapping[str, Cut | pa.Table]) -> None:
    """Take cuts back, since there will be no checkpoint of them."""
    for cut in cuts.values():
        if isinstance(cut, Cut):
            cut.abandon()
