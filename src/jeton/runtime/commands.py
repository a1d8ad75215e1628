"""Commands: instructions of the driver to all workers of an attempt.

A command is a small dataclass that travels as JSON, and knows itself how an agent obeys it. So the
set is open: a new command is one more subclass, with a ``kind`` of its own, that neither the agent
nor the coordinator has to know of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from jeton.core.errors import JetonError, ProtocolError, SnapshotError
from jeton.runtime.event_log import LogSettings, log_invocations
from jeton.runtime.metrics import measure
from jeton.runtime.worker_facts import collect

if TYPE_CHECKING:
    from jeton.runtime.agent import Agent


class Connection(Protocol):
    """One end of the connection between the driver and a worker."""

    def send(self, kind: str, payload: bytes = b"", **header: Any) -> None:
        """Send a frame."""
        ...

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame, waiting for it; ``None`` if the other end has hung up."""
        ...

    def has_news(self, timeout: float = 0.0) -> bool:
        """Whether a frame, or a hang-up, is there to be received, or comes in time."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class NotDone(JetonError):
    """A command could not be done this time; another one may be."""


_KINDS: Final[dict[str, type[Command]]] = {}
"""The commands that have a kind, by it."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """An instruction to a worker.

    >>> command = Stop(drain=True, number=7)
    >>> command.to_json()
    {'number': 7, 'drain': True}
    >>> Command.from_json({"kind": "stop", "size": 0, "number": 7, "drain": True}) == command
    True

    A new one needs a kind, its fields, and what an agent does:

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Greet(Command):
    ...     kind = "greet"
    ...     name: str
    ...
    ...     def obey(self, agent):
    ...         print(f"Hello {self.name}, here is worker {agent.worker.index}")
    >>> import jeton as jt
    >>> from jeton.runtime.agent import Agent
    >>> Agent(jt.Flow("friendly")).obey(Command.from_json({"kind": "greet", "name": "driver"}))
    Hello driver, here is worker 0
    """

    kind: ClassVar[str] = ""
    number: int = 0
    """The commands of one attempt are numbered from 1 on."""

    def __init_subclass__(cls) -> None:
        """Refuse a second command of one kind: a frame could mean either."""
        if not cls.kind:
            return
        known = _KINDS.get(cls.kind, cls)
        # The same class may be defined again, as in a notebook.
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(
                f"there is a command of kind {cls.kind!r} already, "
                f"{known.__module__}.{known.__qualname__}: give {cls.__qualname__} another kind"
            )
        _KINDS[cls.kind] = cls

    def obey(self, agent: Agent) -> None:
        """Have an agent do it; an error for a command that is not for one."""
        raise ProtocolError(f"the driver sent {self.kind!r} to a worker that runs already")

    def to_json(self) -> dict[str, Any]:
        """The fields, to be sent in a frame of the command's kind."""
        return asdict(self)

    @staticmethod
    def from_json(header: Mapping[str, Any]) -> Command:
        """The command in the header of a frame; `ProtocolError` if there is none."""
        kind = header.get("kind")
        made = _KINDS.get(kind) if isinstance(kind, str) else None
        if made is None:
            raise ProtocolError(f"the driver sent {kind!r}, but the commands are {sorted(_KINDS)}")
        known = {field.name for field in fields(made)}
        try:
            return made(**{name: value for name, value in header.items() if name in known})
        except TypeError as error:
            raise ProtocolError(f"the driver sent a bad command {kind!r}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class QuiescentCommand(Command, ABC):
    """A command that all workers carry out at quiescence, while no message is in flight.

    An agent that receives it stops reading, and asks its peers to look for theirs.
    """

    patience: float | None = None
    """Seconds after which a worker gives up coming to rest; by default it never does."""
    settle: bool = False
    """Whether to rest only once sources and timers have nothing left to do either."""
    hold: bool = False
    """Whether to stay at rest afterwards, until another command."""

    def obey(self, agent: Agent) -> None:
        """Have an agent come to rest for it."""
        agent.rest_for(self)

    @abstractmethod
    def at_rest(self, agent: Agent) -> Any:
        """Do it, while all workers rest; what is slow is left to `finish`.

        `NotDone` if it cannot be done this time.
        """

    def finish(self, agent: Agent, found: Any, pause: float) -> None:
        """Do the rest, after a pause of some seconds, with what `at_rest` has found."""

    def missed(self, agent: Agent, why: str) -> None:
        """Report that it was not done."""
        if agent.driver is not None:
            agent.driver.send("missed", number=self.number, why=why)


@dataclass(frozen=True, kw_only=True)
class Checkpoint(QuiescentCommand):
    """Write this worker's part of a version of the state."""

    kind = "checkpoint"
    version: int

    def at_rest(self, agent: Agent) -> Any:
        """Take a cut of the state, and the positions of the sources."""
        assert agent.parts is not None, "an agent that takes checkpoints has a writer for them"
        agent.sink.write()
        try:
            positions = agent.feed.positions()
            return agent.worker.cut(agent.parts.tokens), positions
        except SnapshotError as error:
            if self.hold or agent.is_complete:
                raise
            raise NotDone(str(error)) from error

    def finish(self, agent: Agent, found: Any, pause: float) -> None:
        """Write it, and report to the driver."""
        assert agent.parts is not None
        state, positions = found
        agent.parts.keep(self, state, positions, pause)


@dataclass(frozen=True, kw_only=True)
class Advance(Command):
    """Advance inputs to a time, as far as they can follow."""

    kind = "advance"
    inputs: dict[str, int]

    def obey(self, agent: Agent) -> None:
        """Advance the inputs that are named."""
        agent.feed.advance(self.inputs)


@dataclass(frozen=True, kw_only=True)
class AddPartitions(Command):
    """Read partitions of an input's source that have appeared."""

    kind = "add partitions"
    input: str
    partitions: dict[str, Any]

    def obey(self, agent: Agent) -> None:
        """Open the partitions; a checkpoint has their positions from now on."""
        agent.feed.add_partitions(self.input, self.partitions)


@dataclass(frozen=True, kw_only=True)
class Taken(Command):
    """Acknowledge rows of an output that a sink at the driver has taken."""

    kind = "taken"
    output: str
    bytes: int

    def obey(self, agent: Agent) -> None:
        """Let the sink send more."""
        agent.sink.taken(self.output, self.bytes)


@dataclass(frozen=True, kw_only=True)
class CollectFacts(Command):
    """Report what holds frontiers here: see `WorkerFacts`."""

    kind = "facts"

    def obey(self, agent: Agent) -> None:
        """Send this worker's facts."""
        if agent.driver is None:
            return
        # A question must not end a worker.
        try:
            answer: dict[str, Any] = {"facts": collect([agent])[0].to_json()}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        agent.driver.send("facts", number=self.number, **answer)


@dataclass(frozen=True, kw_only=True)
class Measure(Command):
    """Keep the time spent in operators, and what goes in and out of them, from now on."""

    kind = "measure"

    def obey(self, agent: Agent) -> None:
        """Measure the worker."""
        measure(agent.worker)


@dataclass(frozen=True, kw_only=True)
class LogEvents(Command):
    """Write each invocation of an operator to files of this worker, from now on."""

    kind = "log_events"
    path: str
    limit: int

    def obey(self, agent: Agent) -> None:
        """Begin the worker's log; a second time changes nothing."""
        if measure(agent.worker).log is None:
            log_invocations(agent.worker, LogSettings(path=self.path, limit=self.limit))


@dataclass(frozen=True, kw_only=True)
class Stop(Command):
    """End: at once, or with ``drain`` once everything under way has come to its end."""

    kind = "stop"
    drain: bool = False

    def obey(self, agent: Agent) -> None:
        """Close the inputs, and leave the loop unless it is to drain.

        A breakpoint is removed then, since nothing at or after it would come to its end.
        """
        agent.feed.close()
        if self.drain:
            agent.breakpoints.resume()
        agent.is_stopped = agent.is_stopped or not self.drain


@dataclass(frozen=True, kw_only=True)
class Fail(Command):
    """Fail with a cause that the driver knows."""

    kind = "failed"
    text: str

    def obey(self, agent: Agent) -> None:
        """Raise it."""
        raise JetonError(self.text)
