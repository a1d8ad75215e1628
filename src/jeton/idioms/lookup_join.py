"""lookup_join: each record with what an arrangement holds under its key, as of its own time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

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
    for one, other in zip(key, arrangement.key, strict=True):
        # The time column may be a key too: it is in no schema.
        if one in schema.names and other in known.names:
            types = jt.state.KeyTypes()
            types.learn("arranged", [other], [pa.nulls(0, known.field(other).type)])
            try:
                types.learn("asked", [one], [pa.nulls(0, schema.field(one).type)])
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
        self._time_name = stream.time_name
        self._gone = {*arrangement.key, arrangement.diff}
        known = arrangement.stream.schema
        values = None
        if known is not None:
            values = pa.schema([field for field in known if field.name not in self._gone])
        self.schema = self._schema(stream.schema, values, operator)
        self._nulls: pa.Schema | None = None
        if how == "left":
            if values is None:
                raise GraphError(
                    "a left join must know the columns that are arranged, to fill them with "
                    "nulls: give that input a schema=…, or use how='inner'"
                ).located(operator=operator)
            self._nulls = values

    def _schema(
        self, left: pa.Schema | None, values: pa.Schema | None, operator: str
    ) -> pa.Schema | None:
        """The columns that come out, if those of both sides are known."""
        if left is None or values is None:
            return None
        try:
            renamed = self._renamed((*left.names, self._time_name), dict.fromkeys(values.names))
        except BatchError as error:
            raise GraphError(error.message).located(operator=operator) from error
        types = zip((*left.names, *renamed), (*left.types, *values.types), strict=True)
        return pa.schema(list(types))

    def answers(self, reader: Reader, batch: jt.Batch, key: Sequence[str]) -> list[jt.Batch]:
        """The results for a batch whose times are complete."""
        asking, rows = reader.lookup(batch, on=key)
        answers = []
        if rows is not None and len(asking):
            left = batch.take(asking.astype(np.intp, copy=False))
            values = {name: rows.column(name) for name in rows.names if name not in self._gone}
            answers.append(self._beside(left, values))
        if self._nulls is not None:
            alone = np.ones(len(batch), dtype=bool)
            alone[asking] = False
            left = batch.filter(alone)
            nulls = {field.name: pa.nulls(len(left), field.type) for field in self._nulls}
            answers.append(self._beside(left, nulls))
        return answers

    def _beside(self, left: jt.Batch, values: dict[str, Any]) -> jt.Batch:
        return left.with_columns(self._renamed((*left.names, left.time_name), values))

    def _renamed(self, taken: Sequence[str], values: dict[str, Any]) -> dict[str, Any]:
        renamed = {name + self._suffix if name in taken else name: v for name, v in values.items()}
        if len(renamed) < len(values) or any(name in taken for name in renamed):
            raise BatchError(
                f"two columns of the join would have the same name (of {sorted(renamed)}): "
                "use another suffix=…, or select() and rename before"
            )
        return renamed
