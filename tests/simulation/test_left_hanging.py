"""A loop over an input that was left early, and whose iterator somebody keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import jeton as jt


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_times_that_were_not_reached_are_offered_again(seed: int | None) -> None:
    kept: list[Iterator[tuple[jt.TokenRef, jt.Batch]]] = []

    def build(
        token: jt.TimestampToken, info: jt.OperatorInfo
    ) -> Callable[[jt.Input, jt.Output], None]:
        token.drop()

        def step(input: jt.Input, output: jt.Output) -> None:
            loop = input.by_time()
            for ref, batch in loop:
                output.session(ref).give(batch)
                kept.append(loop)
                break

        return step

    flow = jt.Flow("hanging")
    flow.output("out", flow.input("in").unary(build))
    rows = {"time": [1, 2, 3], "n": [10, 20, 30]}
    assert flow.run({"in": rows}, seed=seed)["out"]["n"].to_pylist() == [10, 20, 30]
