"""Steering: the commands that set, move and remove a breakpoint, and look at a flow that rests.

All workers get each of them, and answer. A *protocol* is a generator that yields such commands and
gets the answers of all workers to each. So the same protocols serve the in-process host, which has
the workers at hand, and the driver of a query, which has to wait for them.
"""

from __future__ import annotations

import base64
import pickle
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from jeton.columns.time_domain import Units
from jeton.columns.time_units import (
    INTEGER,
    column_times,
    convert,
    in_words,
    is_timestamp,
    plain_time,
    stamped,
    unit_of_one,
    with_zone,
    zone_of,
)
from jeton.core.checks import described, suggestion
from jeton.core.errors import GraphError, JetonError, TimeError, summary
from jeton.core.times import END_OF_TIME, IntegerTimes
from jeton.runtime.breakpoints import ENDED, OutputGate, Predicate, TimePassed, from_bytes, to_bytes
from jeton.runtime.commands import Command
from jeton.runtime.state_view import stacked, state_table

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow
    from jeton.runtime.agent import Agent

Answer: TypeAlias = Mapping[str, Any]
T = TypeVar("T")
Protocol: TypeAlias = Generator["Steer", Sequence[Answer], T]
"""Yields commands, gets the answers of all workers to each, and returns a result."""


class At(NamedTuple):
    """The time of a breakpoint, in the unit of the flow."""

    time: int
    unit: str | None

    @property
    def shown(self) -> Any:
        """The time as the flow's records have it."""
        return plain_time(self.time, self.unit)

    def __str__(self) -> str:
        """The time for people."""
        return in_words(self.time, self.unit)


RESUMED: Final = object()
"""The result of removing the breakpoint."""


# Commands


@dataclass(frozen=True, kw_only=True)
class Steer(Command):
    """A command that each worker does at once, and answers."""

    def obey(self, agent: Agent) -> None:
        """Do it, and answer; not while all workers come to rest for something else."""
        if agent.is_engaged:
            agent.defer(self)
        elif agent.driver is not None:
            said = self.answer(agent)
            payload = said.pop("payload", b"")
            agent.driver.send("steered", payload, number=self.number, **said)

    def answer(self, agent: Agent) -> dict[str, Any]:
        """Do it; returns what there is to say, or the error."""
        try:
            return self.do(agent)
        except TimePassed as error:
            unit = agent.worker.units.unit
            return {"passed": error.furthest, "by": error.name, "unit": unit}
        except JetonError as error:
            return {"error": error.message, "type": type(error).__name__}

    @abstractmethod
    def do(self, agent: Agent) -> dict[str, Any]:
        """Do it; returns what there is to say."""


@dataclass(frozen=True, kw_only=True)
class Pause(Steer):
    """Set a breakpoint, by default at the least time after all that went in."""

    kind = "pause"
    at: int | None = None
    unit: str | None = None
    """The unit of this time; without, it is that of the flow."""
    reason: str = ""

    def do(self, agent: Agent) -> dict[str, Any]:
        """Hold a token in every input; returns the time."""
        points, units = agent.breakpoints, agent.worker.units
        if self.at is None and points.at is not None:
            return {"at": points.at, "unit": points.unit, "holds": points.has_token}
        at = None if self.at is None else in_flow_unit(self.at, self.unit, units)
        paused_at = points.pause(at, self.reason)
        if self.unit is not None:
            points.given_unit = unit_given(self.unit, units)
        return {"at": paused_at, "unit": points.unit, "holds": points.has_token}


@dataclass(frozen=True, kw_only=True)
class Move(Steer):
    """Move the breakpoint to a later time."""

    kind = "step"
    at: int
    unit: str | None = None

    def do(self, agent: Agent) -> dict[str, Any]:
        """Let records before that time through, and hold the token there."""
        points, units = agent.breakpoints, agent.worker.units
        at = in_flow_unit(self.at, self.unit, units)
        before = points.at
        if before is not None and at < before:
            raise TimeError(
                f"the flow is paused at {in_words(before, units.unit)}, and cannot go back to "
                f"{in_words(at, units.unit)}"
            )
        points.move(at)
        return {"at": points.at, "unit": points.unit}


