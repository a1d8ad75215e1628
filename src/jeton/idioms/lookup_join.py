"""lookup_join: each record with what an arrangement holds under its key, as of its own time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton.errors import BatchError, GraphError
from jeton.idioms.arrangement import Arrangement, Reader


def lookup_join(
    stream: jt.Stream,
    arrangement: Arrangement,
    on: str | Sequence[str] | None = None,
    *,
    how: Literal["inner", "left"] = "inner",
    suffix: str = "_right",
    name: str = "lookup_join",
) -> jt.Stream:
    """Each record of a stream with what is arranged under its key, as of its own time.

    ``on`` names the stream's key columns, if they have other names than in the arrangement. A
    record waits until the arrangement is complete at its time, and not longer. The result has the
    stream's columns, then the arranged ones that are not keys, with a ``suffix`` where the names
    clash. A record for which nothing is found is left out; with ``how="left"`` it comes with nulls,
    for which the arranged stream's columns must be known (give its input a ``schema=``). Keys of
    types that are never equal, such as integers and text, are refused: when the flow is built if
    both schemas are known, else as soon as both have come.

    Inside a loop, let the arrangement enter it: all rounds of a time find the same.

    >>> import jeton as jt
    >>> from jeton.idioms.arrangement import arrange
    >>> flow = jt.Flow("reach")
    >>> links = arrange(flow.input("links"), "page")
    >>> def follow(pages):
    ...     found = lookup_join(pages, links.enter(pages.scope))
    ...     return found.map(lambda batch: {"page": batch["to"]}).distinct("page")
    >>> loop = flow.loop()
    >>> again = loop.feedback()
    >>> pages = follow(flow.input("start").enter(loop).concat(again.stream))
    >>> again.connect(pages)
    >>> flow.output("pages", pages.leave())
    >>> inputs = {
    ...     "links": {"time": [0, 0, 0], "page": [1, 2, 5], "to": [2, 3, 1]},
    ...     "start": {"time": [0], "page": [1]},
    ... }
    >>> sorted(flow.run(inputs)["pages"]["page"].to_pylist())
    [2, 3]
    """
    key = arrangement.key if on is None else (on,) if isinstance(on, str) else tuple(on)
    if len(key) != len(arrangement.key):
        raise GraphError(
            f"the keys {list(key)} and {list(arrangement.key)} are of different lengths"
        ).located(operator=name)
    _require_comparable(stream.schema, key, arrangement, name)
    joined = _Joined(stream, arrangement, how, suffix, name)
    builder = stream.operator(name)
    asked = builder.input(stream, jt.Exchange(*key, announce=True))
    complete = builder.input(arrangement.stream, observes=True)
    builder.output({asked: 0}, schema=joined.schema)

    def build(tokens: list[jt.TimestampToken], info: jt.OperatorInfo) -> Callable[..., None]:
        reader = arrangement.reader(info)
        waiting = jt.state.RecordQueue(info.kind, key)
        with tokens.pop() as token:
            info.keep(waiting, token, shape=f"records by {', '.join(key)}")

        def step(inputs: Sequence[jt.Input], outputs: Sequence[jt.Output]) -> None:
            for ref, batch in inputs[asked]:
                reader.learn(batch, on=key)
                waiting.push(ref, batch)
            for time, batch in waiting.pop(inputs[complete].frontier):
                for answer in joined.answers(reader, batch, key):
                    outputs[0].session(waiting.right_for(time)).give(answer)
            waiting.settle()
            # What waits is at the arrangement's frontier or later.
            since = [*inputs[asked].frontier]
            reader.advance([*since, *inputs[complete].frontier] if len(waiting) else since)

        return step

    # Without a record that waits there is no token, but the reader moves on with the frontier.
    [answers] = builder.build(build, notify="always")
    return answers


def _require_comparable(
    schema: pa.Schema | None, key: Sequence[str], arrangement: Arrangement, operator: str
) -> None:
    """Refuse keys that are never equal, as far as their types are known before data comes."""
    known = arrangement.stream.schema
    if schema is None or known is None:
        return
    types = jt.state.KeyTypes()
    try:
        for side, names, its in (("arranged", arrangement.key, known), ("asked", key, schema)):
            # The time column may be a key too: it is in no schema, and fits everything here.
            kinds = [its.field(n).type if n in its.names else pa.null() for n in names]
            types.learn(side, names, [pa.nulls(0, kind) for kind in kinds])
    except BatchError as error:
        raise GraphError(error.message).located(operator=operator) from error


class _Joined:
    """How records and what was found for them are put side by side."""

    def __init__(
        self, stream: jt.Stream, arrangement: Arrangement, how: str, suffix: str, operator: str
    ) -> None:
        if how not in ("inner", "left"):
            raise GraphError(f"how={how!r} is not known: 'inner' or 'left'").located(
                operator=operator
            )
        self._suffix = suffix
        self._left = how == "left"
        self._gone = {*arrangement.key, arrangement.diff}
        known, own = arrangement.stream.schema, stream.schema
        self._values = pa.schema([f for f in known or () if f.name not in self._gone])
        if self._left and known is None:
            raise GraphError(
                "a left join must know the columns that are arranged, to fill them with "
                "nulls: give that input a schema=…, or use how='inner'"
            ).located(operator=operator)
        self.schema: pa.Schema | None = None
        """The columns that come out, if those of both sides are known."""
        if known is not None and own is not None:
            none = _nulls(own, 0, stream.time_name)
            try:
                both = none.beside(_nulls(self._values, 0), suffix)
            except BatchError as error:
                raise GraphError(error.message).located(operator=operator) from error
            self.schema = both.to_arrow().schema.remove(0)

    def answers(self, reader: Reader, batch: jt.Batch, key: Sequence[str]) -> list[jt.Batch]:
        """The results for a batch whose times are complete."""
        asking, rows = reader.lookup(batch, on=key)
        answers = []
        if rows is not None and len(asking):
            left = batch.take(asking.astype(np.intp, copy=False))
            values = rows.select(*(name for name in rows.names if name not in self._gone))
            answers.append(left.beside(values, self._suffix))
        if self._left:
            alone = np.ones(len(batch), dtype=bool)
            alone[asking] = False
            left = batch.filter(alone)
            answers.append(left.beside(_nulls(self._values, len(left)), self._suffix))
        return answers


def _nulls(schema: pa.Schema, count: int, time_name: str = "") -> jt.Batch:
    """Records of nulls in the columns of a schema."""
    columns = {field.name: pa.nulls(count, field.type) for field in schema}
    return jt.Batch(columns, np.zeros(count, dtype=np.int64), time_name=time_name)
