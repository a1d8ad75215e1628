"""Why: what holds an output's frontier, for people and for programs.

The progress graph says which tokens and messages hold a frontier. The facts of the workers say
which line made a token, which partition an input waits for, and what keeps a worker from going on.
`Question` puts both together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final

from jeton.columns.time_domain import Units
from jeton.columns.time_units import in_words, is_timestamp, length_text, plain_time
from jeton.core.checks import suggestion
from jeton.core.errors import GraphError
from jeton.core.source_lines import SourceLine
from jeton.core.times import START_OF_TIME, Product, Time, nested_key
from jeton.dataflow.plan import OperatorPlan
from jeton.progress.graph import ProgressGraph
from jeton.progress.tracker import Pointstamp
from jeton.progress.why import Hold, everything, holds
from jeton.runtime.steering import given, in_flow_unit
from jeton.runtime.worker_facts import InputFact, PartitionFact, TokenFact, WorkerFacts

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow

OFTEN: Final = 0.5
"""The share of looks from which on a worker is said to do little else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One thing that holds a frontier.

    ``what`` is one of ``token``, ``message``, ``input`` and ``breakpoint``, which hold it
    themselves, or one of ``busy``, ``silent``, ``sink``, ``back-pressure``, ``command``, ``slots``
    and ``query``, which keep workers from doing something about it.
    """

    what: str
    text: str
    """All of it, as a sentence."""
    operator: str | None = None
    workers: tuple[int, ...] = ()
    """The workers where it is, as far as that is known."""
    port: int | None = None
    """The operator's output with the token, or the input with the message."""
    time: Any = None
    """The least of its times, as the flow's records have them."""
    count: int = 0
    line: SourceLine | None = None
    """The user's line that retained the token, added the operator, or is running now."""
    since: float | None = None
    """For how many seconds, as far as that is known."""
    detail: str = ""
    path: tuple[str, ...] = ()
    """The operators between it and the output, both included."""
    stack: tuple[str, ...] = ()
    """The stack of a busy worker, outermost call first."""

    def to_dict(self) -> dict[str, Any]:
        """The facts that are known, as JSON has them."""
        facts = {name: getattr(self, name) for name in self.__slots__}
        facts["time"] = _plain(self.time)
        facts["line"] = None if self.line is None else str(self.line)
        for name in ("workers", "path", "stack"):
            facts[name] = list(facts[name])
        return {name: fact for name, fact in facts.items() if fact not in (None, "", [])}


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """An output, a probe or an operator, and what holds its frontier."""

    name: str
    frontier: tuple[Any, ...]
    """The least times that may still pass there, as the flow's records have them."""
    at: Any
    """The time that was asked about, if any."""
    status: str
    """How far it is, in words."""
    holders: tuple[Holder, ...]

    @property
    def headline(self) -> str:
        """The culprit, in one line."""
        return f"{self.status}: {self.holders[0].text}" if self.holders else self.status

    def __str__(self) -> str:
        lines = [self.headline]
        for number, holder in enumerate(self.holders):
            if number:
                lines.append(f"  {holder.text}")
            if len(holder.path) > 1:
                lines.append(f"    by way of {' → '.join(holder.path)}")
            lines.extend(f"    {line}" for line in holder.stack)
        return "\n".join(lines)


