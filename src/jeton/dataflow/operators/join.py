"""join: pairs of records with equal keys and equal times."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from jeton.dataflow.joined import How, Joined
from jeton.dataflow.operators.interval_join import pairing

if TYPE_CHECKING:
    from jeton.dataflow.keyed import KeyedStream
    from jeton.dataflow.stream import Stream


class Join:
    """Adds `join` to keyed streams."""

    def join(self, other: KeyedStream, *, how: How = "inner", suffix: str = "_right") -> Stream:
        """Pairs of records with equal keys and equal times, also inside loops.

        A pair is sent as soon as both records are there. With ``how="left"``, a left record
        without a partner comes with nulls once the right side is complete at its time; the right
        side's columns must then be known. For records at different times see `asof_join` and
        `interval_join`.

        The result has the left columns and the right ones that are no keys; a right column that
        the left side has too gets the ``suffix``. Key columns may have different names on both
        sides: the left ones stay. A null in a key equals nothing, NaN equals NaN.

        >>> import jeton as jt
        >>> flow = jt.Flow("sales")
        >>> items = flow.input("items", schema={"seller": int, "item": str})
        >>> people = flow.input("people", schema={"id": int, "name": str})
        >>> flow.output("sales", items.key_by("seller").join(people.key_by("id"), how="left"))
        >>> items = {"time": [0, 1], "seller": [7, 7], "item": ["cup", "pen"]}
        >>> people = {"time": [0], "id": [7], "name": ["Ann"]}
        >>> flow.run({"items": items, "people": people})["sales"].to_pylist()
        [{'time': 0, 'seller': 7, 'item': 'cup', 'name': 'Ann'},
         {'time': 1, 'seller': 7, 'item': 'pen', 'name': None}]
        """
        keyed = cast("KeyedStream", self)
        joined = Joined(keyed, other, how, suffix, "join")
        return keyed.stream.binary_frontier(
            other.stream,
            pairing(joined, 0, 0),
            pact=joined.pacts[0],
            other_pact=joined.pacts[1],
            name="join",
            # Records that wait hold no token: it takes the frontier to let go of them.
            notify="always",
            schema=joined.schema,
        )
