"""Small typed helpers that several tests share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pytest

import jeton as jt
from jeton.cluster.checkpoint_writer import RestorePoint
from jeton.connectors.sinks import SinkContext, Writer
from jeton.connectors.sinks.driver_sink import RowsToDriver
from jeton.connectors.source_plan import Deal, SourcePlan
from jeton.connectors.sources import Source
from jeton.runtime.attachments import Positions
from jeton.runtime.operator import Operator

EXAMPLES = Path(__file__).parent.parent / "examples"

SEEDS: list[int | None] = [None, *range(10)]
"""Straight on, and under ten random schedules with every frontier checked at every step."""

FROM_ZERO = jt.IntegerTimes(minimum=0)
"""Times whose first tokens and frontiers are at 0, which is easier to read than -(2**63)."""

seeded = pytest.mark.parametrize("seed", SEEDS)

T = TypeVar("T")

UnaryStep: TypeAlias = Callable[[jt.Input, jt.Output], None]
UnaryBuild: TypeAlias = Callable[[jt.TimestampToken, jt.OperatorInfo], UnaryStep]


def dropping(step: UnaryStep) -> UnaryBuild:
    """An operator that gives its first token up, the same step on every worker."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        token.drop()
        return step

    return build


def keeping(step: Callable[[jt.TimestampToken, jt.Input, jt.Output], None]) -> UnaryBuild:
    """An operator that keeps its first token, and gets it in each step."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        return lambda input, output: step(token, input, output)

    return build


def consume(input: jt.Input, output: jt.Output | None = None) -> None:
    """Take all messages and say nothing."""
    for _ in input:
        pass


def pass_on(input: jt.Input, output: jt.Output) -> None:
    """Send on what comes."""
    for ref, batch in input:
        with output.session(ref) as session:
            session.give(batch)


def in_step(act: Callable[[jt.Input, jt.Output], None], *, at: int = 0) -> jt.Result:
    """Run a flow of one operator, without a token, whose step is ``act``, on one record."""
    flow = jt.Flow("one operator", time=FROM_ZERO)
    flow.output("out", flow.input("in").unary(dropping(act), name="acting"))
    return flow.run({"in": {"time": [at], "n": [1]}})


def with_token(act: Callable[[jt.TimestampToken, jt.Output], None]) -> jt.Result:
    """Run a flow of one operator that does ``act`` with its first token, once."""
    done = False

    def step(token: jt.TimestampToken, input: jt.Input, output: jt.Output) -> None:
        nonlocal done
        consume(input)
        if not done:
            done = True
            act(token, output)
            if not token.dropped:
                token.drop()

    flow = jt.Flow("one token", time=FROM_ZERO)
    flow.output("out", flow.input("in").unary_frontier(keeping(step), name="acting"))
    return flow.run({"in": {"time": [0], "n": [1]}})


def operator(run: jt.Run, name: str, worker: int = 0) -> Operator:
    """An operator of a run by its name."""
    (found,) = [op for op in run.workers[worker].operators if op.plan.name == name]
    return found


def held(run: jt.Run, name: str, output: int = 0, worker: int = 0) -> dict[Any, int]:
    """How many tokens a worker counts at an operator's output, by time."""
    (node,) = [node for node in run.graph.nodes if node.name == name]
    location = node.outputs[output]
    counted = run.workers[worker].tracker.pointstamps()
    return {time: count for (at, time), count in counted.items() if at == location}


def stamped(table: pa.Table, column: str = "n", time: str = "time") -> list[tuple[Any, Any]]:
    """The records of a table as sorted pairs of time and value."""
    return sorted(zip(table[time].to_pylist(), table[column].to_pylist(), strict=True))


def messages(error: BaseException | None) -> str:
    """The texts of an error and of what caused it."""
    texts = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        texts.append(str(error))
        error = error.__cause__
    return "\n".join(texts)


@dataclass
class Stolen:
    """The token and the output of an operator, on each worker."""

    run: jt.Run
    tokens: list[jt.TimestampToken] = field(default_factory=list)
    outputs: list[jt.Output] = field(default_factory=list)
    inputs: list[jt.Input] = field(default_factory=list)
    act: Callable[[int], None] = lambda worker: None
    """Functions that the operator calls in its next steps."""

    def run_in_step(self, what: Callable[[], T], worker: int = 0) -> T:
        """Have the operator do something in a step of its own, and return what it gave."""
        got: list[T] = []

        def act(at: int) -> None:
            if at == worker and not got:
                got.append(what())

        self.act = act
        self.run.input("in", worker).send({"time": [jt.END_OF_TIME], "n": [0]})
        self.run.run_to_rest()
        return got[0]


@contextmanager
def stolen(workers: int = 1) -> Iterator[Stolen]:
    """A running flow whose operator "victim" keeps its first token and hands it out."""

    def build(token: jt.TimestampToken, info: jt.OperatorInfo) -> UnaryStep:
        tokens.append(token)
        outputs.extend(info.outputs)
        inputs.extend(info.inputs)

        def step(input: jt.Input, output: jt.Output) -> None:
            consume(input)
            loot.act(info.worker)

        return step

    tokens: list[jt.TimestampToken] = []
    outputs: list[jt.Output] = []
    inputs: list[jt.Input] = []
    flow = jt.Flow("stolen", time=FROM_ZERO)
    victim = flow.input("in").unary_frontier(build, name="victim", notify="always")
    flow.output("out", victim.probe("after"))
    with flow.open(workers=workers, check=True) as run:
        loot = Stolen(run, tokens, outputs, inputs)
        run.run_to_rest()
        yield loot


def in_thread(act: Callable[[], object]) -> BaseException | None:
    """Do something in another thread, wait for it, and return what it raised."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def load(name: str) -> ModuleType:
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def planned(
    sources: Mapping[str, Source], workers: int = 1, known: Positions | None = None
) -> Deal:
    """The partitions of sources, as the driver plans them."""
    return SourcePlan("query", sources).begin(workers, known or {})


def rows_writer(restore_point: RestorePoint, worker: int = 0) -> Writer:
    """A worker's end of a sink at the driver, with checkpoints."""
    query, attempt, files = restore_point.query, restore_point.attempt, restore_point.store.files
    return RowsToDriver().open(SinkContext(query, attempt, worker=worker, files=files))


def here() -> int:
    """The number of the line that calls this."""
    return sys._getframe(1).f_lineno
