"""Watermarks, as in Flink: promises about time that travel in-band, in the data's own channels.

An operator holds *one* token, for its output watermark, and moves it on as marks arrive. It knows
of nothing else: frontiers are consulted where marks are first made, and nowhere behind. Over a
pipeline a mark goes to the next operator on the same worker; over an exchange it goes to all
workers, each of which takes the minimum over senders.

A data message still carries its own right to speak, so that a record which is late (before its
operator's watermark) is sent aside at its own time, or passed on, but not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy.typing as npt
import pyarrow as pa

import jeton as jt
from jeton.errors import GraphError
from jeton.idioms.watermark_ports import CLOSED, IDLE, MARK, MarkReader, MarkWriter, WithMarks

Times = npt.NDArray[Any]
_Step = Callable[[jt.Input, jt.Output], None]


@dataclass(frozen=True)
class MarkedStream:
    """A stream with marks among its data: for operators of this module, not for others.

    What the stream's schema says, if it is known, is true of the data only.
    """

    stream: jt.Stream
    late: jt.Stream | None = None
    """Records that came before the operator's watermark, at their own times."""

    def __post_init__(self) -> None:
        if not isinstance(self.stream.kind, jt.IntegerTimes):
            raise GraphError("watermarks are integers: they cannot be used inside a loop")


