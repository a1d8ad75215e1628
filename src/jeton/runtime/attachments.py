"""Attachments of an agent: a feed of records, a sink for rows, a writer of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from jeton.runtime.commands import Checkpoint

if TYPE_CHECKING:
    import pyarrow as pa

    from jeton.runtime.operator import Tokens
    from jeton.state.changes import Cut

Positions = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""For each input and each of its partitions where its reader was, and whether it had ended."""


class Feed(Protocol):
    """The records for a worker's inputs, and how far these may advance."""

    awaits_command: bool
    """Whether it cannot go on before the driver's next command."""

    @property
    def rejected(self) -> int:
        """Records that could not be read, and have been put elsewhere."""
        ...

    @property
    def ended(self) -> bool:
        """Whether `read` has nothing more to give."""
        ...

    def read(self, busy: bool) -> bool:
        """Send records to inputs, if there are any; returns whether there were.

        ``busy`` says whether the worker still has something else to do.
        """
        ...

    def patience(self, idle: float) -> float:
        """Seconds for which `read` has nothing, after nothing has happened for ``idle`` seconds."""
        ...

    def advance(self, inputs: Mapping[str, int]) -> None:
        """Advance inputs to where the driver says they may be."""
        ...

    def add_partitions(self, name: str, partitions: Mapping[str, Mapping[str, Any]]) -> None:
        """Read partitions of an input's source too, which have appeared."""
        ...

    def positions(self) -> Positions:
        """Where the sources are: what a restart has to know."""
        ...

    def state(self) -> Mapping[str, Any]:
        """How far each open input is, and whether all its partitions here are idle."""
        ...

    def close(self) -> None:
        """Read no more, and close the inputs if the flow is to end with that."""
        ...


class NoFeed:
    """A feed without records: inputs are in other hands."""

    awaits_command = False
    rejected = 0

    @property
    def ended(self) -> bool:
        """Always."""
        return True

    def read(self, busy: bool) -> bool:
        """Nothing."""
        return False

    def patience(self, idle: float) -> float:
        """Indefinitely."""
        return math.inf

    def advance(self, inputs: Mapping[str, int]) -> None:
        """Do nothing."""

    def add_partitions(self, name: str, partitions: Mapping[str, Mapping[str, Any]]) -> None:
        """Do nothing."""

    def positions(self) -> Positions:
        """None."""
        return {}

    def state(self) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Do nothing."""


class Sink(Protocol):
    """The destination of the rows that a worker's outputs collect."""

    rows: int
    """Rows that were handed on so far."""

    @property
    def is_full(self) -> bool:
        """Whether rows wait here until others are taken, so that nothing more should be read."""
        ...

    @property
    def waits_for(self) -> str:
        """The reason why it is full, as the end of a sentence; empty if it is not."""
        ...

    @property
    def uncommitted(self) -> Mapping[str, int]:
        """For outputs how many rows wait for the next checkpoint."""
        ...

    def write(self) -> None:
        """Take what the outputs have collected."""
        ...

    def taken(self, output: str, size: int) -> None:
        """Bytes of an output's rows were taken at the other end."""
        ...

    def finish(self) -> None:
        """No more rows will come: end in good order."""
        ...


class NoSink:
    """A sink that leaves rows where the outputs collect them."""

    rows = 0
    is_full = False
    waits_for = ""
    uncommitted: Mapping[str, int] = MappingProxyType({})

    def write(self) -> None:
        """Do nothing."""

    def taken(self, output: str, size: int) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""


class PartWriter(Protocol):
    """The writer of a worker's parts of checkpoints."""

    @property
    def tokens(self) -> Tokens:
        """The states of containers that its last part had, of which changes will do."""
        ...

    def keep(
        self,
        command: Checkpoint,
        state: Mapping[str, Mapping[str, Cut | pa.Table]],
        positions: Positions,
        pause: float,
    ) -> None:
        """Write a part, and report it to the driver; rows so far belong to it."""
        ...

    def check(self) -> None:
        """Raise what went wrong in the background, if anything did."""
        ...