@dataclass(frozen=True, kw_only=True)
class NextTime(Steer):
    """Ask for the next time of a record that is held back."""

    kind = "next_time"

    def do(self, agent: Agent) -> dict[str, Any]:
        """Look at what is held."""
        points = agent.breakpoints
        points.require_paused()
        found = {"at": points.at, "next": points.next_held(), "now": points.holds_now()}
        return {**found, "unit": points.unit}


@dataclass(frozen=True, kw_only=True)
class Resume(Steer):
    """Remove the breakpoint."""

    kind = "resume"

    def do(self, agent: Agent) -> dict[str, Any]:
        """Let everything go on."""
        agent.breakpoints.resume()
        return {}


@dataclass(frozen=True, kw_only=True)
class Watch(Steer):
    """Look for rows of an output that match, and pause there; or no longer."""

    kind = "pause_when"
    output: str | None = None
    predicate: str | None = None
    """A pickled function of a batch, as text."""

    def do(self, agent: Agent) -> dict[str, Any]:
        """Look at the rows of the output from now on."""
        agent.breakpoints.require_integers()
        agent.breakpoints.watch(self.output, self._function())
        return {}

    def _function(self) -> Predicate | None:
        if self.predicate is None:
            return None
        try:
            function: Predicate = pickle.loads(base64.b64decode(self.predicate))
        except Exception as error:
            # It may need a module that workers do not have: that must not end them.
            raise GraphError(
                f"the predicate of pause_when cannot be loaded on a worker: {summary(error)}"
            ) from error
        return function


@dataclass(frozen=True, kw_only=True)
class AskWhetherResting(Steer):
    """Ask whether a worker rests at the breakpoint, and how much it has exchanged."""

    kind = "resting"

    def do(self, agent: Agent) -> dict[str, Any]:
        """Look whether there is anything to do."""
        peers = agent.peers
        rests = agent.breakpoints.at is not None and agent.is_at_rest
        sent = peers.messages + peers.progress_batches
        return {"rests": rests, "sent": sent, "received": peers.messages_in + peers.progress_in}


@dataclass(frozen=True, kw_only=True)
class Look(Steer):
    """Look at a worker that rests at a breakpoint."""

    def do(self, agent: Agent) -> dict[str, Any]:
        """Take a table of it."""
        try:
            return {"payload": to_bytes(self.table(agent))}
        except JetonError:
            raise
        except Exception as error:
            # A look at a worker must not end it.
            raise JetonError(
                f"worker {agent.worker.index} cannot answer {self.kind!r}: {summary(error)}"
            ) from error

    @abstractmethod
    def table(self, agent: Agent) -> pa.Table:
        """The state and the messages of this worker, to be looked at."""


@dataclass(frozen=True, kw_only=True)
class LookAtState(Look):
    """Look at the state of an operator."""

    kind = "state"
    operator: str

    def table(self, agent: Agent) -> pa.Table:
        """Its containers, one below the other, with the tokens that it holds."""
        operator = next(o for o in agent.worker.operators if o.plan.name == self.operator)
        return state_table(agent, operator)


@dataclass(frozen=True, kw_only=True)
class LookAtMessages(Look):
    """Look at the messages that wait, and at the records that a breakpoint holds back."""

    kind = "in_flight"

    def table(self, agent: Agent) -> pa.Table:
        """A row for each message or batch."""
        worker = agent.worker
        rows = [
            (operator.plan.name, "input", port, "queued", time, len(batch))
            for operator in worker.operators
            for port, queue in enumerate(operator.inputs)
            for time, batch in queue.waiting()
        ]
        for gate in agent.breakpoints.gates:
            side = "input" if isinstance(gate, OutputGate) else "output"
            for batch in gate.held.batches:
                where = (gate.operator.plan.name, side, gate.port, "held")
                rows.append((*where, int(batch.times.min()), len(batch)))
        names, sides, ports, states, times, counts = zip(*rows, strict=True) if rows else [()] * 6
        plain = all(isinstance(time, int) for time in times)
        unit = worker.units.unit
        stamps = (
            stamped(np.array(times, np.int64), unit) if plain else pa.array(list(map(str, times)))
        )
        return pa.table(
            {
                "operator": pa.array(names, pa.string()),
                "side": pa.array(sides, pa.string()),
                "port": pa.array(ports, pa.int64()),
                "worker": pa.array([worker.index] * len(rows), pa.int64()),
                "status": pa.array(states, pa.string()),
                "time": stamps,
                "rows": pa.array(counts, pa.int64()),
            }
        )


