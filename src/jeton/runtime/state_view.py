"""State view: the state of an operator as a table for people, with its keys, values and times.

It has the columns of the operator's snapshot, made readable: times are those of the flow, values of
the user's own are shown as Python shows them, and sketches by their results. A container may have
an attribute ``time_columns`` with the names of its columns that have times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jeton.columns.time_units import INTEGER, in_words, stamped, type_of
from jeton.core.times import END_OF_TIME, START_OF_TIME, Time, nested_key
from jeton.core.tokens import tokens_for
from jeton.state.groups import TYPES
from jeton.state.python_values import shown_value
from jeton.state.registers import estimates
from jeton.state.snapshot import BIN, is_held_by_breakpoint

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

    from jeton.runtime.agent import Agent
    from jeton.runtime.operator import Operator
    from jeton.state.tagged_state import TaggedState

TIMES: Final = ("time", "end", "first", "last")
"""The columns of the library's containers that have times, where these do not say otherwise."""
OWN: Final = ("state", "value")
"""The columns of the library's containers that may have values of the user's own."""
LONGEST: Final = 200
"""Letters of a value of the user's own."""


def state_table(agent: Agent, operator: Operator) -> pa.Table:
    """The containers of an operator, one below the other, with the tokens that it holds.

    >>> import jeton as jt
    >>> from jeton.runtime.agent import Agent
    >>> flow = jt.Flow("counts")
    >>> words = flow.input("words").key_by("word").running()
    >>> flow.output("words", words.fold("n", set, lambda seen, n: seen | {n}))
    >>> agent = Agent(flow)
    >>> agent.worker.handles[flow.handle("input", "words")].send({"word": ["a", "b"], "n": [1, 2]})
    >>> while agent.turn():
    ...     pass
    >>> state_table(agent, agent.worker.operators[1]).column_names
    ['worker', 'key.word', 'of.fold.state', 'of.fold.seen', 'tokens', 'token_time']
    >>> agent.close()
    """
    unit = agent.worker.units.unit
    parts = []
    several = len([name for name in operator.kept if not is_held_by_breakpoint(name)]) > 1
    for name, kept in operator.kept.items():
        if not is_held_by_breakpoint(name):
            with operator.guard:
                columns = _readable(kept, unit)
            rows = len(next(iter(columns.values()), ()))
            if several:
                columns = {"container": pa.array([name] * rows, pa.string()), **columns}
            parts.append(pa.table(columns))
    whole = stacked(parts)
    held = _token_times(agent, operator)
    if not whole.num_rows and held:
        whole = stacked([whole, pa.table({"worker": pa.array([0], pa.int64())})])
    rows = whole.num_rows
    names = [name for name in whole.column_names if name != "worker"]
    first = min(held, key=nested_key, default=None)
    return pa.table(
        {
            "worker": pa.array([agent.worker.index] * rows, pa.int64()),
            **{name: whole.column(name) for name in names},
            "tokens": pa.array([len(held)] * rows, pa.int64()),
            "token_time": _repeated(first, unit, rows),
        }
    )


def stacked(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one below the other; a column whose types do not go together becomes text.

    >>> stacked([pa.table({"a": [1]}), pa.table({"a": ["x"], "b": [2]})]).to_pylist()
    [{'a': '1', 'b': None}, {'a': 'x', 'b': 2}]
    >>> stacked([pa.table({"a": pa.array([], pa.int64())}), pa.table({"a": ["x"]})]).to_pylist()
    [{'a': 'x'}]
    """
    # The types of columns without rows may not be known yet.
    tables = [table.replace_schema_metadata() for table in tables if table.num_rows] or [
        table.replace_schema_metadata() for table in tables[:1]
    ]
    names = dict.fromkeys(name for table in tables for name in table.column_names)
    for name in names:
        having = [table for table in tables if name in table.column_names]
        kinds = [pa.schema([table.schema.field(name)]) for table in having]
        try:
            pa.unify_schemas(kinds, promote_options="permissive")
        except pa.ArrowException:
            tables = [_as_text(table, name) for table in tables]
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def as_frame(table: pa.Table) -> pd.DataFrame:
    """A table for pandas, where integers stay integers beside nulls.

    >>> as_frame(pa.table({"n": [1, None]}))["n"].tolist()
    [1, <NA>]
    """
    import pandas as pd

    frame = table.to_pandas()
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_integer(column.type) and column.null_count:
            frame[name] = pd.array(column.to_pylist(), dtype="Int64")
    return frame


def _readable(kept: TaggedState, unit: str | None) -> dict[str, Any]:
    """The columns of a container's snapshot, without the bins of its keys and types of values."""
    table = kept.snapshot()
    with_times = getattr(kept.state, "time_columns", TIMES)
    found: dict[str, Any] = {}
    for name in table.column_names:
        if name not in (BIN, "worker") and table.schema.field(name).type != TYPES:
            column = table.column(name).combine_chunks()
            if name in with_times or (name.startswith("of.") and name.endswith(".time")):
                column = _as_times(column, unit)
            elif name in OWN or (name.startswith("of.") and name.endswith(".state")):
                column = _shown(column)
            elif name.removesuffix(".value") + ".family" in table.column_names:
                column = pa.array(estimates(column))
            # Where they are no times, they number the records of each key.
            found["number" if name == "time" and name not in with_times else name] = column
    return found


def _as_times(column: pa.Array, unit: str | None) -> pa.Array:
    """Integers as times of the flow; lists of zeros are none, since their order is another one."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    values = column.flatten() if is_list else column
    if unit is None or unit == INTEGER or values.type != pa.int64():
        return column
    if is_list and not pc.any(pc.not_equal(values, 0)).as_py():
        return column
    if is_list:
        return column.cast(pa.list_(type_of(unit)))
    return pc.if_else(pc.equal(column, START_OF_TIME), None, column).cast(type_of(unit))


def _shown(column: pa.Array) -> pa.Array:
    """Values of the user's own as Python shows them."""
    if not pa.types.is_large_binary(column.type):
        return column
    return pa.array([_text(value) for value in column.to_pylist()], pa.string())


def _text(stored: bytes | None) -> str | None:
    if stored is None:
        return None
    text = shown_value(stored)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _as_text(table: pa.Table, name: str) -> pa.Table:
    if name not in table.column_names:
        return table
    column = table.column(name)
    texts = [None if value is None else str(value) for value in column.to_pylist()]
    at = table.column_names.index(name)
    return table.set_column(at, name, pa.array(texts, pa.string()))


def _token_times(agent: Agent, operator: Operator) -> list[Time]:
    """The times of the tokens that an operator holds, with those of a breakpoint."""
    times = [token.time for _, token in tokens_for(operator.books)]
    gates = [gate for gate in agent.breakpoints.sources if gate.operator is operator]
    return [*times, *(gate.token for gate in gates if gate.token is not None)]


def _repeated(time: Time | None, unit: str | None, rows: int) -> Any:
    """A time in each row: as the flow has it, or in words if it is inside a loop."""
    far = unit not in (None, INTEGER) and time in (START_OF_TIME, END_OF_TIME)
    if time is None or type(time) is not int or far:
        text = None if time is None else in_words(time, unit)
        return pa.array([text] * rows, pa.null() if text is None else pa.string())
    return stamped(np.full(rows, time), unit)
