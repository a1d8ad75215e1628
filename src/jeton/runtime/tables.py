"""Tables in and out of a run in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from jeton.columns.batch import Batch, concat
from jeton.columns.tables import as_table
from jeton.core.errors import GraphError, JetonError, TimeError
from jeton.core.times import IntegerTimes, Time
from jeton.dataflow.inputs import InputHandle
from jeton.runtime.agent import NoFeed

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow


class Tables:
    """Reads inputs' tables and makes outputs', whose times are of the type that came in."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._time_type: pa.DataType | None = None

    def read(self, name: str, data: Any) -> Batch:
        """A batch from what a user hands in for an input."""
        operator = self._flow.operators[self._flow.handle("input", name)]
        if isinstance(data, Batch):
            return data.named(operator.time_name)
        try:
            if not operator.kind.integers and isinstance(data, Mapping):
                # Times of a user's own class are not values of Arrow's.
                values = dict(data)
                times = values.pop(operator.time_name, [])
                return Batch(values, times, time_name=operator.time_name, kind=operator.kind)
            table = as_table(data)
            batch = Batch.from_arrow(table, time=operator.time_name, kind=operator.kind)
        except JetonError as error:
            error.located(operator=name)
            raise
        if operator.time_name not in table.column_names:
            return batch
        kind = table.schema.field(operator.time_name).type
        if pa.types.is_null(kind):
            return batch
        if self._time_type is None:
            self._time_type = kind
        elif self._time_type != kind:
            raise GraphError(
                f"input {name!r} has times of type {kind}, another input of type "
                f"{self._time_type}: cast them to one type, so that they mean the same"
            )
        return batch

    def made(self, name: str, batches: Sequence[Batch]) -> pa.Table:
        """A table from what an output has collected, in order of time."""
        if not batches:
            time_name = self._flow.operators[self._flow.handle("output", name)].time_name
            fields = [pa.field(time_name, self._time_type or pa.int64())]
            return pa.schema([*fields, *(self._flow.output_schema(name) or ())]).empty_table()
        whole = concat(batches)
        if whole.times.ndim == 1 and whole.times.dtype != object:
            whole = whole.take(np.argsort(whole.times, kind="stable"))
        table = whole.to_arrow()
        if self._time_type is not None and isinstance(self._flow.kind, IntegerTimes):
            times = table.column(whole.time_name).cast(pa.int64())
            try:
                typed = _as_type(times, self._time_type)
            except pa.ArrowInvalid as error:
                raise TimeError(
                    f"output {name!r} has times that are not {self._time_type}, the type of the "
                    f"inputs' time columns: cast those to a wider type ({error})"
                ) from error
            table = table.set_column(0, whole.time_name, typed)
        return table


class TableFeed(NoFeed):
    """The feed of a run in this process: pieces of tables, of one input after the other.

    With ``random``, the inputs take turns at random.
    """

    def __init__(self, random: Random | None) -> None:
        self._random = random
        self._inputs: list[Iterator[None]] = []

    @property
    def ended(self) -> bool:
        """Whether all tables have been sent."""
        return not self._inputs

    def add(self, handle: InputHandle, pieces: list[Batch]) -> None:
        """Send the pieces of a table to an input, and close it after the last one."""
        self._inputs.append(_pieces(handle, pieces))

    def read(self, busy: bool) -> bool:
        """Send one piece."""
        if not self._inputs:
            return False
        random = self._random
        index = 0 if random is None else random.randrange(len(self._inputs))
        pieces = self._inputs.pop(index)
        if next(pieces, _END) is not _END:
            self._inputs.append(pieces)
        return True


_END: Final = object()


def _pieces(handle: InputHandle, pieces: list[Batch]) -> Iterator[None]:
    """Send pieces one at a time, advancing as far as those still to come allow.

    A whole table is complete by definition, so nothing in it is late, also if the input has a
    lateness: that is for streams, whose future is not known.
    """
    handle.lateness = None
    plain = isinstance(handle.kind, IntegerTimes)
    floors: list[Time | None] = [None] * len(pieces)
    floor: Time | None = None
    for at in reversed(range(len(pieces))):
        floors[at] = floor
        if plain:
            least = int(pieces[at].times.min())
            floor = least if floor is None else min(floor, least)
    for piece, floor in zip(pieces, floors, strict=True):
        handle.send(piece)
        if floor is not None and handle.time < floor:
            handle.advance_to(floor)
        yield
    handle.close()


def _as_type(times: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_date32(kind):
        return times.cast(pa.int32()).cast(kind)
    return times.cast(kind)