class Why:
    """The answer to why results are not out yet: ``print`` it, or read `holders`.

    >>> import jeton as jt
    >>> flow = jt.Flow("averages")
    >>> flow.output("means", flow.input("n", lateness=0).key_by("k").tumbling(10).mean("v"))
    >>> with flow.open() as run:
    ...     run.input("n").send({"time": [3, 7], "k": ["a", "a"], "v": [1.0, 2.0]})
    ...     run.run_to_rest()
    ...     why = run.why("means", at=10)
    >>> print(why)
    'means' is at 7: input 'n' on worker 0 is at 7: its latest record is at 7
        by way of n → mean → means
      'mean' holds 1 token at 10 on worker 0: it waits for its input (added at ...)
        by way of mean → means
    >>> why.holders[0].what, why.holders[0].time
    ('input', 7)
    """

    def __init__(self, places: Sequence[HeldPlace]) -> None:
        self.places = tuple(places)
        """Each output that was asked about, with its own holders."""

    @property
    def holders(self) -> list[Holder]:
        """The holders of all places, the culprits first; each once."""
        found: dict[Holder, Holder] = {}
        for place in self.places:
            for holder in place.holders:
                found.setdefault(replace(holder, path=()), holder)
        return list(found.values())

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON has it."""
        return {
            "places": [
                {
                    "name": place.name,
                    "frontier": [_plain(time) for time in place.frontier],
                    "at": _plain(place.at),
                    "headline": place.headline,
                    "holders": [holder.to_dict() for holder in place.holders],
                }
                for place in self.places
            ]
        }

    def __str__(self) -> str:
        return "\n".join(map(str, self.places))

    def __repr__(self) -> str:
        return f"<Why: {'; '.join(place.headline for place in self.places)}>"

    def _repr_html_(self) -> str:
        rows = []
        for place in self.places:
            rows.append(f'<tr><th colspan="3">{escape(place.headline)}</th></tr>')
            for holder in place.holders:
                stack = "<br>".join(map(escape, holder.stack))
                more = f"<details><summary>stack</summary>{stack}</details>" if stack else ""
                rows.append(
                    f"<tr><td>{escape(holder.what)}</td><td>{escape(holder.text)}{more}</td>"
                    f"<td>{escape(' → '.join(holder.path))}</td></tr>"
                )
        return f"<table>{''.join(rows)}</table>"


@dataclass(slots=True)
class Question:
    """A question, and all that is known to answer it."""

    flow: Flow
    graph: ProgressGraph
    facts: Sequence[WorkerFacts]
    """Of the workers that have answered."""
    troubles: Sequence[Holder] = ()
    """Workers that have not, and the like: they come first."""
    sinks: Sequence[Holder] = ()
    """The reasons that keep rows from their sinks, with the output as the operator."""

    pointstamps: dict[Pointstamp, int] = field(init=False)
    unit: str | None = field(init=False)

    def __post_init__(self) -> None:
        # Every worker's view is conservative. In the least one, the most has come to an end.
        views = [{(at, time): n for at, time, n in each.pointstamps} for each in self.facts]
        self.pointstamps = min(views, key=lambda view: sum(view.values()), default={})
        self.unit = next((each.unit for each in self.facts if each.unit is not None), None)

    def why(self, name: str | None = None, at: Any = None) -> Why:
        """The answer for one output, probe or operator, or for all outputs."""
        names = list(self.flow.outputs) if name is None else [name]
        return Why([self._place(each, self._target(each), at) for each in names])

    def stalled(self) -> str:
        """All that is held, as a sentence: for a flow that came to rest too early."""
        found = self._ranked(everything(self.graph, self.pointstamps))
        return "; ".join(holder.text for holder in found) or "nothing is held"

    def _target(self, name: str) -> int:
        flow = self.flow
        for what in ("output", "probe"):
            if (what, name) in flow.handles():
                return self.graph.nodes[flow.handle(what, name)].inputs[0]
        for node in self.graph.nodes:
            if node.name == name:
                return (*node.outputs, *node.inputs)[0]
        known = [known for what, known in flow.handles() if what in ("output", "probe")]
        known += [node.name for node in self.graph.nodes]
        raise GraphError(
            f"flow {flow.name!r} has no output, probe or operator {name!r}"
            f"{suggestion(str(name), known)} (there are: "
            f"{', '.join(map(repr, dict.fromkeys(known)))})"
        )

    def _place(self, name: str, target: int, at: Any) -> HeldPlace:
        if at is not None:
            at = self._asked_about(target, at)
        first = holds(self.graph, self.pointstamps, target)
        frontier = tuple(dict.fromkeys(hold.arrives for hold in first))
        found = first if at is None else holds(self.graph, self.pointstamps, target, at)
        unknown = not self.facts and self.troubles
        sinks = [each for each in self.sinks if each.operator == name]
        status = self._status(name, frontier, at, bool(found or unknown), bool(sinks))
        holders = sinks
        if found or unknown:
            # A checkpoint brings rows to their sinks, and holds nothing up.
            slow = [each for each in sinks if each.what == "sink"]
            others = [each for each in sinks if each not in slow]
            ranked = [each for each in self._ranked(found) if each not in slow]
            holders = [*self.troubles, *slow, *ranked, *others]
        return HeldPlace(
            name,
            tuple(plain_time(time, self.unit) for time in frontier),
            None if at is None else plain_time(at, self.unit),
            status,
            tuple(holders),
        )

    def _asked_about(self, target: int, at: Any) -> Time:
        """A time that a user gives, in the unit of the flow."""
        kind = self.graph.kinds[target]
        if kind.integers:
            at = self._in_flow_unit(at)
        elif isinstance(at, tuple) and at and is_timestamp(at[0]):
            at = (self._in_flow_unit(at[0]), *at[1:])  # a time inside a loop
        return kind.check(at)

    def _in_flow_unit(self, at: Any) -> int:
        units, what = Units(self.flow.domain), "why(…, at=…)"
        units.unit = self.unit or units.unit
        return in_flow_unit(*given(at, what), units, what)

    def _status(
        self, name: str, frontier: tuple[Time, ...], at: Time | None, held: bool, late: bool
    ) -> str:
        """How far an output is; ``late`` says whether its sink has not taken all of its rows."""
        if held and not frontier:
            return f"{name!r} is not complete"
        if held or (at is None and frontier):
            return f"{name!r} is at {' and '.join(in_words(t, self.unit) for t in frontier)}"
        up_to = "" if at is None else f" up to {in_words(at, self.unit)}"
        rows = ", but not all of its rows are out" if late else ""
        return f"{name!r} is complete{up_to}{rows}"

    def _ranked(self, found: Sequence[Hold]) -> list[Holder]:
        """The holders behind pointstamps, after what keeps their workers from going on."""
        stuck: list[Holder] = []
        waiting: list[Holder] = []
        for hold in found:
            is_waiting = self._waits(hold)
            (waiting if is_waiting else stuck).extend(self._holders(hold, is_waiting))
        if not (stuck or waiting):
            return []
        is_full = any(facts.full for facts in self.facts)
        sinks = [each for each in self.sinks if each.what == "sink" and is_full]
        conditions = [*self._busy(), *sinks, *self._conditions()]
        if not stuck or stuck[0].what != "token":
            return [*conditions, *stuck, *waiting]
        # Nothing that workers do sets this token free, but for one that is busy where it is.
        there = [
            each for each in conditions if each.stack and set(each.workers) & set(stuck[0].workers)
        ]
        others = [each for each in conditions if each not in there]
        return [*there, *stuck, *others, *waiting]

    def _waits(self, hold: Hold) -> bool:
        """Whether something may still arrive that the holder of a token may be waiting for."""
        node = self.graph.nodes[self.graph.owner[hold.location]]
        least = hold.stamps[0][0]
        return hold.location in node.outputs and any(
            holds(self.graph, self.pointstamps, port, least) for port in node.inputs
        )

    # What holds a frontier itself

    def _holders(self, hold: Hold, waits: bool) -> Iterable[Holder]:
        index = self.graph.owner[hold.location]
        node, plan = self.graph.nodes[index], self.flow.operators[index]
        if hold.location in node.inputs:
            yield from self._messages(hold, node.inputs.index(hold.location), plan)
            return
        left = dict(hold.stamps)
        port = node.outputs.index(hold.location)
        yield from self._breakpoint(hold, left, port, plan)
        inputs = [(facts, fact) for facts in self.facts for fact in facts.inputs]
        for facts, fact in sorted(inputs, key=lambda each: nested_key(each[1].time)):
            if fact.location == hold.location and left.get(fact.time, 0) > 0:
                left[fact.time] -= 1
                yield self._input(facts, fact, hold, plan)
        yield from self._tokens(hold, left, port, plan, waits)

    def _breakpoint(
        self, hold: Hold, left: dict[Time, int], port: int, plan: OperatorPlan
    ) -> Iterable[Holder]:
        """The tokens that a breakpoint holds at an input or a source."""
        by_time: dict[int, list[int]] = {}
        for facts in self.facts:
            at = facts.breakpoints.get(plan.name)
            if at is not None and left.get(at, 0) > 0:
                left[at] -= 1
                by_time.setdefault(at, []).append(facts.worker)
        reason = next((each.paused_since for each in self.facts if each.paused_since), "")
        for at, workers in by_time.items():
            since = f", since {reason}" if reason else ""
            yield Holder(
                what="breakpoint",
                text=(
                    f"a breakpoint holds {plan.name!r} at {in_words(at, self.unit)}{_on(workers)}"
                    f"{since}: step() or resume() lets it go on"
                ),
                operator=plan.name,
                workers=tuple(workers),
                port=port,
                time=plain_time(at, self.unit),
                count=len(workers),
                line=plan.defined,
                detail=reason,
                path=hold.path,
            )

    def _tokens(
        self, hold: Hold, left: dict[Time, int], port: int, plan: OperatorPlan, waits: bool
    ) -> Iterable[Holder]:
        """One holder for each line that made tokens, and one for those that no worker knows of."""
        inputs = {(f.worker, i.location) for f in self.facts for i in f.inputs}
        groups: dict[SourceLine | None, list[tuple[int, TokenFact]]] = {}
        for facts in self.facts:
            for fact in facts.tokens:
                is_input = (facts.worker, fact.location) in inputs and fact.line is None
                if fact.location == hold.location and fact.time in left and not is_input:
                    left[fact.time] -= fact.count
                    groups.setdefault(fact.line, []).append((facts.worker, fact))
        missing = [(time, count) for time, count in left.items() if count > 0]
        if missing and len(groups) < 2:
            # Workers run the same code: those that have not answered hold the same, most likely.
            only = next(iter(groups), None)
            for time, count in missing:
                fact = TokenFact(hold.location, time, count, only, 0.0)
                groups.setdefault(only, []).append((-1, fact))
        elif missing:
            groups[SourceLine("", 0)] = [
                (-1, TokenFact(hold.location, time, count, None, 0.0)) for time, count in missing
            ]
        for line, group in groups.items():
            known = line if line is not None and line.file else None
            yield self._token(hold, port, plan, waits, known, group)

    def _token(
        self,
        hold: Hold,
        port: int,
        plan: OperatorPlan,
        waits: bool,
        line: SourceLine | None,
        group: Sequence[tuple[int, TokenFact]],
    ) -> Holder:
        workers = tuple(sorted({worker for worker, _ in group if worker >= 0}))
        count = sum(fact.count for _, fact in group)
        least = min((fact.time for _, fact in group), key=nested_key)
        seconds = max(fact.seconds for _, fact in group) if line is not None else 0.0
        others = any(fact.time != least for _, fact in group)
        retained = line is not None
        texts = [
            f"{plan.name!r} holds {_many(count, 'token')} at {in_words(least, self.unit)}"
            f"{' and later' if others else ''}{_on(workers)}"
        ]
        if line is not None:
            texts.append(f"{_for(seconds)}, retained at {line}")
        notes = [
            facts.notes[plan.name]
            for facts in self.facts
            if plan.name in facts.notes and (not workers or facts.worker in workers)
        ]
        detail = "; ".join(dict.fromkeys(notes))
        if not detail and waits:
            detail = "it waits for its input"
        if detail:
            texts.append(f": {detail}")
        if line is None and plan.defined is not None:
            line = plan.defined
            texts.append(f" (added at {line})")
        return Holder(
            # Without inputs and a line of the user's, it is the host's own token of an input.
            what="input" if not (plan.inputs or retained) else "token",
            text="".join(texts),
            operator=plan.name,
            workers=workers,
            port=port,
            time=plain_time(least, self.unit),
            count=count,
            line=line,
            since=seconds or None,
            detail=detail,
            path=hold.path,
        )

    def _messages(self, hold: Hold, port: int, plan: OperatorPlan) -> Iterable[Holder]:
        """Messages that wait in queues, and those that are on their way or being handled."""
        left = dict(hold.stamps)
        queues = [(facts.worker, queue) for facts in self.facts for queue in facts.queues]
        for worker, queue in sorted(queues, key=lambda each: -each[1].rows):
            mine = [s for s in queue.stamps if queue.location == hold.location and s[0] in left]
            if mine:
                for time, count in mine:
                    left[time] -= count
                queued = _many(sum(count for _, count in queue.stamps), "message")
                where = "for state that is on disk" if queue.on_disk else "in its queue"
                detail = f"{queued} with {_many(queue.rows, 'row')} {where}"
                if queue.frequent:
                    detail += f"; {queue.frequent}"
                yield self._message(hold, port, plan, mine, (worker,), detail, queue.seconds)
        missing = [(time, count) for time, count in left.items() if count > 0]
        if missing:
            busy = [f.worker for f in self.facts if f.busy and f.busy.operator == plan.name]
            detail = "they are being handled" if busy else ""
            yield self._message(hold, port, plan, missing, tuple(busy), detail)

    def _message(
        self,
        hold: Hold,
        port: int,
        plan: OperatorPlan,
        stamps: Sequence[tuple[Time, int]],
        workers: tuple[int, ...],
        detail: str,
        seconds: float | None = None,
    ) -> Holder:
        count = sum(count for _, count in stamps)
        least = min((time for time, _ in stamps), key=nested_key)
        at = f" at {in_words(least, self.unit)}{' and later' if len(stamps) > 1 else ''}"
        are = "are" if count > 1 else "is"
        where = f"wait{'' if count > 1 else 's'} at" if detail else f"{are} under way to"
        text = f"{_many(count, 'message')}{at} {where} {plan.name!r}{_on(workers)}"
        text += _for(seconds or 0.0)
        return Holder(
            what="message",
            text=f"{text}: {detail}" if detail else text,
            operator=plan.name,
            workers=workers,
            port=port,
            time=plain_time(least, self.unit),
            count=count,
            line=plan.defined,
            since=seconds,
            detail=detail,
            path=hold.path,
        )

    def _input(self, facts: WorkerFacts, fact: InputFact, hold: Hold, plan: OperatorPlan) -> Holder:
        """An input that has not advanced, and the partition that it waits for."""
        least = self.graph.kinds[hold.location].minimum
        paused_at = facts.breakpoints.get(plan.name)
        slow = [p for p in fact.partitions if not p.idle and p.floor <= fact.time]
        if slow and paused_at is not None and paused_at <= min(p.floor for p in slow):
            detail = "its source is not read further, since it has passed the breakpoint"
        elif fact.lateness is None and fact.rows and fact.time == least:
            detail = (
                f"it was never advanced, though {_many(fact.rows, 'record')} "
                f"{'were' if fact.rows > 1 else 'was'} sent: give it a lateness=, or advance_to()"
            )
        elif slow:
            detail = self._slow(slow, fact)
        elif fact.partitions:
            detail = "all its partitions there are idle, and it follows the other workers"
        elif fact.time == least and not fact.rows:
            detail = "it was never advanced, and no record was sent"
        elif fact.lateness is None or fact.latest is None:
            detail = "it was not advanced further"
        else:
            detail = f"its latest record is at {in_words(fact.latest, self.unit)}"
            if fact.lateness:
                detail += f", and its lateness is {length_text(fact.lateness, self.unit)}"
        return Holder(
            what="input",
            text=(
                f"input {plan.name!r}{_on((facts.worker,))} is at "
                f"{in_words(fact.time, self.unit)}: {detail}"
            ),
            operator=plan.name,
            workers=(facts.worker,),
            port=0,
            time=plain_time(fact.time, self.unit),
            count=1,
            line=plan.defined,
            since=max((p.seconds for p in slow if p.seconds is not None), default=None),
            detail=detail,
            path=hold.path,
        )

    def _slow(self, slow: Sequence[PartitionFact], fact: InputFact) -> str:
        first = max(slow, key=lambda partition: partition.seconds or 0.0)
        text = f"partition {first.key} of its source "
        if first.latest is None and first.floor != START_OF_TIME:
            text += f"is at {in_words(first.floor, self.unit)}, and "
        text += "has had no record"
        if first.latest is not None:
            text += f" after {in_words(first.latest, self.unit)}"
        if first.seconds is not None:
            text += f" for {first.seconds:.1f} s"
        if first.latest is not None and fact.lateness:
            text += f", and the lateness is {length_text(fact.lateness, self.unit)}"
        if len(slow) > 1:
            text += f" ({len(slow) - 1} more like it)"
        ahead = [p.floor for p in fact.partitions if p.floor > fact.time]
        if ahead:
            text += (
                f", while {_many(len(ahead), 'partition')} "
                f"{'are' if len(ahead) > 1 else 'is'} at {in_words(max(ahead), self.unit)}: give "
                "the input idle_after= if it need not wait"
            )
        return text

    # What keeps workers from going on

    def _busy(self) -> Iterable[Holder]:
        for facts in self.facts:
            busy = facts.busy
            if busy is not None:
                at = f", at {busy.line}" if busy.line is not None else ""
                at += self._frequent_at(facts, busy.operator)
                yield Holder(
                    what="busy",
                    text=f"worker {facts.worker} {busy.doing}{_for(busy.seconds or 0.0)}{at}",
                    operator=busy.operator,
                    workers=(facts.worker,),
                    line=busy.line,
                    since=busy.seconds,
                    detail=busy.doing,
                    stack=tuple(busy.stack),
                )

    def _conditions(self) -> Iterable[Holder]:
        for facts in self.facts:
            for what, text in (
                ("sink", facts.full),
                ("back-pressure", facts.held_up),
                ("command", facts.command),
            ):
                if text:
                    yield Holder(
                        what=what,
                        text=f"worker {facts.worker} {text}",
                        workers=(facts.worker,),
                        detail=text,
                    )
            if facts.busy is None:
                yield from _often(facts)

    def _frequent_at(self, facts: WorkerFacts, operator: str | None) -> str:
        """The key that most of the records have that wait at an operator, if there is one."""
        for queue in facts.queues:
            if (
                queue.frequent
                and self.graph.nodes[self.graph.owner[queue.location]].name == operator
            ):
                messages = _many(sum(count for _, count in queue.stamps), "message")
                return f"; {messages} wait there: {queue.frequent}"
        return ""


def _often(facts: WorkerFacts) -> Iterable[Holder]:
    """The operator in which a worker is most of the time, though it answers."""
    doing, often = max(
        Counter(facts.looks).items(), key=lambda item: (item[0] != "", item[1]), default=("", 0)
    )
    if doing and often / len(facts.looks) >= OFTEN:
        share = f"in {often} of the last {len(facts.looks)} looks"
        yield Holder(
            what="busy",
            text=f"worker {facts.worker} {doing} {share}",
            workers=(facts.worker,),
            detail=doing,
        )


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def _on(workers: Sequence[int]) -> str:
    if not workers:
        return ""
    *most, last = map(str, workers)
    return f" on worker{'s' if most else ''} {', '.join(most)}{' and ' if most else ''}{last}"


def _for(seconds: float) -> str:
    """The duration in words; empty if short, since simulated clocks stand still."""
    return f", for {seconds:.1f} s" if seconds >= 0.05 else ""


def _plain(time: Any) -> Any:
    """A time as JSON has it."""
    if isinstance(time, Product):
        return [_plain(each) for each in time]
    if isinstance(time, datetime):
        return time.isoformat()
    return time if time is None or type(time) is int else str(time)