@dataclass(frozen=True, kw_only=True)
class LookAtSample(Look):
    """Look at the latest rows of an operator, whether it rests or not."""

    kind = "sample"
    operator: str
    rows: int

    def table(self, agent: Agent) -> pa.Table:
        """The first rows of the latest batch, if the worker is measured and there was one."""
        operator = next(o for o in agent.worker.operators if o.plan.name == self.operator)
        if operator.sample is None:
            return pa.table({})
        found = operator.sample.slice(0, self.rows).to_arrow().replace_schema_metadata()
        worker = pa.array([agent.worker.index] * found.num_rows, pa.int64())
        names = [name for name in found.column_names if name != "worker"]
        return pa.table({"worker": worker, **{name: found.column(name) for name in names}})


# Protocols


def pausing(time: Any, reason: str = "") -> Protocol[At]:
    """Set a breakpoint on all workers, or on none."""
    at, unit = (None, None) if time is None else given(time)
    answers = yield Pause(at=at, unit=unit, reason=reason)
    refused = "the flow cannot pause" if time is None else f"the flow cannot pause at {time}"
    error = first_error(answers, refused, "Pause")
    if error is not None:
        # Those that did pause go on; one that was paused before says so, and so do all others.
        if any("at" in each for each in answers):
            yield Resume()
        raise error
    if not any(answer["holds"] for answer in answers):
        yield Resume()
        raise GraphError(ENDED)
    latest = max(answer["at"] for answer in answers)
    if any(answer["at"] != latest for answer in answers):
        answers = yield Move(at=latest)
    return _at(answers)


def stepping(until: Any = None) -> Protocol[At]:
    """Move the breakpoint on to a time, or to the next one of a record that is held back."""
    if until is not None:
        at, unit = given(until)
        answers = yield Move(at=at, unit=unit)
        require_no_errors(answers)
        return _at(answers)
    answers = yield NextTime()
    require_no_errors(answers)
    later = [answer["next"] for answer in answers if answer["next"] is not None]
    if later:
        to = min(later)
    elif any(answer["now"] for answer in answers):
        if answers[0]["at"] == END_OF_TIME:
            raise GraphError(
                "records are held back at the last time there is, with none to step to: resume() "
                "lets them go on"
            )
        to = answers[0]["at"] + 1
    else:
        raise GraphError(
            f"nothing is held back at {_at(answers)} to step to: wait for records, or say "
            "step(until=…)"
        )
    answers = yield Move(at=to)
    require_no_errors(answers)
    return _at(answers)


def moving(at: int) -> Protocol[At]:
    """Move the breakpoint on to a time in the unit of the flow, if it is before that."""
    answers = yield NextTime()
    require_no_errors(answers)
    if answers[0]["at"] >= at:
        return _at(answers)
    answers = yield Move(at=at)
    require_no_errors(answers)
    return _at(answers)


def resuming() -> Protocol[object]:
    """Remove the breakpoint."""
    answers = yield Resume()
    require_no_errors(answers)
    return RESUMED


def watching(output: str | None, predicate: str | None) -> Protocol[Watch]:
    """Pause at the first rows of an output that match, or no longer."""
    command = Watch(output=output, predicate=predicate)
    answers = yield command
    require_no_errors(answers)
    return command


def resting() -> Protocol[bool]:
    """Whether all workers rest at the breakpoint, and nothing is on its way between them.

    If all say that they rest, and twice the same counts of messages and progress batches, which
    agree, then nothing was on its way in between: see `jeton.runtime.quiescence`.
    """
    before: Sequence[Answer] | None = None
    for _ in range(2):
        answers = yield AskWhetherResting()
        require_no_errors(answers)
        sent, received = (sum(answer[each] for answer in answers) for each in ("sent", "received"))
        said = [{**answer, "number": 0} for answer in answers]
        if not all(answer["rests"] for answer in answers) or sent != received:
            return False
        if before is not None and before != said:
            return False
        before = said
    return True


def looking(command: Look) -> Protocol[pa.Table]:
    """A table from all workers."""
    answers = yield command
    require_no_errors(answers)
    return stacked([from_bytes(answer["payload"]) for answer in answers])


