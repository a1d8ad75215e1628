"""Tables in and out of a run in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from jeton.columns.batch import Batch, concat
from jeton.columns.tables import as_table
from jeton.columns.time_units import INTEGER, type_of
from jeton.core.errors import JetonError, MissingColumn, TimeError
from jeton.core.times import IntegerTimes, Time
from jeton.dataflow.inputs import InputHandle
from jeton.runtime.attachments import NoFeed

if TYPE_CHECKING:
    from jeton.dataflow.flow import Flow


class Tables:
    """Reads inputs' tables and makes outputs', whose times are of the type that came in."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._integers: pa.DataType | None = None
        """The type of integer times that came in, if they had one."""

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
            if isinstance(error, MissingColumn) and _has_times_in_index(data, operator.time_name):
                error = MissingColumn(
                    f"the frame has its times in the index, which is not read: pass "
                    f"frame.rename_axis({operator.time_name!r}).reset_index()"
                )
            raise error.located(operator=name) from None
        if operator.time_name not in table.column_names:
            return batch
        kind = table.schema.field(operator.time_name).type
        if pa.types.is_null(kind):
            return batch
        if pa.types.is_integer(kind):
            same = self._integers in (None, kind)
            self._integers = kind if same else pa.int64()
        return batch

    def made(self, name: str, batches: Sequence[Batch], unit: str | None) -> pa.Table:
        """A table from what an output has collected, in order of time; ``unit`` is the flow's."""
        if not batches:
            time_name = self._flow.operators[self._flow.handle("output", name)].time_name
            times = self._integers if unit in (None, INTEGER) else type_of(unit)
            fields = [pa.field(time_name, times or pa.int64())]
            return pa.schema([*fields, *(self._flow.output_schema(name) or ())]).empty_table()
        whole = concat(batches)
        if whole.times.ndim == 1 and whole.times.dtype != object:
            whole = whole.take(np.argsort(whole.times, kind="stable"))
        table = whole.to_arrow()
        times = table.column(whole.time_name)
        if self._integers is not None and pa.types.is_int64(times.type):
            try:
                table = table.set_column(0, whole.time_name, times.cast(self._integers))
            except pa.ArrowInvalid as error:
                raise TimeError(
                    f"output {name!r} has times that are not {self._integers}, the type of the "
                    f"inputs' time columns: cast those to a wider type ({error})"
                ) from error
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


def _has_times_in_index(data: Any, name: str) -> bool:
    """Whether a pandas frame has an index of timestamps, or one that has the name of the times."""
    index = getattr(data, "index", None) if hasattr(data, "iloc") else None
    if index is None or len(index.names) != 1:
        return False
    return bool(index.names[0] == name or index.dtype.kind == "M")
