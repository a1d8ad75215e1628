"""KeyedTimes: values by time and key for hand-written operators, with the tokens to answer them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from jeton.core.antichain import Antichain
from jeton.core.errors import SnapshotError
from jeton.core.times import Time, TimeKind
from jeton.core.token_set import TokenSet
from jeton.core.tokens import TimestampToken, TokenRef
from jeton.state.key_place import KeyPlace
from jeton.state.keyed_values import KeyKinds, entries, entries_table, one_nan
from jeton.state.python_values import StateCodec, require_codec
from jeton.state.time_map import TimeMap

V = TypeVar("V")


class KeyedTimes(Generic[V]):
    """A map from times and keys to values, ordered by time, that takes part in snapshots.

    It holds the least tokens for all that is in it. Put values in with `push` or `get_or`, take
    those that are complete with `pop_before`, answer each with ``right_for(time)``, and `settle`
    at the end. Keys and values are as in `KeyedValues`.

    >>> import jeton as jt
    >>> def sums(token, info):  # of each key in windows of 10
    ...     windows = jt.state.KeyedTimes(info.kind)
    ...     info.keep(windows, token)
    ...     token.drop()
    ...
    ...     def step(input, output):
    ...         for ref, batch in input:
    ...             for row in batch.rows():
    ...                 end = (row["time"] // 10 + 1) * 10
    ...                 window = windows.get_or(ref, end, row["key"], lambda: [0])
    ...                 window[0] += row["n"]
    ...         for end, key, window in windows.pop_before(input.frontier, inclusive=True):
    ...             output.session(windows.right_for(end), end).give(key=key, sum=window[0])
    ...         windows.settle()
    ...
    ...     return step
    >>> flow = jt.Flow("sums")
    >>> flow.output("sums", flow.input("rows").unary_frontier(sums, pact=jt.Exchange("key")))
    >>> flow.run({"rows": {"time": [1, 2, 15], "key": [7, 7, 7], "n": [1, 2, 4]}})[
    ...     "sums"
    ... ].to_pylist()
    [{'time': 10, 'key': 7, 'sum': 3}, {'time': 20, 'key': 7, 'sum': 4}]
    """

    def __init__(
        self,
        kind: TimeKind,
        *,
        type: pa.DataType | None = None,
        output: int = 0,
        state_codec: StateCodec = "plain",
    ) -> None:
        self._kind = kind
        self._codec = require_codec(state_codec)
        self._type = type
        self._place = KeyPlace()
        self._tokens = TokenSet(output=output)
        self._kinds = KeyKinds()
        self._waiting: TimeMap[dict[Any, V]] = TimeMap()

    def push(self, right: TokenRef | TimestampToken, time: Time, key: Any, value: V) -> None:
        """Set the value of a time and key, holding the right to answer it."""
        self._admit(key)
        self._at(right, time)[one_nan(key)] = value

    def get_or(
        self, right: TokenRef | TimestampToken, time: Time, key: Any, make: Callable[[], V]
    ) -> V:
        """The value of a time and key; if there is none, it is made and the right held."""
        if not len(self._waiting) or not self._kinds.fits(key):
            self._admit(key)
        found, same = self._at(right, time), one_nan(key)
        try:
            return found[same]
        except KeyError:
            self._admit(key)
            value = found[same] = make()
            return value

    def pop_before(
        self, frontier: Antichain, *, inclusive: bool = False
    ) -> Iterator[tuple[Time, Any, V]]:
        """Take out all that is complete, in order of time: (time, key, value).

        With ``inclusive``, a time is complete once all times before it are: so with the end of
        a window that does not contain it.
        """
        for time, found in self._waiting.pop_before(frontier, inclusive=inclusive):
            for key, value in found.items():
                yield time, key, value

    def right_for(self, time: Time) -> TimestampToken:
        """The held token with which to answer what was at ``time``."""
        return self._tokens.token_for(time)

    def settle(self) -> None:
        """Hold no more than what is needed for what is still in."""
        self._tokens.settle(self._waiting.least())

    def __contains__(self, time_and_key: tuple[Time, Any]) -> bool:
        time, key = time_and_key
        return (
            time in self._waiting and self._kinds.fits(key) and one_nan(key) in self._waiting[time]
        )

    def __len__(self) -> int:
        """How many values are in."""
        return sum(len(self._waiting[time]) for time in self._waiting)

    def placed_at(self, place: KeyPlace) -> None:
        """Say where this container is, and how records come there: `keep` does."""
        self._place = place

    def kept_with(self, tokens: Sequence[TimestampToken]) -> None:
        """Refuse to be kept without the token that is needed to hold rights again."""
        self._tokens.require_initial(tokens)

    def snapshot(self) -> pa.Table:
        """All values with their times and the bins of their keys."""
        if len(self._waiting) and not self._kind.total:
            raise SnapshotError("values inside a loop wait: a snapshot needs loops at rest")
        rows = [(time, *item) for time in self._waiting for item in self._waiting[time].items()]
        keys, values = [row[1] for row in rows], [row[2] for row in rows]
        table = entries_table(keys, values, self._type, self._codec)
        table = table.append_column("time", pa.array([row[0] for row in rows], pa.int64()))
        return self._place.placed(table)

    def restore(self, state: pa.Table, tokens: Sequence[TimestampToken]) -> None:
        """All values again, with rights to answer them."""
        self._place.require_known(state)
        times = state.column("time").to_pylist()
        for time, key, value in zip(times, *entries(state, self._type, self._codec), strict=True):
            self.push(tokens[self._tokens.output], time, key, value)

    def _admit(self, key: Any) -> None:
        if not len(self._waiting):
            self._kinds.reset()
        self._kinds.admit(key)

    def _at(self, right: TokenRef | TimestampToken, time: Time) -> dict[Any, V]:
        if time not in self._waiting:
            time = self._kind.check(time)
            self._tokens.hold(right, time)
        return self._waiting.get_or(time, dict)