def state_of(flow: Flow, operator: str) -> Protocol[pa.Table]:
    """The state of an operator on all workers."""
    _require_operator(flow, operator)
    return looking(LookAtState(operator=operator))


def sample_of(flow: Flow, operator: str, rows: int) -> Protocol[pa.Table]:
    """Some of the latest rows of an operator, from each worker."""
    _require_operator(flow, operator)
    if rows < 1:
        raise GraphError(f"a sample has 1 row or more from each worker, not {rows}")
    return looking(LookAtSample(operator=operator, rows=rows))


def _require_operator(flow: Flow, operator: str) -> None:
    names = [plan.name for plan in flow.operators]
    if operator not in names:
        raise GraphError(
            f"there is no operator {operator!r}{suggestion(str(operator), names)} "
            f"(there are: {', '.join(map(repr, names))})"
        )


def messages() -> Protocol[pa.Table]:
    """The messages that wait, and the records that are held back, on all workers."""
    return looking(LookAtMessages())


# Times


def given(time: Any, what: str = "a breakpoint") -> tuple[int, str]:
    """A time as a user gives it: its value, and its unit. ``what`` is what it is for.

    >>> from datetime import datetime
    >>> given(5), given(datetime(1970, 1, 2))
    ((5, 'integer'), (86400000000, 'us'))
    """
    if is_timestamp(time):
        unit = unit_of_one(time)
        column = pa.array([time.as_py()], time.type) if isinstance(time, pa.Scalar) else None
        if column is None:
            column = np.array([time]) if isinstance(time, np.datetime64) else pa.array([time])
        return int(column_times(column, None, f"the time of {what}")[0]), unit
    if isinstance(time, bool | np.bool_) or not isinstance(time, int | np.integer):
        raise TimeError(
            f"{what} needs a time of the flow, an integer or a timestamp such as "
            f"datetime(2026, 1, 31, 12), not {described(time)}"
        )
    return int(IntegerTimes().check(int(time))), INTEGER


def in_flow_unit(at: int, unit: str | None, units: Units, what: str = "a breakpoint") -> int:
    """A time in the unit of a flow, exactly; an error if it is of the other kind."""
    if unit is None:
        return at
    known = units.unit
    stamps = units.domain.stamps if known is None else known != INTEGER
    if stamps is not None and stamps is not (unit != INTEGER):
        raise TimeError(
            f"the times of this flow are timestamps: {what} needs one, such as "
            "datetime(2026, 1, 31, 12)"
            if stamps
            else f"the times of this flow are integers: {what} needs an integer"
        )
    if unit == INTEGER:
        return at
    to = known or unit_given(unit, units)
    return int(convert(np.array([at]), unit, to, f"the time of {what}")[0])


def unit_given(unit: str, units: Units) -> str:
    """The unit in which a flow has a time of some unit, if no record has come yet."""
    return unit if unit == INTEGER else with_zone(units.domain.unit, zone_of(unit))


# Answers


def _at(answers: Sequence[Answer]) -> At:
    units = [answer["unit"] for answer in answers if answer["unit"] is not None]
    return At(answers[0]["at"], units[0] if units else None)


def first_error(answers: Sequence[Answer], refused: str, act: str) -> JetonError | None:
    """The error of a worker, also if an input has passed the time that was asked for."""
    for each in answers:
        if "error" in each:
            return error_of(each)
    passed = [each for each in answers if "passed" in each]
    if not passed:
        return None
    furthest = max(passed, key=lambda each: each["passed"])
    if furthest["passed"] == END_OF_TIME:
        return TimeError(f"{refused}: {furthest['by']} has passed the last time there is")
    shown = in_words(furthest["passed"], furthest["unit"])
    return TimeError(
        f"{refused}: {furthest['by']} has passed {shown} already. {act} later than that, or leave "
        f"the time out to {act.lower()} right after it"
    )


def require_no_errors(answers: Sequence[Answer]) -> None:
    """Raise the error of the first worker that has one."""
    for answer in answers:
        if "error" in answer:
            raise error_of(answer)


def error_of(answer: Answer) -> JetonError:
    """The error of a worker."""
    kinds = {kind.__name__: kind for kind in (GraphError, TimeError)}
    return kinds.get(answer["type"], JetonError)(answer["error"])