class Logic(Protocol):
    """The actions of an operator on data, and at its watermark."""

    def on_data(self, port: int, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
        """Process data of an input: answer it with ``ref``, or keep it."""
        ...

    def on_mark(self, mark: int | None, token: jt.TimestampToken, output: jt.Output) -> None:
        """Answer a mark: nothing before it arrives any more, nothing at all if it is ``None``."""
        ...


class Forward:
    """Logic that passes data on, late or not, and lets marks pass; it keeps nothing."""

    def __init__(self, info: jt.OperatorInfo) -> None:
        info.keep_nothing()

    def on_data(self, port: int, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
        """Pass data on."""
        output.session(ref).give(batch)

    def on_mark(self, mark: int | None, token: jt.TimestampToken, output: jt.Output) -> None:
        """There is nothing to answer."""


def watermark_operator(
    inputs: Sequence[MarkedStream],
    build: Callable[[jt.OperatorInfo], Logic],
    *,
    pacts: Sequence[jt.Pact | None] = (),
    late: Literal["aside", "pass"] = "aside",
    due: Callable[[Times], Times] | None = None,
    schema: Any = None,
    name: str = "watermarks",
) -> MarkedStream:
    """An operator that acts on in-band marks only; its watermark is the least of its inputs'.

    ``pacts`` says for each input how data moves; wherever it moves between workers, marks are
    broadcast. A record is late if it is before the operator's watermark, or if the watermark has
    reached what ``due`` makes of its time, such as the end of its window. It goes to the ``late``
    stream of the result at its own time, or with ``late="pass"`` to the logic like any other.
    ``schema`` says which columns the logic sends. What the logic puts aside it must keep, or say
    ``info.keep_nothing()``, to be a part of snapshots.

    >>> class Last:  # the last value before each mark
    ...     def __init__(self, info):
    ...         self.last = None
    ...
    ...     def on_data(self, port, ref, batch, output):
    ...         self.last = int(batch["n"][-1])
    ...
    ...     def on_mark(self, mark, token, output):
    ...         if self.last is not None:
    ...             output.session(token).give(last=self.last)
    ...         self.last = None
    >>> from jeton.idioms.watermark_sources import marks_from_times
    >>> flow = jt.Flow("last", time=jt.IntegerTimes(minimum=0))
    >>> numbers = marks_from_times(flow.input("n"), disorder=2)
    >>> last = watermark_operator([numbers], Last)
    >>> flow.output("last", unmarked(last))
    >>> flow.output("late", last.late)
    >>> with flow.open() as run:
    ...     for time in (4, 9, 3):
    ...         run.input("n").send({"time": [time], "n": [10 * time]})
    ...         run.run_to_rest()
    ...     result = run.finish()
    >>> result["last"].to_pylist(), result["late"].to_pylist()
    ([{'time': 0, 'last': 40}, {'time': 2, 'last': 90}], [{'time': 3, 'n': 30}])
    """
    if not inputs:
        raise GraphError("a watermark is the least of the inputs': give one or more").located(
            operator=name
        )
    op = inputs[0].stream.operator(name)
    crossing = []
    for port, marked in enumerate(inputs):
        pact = pacts[port] if port < len(pacts) else None
        crossing.append(pact is not None and not pact.local)
        op.input(marked.stream, WithMarks(pact) if pact is not None and crossing[-1] else None)
    op.output(schema=schema)
    if late == "aside":
        known = inputs[0].stream.schema
        alike = all(marked.stream.schema == known for marked in inputs)
        op.output(schema=known if alike else None)

    def start(
        tokens: list[jt.TimestampToken], info: jt.OperatorInfo
    ) -> Callable[[Sequence[jt.Input], Sequence[jt.Output]], None]:
        for token in tokens[1:]:
            token.drop()
        reader = MarkReader(
            [info.workers if crosses else 1 for crosses in crossing], least=tokens[0].time
        )
        # In a pipeline there is one sender, whatever its number.
        senders = [0 if crosses else 4 * info.worker for crosses in crossing]
        writer = MarkWriter(tokens[0], info)
        logic = build(info)

        def step(ports: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
            output = outputs[0]
            for port, arrived in enumerate(ports):
                for ref, batch in arrived:
                    code = batch.columns.get(MARK)
                    if code is not None:
                        reader.read(port, int(code[0]) - senders[port], int(batch.times[0]))
                        continue
                    if len(outputs) > 1 and ref.time < reader.mark:
                        batch = _set_late_aside(ref, batch, reader.mark, due, outputs[1])
                    if len(batch):
                        logic.on_data(port, ref, batch, output)
            # Marks that came together are acted on once: data never falls behind by that.
            if reader.changed:
                reader.changed = False
                _follow(reader, writer, logic, output)

        return step

    streams = op.build(start, notify="never")
    return MarkedStream(*streams)


def _set_late_aside(
    ref: jt.TokenRef,
    batch: jt.Batch,
    mark: int,
    due: Callable[[Times], Times] | None,
    aside: jt.Output,
) -> jt.Batch:
    """Send what is late to the late output; returns what is not."""
    late = batch.times < mark if due is None else due(batch.times) <= mark
    if late.any():
        aside.session(ref).give(batch.filter(late))
        return batch.filter(~late)
    return batch


def _follow(reader: MarkReader, writer: MarkWriter, logic: Logic, output: jt.Output) -> None:
    """Bring the output's watermark in line with the inputs'."""
    status = reader.status
    if status == CLOSED:
        logic.on_mark(None, writer.token, output)
        writer.close(output)
        return
    mark = reader.mark
    if mark > writer.mark:
        logic.on_mark(None if mark == jt.END_OF_TIME else mark, writer.token, output)
        writer.advance(output, mark)
    if status != writer.status:
        if status == IDLE:
            writer.idle(output)
        else:
            writer.resume(output)


class Link(Protocol):
    """An operator of a chain: it answers data and marks with data for the next one."""

    def on_data(self, batch: jt.Batch) -> jt.Batch | None:
        """The data that goes on, if any; its times are not before those of ``batch``."""
        ...

    def on_mark(self, mark: int | None) -> jt.Batch | None:
        """Data to send before the mark, at the mark before it or later: see `Logic.on_mark`."""
        ...


class ForwardLink:
    """A link that passes data on and lets marks pass; it keeps nothing."""

    def __init__(self, info: jt.OperatorInfo) -> None:
        pass

    def on_data(self, batch: jt.Batch) -> jt.Batch | None:
        """The data as it is."""
        return batch

    def on_mark(self, mark: int | None) -> jt.Batch | None:
        """There is nothing to answer."""
        return None


def watermark_chain(
    marked: MarkedStream,
    builds: Sequence[Callable[[jt.OperatorInfo], Link]],
    *,
    pact: jt.Pact | None = None,
    late: Literal["aside", "pass"] = "aside",
    schema: Any = None,
    name: str = "watermark chain",
) -> MarkedStream:
    """Operators one after the other in one invocation, as Flink chains those of a pipeline.

    Data and marks go from link to link by calls, and through a channel only at both ends: so a
    mark that passes 256 links costs 256 calls, not as many messages. The ``pact`` says how data
    comes to the first link. Late records are set aside before it, and the other arguments are
    as for `watermark_operator`. Links that keep state give it different names. A chain all of
    whose links have nothing to keep is a part of snapshots as it is.

    >>> class Doubled(ForwardLink):
    ...     def on_data(self, batch):
    ...         return batch.with_columns({"n": batch["n"] * 2})
    >>> from jeton.idioms.watermark_sources import marks_from_frontier
    >>> flow = jt.Flow("doubled")
    >>> numbers = marks_from_frontier(flow.input("n"))
    >>> flow.output("n", unmarked(watermark_chain(numbers, [Doubled] * 3)))
    >>> flow.run({"n": {"time": [4], "n": [5]}})["n"].to_pylist()
    [{'time': 4, 'n': 40}]
    """
    if not builds:
        raise GraphError("a chain has one link or more").located(operator=name)
    return watermark_operator(
        [marked],
        lambda info: _Chain(info, builds),
        pacts=[pact],
        late=late,
        schema=schema,
        name=name,
    )


class _Chain:
    """The logic of a chain: each link's data goes to those behind it, then the mark does."""

    def __init__(
        self, info: jt.OperatorInfo, builds: Sequence[Callable[[jt.OperatorInfo], Link]]
    ) -> None:
        self._links = [build(info) for build in builds]
        if not info.kept:
            info.keep_nothing()

    def on_data(self, port: int, ref: jt.TokenRef, batch: jt.Batch, output: jt.Output) -> None:
        self._pass_on(0, ref, batch, output)

    def on_mark(self, mark: int | None, token: jt.TimestampToken, output: jt.Output) -> None:
        for place, link in enumerate(self._links, start=1):
            batch = link.on_mark(mark)
            if batch is not None:
                self._pass_on(place, token, batch, output)

    def _pass_on(
        self,
        place: int,
        right: jt.TokenRef | jt.TimestampToken,
        batch: jt.Batch | None,
        output: jt.Output,
    ) -> None:
        """Bring data through all links from a place on, and send the rest."""
        for link in self._links[place:] if place else self._links:
            if batch is None or not len(batch):
                return
            batch = link.on_data(batch)
        if batch is not None and len(batch):
            output.session(right).give(batch)


def unmarked(
    marked: MarkedStream, *, name: str = "unmarked", schema: pa.Schema | None = None
) -> jt.Stream:
    """The data of a marked stream as a plain one; marks end here.

    It holds nothing: the frontier behind it is that of the tokens and messages before it. A
    ``schema`` says which columns come out, if the marked stream does not know.

    >>> from jeton.idioms.watermark_sources import marks_from_frontier
    >>> flow = jt.Flow("there and back")
    >>> flow.output("n", unmarked(marks_from_frontier(flow.input("n"))))
    >>> flow.run({"n": {"time": [4], "n": [40]}})["n"].to_pylist()
    [{'time': 4, 'n': 40}]
    """

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> _Step:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            for ref, batch in input:
                if MARK not in batch.columns:
                    output.session(ref).give(batch)

        return step

    return marked.stream.unary(build, name=name, schema=schema or marked.stream.schema)
