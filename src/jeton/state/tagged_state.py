"""TaggedState: state with a label, so that no other operator restores it.

Operators are found again by name. Those that the user did not name have a number at the end if
there are several alike, and when code changes, the next one may come to have the name of the one
before. So a container also says its *shape*, which is everything that state depends on: the key,
the windows, the aggregates; and where its operator stood.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jeton.core.errors import SnapshotError
from jeton.core.tokens import TimestampToken
from jeton.state.changes import Cut, Guard, Incremental, without_numbers
from jeton.state.slot_pool import Slots
from jeton.state.snapshot import BIN, Movable, Stateful, require_binned
from jeton.state.spilled import SpilledCut, SpilledTable, beside

_LABEL: Final = b"jeton.label"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an operator stands in its flow."""

    name: str
    named: bool = False
    """Whether the user chose the name for it."""
    behind: tuple[str, ...] = ()
    """The names of the operators that its inputs come from."""
    alike: int = 1
    """How many operators would have its name, but for the numbers at the end."""


class TaggedState:
    """A container whose snapshots bear a label, and that takes over only what bears its own.

    >>> import numpy as np
    >>> from jeton.state.keyed_values import KeyedValues
    >>> kept = TaggedState(KeyedValues(), Origin("sums"), "sums by user")
    >>> table = kept.snapshot()
    >>> TaggedState(KeyedValues(), Origin("sums"), "sums by item").restore(table, ())
    Traceback (most recent call last):
    jeton.core.errors.SnapshotError: the snapshot has state of 'sums by user' under this name...
    """

    __slots__ = ("_origin", "_shape", "rights", "spilled", "state")

    def __init__(
        self, state: Stateful, origin: Origin, shape: str, rights: Sequence[int] = ()
    ) -> None:
        self.state = state
        self.rights = tuple(rights)
        """The outputs for which it needs tokens."""
        self.spilled: list[SpilledTable] = []
        """The state of bins that are not in the container, but on disk."""
        self._origin = origin
        self._shape = shape

    def snapshot(self) -> pa.Table:
        """The container's own and what is on disk, with the label."""
        table = require_binned(self.state.snapshot(), type(self.state).__name__)
        table = beside(table, [each.read() for each in self.spilled])
        return table.replace_schema_metadata({**(table.schema.metadata or {}), **self._label()})

    def cut(self, after: str | None, guard: Guard) -> Cut | pa.Table:
        """Its changes since the state ``after``; a container that cannot say gives a snapshot."""
        spilled = [each.read() for each in self.spilled if len(each)]
        if spilled:
            after = None
        cut = self.state.cut(after, guard) if isinstance(self.state, Incremental) else None
        if spilled:
            inner = self.state.snapshot() if cut is None else cut
            cut = SpilledCut(token_hex(8), inner, spilled)
        if cut is None:
            return self.snapshot()
        cut.metadata = self._label()
        return cut

    def _label(self) -> dict[bytes, bytes]:
        label = {
            "shape": self._shape,
            "behind": list(self._origin.behind),
            "alike": self._origin.alike,
        }
        return {_LABEL: json.dumps(label, separators=(",", ":")).encode()}

    def take_bins(self, chosen: npt.NDArray[np.bool_]) -> pa.Table:
        """The state of some bins, of a container that is `Movable`."""
        assert isinstance(self.state, Movable), "asked before"
        table = self.state.take_bins(chosen)
        return beside(table, [each.take_bins(chosen) for each in self.spilled])

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """The container's own, if the label fits."""
        state, token, ids = self.checked(state)
        self.state.restore(state, tokens)
        if token is not None and isinstance(self.state, Incremental):
            self.state.restored(token, ids)

    def checked(self, state: pa.Table) -> tuple[pa.Table, str | None, Slots | None]:
        """A table of state as the container has it, its token and numbers; the label must fit."""
        label = (state.schema.metadata or {}).get(_LABEL)
        if label is not None:
            self._check(json.loads(label))
        return without_numbers(state)

    def _check(self, label: dict[str, Any]) -> None:
        origin = self._origin
        if label["shape"] != self._shape:
            raise SnapshotError(
                f"the snapshot has state of {label['shape']!r} under this name, but this is "
                f"{self._shape!r}. If it is another operator now, give it another name with "
                f"named(…), and let go of the old state with allow_removed=[{origin.name!r}] "
                f"(in process, snapshot.without({origin.name!r}))"
            )
        moved = label["behind"] != list(origin.behind)
        if not origin.named and moved and label["alike"] != origin.alike:
            raise SnapshotError(
                f"operators cannot be matched by their names any more: the snapshot has "
                f"{label['alike']} called like this, and this one was behind "
                f"{', '.join(label['behind'])}; now there are {origin.alike}, and it is behind "
                f"{', '.join(origin.behind)}. Say named({origin.name!r}) where the operator is "
                f"that shall have the state, and name the others too"
            )


class BoundedState:
    """A base of states that stay small on their own: a memory budget is not about them."""


class NoState(BoundedState):
    """The state of an operator that has none to keep."""

    def snapshot(self) -> pa.Table:
        """No rows."""
        return pa.table({BIN: np.array([], np.uint16)})

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """There is nothing to restore."""
