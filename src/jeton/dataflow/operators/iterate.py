"""iterate: send records around a loop until none is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jeton.dataflow.stream_base import StreamBase

if TYPE_CHECKING:
    from jeton.dataflow.stream import Stream


class Iterate(StreamBase):
    """Adds `iterate` to streams."""

    def iterate(
        self, body: Callable[[Stream], tuple[Stream, Stream]], *, name: str = "iterate"
    ) -> Stream:
        """Run ``body`` on this stream and, round after round, on what it sends back.

        ``body(stream)`` returns two streams of the loop: what goes around again, and what
        leaves. Inside, times are ``Product(outer, round)``.

        >>> import jeton as jt
        >>> def collatz(numbers):
        ...     going, done = numbers.branch(lambda batch: batch["n"] == 1)
        ...
        ...     def following(batch):
        ...         n = batch["n"]
        ...         odd = n % 2 == 1
        ...         return {"n": odd * (3 * n + 1) + ~odd * (n // 2), "start": batch["start"]}
        ...
        ...     return going.map(following), done
        >>> flow = jt.Flow("collatz")
        >>> flow.output("done", flow.input("start").iterate(collatz))
        >>> rows = {"time": [0, 0], "n": [6, 7], "start": [6, 7]}
        >>> flow.run({"start": rows})["done"]["start"].to_pylist()
        [6, 7]
        """
        loop = self.scope.loop(name)
        again = loop.feedback(schema=self.schema)
        back, out = body(self.enter(loop).concat(again.stream))
        again.connect(back)
        return out.leave()
