"""info.shared: one object for the operators of a worker in a run, and for nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

import jeton as jt

pickling: Any = cloudpickle


def test_it_is_one_for_a_worker_and_another_for_others_and_for_other_runs() -> None:
    seen: list[tuple[str, int, object]] = []
    key = object()

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        token.drop()
        seen.append((info.name, info.worker, info.shared(key, list)))
        return lambda input, output: None

    flow = jt.Flow("shared")
    flow.input("n").unary(build, name="one").unary(build, name="other")
    flow.run({"n": {"time": []}}, workers=2)
    flow.run({"n": {"time": []}}, workers=2)
    objects = [shared for _, _, shared in seen]
    assert [(name, worker) for name, worker, _ in seen[:4]] == [
        ("one", 0), ("other", 0), ("one", 1), ("other", 1),
    ]  # fmt: skip
    assert objects[0] is objects[1]
    assert objects[2] is objects[3]
    assert len({id(shared) for shared in objects}) == 4


def test_different_keys_do_not_meet() -> None:
    made: list[object] = []

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        token.drop()
        made.extend([info.shared("a", list), info.shared("b", list), info.shared("a", dict)])
        return lambda input, output: None

    flow = jt.Flow("keys")
    flow.input("n").unary(build)
    flow.run({"n": {"time": []}})
    assert made[0] is made[2]
    assert made[0] is not made[1]


def test_a_flow_that_travels_keeps_its_keys() -> None:
    key = object()

    def leave(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        token.drop()
        info.shared(key, list[str]).append("here")
        return lambda input, output: None

    def find(token: jt.TimestampToken, info: jt.OperatorInfo) -> Callable[..., None]:
        left = info.shared(key, list[str])

        def step(output: jt.Output) -> None:
            with token, output.session(token) as session:
                session.give(found=len(left))

        return step

    flow = jt.Flow("travels")
    flow.input("n").unary(leave)
    flow.output("found", flow.source(find))
    copy: jt.Flow = pickling.loads(pickling.dumps(flow))
    assert copy.run({"n": {"time": []}})["found"]["found"].to_pylist() == [1]
